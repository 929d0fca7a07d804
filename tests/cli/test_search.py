import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import surefind as sf
from surefind.cli.decide import answer_rows, answer_table
from surefind.gallery.gallery import Gallery


def faces(n, seed, people=20):
    """Unit vectors near 20 directions, and the number of each."""
    centres = np.random.default_rng(0).normal(size=(people, 8))
    rng = np.random.default_rng(seed)
    labels = rng.integers(people, size=n)
    x = centres[labels] + 0.3 * rng.normal(size=(n, 8))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def gallery(surefind):
    """A gallery of 20 people without a calibration, and 30 queries."""
    x, y = faces(100, 1)
    with Gallery(path="g") as made:
        made.add(x, ids=[f"p{i}" for i in range(100)], labels=[f"[{n}]" for n in y])
    x, y = faces(30, 5)
    np.savez("queries.npz", features=x, ids=[f"q{i}" for i in range(30)])
    return "g"


@pytest.fixture
def calibrated(gallery):
    x, y = faces(400, 2)
    with Gallery.open(gallery) as opened:
        truth = [f"[{n}]" for n in y]
        opened.calibrate(x, truth, max_wrong=0.2, confidence=0.9, contributions=False)
    return gallery


def expected(gallery, **options):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.search(faces(30, 5)[0], **options)


def test_neighbours_without_a_calibration(surefind, gallery):
    code, out, err = surefind("search", gallery, "queries.npz", "-k", 4)
    assert code == 0, err
    answers = expected(gallery, k=4)
    assert "No decisions without a calibration. Make one: surefind calibrate g" in out
    assert "The first 20 of 30 queries" in out
    assert answers.ids[0, 0] in out
    assert f"({answers.labels[0, 0]}," in out  # brackets are no markup
    assert f"{answers.label[0]} ({answers.label_probability[0, 0]:.2f})" in out
    assert f"{answers.none[0]:.2f}" in out
    assert "by the neighbourhood alone" in out
    code, out, err = surefind("search", gallery, "queries.npz", "--json")
    assert code == 0, err
    first = json.loads(out)[0]
    assert (first["decision"], first["probability"], first["reasons"]) == (None, None, [])
    assert first["neighbours"][0]["kappa"] is None


