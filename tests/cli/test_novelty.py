"""Novelty at the command line: from a file through gallery and calibration to the answers."""

import numpy as np
import pytest
from command_line import faces

import surefind as sf
from surefind.cli.galleries import read_items
from surefind.cli.measure import write_embeddings
from surefind.decisions.decision import Gate
from surefind.gallery.gallery import Gallery

TARGET = ("--max-wrong", 0.2, "--confidence", 0.9)


def write(file, n, seed, **columns):
    x, y = faces(n, seed)
    np.savez(file, mean=x, labels=y, kappa=np.full(n, 50.0), **columns)


@pytest.fixture
def gallery(surefind):
    """A gallery of 20 people, calibrated with a gate, and queries with and without novelty."""
    p = np.random.default_rng(4).random(600)
    write("people.npz", 100, 1, novelty=np.linspace(0, 1, 100))
    write("held-out.npz", 600, 2, novelty=p)
    write("queries.npz", 30, 5, novelty=np.tile([0.5, 0.03, 0.0004], 10))
    write("blind.npz", 30, 5)
    for command in (
        ("index", "people.npz", "--out", "g"),
        ("calibrate", "g", "held-out.npz", *TARGET, "--max-false-alarms", 0.02),
    ):
        code, _, err = surefind(*command)
        assert code == 0, err
    return "g"


@pytest.mark.parametrize("file", ["a.npz", "a.parquet"])
def test_files_keep_novelty(tmp_path, file):
    x, y = faces(6, 0)
    p = np.linspace(0, 1, 6)
    dataset = sf.Dataset(np.zeros((6, 2), dtype=np.float32), y)
    write_embeddings(tmp_path / file, sf.Embeddings(x, np.full(6, np.inf), p), dataset)
    found = read_items(str(tmp_path / file), None).embedded
    np.testing.assert_array_equal(found.novelty, p)
    np.testing.assert_array_equal(found.mean, x)


def test_the_calibration_has_the_gate_that_was_asked_for(surefind, gallery):
    with Gallery.open(gallery, mode="r") as opened:
        made = opened.calibration
    assert made.gate == Gate(0.02)
    p = np.random.default_rng(4).random(600)
    assert made.gate_counts.unlike == (p <= 0.02).sum()


def test_queries_without_novelty_are_refused_where_there_is_a_gate(surefind, refused, gallery):
    error = refused("search", gallery, "blind.npz")
    assert error.field == "novelty"
