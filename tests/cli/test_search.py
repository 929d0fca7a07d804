import csv
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import faces

import surefind as sf
from surefind.cli import main
from surefind.cli.decide import answer_cells
from surefind.decisions.decision import Gate
from surefind.gallery.gallery import Gallery


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
        opened.calibrate(x, truth, max_wrong=0.2, confidence=0.9)
    return gallery


def expected(gallery, **options):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.search(faces(30, 5)[0], **options)


def test_labels_without_a_calibration(surefind, gallery):
    code, out, err = surefind("search", gallery, "queries.npz", "-k", 4)
    assert code == 0, err
    answers = expected(gallery, k=4)
    assert "There are no decisions without a calibration." in out
    assert out.endswith("With labelled queries of your own: surefind calibrate g QUERIES")
    assert "The first 20 of 30 queries" in out
    assert f"│ q0 │ {answers.label[0]} │ – │ – │" in out  # brackets are no markup
    code, out, err = surefind("search", gallery, "queries.npz", "--json")
    assert code == 0, err
    first = json.loads(out)[0]
    assert (first["decision"], first["probability"], first["reasons"]) == (None, None, [])


def test_json_has_the_records_of_the_answers(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz", "-k", 4, "--json")
    assert code == 0, err
    answers = expected(calibrated, k=4)
    assert json.loads(out) == [
        {"query": f"q{i}", "stale": False} | record for i, record in enumerate(answers.records())
    ]


def test_the_table_shows_decisions_and_counts_them(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz")
    assert code == 0, err
    decisions = expected(calibrated).decision.tolist()
    counts = ", ".join(f"{decisions.count(d)} {d}" for d in ("match", "review", "no_match"))
    assert f"Decisions: {counts}." in out


def test_files_have_every_query(surefind, calibrated):
    for name in ("in/a.csv", "in/a.json", "in/a.parquet"):
        code, out, err = surefind("search", calibrated, "queries.npz", "-k", 3, "--out", name)
        assert code == 0, err
        assert f"Wrote the answers of 30 queries to {name}." in out
    answers = expected(calibrated, k=3)
    names = [f"q{i}" for i in range(30)]
    table = pq.read_table("in/a.parquet")
    assert table.equals(answers.to_arrow(names))
    with open("in/a.json") as file:
        assert [row["label"] for row in json.load(file)] == answers.label.tolist()
    with open("in/a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(rows[0]) == sorted(table.column_names)
    assert [row["label"] for row in rows] == answers.label.tolist()
    assert [float(row["probability"]) for row in rows] == answers.probability.tolist()
    assert [json.loads(row["reasons"]) for row in rows] == [list(why) for why in answers.reasons]
    near = [[found["id"] for found in json.loads(row["neighbours"])] for row in rows]
    assert near == answers.ids.tolist()


def test_without_pyarrow_a_parquet_file_is_refused_before_anything_is_read(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in str(refused("search", "gone", "gone", "--out", "a.parquet"))


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_leaves_does_not_keep_the_file_from_being_written(calibrated, options):
    reader, writer = os.pipe()
    os.close(reader)  # before anything was printed, as `| true` does
    with os.fdopen(writer, "w") as left, pytest.MonkeyPatch.context() as patch:
        line = ("search", calibrated, "queries.npz", "--out", "a.csv", *options)
        patch.setattr(sys, "argv", ["surefind", *line])
        patch.setattr(sys, "stdout", left)
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    assert len(Path("a.csv").read_text().splitlines()) == 1 + 30


def test_only_the_labels_that_are_given_are_possible(surefind, calibrated, refused):
    line = ("search", calibrated, "queries.npz", "--label", "[3]", "--label", "[5]", "--json")
    code, out, err = surefind(*line)
    assert code == 0, err
    answers = expected(calibrated, labels=["[3]", "[5]"])
    found = json.loads(out)
    assert [row["label"] for row in found] == answers.label.tolist()
    assert [row["decision"] for row in found] == answers.decision.tolist()
    assert {near["label"] for row in found for near in row["neighbours"]} == {"[3]", "[5]"}


def test_the_table_gives_no_probability_that_was_never_tested(surefind, gallery):
    rng = np.random.default_rng(0)

    def embedded(n, seed):
        x, y = faces(n, seed)
        return sf.Embeddings(x, rng.uniform(5, 50, n), rng.random(n) ** 2), [f"[{n}]" for n in y]

    with Gallery.open(gallery) as opened:
        opened.calibrate(*embedded(400, 2), max_wrong=0.3, confidence=0.9)
    asked, _ = embedded(30, 5)
    np.savez("asked.npz", mean=asked.mean, kappa=asked.kappa, novelty=asked.novelty)
    code, out, err = surefind("search", gallery, "asked.npz", "--json")
    assert code == 0, err
    outcome = Gate().outcome(asked.novelty).tolist()
    assert set(outcome) == {"unlike", "unusual", "pass"}
    shown = [answer_cells(row)[2] is not None for row in json.loads(out)]
    assert shown == [found == "pass" for found in outcome]
