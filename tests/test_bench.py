import json
from dataclasses import replace

import pytest

import surefind as sf
from surefind import bench
from surefind.bench import FREE, ablation, read_cell, rows_of, run_bench
from surefind.methods import METHODS


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The digits, two epochs, and small versions of what takes long."""
    short = replace(bench.PROTOCOLS["digits"], epochs=2, online_epochs=2)
    monkeypatch.setitem(bench.PROTOCOLS, "digits", short)

    def run(rows, seeds=(0,), **options):
        run_bench(
            "digits", rows, seeds, data=None, results=tmp_path / "r", work=tmp_path / "w", **options
        )
        return {p.stem: read_cell(p) for p in sorted((tmp_path / "r" / "digits").iterdir())}

    return run


def test_cells_hold_values_settings_and_versions(quick):
    cells = quick(["laplace-posthoc", *FREE])
    assert set(cells) == {f"{row}-seed0" for row in ("laplace-posthoc", *FREE)}
    cell = cells["laplace-posthoc-seed0"]
    assert cell["values"]["auroc"] > 0.5
    assert cell["examples"] == {"train": 1078, "test": 599, "ood": 500}
    assert cell["protocol"]["margin"] == 0.7
    assert cell["versions"]["torch"]
    assert cell["history"]["encoder"]


def test_good_cells_are_never_made_again_and_training_is_shared(quick, tmp_path):
    quick(["deterministic"])
    file = tmp_path / "r" / "digits" / "deterministic-seed0.json"
    before = file.read_bytes()
    steps = []
    quick(["deterministic", "laplace-posthoc"], report=lambda *p: steps.append(p))
    assert file.read_bytes() == before
    assert steps == []  # post-hoc starts from the point estimate that is there


def test_a_damaged_cell_is_named_and_left_alone(quick, tmp_path):
    quick(["deterministic"])
    file = tmp_path / "r" / "digits" / "deterministic-seed0.json"
    file.write_text('{"values": ')
    with pytest.raises(sf.InputError, match=r"deterministic-seed0.json is not a whole result"):
        quick(["deterministic"])
    assert file.read_text() == '{"values": '


def test_cells_are_plain_json(quick, tmp_path):
    quick(["laplace-online"])
    text = (tmp_path / "r" / "digits" / "laplace-online-seed0.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    json.loads(text)


def test_rows():
    assert rows_of(["all"], with_ablation=False) == [*METHODS, *FREE]
    assert rows_of(["pfe", "deterministic"], with_ablation=False) == ["deterministic", "pfe"]
    assert len(ablation()) == 12
    assert len(rows_of(["hib"], with_ablation=True)) == 13
    with pytest.raises(sf.InputError, match="method must be one of 'all', 'deterministic'"):
        rows_of(["lam"], with_ablation=False)


def test_unknown_sets_are_refused(tmp_path):
    with pytest.raises(sf.InputError, match="data set must be one of 'fashion-mnist'"):
        run_bench("imagenet", ["hib"], [0], data=None, results=tmp_path, work=tmp_path)
