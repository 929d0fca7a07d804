"""`surefind search GALLERY -`: a JSON line in, a JSON line out."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from cli.conftest import unit

import surefind as sf
from surefind.cli.decide import answer_stream, line_batches
from surefind.gallery.gallery import Gallery


@pytest.fixture
def gallery(surefind):
    with Gallery(path="g") as made:
        made.add(unit(30), ids=[f"i{n}" for n in range(30)], labels=["x", "y"] * 15)
    with Gallery.open("g", mode="r") as opened:
        yield opened


def answered(gallery, lines, learner=None):
    """Answer lines through pipes; give the answers and the counts."""
    (source, feed), (drain, sink) = os.pipe(), os.pipe()
    os.write(feed, "".join(f"{line}\n" for line in lines).encode())
    os.close(feed)
    counts = answer_stream(partial(gallery.search, k=3), learner, source, sink)
    os.close(sink)
    with os.fdopen(drain) as file:
        return [json.loads(line) for line in file], counts


def test_each_line_gets_the_answer_of_a_search(gallery):
    queries = unit(5, 1)
    lines = [json.dumps({"id": n, "vector": (3 * q).tolist()}) for n, q in enumerate(queries)]
    found, counts = answered(gallery, [lines[0], "", *lines[1:]])
    assert counts == (6, 0)
    expected = gallery.search(queries, k=3)
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["line"] for row in found] == [1, 3, 4, 5, 6]
    assert [row["label"] for row in found] == expected.label.tolist()
    assert [[n["id"] for n in row["neighbours"]] for row in found] == expected.ids.tolist()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no json", "JSON"),
        ("[1, 2]", "object"),
        ('{"id": "a"}', "vector"),
        ('{"vector": [1, 0, 0, 0], "path": "a.png"}', "path"),
        ('{"vector": [1, "x", 0, 0]}', "vector"),
        ('{"vector": [1, 0, 0]}', "columns"),
        ('{"vector": [0, 0, 0, 0]}', "zero"),
        ('{"vector": [1, 0, 0, 0], "novelty": 2}', "novelty"),
        ('{"vector": [1, 0, 0, 0], "kappa": -1}', "kappa"),
    ],
)
def test_a_line_that_cannot_be_answered_says_why_and_the_stream_goes_on(gallery, line, words):
    good = json.dumps({"vector": [1, 0, 0, 0]})
    found, counts = answered(gallery, [good, line, good])
    assert counts == (3, 1)
    assert ["error" in row for row in found] == [False, True, False]
    assert words in found[1]["error"]


def test_a_run_of_vectors_embeds_them(surefind, tmp_path):
    y = np.arange(60) % 3
    x = np.eye(3, 5)[y] + 0.1 * np.random.default_rng(0).normal(size=(60, 5))
    np.savez("a.npz", features=x.astype(np.float32), labels=y)
    assert (
        surefind("fit", "a.npz", "--out", "r", "--set", "scale=9", "--set", "prior_precision=9")[0]
        == 0
    )
    assert surefind("index", "a.npz", "--run", "r", "--out", "g")[0] == 0
    learner = sf.load("r")
    with Gallery.open("g", mode="r") as opened:
        (row,), _ = answered(opened, [json.dumps({"vector": x[0].tolist()})], learner)
    own = learner.embed(x[:1].astype(np.float32))
    assert row["kappa"] == pytest.approx(float(own.kappa[0]), rel=1e-4)


def test_lines_are_whole_whatever_the_chunks(monkeypatch):
    monkeypatch.setattr("surefind.cli.decide.CHUNK", 3)
    source, feed = os.pipe()
    os.write(feed, b"ab\ncdefgh\n\nlast")
    os.close(feed)
    assert [line for batch in line_batches(source) for line in batch] == [
        b"ab",
        b"cdefgh",
        b"",
        b"last",
    ]


def test_as_a_shell_pipes_it(gallery, refused):
    line = json.dumps({"vector": [1, 0, 0, 0]}) + "\nnothing\n"
    found = subprocess.run(
        [sys.executable, "-m", "surefind", "search", "g", "-"],
        input=line,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert len(found.stdout.splitlines()) == 2
    assert "1 of 2 lines could not be answered" in found.stderr
    assert refused("search", "g", "-", "--out", "a.csv").field == "queries"
