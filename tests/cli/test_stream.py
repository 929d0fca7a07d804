"""A stream of JSON lines: answered as a file would be, at once, in order, in bounded memory."""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefind as sf
from surefind.cli import stream
from surefind.cli.stream import LINES, Answerer, Splitter, answer_stream, line_batches
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery

DIM, PEOPLE = 8, 20


def faces(n, seed):
    """Embeddings with κ and novelty near 20 directions, and the name of each."""
    rng = np.random.default_rng(seed)
    who = rng.integers(PEOPLE, size=n)
    x = np.random.default_rng(0).normal(size=(PEOPLE, DIM))[who] + 0.3 * rng.normal(size=(n, DIM))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return sf.Embeddings(x, rng.uniform(5, 50, n), rng.random(n) ** 2), [f"n{w}" for w in who]


def queries(embeddings, **more):
    """The lines of embeddings, with their row as id."""
    columns = (embeddings.mean.tolist(), embeddings.kappa.tolist(), embeddings.novelty.tolist())
    return [
        {"id": i, "vector": vector, "kappa": kappa, "novelty": p} | more
        for i, (vector, kappa, p) in enumerate(zip(*columns, strict=True))
    ]


def numbered(lines):
    return [
        (n, line if isinstance(line, bytes) else json.dumps(line).encode()) for n, line in lines
    ]


def ask(answerer, *lines):
    return answerer.answer(numbered(enumerate(lines, start=1)))


def enrolled(**where):
    items, labels = faces(100, 1)
    gallery = Gallery(**where)
    gallery.add(items, ids=[f"p{i}" for i in range(100)], labels=labels)
    return gallery


@pytest.fixture(scope="module")
def plain():
    """A gallery without a calibration; not to be changed."""
    return enrolled()


@pytest.fixture
def gated(surefind):
    """The same in a folder, with a calibration that has a gate."""
    with enrolled(path="g") as gallery:
        gallery.calibrate(*faces(400, 2), max_wrong=0.3, confidence=0.9, contributions=False)
        yield gallery


def test_answers_are_those_of_a_file(surefind, gated):
    asked, _ = faces(30, 5)
    np.savez("a.npz", mean=asked.mean, kappa=asked.kappa, novelty=asked.novelty)
    code, out, err = surefind("search", "g", "a.npz", "-k", 3, "--json")
    assert code == 0, err
    found = ask(Answerer(gated, k=3), *queries(asked))
    for row, (answer, record) in enumerate(zip(found, json.loads(out), strict=True)):
        assert (answer.pop("id"), answer.pop("line")) == (row, row + 1)
        assert record.pop("query") == f"a/{row}"
        assert set(answer) == set(record)
        for name in ("label", "decision", "reasons", "gate", "novelty", "stale"):
            assert answer[name] == record[name]
        for name in ("probability", "none", "kappa"):
            assert answer[name] == pytest.approx(record[name], rel=1e-4)
        for name in ("neighbours", "evidence"):
            assert [x.get("id", x["label"]) for x in answer[name]] == [
                x.get("id", x["label"]) for x in record[name]
            ]


def test_the_same_answers_whatever_shares_a_batch(gated):
    """With others, alone, and among lines that cannot be used."""
    lines = queries(faces(20, 5)[0])
    bad = [b"{", {"id": 1}, lines[0] | {"vector": [1.0] * DIM}, lines[0] | {"novelty": None}]
    answerer = Answerer(gated, k=2)
    together = ask(answerer, *lines)
    for row in (0, 7, 19):
        alone = answerer.answer(numbered([(row + 1, lines[row])]))
        assert brief(alone) == brief(together[row : row + 1])
    mixed = ask(answerer, *bad, *lines, *bad)
    assert brief(x for x in mixed if "error" not in x) == brief(together)
    assert ["error" in x for x in mixed] == [True] * 4 + [False] * 20 + [True] * 4
    assert [x["line"] for x in mixed] == list(range(1, 29))


def brief(answers):
    return [(x["id"], x["label"], x["decision"], x["neighbours"][0]["id"]) for x in answers]


def test_queries_with_and_without_novelty_come_in_one_stream(plain):
    known = queries(faces(6, 5)[0])
    lines = [
        {k: x for k, x in line.items() if i % 2 or k in ("id", "vector")}
        for i, line in enumerate(known)
    ]
    found = ask(Answerer(plain), *lines)
    assert [x["novelty"] for x in found] == [x.get("novelty") for x in lines]
    assert [x["kappa"] for x in found] == [pytest.approx(x.get("kappa")) for x in lines]
    assert [x["decision"] for x in found] == [None] * 6


