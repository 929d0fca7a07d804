import json
from dataclasses import replace

import pytest

import surefind as sf
from surefind.evaluation.bench import FREE, ablation, rows_of, write_cell
from surefind.evaluation.bench.lineup import method_of, samples_of, stage_of
from surefind.learning.methods import METHODS


def test_rows():
    assert rows_of(["all"], with_ablation=False) == [*METHODS, *FREE]
    assert rows_of(["pfe", "deterministic"], with_ablation=False) == ["deterministic", "pfe"]
    assert len(ablation()) == 12
    assert len(rows_of(["hib"], with_ablation=True)) == 13
    with pytest.raises(sf.InputError, match="method must be one of 'all', 'deterministic'"):
        rows_of(["lam"], with_ablation=False)


def test_rows_that_train_the_same_share_their_training():
    assert stage_of("laplace-posthoc-euclidean-full") == stage_of("mahalanobis") == "shared"
    assert stage_of("laplace-online-arccos-fixed") == stage_of("laplace-online")
    assert stage_of("laplace-online-arccos-full") == "laplace-online-arccos-full"
    assert stage_of("hib") == "hib"


def test_a_row_is_a_method_with_its_options():
    assert method_of("margin") == METHODS["deterministic"]()
    assert method_of("laplace-online-arccos-full").approximation == "full"


def test_an_ensemble_needs_no_more_samples_than_members(tiny):
    wide = replace(tiny, protocol=replace(tiny.protocol, ece_samples=100))
    assert samples_of("deep-ensemble", wide) == 5
    assert samples_of("mc-dropout", wide) == 100


def test_a_cell_that_has_come_meanwhile_stays(tmp_path):
    file = tmp_path / "set" / "row-seed0.json"
    write_cell(file, {"a": 1})
    write_cell(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [p.name for p in file.parent.iterdir()] == ["row-seed0.json"]
