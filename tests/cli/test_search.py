import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import surefind as sf
from surefind.cli.decide import answer_cells
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


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--json",), marks=pytest.mark.nightly)], ids=["table", "json"]
)
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


def test_the_table_gives_nothing_that_was_never_tested(surefind, gated):
    """No label of a query that is out of distribution, and no probability of one that is unusual."""
    code, out, err = surefind("search", gated, "asked.npz")
    assert code == 0, err
    assert "means nothing" in out
    assert "no probability was tested" in out
    rows = json.loads(surefind("search", gated, "asked.npz", "--json")[1])
    gates = [row["gate"] for row in rows]
    assert set(gates) == {"unlike", "unusual", "pass"}
    labels = [answer_cells(row)[1] for row in rows]
    assert [label is None for label in labels] == [gate == "unlike" for gate in gates]
    untested = [label is not None and label.endswith("(untested)") for label in labels]
    assert untested == [gate == "unusual" for gate in gates]