def test_groups_have_thresholds_of_their_own():
    grouped = enrolled()
    rng = np.random.default_rng(3)
    asked, truth = faces(900, 2)
    noisy = asked.mean + 0.9 * rng.normal(size=asked.mean.shape)
    noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
    groups = ["day"] * 450 + ["night"] * 450
    mean = np.concatenate([asked.mean[:450], noisy[450:].astype(np.float32)])
    grouped.calibrate(
        mean, truth, max_wrong=0.2, confidence=0.9, groups=groups, contributions=False
    )
    vectors = faces(40, 5)[0].mean
    for group in ("day", "night", None):
        lines = [{"vector": v.tolist(), "group": group} for v in vectors]
        wanted = grouped.search(vectors, groups=[group] * 40).decision.tolist()
        assert [x["decision"] for x in ask(Answerer(grouped), *lines)] == wanted
    # At night many are in between.
    doubtful = noisy[450:].astype(np.float32)
    assert (
        len({tuple(grouped.search(doubtful, groups=[g] * 450).decision) for g in ("day", None)})
        == 2
    )


UNIT = [1.0] + [0.0] * (DIM - 1)


@pytest.mark.parametrize(
    ("line", "id_", "words"),
    [
        (b"{", None, "no JSON"),
        (b"\xff", None, "no JSON"),
        (b'{"id": "\\ud800"}', None, "no JSON"),
        (b"[" * 10_000, None, "no JSON"),
        ([1], None, "JSON object"),
        ({"id": "a"}, "a", "one of vector, path, image"),
        ({"id": "a", "vector": UNIT, "path": "x"}, "a", "one of vector, path, image"),
        ({"id": 1.5, "vector": UNIT}, None, "an id must be"),
        ({"id": True, "vector": UNIT}, None, "an id must be"),
        ({"id": 3, "vector": UNIT, "novlty": 0.1}, 3, "'novlty' does not go with vector"),
        ({"id": 3, "vector": "abc"}, 3, "list of numbers"),
        ({"id": 3, "vector": ["1"] * DIM}, 3, "list of numbers"),
        ({"id": 3, "vector": [[1], [1, 2]]}, 3, "list of numbers"),
        ({"id": 3, "vector": []}, 3, "list of numbers"),
        ({"id": 3, "vector": [10**400] * DIM}, 3, "list of numbers"),
        ({"id": 3, "vector": UNIT[:-1]}, 3, f"7 dimensions and the gallery {DIM}"),
        ({"id": 3, "vector": [1.0] * DIM}, 3, "Add --normalize"),
        ({"id": 3, "vector": [0.0] * DIM}, 3, "no direction"),
        ({"id": 3, "vector": [1e300, *UNIT[1:]]}, 3, "infinite"),
        (b'{"id": 3, "vector": [NaN,0,0,0,0,0,0,1]}', 3, "NaN"),
        ({"id": 3, "vector": UNIT, "kappa": -1}, 3, "negative"),
        ({"id": 3, "vector": UNIT, "kappa": "1"}, 3, "kappa must be a number"),
        ({"id": 3, "vector": UNIT, "kappa": True}, 3, "kappa must be a number"),
        ({"id": 3, "vector": UNIT, "kappa": 10**400}, 3, "too large"),
        ({"id": 3, "vector": UNIT, "novelty": 2}, 3, "from 0 to 1"),
        ({"id": 3, "vector": UNIT, "group": []}, 3, "a group must be"),
        ({"id": 3, "path": "a.png"}, 3, "needs --run RUN"),
        ({"id": 3, "image": "aaaa"}, 3, "needs --run RUN"),
    ],
)
def test_a_bad_line_is_answered_with_a_sentence(plain, line, id_, words):
    good = {"id": "good", "vector": UNIT}
    first, found, last = ask(Answerer(plain), good, line, good)
    assert (found["id"], found["line"]) == (id_, 2)
    assert words in found["error"]
    assert set(found) == {"id", "line", "error"}
    assert first["neighbours"] == last["neighbours"]


def test_without_novelty_a_gate_refuses_the_line_and_not_the_stream(gated):
    line = queries(faces(1, 5)[0])[0]
    bare = {"id": "bare", "vector": line["vector"]}
    found = ask(Answerer(gated), bare, line, bare)
    assert ["error" in x for x in found] == [True, False, True]
    assert "error" not in ask(Answerer(gated, decide=False), bare)[0]


def test_vectors_of_any_length_with_normalize():
    rescaling = enrolled(normalize=True)
    line = queries(faces(1, 5)[0])[0]
    long = line | {"vector": [3 * x for x in line["vector"]]}
    one, other = ask(Answerer(rescaling), line, long)
    assert one["neighbours"][0]["id"] == other["neighbours"][0]["id"]
    assert other["kappa"] == line["kappa"]


def test_what_every_line_would_be_refused_for_is_refused_at_once(gated):
    gated.add(np.eye(DIM)[:1], ids=["sure"])
    gated.model = "another"
    with pytest.raises(InputError):
        Answerer(gated).check()
    with pytest.raises(DegenerateError):
        Answerer(Gallery()).check()