def test_json_has_everything(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz", "-k", 4, "--json")
    assert code == 0, err
    answers, records = expected(calibrated, k=4), json.loads(out)
    assert [row["query"] for row in records] == [f"q{i}" for i in range(30)]
    assert [row["decision"] for row in records] == answers.decision.tolist()
    assert [row["probability"] for row in records] == answers.probability.tolist()
    assert [tuple(row["reasons"]) for row in records] == answers.reasons
    assert [[n["id"] for n in row["neighbours"]] for row in records] == answers.ids.tolist()
    assert [[n["label"] for n in row["neighbours"]] for row in records] == answers.labels.tolist()
    assert not any(row["stale"] for row in records)
    assert [row["label"] for row in records] == answers.label.tolist()
    assert [row["none"] for row in records] == answers.none.tolist()
    listed = [[found["label"] for found in row["label_probability"]] for row in records]
    assert listed == answers.candidates.tolist()
    for i, row in enumerate(records):
        evidence = [[item["id"] for item in found["items"]] for found in row["evidence"]]
        assert evidence == [found.ids for found in answers.evidence(i)]
        assert row["evidence"][0]["label"] == row["label"]


def test_the_table_shows_decisions_and_counts_them(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz")
    assert code == 0, err
    decisions = expected(calibrated).decision.tolist()
    counts = ", ".join(f"{decisions.count(d)} {d}" for d in ("match", "review", "no_match"))
    assert f"Decisions: {counts}." in out
    assert "its probability: as calibrated" in " ".join(out.split())


@pytest.fixture
def outvoted(surefind):
    """A query whose nearest item is a stray a among many b."""
    rng = np.random.default_rng(0)
    centres = np.eye(4)[[0] * 30 + [1] * 30]
    x = centres + 0.05 * rng.normal(size=(60, 4))
    x[30] = np.eye(4)[0]  # b by its label, in the middle of the a
    labels = ["a"] * 30 + ["b"] * 30
    with Gallery(path="g", normalize=True) as made:
        made.add(x, ids=[f"i{i}" for i in range(60)], labels=labels)
    np.savez("query.npz", features=np.eye(4, dtype=np.float32)[:1], ids=["q"])
    return "g"


def test_the_label_need_not_be_the_nearest_items(surefind, outvoted):
    code, out, err = surefind("search", outvoted, "query.npz", "-k", 2, "--out", "a.csv", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["neighbours"][0]["id"], row["neighbours"][0]["label"]) == ("i30", "b")
    assert row["label"] == "a" == row["label_probability"][0]["label"]
    assert row["evidence"][0]["label"] == "a"
    with open("a.csv", newline="") as file:
        (line,) = csv.DictReader(file)
    assert line["label"] == "a"
    assert [near["label"] for near in json.loads(line["neighbours"])] == ["b", "a"]
    _, out, _ = surefind("search", outvoted, "query.npz")
    assert f"│ q │ a ({row['label_probability'][0]['probability']:.2f})" in out


def test_files_have_every_query(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz", "-k", 3, "--out", "in/a.csv")
    assert code == 0, err
    assert "Wrote the answers of 30 queries to in/a.csv." in out
    with open("in/a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = expected(calibrated, k=3)
    near = [json.loads(r["neighbours"]) for r in rows]
    assert [[n["id"] for n in row] for row in near] == answers.ids.tolist()
    assert [[n["label"] for n in row] for row in near] == answers.labels.tolist()
    assert {(r["stale"], r["gate"]) for r in rows} == {("false", "")}
    assert [r["label"] for r in rows] == answers.label.tolist()
    assert [float(r["probability"]) for r in rows] == answers.probability.tolist()
    assert [r["decision"] for r in rows] == answers.decision.tolist()
    assert [json.loads(r["reasons"]) for r in rows] == [list(why) for why in answers.reasons]
    assert [json.loads(r["candidates"]) for r in rows] == answers.candidates.tolist()
    surefind("search", calibrated, "queries.npz", "--out", "a.json")
    with open("a.json") as file:
        assert len(json.load(file)) == 30


def test_a_parquet_file_is_the_table_of_the_library(surefind, calibrated):
    options = ("-k", 3, "--out", "in/a.parquet")
    code, out, err = surefind("search", calibrated, "queries.npz", *options)
    assert code == 0, err
    assert "Wrote the answers of 30 queries to in/a.parquet." in out
    answers = expected(calibrated, k=3)
    assert pq.read_table("in/a.parquet") == answers.to_arrow([f"q{i}" for i in range(30)])
    assert [path.name for path in Path("in").iterdir()] == ["a.parquet"]


@pytest.fixture
def gated(surefind):
    """A gallery whose calibration has a gate, with payloads, and 30 queries with κ and novelty."""

    def embedded(n, seed):
        rng = np.random.default_rng(seed)
        x, y = faces(n, seed)
        return sf.Embeddings(x, rng.uniform(5, 50, n), rng.random(n) ** 2), [f"n{n}" for n in y]

    items, labels = embedded(100, 1)
    with Gallery(path="g") as made:
        made.add(items, labels=labels, payload=[{"path": f"é,{i}.png"} for i in range(100)])
        made.calibrate(*embedded(400, 2), max_wrong=0.3, confidence=0.9, contributions=False)
    asked, _ = embedded(30, 5)
    np.savez("asked.npz", mean=asked.mean, kappa=asked.kappa, novelty=asked.novelty)
    return "g"


def test_the_table_names_no_label_of_a_query_that_is_unlike_anything_seen(gated):
    with np.load("asked.npz") as asked, Gallery.open(gated, mode="r") as opened:
        answers = opened.search(sf.Embeddings(asked["mean"], asked["kappa"], asked["novelty"]))
    table = answer_table(answer_rows([f"q{i}" for i in range(30)], answers)[:20], answers)
    stopped = [gate == "unlike" for gate in answers.gate[:20]]
    assert {*stopped} == {True, False}
    columns = {str(column.header): [*map(str, column.cells)] for column in table.columns}
    assert [cell == "–" for cell in columns["label"]] == stopped
    assert [cell == "–" for cell in columns["none"]] == stopped
    assert all(cell == "–" for cell, at in zip(columns["runner-up"], stopped, strict=True) if at)
    assert "means nothing" in table.caption


def test_the_table_gives_no_probability_that_was_never_tested(gated):
    with np.load("asked.npz") as asked, Gallery.open(gated, mode="r") as opened:
        answers = opened.search(sf.Embeddings(asked["mean"], asked["kappa"], asked["novelty"]))
    table = answer_table(answer_rows([f"q{i}" for i in range(30)], answers)[:20], answers)
    labels = [str(cell) for cell in table.columns[1].cells]
    unusual = [gate == "unusual" for gate in answers.gate[:20]]
    assert {*unusual} == {True, False}
    assert [cell.endswith("(untested)") for cell in labels] == unusual
    assert "no probability was tested" in table.caption


def test_a_narrow_table_keeps_what_decides(gated):
    with np.load("asked.npz") as asked, Gallery.open(gated, mode="r") as opened:
        embedded = sf.Embeddings(asked["mean"], asked["kappa"], asked["novelty"])
        decided = opened.search(embedded)
        undecided = opened.search(embedded, decide=False)
    names = [f"a-long-name-of-a-query-{i}" for i in range(30)]
    columns = [
        [
            str(column.header)
            for column in answer_table(answer_rows(names, found), found, width=80).columns
        ]
        for found in (decided, undecided)
    ]
    assert columns[0] == ["query", "label", "decision", "reasons"]
    assert columns[1] == ["query", "label", "none", "nearest"]


def test_names_of_queries_are_whole_in_a_narrow_table(surefind, gated):
    code, out, err = surefind("search", gated, "asked.npz")
    assert code == 0, err
    assert "…" not in out


def test_files_have_gate_novelty_kappa_and_payload(surefind, gated):
    for name in ("a.csv", "a.json", "a.parquet"):
        code, _, err = surefind("search", gated, "asked.npz", "-k", 2, "--out", name)
        assert code == 0, err
    with np.load("asked.npz") as asked, Gallery.open(gated, mode="r") as opened:
        embedded = sf.Embeddings(asked["mean"], asked["kappa"].astype("f4"), asked["novelty"])
        answers = opened.search(embedded, k=2)
    with open("a.csv", newline="") as file:
        lines = [r | {"neighbours": json.loads(r["neighbours"])} for r in csv.DictReader(file)]
    with open("a.json") as file:
        records = json.load(file)
    rows = pq.read_table("a.parquet").to_pylist()
    assert set(answers.gate) == {"unlike", "unusual", "pass"}
    for found in (lines, records, rows):
        assert [r["gate"] for r in found] == answers.gate.tolist()
        assert [float(r["novelty"]) for r in found] == answers.novelty.tolist()
        assert [float(r["kappa"]) for r in found] == answers.kappa.tolist()
    payload = answers.payload.ravel().tolist()
    assert [n["payload"] for r in records for n in r["neighbours"]] == payload
    for found in (lines, rows):
        assert [json.loads(n["payload"]) for r in found for n in r["neighbours"]] == payload


def test_without_pyarrow_a_parquet_file_is_refused_before_anything_is_read(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in str(refused("search", "gone", "gone", "--out", "a.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_leaves_does_not_keep_the_file_from_being_written(calibrated, options):
    command = ("search", calibrated, "queries.npz", "--out", "a.csv", *options)
    with Path("errors").open("w") as errors:
        found = subprocess.Popen(
            [sys.executable, "-m", "surefind", *command], stdout=subprocess.PIPE, stderr=errors
        )
        found.stdout.close()  # before anything was printed, as `| true` does
        assert found.wait() == 0
    assert "Error" not in Path("errors").read_text()
    assert len(Path("a.csv").read_text().splitlines()) == 1 + 30


def test_with_json_nothing_else_is_printed(surefind, sure):
    surefind("index", "digits:train", "--run", sure, "--out", "g")
    options = ("--run", sure, "-k", 2, "--json", "--out", "a.json")
    code, out, err = surefind("search", "g", "digits:test", *options)
    assert code == 0
    assert len(json.loads(out)) == 599
    assert "Wrote the answers" in err


def test_a_calibration_follows_the_items(surefind, calibrated):
    with Gallery.open(calibrated) as opened:
        opened.delete(["p0"])
    code, out, err = surefind("search", calibrated, "queries.npz")
    assert code == 0, err
    assert "Decisions" in out


def test_bad_images_are_left_out_beside_what_a_program_reads(surefind, refused, sure, broken):
    assert surefind("index", "pets/dog", "--run", sure, "--out", "g")[0] == 0
    search = ("search", "g", "pets/cat", "--run", sure)
    assert refused(*search).field == "on_bad"
    code, out, err = surefind(*search, "--on-bad", "skip", "--json")
    assert code == 0, err
    assert [row["query"] for row in json.loads(out)] == [f"{i}.png" for i in range(6)]
    assert "Left out 1 images that cannot be read:" in err


def test_groups_reach_the_gallery(surefind, calibrated):
    np.save("groups.npy", np.array(["day"] * 30))
    code, _, err = surefind("search", calibrated, "queries.npz", "--groups", "groups.npy")
    assert code == 0, err


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["g", "queries.npz", "--out", "a.txt"], "out"),
        (["nowhere", "gone"], "path"),
        (["g", "gone", "--out", "folder.csv"], "out"),
        (["g", "gone"], "source"),
    ],
)
def test_what_cannot_be_searched_is_refused(refused, gallery, options, field):
    Path("folder.csv").mkdir()
    assert refused("search", *options).field == field


def test_what_a_gallery_refuses_is_a_sentence(refused, gallery):
    np.save("wide.npy", np.eye(9, dtype=np.float32))
    Gallery(path="empty").close()
    for arguments in (("g", "wide.npy"), ("empty", "queries.npz")):
        assert isinstance(refused("search", *arguments), sf.InputError)


@pytest.mark.parametrize("options", [["g", "queries.npz", "-k", 0], ["g"]])
def test_wrong_usage_has_its_own_code(surefind, options):
    assert surefind("search", *options)[0] == 2


def test_another_run_is_refused(surefind, refused, sure, trained):
    surefind("index", "digits:train", "--run", sure, "--out", "g")
    assert refused("search", "g", "digits:test", "--run", trained).field == "run"


def test_plain_vectors_get_no_decision_where_the_calibration_had_kappa(surefind, refused, tmp_path):
    """They would count as surer than any; at every door they are refused, and found without decisions."""
    x, labels = faces(60, 5)
    kappa = np.full(60, 50.0, dtype=np.float32)
    with Gallery(path="sure") as gallery:
        gallery.add(sf.Embeddings(x, kappa), labels=list(labels))
        gallery.calibrate(sf.Embeddings(x, kappa), list(labels), contributions=False)
        with pytest.raises(sf.InputError, match="have none"):
            gallery.search(x)
    np.save("plain.npy", x)
    assert "kappa" in str(refused("search", "sure", "plain.npy"))


def test_kappa_of_the_query_is_in_every_answer(surefind, gallery):
    np.savez("asked.npz", mean=faces(3, 5)[0], kappa=np.array([5.0, 6.0, np.inf]))
    for suffix in ("csv", "json", "parquet"):
        assert surefind("search", gallery, "asked.npz", "-k", 1, "--out", f"a.{suffix}")[0] == 0
    with open("a.csv", newline="") as file:
        assert [row["kappa"] for row in csv.DictReader(file)] == ["5", "6", "inf"]
    assert [row["kappa"] for row in json.loads(Path("a.json").read_text())] == [5.0, 6.0, None]
    assert pq.read_table("a.parquet")["kappa"].to_pylist() == [5.0, 6.0, np.inf]
