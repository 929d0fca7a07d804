import json
from pathlib import Path

import pytest
from pydantic import ValidationError

import surefind as sf
from surefind.paper.results import Result, read_result, read_results, write_result

ROOT = Path(__file__).parents[2]


def test_results_are_read_by_data_set_and_method(put, result):
    folder = put(
        result("mahalanobis"),
        result("laplace-online", 1),
        result("laplace-online", 0),
        result("deterministic"),
        result("laplace-online-arccos-fixed"),
        result("pfe", dataset="cifar10"),
    )
    results = read_results(folder)
    assert [s.name for s in results.sets] == ["cifar10", "fashion-mnist"]
    fashion = results.sets[1]
    assert list(fashion.by_method("method")) == ["deterministic", "laplace-online"]
    assert [r.seed for r in fashion.by_method("method")["laplace-online"]] == [0, 1]
    assert list(fashion.by_method("baseline")) == ["mahalanobis"]
    assert list(fashion.by_method("ablation")) == ["laplace-online-arccos-fixed"]
    assert [m.name for m in fashion.metrics("method")][:2] == ["recall@1", "map@5"]


def test_the_committed_results_are_valid_and_written_back_alike(tmp_path):
    files = sorted((ROOT / "benchmarks" / "results").glob("*/*-seed*.json"))
    assert len(files) > 50
    for file in files:
        result = read_result(file)
        write_result(tmp_path, result)
        copy = tmp_path / file.parent.name / file.name
        assert json.loads(copy.read_text()) == json.loads(file.read_text())


def test_a_result_that_is_there_stays(tmp_path, result):
    write_result(tmp_path, Result(**result("pfe")))
    file = tmp_path / "fashion-mnist" / "pfe-seed0.json"
    before = file.read_bytes()
    write_result(tmp_path, Result(**result("pfe", values={"recall@1": 0.1})))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["pfe-seed0.json"]


def test_a_folder_without_results_is_refused(tmp_path):
    (tmp_path / "core.json").write_text("{}")
    with pytest.raises(sf.InputError, match="surefind bench"):
        read_results(tmp_path)


@pytest.mark.parametrize("text", ['{"values": ', "", "\x00", "[]"])
def test_a_file_that_holds_no_result_is_named(put, result, text):
    folder = put(result(), result("pfe"))
    (folder / "fashion-mnist" / "pfe-seed0.json").write_text(text)
    with pytest.raises(sf.InputError, match=r"pfe-seed0\.json"):
        read_results(folder)


@pytest.mark.parametrize(
    "field", ["dataset", "method", "seed", "values", "protocol", "examples", "versions"]
)
def test_a_field_that_is_missing_is_named(put, result, field):
    folder = put(result())
    file = folder / "fashion-mnist" / "laplace-online-seed0.json"
    file.write_text(json.dumps({k: v for k, v in result().items() if k != field}))
    with pytest.raises(sf.InputError, match=rf"online-seed0\.json .*\({field}: "):
        read_results(folder)


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"values": [1, 2]}, "values"),
        ({"values": {}}, "values"),
        ({"values": {"auroc": NAN}}, r"values\.auroc"),
        ({"values": {"auroc": INFINITY}}, r"values\.auroc"),
        ({"values": {"auroc": None}}, r"values\.auroc"),
        ({"values": {"auroc": "0.9"}}, r"values\.auroc"),
        ({"values": {"auroc": True}}, r"values\.auroc"),
        ({"seed": "0"}, "seed"),
        ({"left_out": "a"}, "left_out"),
        ({"intervals": {"recall@1": [0.1]}}, r"intervals\.recall@1\.1"),
        ({"intervals": {"auroc": [0.1, NAN]}}, r"intervals\.auroc\.1"),
        ({"curves": {"roc": {"x": [0, 1]}}}, r"curves\.roc\.y"),
        ({"curves": {"roc": {"x": [], "y": []}}}, r"curves\.roc\.x"),
        ({"curves": {"roc": {"x": [0.0], "y": [NAN]}}}, r"curves\.roc\.y\.0"),
        ({"curves": {"roc": 3}}, r"curves\.roc"),
        ({"kappa": {"id": [1, 2]}}, r"kappa\.edges"),
        ({"corruptions": {"blur": {"strength": [0], "median": [1], "low": [1]}}}, r"blur\.high"),
        ({"protocol": [1]}, "protocol"),
        ({"versions": None}, "versions"),
        ({"row": "pfe"}, "row"),
    ],
)
def test_a_field_of_another_form_is_named(put, result, change, field):
    with pytest.raises(sf.InputError, match=rf"laplace-online-seed0\.json .*{field}: "):
        read_results(put(result(**change)))