def test_images_by_path_and_by_content(surefind, sure, broken):
    """As the folder of the same images is answered."""
    assert surefind("index", "pets/dog", "--run", sure, "--out", "d")[0] == 0
    search = ("search", "d", "pets/cat", "--run", sure, "--on-bad", "skip", "--json")
    code, out, err = surefind(*search)
    assert code == 0, err
    records = {record["query"]: record for record in json.loads(out)}
    paths = sorted(Path("pets/cat").iterdir())
    lines = [{"id": p.name, "path": str(p)} for p in paths]
    lines += [{"id": p.name, "image": base64.b64encode(p.read_bytes()).decode()} for p in paths]
    lines += [{"id": "gone", "path": "gone.png"}, {"id": "odd", "image": "?"}, {"id": 7, "path": 7}]
    lines += [{"id": "sure", "path": str(paths[0]), "kappa": 7.0}]
    learner = sf.load(sure)
    with Gallery.open("d", mode="r") as opened:
        found = ask(Answerer(opened, learner), *lines)
        vector = opened.get(next(iter(opened))).vector.tolist()
        (embedded,) = ask(Answerer(opened, learner), {"vector": vector, "kappa": 9.0})
    errors = {(x["id"], x["line"]): x["error"] for x in found if "error" in x}
    assert [id_ for id_, _ in errors] == ["broken.png"] * 2 + ["gone", "odd", 7, "sure"]
    named = paths.index(Path("pets/cat/broken.png")) + 1
    assert "pets/cat/broken.png" in errors["broken.png", named]
    for answer in (x for x in found if "error" not in x):
        record = records[answer["id"]]
        assert answer["label"] == record["label"]
        assert [n["id"] for n in answer["neighbours"]] == [n["id"] for n in record["neighbours"]]
        assert answer["kappa"] == pytest.approx(record["kappa"], rel=1e-4)
    assert len(found) - len(errors) == 2 * len(records)
    assert embedded["kappa"] == 9.0  # a vector beside images is an embedding already


def test_a_run_of_vectors_embeds_them(surefind):
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 5
    vectors = rng.normal(size=(5, 6))[labels] + 0.3 * rng.normal(size=(200, 6))
    np.savez("v.npz", features=vectors.astype(np.float32), labels=labels)
    assert (
        surefind("fit", "v.npz", "--out", "head", "--scale", 200, "--prior-precision", 1000)[0] == 0
    )
    assert surefind("index", "v.npz", "--run", "head", "--out", "g")[0] == 0
    code, out, err = surefind("search", "g", "v.npz", "--run", "head", "--json")
    assert code == 0, err
    with Gallery.open("g", mode="r") as opened:
        answerer = Answerer(opened, sf.load("head"))
        rows = vectors.astype(np.float32).tolist()
        found = ask(answerer, *({"vector": row} for row in rows))
        bad = ask(
            answerer, {"vector": rows[0], "kappa": 3.0}, {"vector": rows[0][1:]}, {"path": "a"}
        )
    for answer, record in zip(found, json.loads(out), strict=True):
        assert answer["neighbours"][0]["id"] == record["neighbours"][0]["id"]
        assert answer["kappa"] == pytest.approx(record["kappa"], rel=1e-4)
    assert all("error" in answer for answer in bad)


@given(st.lists(st.text("ab\n", max_size=9), max_size=9))
def test_chunks_are_split_into_the_lines_of_the_text(chunks):
    splitter, lines = Splitter(), []
    for chunk in chunks:
        lines += splitter.split(chunk.encode())
    lines += splitter.last()
    wanted = "".join(chunks).encode().split(b"\n")
    assert lines == (wanted if wanted[-1] else wanted[:-1])


def test_a_line_that_is_too_long_is_forgotten(monkeypatch):
    monkeypatch.setattr(stream, "LONGEST", 4)
    splitter = Splitter()
    assert splitter.split(b"abcd\nabc") == [b"abcd"]
    assert splitter.split(b"de") == []
    assert splitter._begun == []
    assert splitter.split(b"fg\nab\nabcde") == [None, b"ab"]
    assert splitter.last() == [None]


@pytest.fixture
def pipe():
    source, sink = os.pipe()
    with open(source, "rb", closefd=True), open(sink, "wb", buffering=0) as writing:
        yield source, writing


def test_what_has_come_is_one_batch_and_nothing_is_waited_for(pipe):
    source, writing = pipe
    batches = line_batches(source)
    for line in (b"a", b"b"):
        writing.write(line + b"\n")
        assert next(batches) == [line]  # before there is another one
    writing.write(b"x\n" * (2 * LINES + 3) + b"end")
    writing.close()
    found = list(batches)
    assert [len(batch) for batch in found][:2] == [LINES, LINES]
    assert [*chain(*found)] == [b"x"] * (2 * LINES + 3) + [b"end"]


