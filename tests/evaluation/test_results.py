import json

import pytest

import surefind as sf
from surefind.evaluation import bench
from surefind.evaluation.report import read_results
from surefind.evaluation.report.vocabulary import FREE, kind_of, row_order
from surefind.evaluation.report.vocabulary import METHODS as TITLES
from surefind.learning.methods import METHODS


def test_cells_are_read_by_set_and_row(put, cell):
    folder = put(
        cell("mahalanobis"),
        cell("laplace-online", 1),
        cell("laplace-online", 0),
        cell("deterministic"),
        cell("laplace-online-arccos-fixed"),
        cell("pfe", name="cifar10"),
    )
    results = read_results(folder)
    assert [s.name for s in results.sets] == ["cifar10", "fashion-mnist"]
    fashion = results.sets[1]
    assert list(fashion.rows("method")) == ["deterministic", "laplace-online"]
    assert [c.seed for c in fashion.rows("method")["laplace-online"]] == [0, 1]
    assert list(fashion.rows("free")) == ["mahalanobis"]
    assert list(fashion.rows("ablation")) == ["laplace-online-arccos-fixed"]
    assert fashion.cells[0].ood == ("mnist", "test")
    assert [m.name for m in fashion.metrics("method")][:2] == ["recall@1", "map@5"]


def test_a_metric_that_is_not_known_comes_last(put, cell):
    made = cell()
    made["values"]["zeal"] = 0.5
    metrics = read_results(put(made)).sets[0].metrics("method")
    assert (metrics[-1].name, metrics[-1].better) == ("zeal", "")


def test_names_are_those_of_the_benchmark():
    assert list(TITLES) == list(METHODS)
    assert list(FREE) == list(bench.FREE)
    rows = sorted(bench.ablation(), key=row_order)
    assert {kind_of(row) for row in rows} == {"ablation"}
    assert rows[0] == "laplace-posthoc-euclidean-fixed"
    assert rows[-1] == "laplace-online-arccos-full"


def test_a_folder_without_results_says_how_to_make_some(tmp_path):
    (tmp_path / "core.json").write_text("{}")
    with pytest.raises(sf.InputError, match=r"holds no results .* surefind bench digits --out"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ['{"values": ', "", "\x00"])
def test_a_corrupt_cell_is_named(put, cell, text):
    folder = put(cell(), cell("pfe"))
    (folder / "fashion-mnist" / "pfe-seed0.json").write_text(text)
    with pytest.raises(sf.InputError, match=r"pfe-seed0.json is not a whole result .* Delete it"):
        read_results(folder)


def test_a_file_half_written_by_the_benchmark_is_no_cell(put, cell):
    folder = put(cell())
    (folder / "fashion-mnist" / ".pfe-seed0.json.tmp").write_text("{")
    (folder / "fashion-mnist" / ".pfe-seed0.json").write_text("{")
    assert len(read_results(folder).sets[0].cells) == 1


@pytest.mark.parametrize(
    "key", ["set", "row", "seed", "values", "protocol", "examples", "versions"]
)
def test_a_cell_that_lacks_something_is_named(put, cell, key):
    folder = put(cell())
    file = folder / "fashion-mnist" / "laplace-online-seed0.json"
    file.write_text(json.dumps({k: v for k, v in cell().items() if k != key}))
    with pytest.raises(
        sf.InputError, match=rf"online-seed0.json is not .*: it lacks {key}\. Delete it"
    ):
        read_results(folder)


def test_a_list_is_no_cell(put, cell):
    folder = put(cell())
    (folder / "fashion-mnist" / "laplace-online-seed0.json").write_text("[]")
    with pytest.raises(sf.InputError, match="lacks set, row"):
        read_results(folder)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"values": [1, 2]}, "values"),
        ({"seed": "0"}, "seed"),
        ({"intervals": {"recall@1": [0.1]}}, "intervals"),
        ({"curves": {"roc": {"x": [0, 1]}}}, "curves"),
        ({"curves": {"roc": {"x": [0, 1], "y": [0]}}}, "curves"),
        ({"curves": {"roc": 3}}, "curves"),
        ({"kappa": {"edges": [0, 1], "id": [1, 2]}}, "kappa"),
        ({"kappa": {"id": [1, 2]}}, "kappa"),
        ({"corruptions": {"blur": {"strength": [0], "median": [1], "low": [1]}}}, "corruptions"),
    ],
)
def test_a_cell_of_another_form_is_named(put, cell, change, part):
    with pytest.raises(sf.InputError, match=f"laplace-online-seed0.json: {part} has not the form"):
        read_results(put(cell(**change)))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"values": {"auroc": float("nan")}}, r"values.auroc is nan"),
        ({"values": {"auroc": float("inf")}}, r"values.auroc is inf"),
        ({"values": {"auroc": None}}, r"values.auroc is None"),
        ({"values": {"auroc": "0.9"}}, r"values.auroc is '0.9'"),
        ({"intervals": {"auroc": [0.1, float("nan")]}}, r"intervals.auroc\[1\] is nan"),
        ({"curves": {"roc": {"x": [0.0], "y": [float("nan")]}}}, r"curves.roc.y\[0\] is nan"),
    ],
)
def test_what_is_no_number_is_named(put, cell, change, where):
    with pytest.raises(sf.InputError, match=f"laplace-online-seed0.json: {where}"):
        read_results(put(cell(**change)))


def test_a_renamed_cell_is_refused(put, cell):
    folder = put(cell())
    file = folder / "fashion-mnist" / "laplace-online-seed0.json"
    file.rename(file.with_name("laplace-online-seed1.json"))
    with pytest.raises(sf.InputError, match=r"says that it is fashion-mnist/laplace-online-seed0"):
        read_results(folder)


def test_different_protocols_in_one_set_are_refused_by_name(put, cell):
    other = cell("pfe", protocol={"margin": 1.0})
    folder = put(cell(), cell("hib"), other, cell("pfe", name="cifar10", protocol={"margin": 2.0}))
    with pytest.raises(
        sf.InputError, match=r"fashion-mnist .* different protocols.*: pfe-seed0.json"
    ):
        read_results(folder)


def test_different_data_in_one_set_are_refused_by_name(put, cell):
    folder = put(cell(), cell("hib"), cell("pfe", examples={"train": 5, "test": 5}))
    with pytest.raises(sf.InputError, match=r"different data.*: pfe-seed0.json"):
        read_results(folder)


def test_versions_may_differ_and_are_known(put, cell):
    folder = put(cell(), cell("pfe", versions={"surefind": "0.2.0"}), cell("hib", versions={}))
    assert read_results(folder).sets[0].versions == {
        "0.1.0": ("laplace-online-seed0.json",),
        "0.2.0": ("pfe-seed0.json",),
        "unknown": ("hib-seed0.json",),
    }


def test_cells_that_cannot_be_used_are_left_out_if_someone_listens(put, cell):
    folder = put(cell(), cell("pfe"))
    half = next(folder.glob("*/pfe-seed0.json"))
    half.write_text(half.read_text()[:50])
    heard = []
    results = read_results(folder, on_bad=heard.append)
    assert [c.row for c in results.sets[0].cells] == [cell()["row"]]
    assert len(heard) == 1
    assert heard[0].startswith(f"left out: {half} is not a whole result")
    for file in folder.glob("*/*.json"):
        file.write_text("{")
    with pytest.raises(sf.InputError, match=r"none of the 2 cells in .* can be used"):
        read_results(folder, on_bad=heard.append)