def test_a_renamed_result_is_refused(put, result):
    folder = put(result())
    file = folder / "fashion-mnist" / "laplace-online-seed0.json"
    file.rename(file.with_name("laplace-online-seed1.json"))
    with pytest.raises(sf.InputError, match=r"seed1\.json .*fashion-mnist/laplace-online-seed0"):
        read_results(folder)


def test_different_protocols_of_one_data_set_are_refused_by_name(put, result):
    other = result("pfe", protocol={"margin": 1.0})
    elsewhere = result("pfe", dataset="cifar10", protocol={"margin": 2.0})
    with pytest.raises(sf.InputError, match=r"fashion-mnist .*protocols.*: pfe-seed0\.json"):
        read_results(put(result(), result("hib"), other, elsewhere))


def test_different_data_of_one_data_set_are_refused_by_name(put, result):
    folder = put(result(), result("hib"), result("pfe", examples={"train": 5, "test": 5}))
    with pytest.raises(sf.InputError, match=r"data.*: pfe-seed0\.json"):
        read_results(folder)


def test_invalid_results_are_left_out_if_someone_listens(put, result):
    folder = put(result(), result("pfe"))
    half = next(folder.glob("*/pfe-seed0.json"))
    half.write_text(half.read_text()[:50])
    heard = []
    results = read_results(folder, on_bad=heard.append)
    assert [r.method for r in results.sets[0].results] == [result()["method"]]
    assert len(heard) == 1
    assert heard[0].startswith(f"left out: {half} ")
    for file in folder.glob("*/*.json"):
        file.write_text("{")
    with pytest.raises(sf.InputError, match="none of the 2 results"):
        read_results(folder, on_bad=heard.append)


OOD = {
    "mnist": {"kind": "far", "examples": 10000, "auroc": 0.9, "nearest_distance_auroc": 0.8},
    "noise": {"examples": 3000, "auroc": 1.0, "novelty_auroc": 0.99},
}


def test_ood_sets_are_read_back_and_may_be_missing(tmp_path, result):
    write_result(tmp_path, Result(**result("pfe", ood=OOD)))
    file = tmp_path / "fashion-mnist" / "pfe-seed0.json"
    assert json.loads(file.read_text())["ood"] == OOD
    read = read_result(file).ood
    assert read["noise"].kind == "far"
    assert read["noise"].values == {"auroc": 1.0, "novelty_auroc": 0.99}
    assert Result(**result("hib")).ood == {}
    for wrong in ({"kind": "middle"}, {"auroc": NAN}, {"examples": -1}, {"fpr95": 0.1}):
        with pytest.raises(ValidationError):
            Result(**result("pfe", ood={"mnist": OOD["mnist"] | wrong}))


def test_results_may_have_different_ood_sets_but_not_different_inputs_of_one(put, result):
    fewer = {"mnist": OOD["mnist"]}
    folder = put(result("pfe", ood=OOD), result("hib", ood=fewer), result("mc-dropout"))
    assert len(read_results(folder).sets[0].results) == 3
    other = {"noise": OOD["noise"] | {"examples": 5}}
    with pytest.raises(sf.InputError, match=r"OOD set noise.*mc-dropout-seed0\.json \["):
        read_results(
            put(result("pfe", ood=OOD), result("hib", ood=OOD), result("mc-dropout", ood=other))
        )