def test_many_bytes_are_a_batch_too(pipe, monkeypatch):
    monkeypatch.setattr(stream, "TEXT", 1)
    monkeypatch.setattr(stream, "CHUNK", 2)
    source, writing = pipe
    writing.write(b"a\nb\n")
    writing.close()
    assert list(line_batches(source)) == [[b"a"], [b"b"]]


def test_what_cannot_be_read_is_an_error_of_the_system(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="directory"):
        next(line_batches(folder))
    os.close(folder)


def test_lines_are_counted_as_the_producer_counts_them(pipe, plain, tmp_path):
    source, writing = pipe
    good = json.dumps({"vector": UNIT}).encode()
    writing.write(b"\n" + good + b"\r\n  \nbad\n" + good)
    writing.close()
    with (tmp_path / "answers").open("wb") as out:
        assert answer_stream(Answerer(plain), source, out.fileno()) == (5, 1)
    answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [(x["line"], "error" in x) for x in answers] == [(2, False), (4, True), (5, False)]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--out", "a.json"], "out"),
        (["--groups", "a.npy"], "groups"),
        (["--on-bad", "skip"], "on_bad"),
    ],
)
def test_options_that_a_stream_has_no_use_for_are_refused(refused, options, field):
    assert refused("search", "g", "-", *options).field == field


def test_a_closed_standard_input_is_refused(refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert refused("search", "g", "-").field == "queries"


IN_FRONT = """
import signal
from runpy import run_module

# Where the tests run in a shell's background, Ctrl-C is ignored by whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
run_module("surefind", run_name="__main__")
"""


@pytest.fixture
def started(gated):
    """Start `surefind search g -` as a process of its own; ended with the test."""
    running = []

    def start(*options):
        process = subprocess.Popen(
            [sys.executable, "-c", IN_FRONT, "search", "g", "-", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                file.close()


def sent(line):
    return (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"


@pytest.mark.slow
def test_a_slow_producer_gets_each_answer_before_it_sends_the_next(started):
    process = started("-k", "2")
    lines = [*queries(faces(3, 5)[0]), b"bad", *queries(faces(2, 6)[0])]
    for number, line in enumerate(lines, start=1):
        process.stdin.write(sent(line))
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer["line"] == number
        assert ("error" in answer) == (line == b"bad")
    rest, errors = process.communicate()
    assert (rest, process.returncode) == (b"", 1)
    assert errors.decode() == "Error: 1 of 6 lines could not be answered; their answers say why.\n"


@pytest.mark.slow
def test_a_stream_without_a_bad_line_ends_well(started):
    process = started()
    out, errors = process.communicate(b"".join(sent(x) for x in queries(faces(600, 5)[0])))
    assert (process.returncode, errors) == (0, b"")
    assert [json.loads(line)["id"] for line in out.splitlines()] == list(range(600))


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_stream_quietly(started):
    process = started()
    line = sent(queries(faces(1, 5)[0])[0])
    process.stdin.write(line)
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write(line)
    process.stdin.flush()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_the_stream_quietly(started):
    process = started()
    process.stdin.write(sent(queries(faces(1, 5)[0])[0]))
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    assert process.stderr.read() == b""


def resident(process):
    """Memory of a process in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


only_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@pytest.mark.slow
@only_linux
def test_a_long_stream_does_not_grow_the_memory(started):
    process = started("-k", "1")
    lines = [sent(x)[:-1] + b" " * 8192 + b"\n" for x in queries(faces(100, 5)[0])]
    count = 6000

    def produce():
        for i in range(count):
            process.stdin.write(lines[i % 100])
        process.stdin.close()

    producer = threading.Thread(target=produce)
    producer.start()
    memory = {}
    for i in range(count):
        assert json.loads(process.stdout.readline())["line"] == i + 1
        if i in (1500, count - 1):
            memory[i] = resident(process)
    producer.join()
    assert process.wait(60) == 0
    assert memory[count - 1] - memory[1500] < 16  # 37 MB of text came meanwhile


@pytest.mark.slow
@only_linux
def test_a_consumer_that_does_not_read_holds_up_the_producer(started):
    process = started()
    line = sent(queries(faces(1, 5)[0])[0])[:-1] + b" " * 8192 + b"\n"
    process.stdin.write(line)
    process.stdin.flush()
    process.stdout.readline()
    os.set_blocking(process.stdin.fileno(), False)
    accepted, last = 0, time.monotonic()
    while time.monotonic() - last < 3 and accepted < 200e6:
        try:
            accepted += os.write(process.stdin.fileno(), line * 8)
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    assert accepted < 16e6
