import json
from dataclasses import asdict, replace

import numpy as np
import pytest

import surefind as sf
from surefind.evaluation.artifacts import read_pictures
from surefind.evaluation.bench import FREE, PROTOCOLS, read_cell, rows_of, run_bench, run_problem
from surefind.evaluation.bench.running import _finite
from surefind.evaluation.report import read_results
from surefind.learning.methods import METHODS

ABLATION_ROW = "laplace-posthoc-euclidean-full"


@pytest.fixture
def run(tiny, tmp_path):
    def run(rows, seeds=(0,), problem=tiny, **options):
        run_problem(problem, rows, seeds, results=tmp_path / "r", work=tmp_path / "w", **options)
        return {p.stem: read_cell(p) for p in sorted((tmp_path / "r" / problem.name).iterdir())}

    return run


def test_every_row_makes_a_cell_that_a_report_can_read(run, tmp_path):
    rows = [*rows_of(["all"], with_ablation=False), ABLATION_ROW]
    seen = []
    cells = run(rows, on_cell=lambda row, seed, values: seen.append((row, seed, values is None)))
    assert set(cells) == {f"{row}-seed0" for row in rows}
    assert seen == [(row, 0, before) for row in rows for before in (True, False)]
    assert len(read_results(tmp_path / "r").sets[0].cells) == len(rows)
    for stem, cell in cells.items():
        row = cell["row"]
        assert cell["examples"] == {"train": 120, "test": 40, "ood": 20}
        assert cell["versions"]["torch"]
        assert cell["protocol"]["margin"] == 0.7
        assert cell["ood"] == "noise"
        assert "recall@1" in cell["values"]
        pictures = read_pictures(tmp_path / "w" / "tiny" / f"{stem}.npz")
        if row == "deterministic":
            assert not {"auroc", "ausc", "ece"} & set(cell["values"])
            assert pictures is None
            continue
        assert {"auroc", "ausc"} <= set(cell["values"])
        assert {"roc", "precision-recall", "sparsification"} <= set(cell["curves"])
        assert pictures.strips["ood-highest"].shape == (12, 8, 8)
        if row in FREE:
            assert cell["settings"] == {"method": "Deterministic"}
            continue
        assert {"ece", "agreement_ausc"} <= set(cell["values"])
        assert set(cell["corruptions"]) == {"blur", "noise", "occlusion"}
        assert len(cell["kappa"]["edges"]) == 61
        assert pictures.sphere["id"].mean.shape == (40, 3)
        assert cell["ece_samples"] == 4
        assert cell["history"]["encoder"]
        text = (tmp_path / "r" / "tiny" / f"{stem}.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
    online = {"method": "LaplaceOnline"} | asdict(METHODS["laplace-online"]())
    assert cells["laplace-online-seed0"]["settings"] == online
    assert cells[f"{ABLATION_ROW}-seed0"]["settings"]["distance"] == "euclidean"
    posterior = cells[f"{ABLATION_ROW}-seed0"]["posterior"]
    assert 0 < posterior["clipped"] < 1
    least, middle, most = (posterior[f"{k}_precision"] for k in ("least", "median", "largest"))
    assert 0 < least <= middle < most


def test_good_cells_are_never_made_again_and_training_is_shared(run, tmp_path):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    before = file.read_bytes()
    steps = []
    run(["deterministic", "laplace-posthoc", "norm"], report=lambda *p: steps.append(p))
    assert file.read_bytes() == before
    assert steps == []  # the others start from the point estimate that is there


def edited(text, **changes):
    return json.dumps(json.loads(text) | changes)


def test_bad_cells_are_named_and_left_alone_before_anything_is_trained(run, tmp_path):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    whole = file.read_text()
    for text, told in (
        ('{"values": ', r"deterministic-seed0.json is not a whole result \(Expecting"),
        ("[]", "not a whole result: it lacks set, row, seed"),
        (whole.replace('"versions"', '"version"'), "lacks versions. Delete it"),
        (
            whole.replace('"epochs": 1', '"epochs": 9'),
            "another protocol: epochs was 9, is 1. Write",
        ),
        (whole.replace('"train": 120', '"train": 99'), "on other data: train was 99, is 120"),
        (
            whole.replace('"method": "Deterministic"', '"method": "Other"'),
            "other settings of the method: method was 'Other', is 'Deterministic'",
        ),
        (edited(whole, versions=None), "versions has not the form of a result. Delete it"),
        (edited(whole, protocol=[1]), "protocol has not the form"),
        (edited(whole, values={}), "values has not the form"),
        (edited(whole, left_out="a"), "left_out has not the form"),
        (edited(whole, seed=4), "says that it is tiny/deterministic-seed4.json"),
    ):
        file.write_text(text)
        steps = []
        with pytest.raises(sf.InputError, match=told):
            run(["hib", "deterministic"], report=lambda *p, steps=steps: steps.append(p))
        assert file.read_text() == text
        assert steps == []


def test_cells_of_other_versions_are_kept_and_named(run, tmp_path):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    cell = json.loads(file.read_text())
    cell["versions"]["surefind"] = "0.0.1"
    file.write_text(json.dumps(cell))
    said = []
    run(["deterministic"], say=said.append)
    assert len(said) == 1
    assert said[0].startswith("1 cells are kept that surefind 0.0.1 made, this is ")
    assert "deterministic-seed0.json" in said[0]


def test_places_are_looked_up_in_their_gallery(run, placed):
    said = []
    rows = ["laplace-posthoc", *FREE]
    cells = run(rows, problem=placed, say=said.append)
    assert said == ["mahalanobis is left out: it needs classes, and data has positions."]
    assert "mahalanobis-seed0" not in cells
    values = cells["laplace-posthoc-seed0"]["values"]
    assert values["recall@10"] > 0.9
    assert {"ausc", "agreement_ausc"} <= set(values)
    assert not {"ece", "auroc"} & set(values)
    assert cells["laplace-posthoc-seed0"]["corruptions"] == {}
    assert cells["margin-seed0"]["examples"] == {"train": 64, "test": 24, "gallery": 32}
    assert cells["margin-seed0"]["ood"] is None


def test_notes_of_the_data_are_said(tiny, tmp_path):
    said = []
    noted = replace(tiny, notes=("Two classes are small.",))
    run_problem(noted, [], [0], results=tmp_path, work=tmp_path, say=said.append)
    assert said == ["Two classes are small."]


def test_known_sets_run_by_name(tmp_path, monkeypatch):
    short = replace(PROTOCOLS["digits"], epochs=1)
    monkeypatch.setitem(PROTOCOLS, "digits", short)
    run_bench("digits", ["deterministic"], [0], data=None, results=tmp_path, work=tmp_path / "w")
    cell = read_cell(tmp_path / "digits" / "deterministic-seed0.json")
    assert cell["examples"] == {"train": 1078, "test": 599, "ood": 500}


def test_what_is_no_number_is_left_out():
    assert _finite({"a": 1.0, "b": np.nan, "c": np.inf}) == {"a": 1.0}


def test_unknown_sets_and_rows_are_refused(run, tmp_path):
    with pytest.raises(sf.InputError, match="data set must be one of 'fashion-mnist'"):
        run_bench("imagenet", ["hib"], [0], data=None, results=tmp_path, work=tmp_path)
    with pytest.raises(sf.InputError, match="row must be one of 'deterministic'"):
        run(["lam"])
