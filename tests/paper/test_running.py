import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import surefind as sf
from surefind.evaluation.evaluate import Evaluation
from surefind.learning.methods import METHODS as CLASSES
from surefind.paper.artifacts import read_strips
from surefind.paper.baselines import CLASSIFIERS
from surefind.paper.frozen import frozen_problem
from surefind.paper.ood_sets import OodSet
from surefind.paper.protocols import PROTOCOLS
from surefind.paper.recipes import recipe_protocol
from surefind.paper.results import read_result, read_results
from surefind.paper.running import (
    NEED_CLASSES,
    build_method,
    check_comparable,
    checkpoint_folder,
    run_problem,
    select_methods,
    train_method,
)
from surefind.paper.vocabulary import ABLATION, BASELINES, METHODS

STORED = Path(__file__).parents[2] / "benchmarks" / "results"
VARIANT = "laplace-posthoc-euclidean-full"


def test_methods_are_selected_in_the_order_of_the_benchmark():
    everything = [*METHODS, *BASELINES]
    assert select_methods(["all"], with_ablation=False) == everything
    assert select_methods(["pfe", "deterministic"], with_ablation=False) == ["deterministic", "pfe"]
    assert select_methods(["hib"], with_ablation=True) == ["hib", *ABLATION]
    with pytest.raises(sf.InputError, match="method"):
        select_methods(["lam"], with_ablation=False)


def test_methods_that_train_alike_share_their_checkpoints():
    assert checkpoint_folder(VARIANT) == checkpoint_folder("mahalanobis") == "shared"
    assert checkpoint_folder("laplace-online-arccos-fixed") == checkpoint_folder("laplace-online")
    assert checkpoint_folder("laplace-online-arccos-full") == "laplace-online-arccos-full"
    assert checkpoint_folder("hib") == "hib"


def test_a_name_stands_for_a_method_with_its_options():
    assert build_method("margin") == CLASSES["deterministic"]()
    assert build_method("laplace-online-arccos-full").approximation == "full"
    assert build_method("laplace-posthoc-euclidean-fixed").distance == "euclidean"


@pytest.fixture
def run(tiny, tmp_path):
    def run(methods, seeds=(0,), problem=tiny, **options):
        run_problem(problem, methods, seeds, results=tmp_path / "r", work=tmp_path / "w", **options)
        return {p.stem: read_result(p) for p in sorted((tmp_path / "r" / problem.name).iterdir())}

    return run


def test_every_method_makes_a_result_that_a_report_can_read(run, tmp_path, novel):
    methods = [*select_methods(["all"], with_ablation=False), VARIANT]
    seen = []
    results = run(methods, on_result=lambda m, seed, values: seen.append((m, seed, values is None)))
    assert set(results) == {f"{m}-seed0" for m in methods}
    assert seen == [(m, 0, before) for m in methods for before in (True, False)]
    assert len(read_results(tmp_path / "r").sets[0].results) == len(methods)
    for stem, result in results.items():
        assert result.examples == {"train": 120, "test": 40, "ood": 20}
        assert result.versions["torch"]
        assert result.protocol["margin"] == 0.7
        assert result.protocol["ood"] == ["noise", "all"]
        assert ("right" if result.method in CLASSIFIERS else "recall@1") in result.values
        assert result.ood["noise"].examples == 20
        assert result.ood["noise"].auroc == result.values.get("auroc")
        rivals = {
            f"{by}_{m}" for by in ("nearest_distance", "novelty") for m in ("auroc", "r_auroc")
        }
        assert (rivals <= set(result.values)) == (result.method not in BASELINES)
        artifacts = read_strips(tmp_path / "w" / "tiny" / f"{stem}.npz")
        if result.method == "deterministic":
            assert not {"auroc", "ausc", "ece"} & set(result.values)
            assert not artifacts
            continue
        assert {"auroc", "ausc"} <= set(result.values)
        assert {"roc", "precision-recall", "sparsification"} <= set(result.curves)
        assert artifacts["ood-highest"].shape == (12, 8, 8)
        if result.method == "layers-label-model":
            assert result.settings["embedding"] == "layers"
            continue
        if result.method in BASELINES:
            assert result.settings == {"method": "Deterministic"}
            continue
        assert {"ece", "agreement_ausc"} <= set(result.values)
        assert set(result.corruptions) == {"blur", "noise", "occlusion"}
        assert len(result.kappa.edges) == 61
        assert result.ece_samples == 4
        assert result.history["encoder"]
    online = {"method": "LaplaceOnline"} | asdict(CLASSES["laplace-online"]())
    assert results["laplace-online-seed0"].settings == online
    assert results[f"{VARIANT}-seed0"].settings["distance"] == "euclidean"
    posterior = results[f"{VARIANT}-seed0"].posterior
    assert 0 < posterior["clipped"] < 1
    least, middle, most = (posterior[f"{k}_precision"] for k in ("least", "median", "largest"))
    assert 0 < least <= middle < most


def test_valid_results_are_never_made_again_and_training_is_shared(run, tmp_path):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    before = file.read_bytes()
    steps = []
    run(["deterministic", "laplace-posthoc", "norm"], report=lambda *p: steps.append(p))
    assert file.read_bytes() == before
    assert {stage for stage, _ in steps} == {
        "layers"
    }  # the others start from the point estimate that is there


def test_results_that_do_not_compare_are_named_and_left_alone_before_anything_is_trained(
    run, tmp_path
):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    whole = json.loads(file.read_text())
    for changed, field in (
        ({"protocol": whole["protocol"] | {"epochs": 9}}, "epochs was 9, is 1"),
        ({"examples": whole["examples"] | {"train": 99}}, "train was 99, is 120"),
        ({"settings": {"method": "Other"}}, "method was 'Other'"),
        ({"files": {"test": "a"}}, "test was 'a'"),
        ({"versions": None}, "versions"),
    ):
        text = json.dumps(whole | changed)
        file.write_text(text)
        steps = []
        with pytest.raises(sf.InputError, match=f"deterministic-seed0.json.*{field}"):
            run(["hib", "deterministic"], report=lambda *p, steps=steps: steps.append(p))
        assert file.read_text() == text
        assert steps == []


def test_stored_results_compare_with_what_would_be_measured_now(tiny):
    on_backbone = replace(tiny, protocol=replace(PROTOCOLS["cub200"], backbone="resnet50"))
    protocols = {
        "cifar10": PROTOCOLS["cifar10"],
        "cifar10-paper": recipe_protocol("paper", "cifar10"),
        "cifar10-released": recipe_protocol("released", "cifar10"),
        "fashion-mnist": PROTOCOLS["fashion-mnist"],
        "cub200-frozen-resnet50": frozen_problem(on_backbone).protocol,
        "cub200-last1-resnet50": frozen_problem(on_backbone, trained_stages=1).protocol,
    }
    for name, protocol in protocols.items():
        files = sorted((STORED / name).glob("*-seed0.json"))
        files = [file for file in files if not file.name.startswith("knn-vote")]  # no longer made
        assert any(file.name.startswith("laplace") for file in files)
        for file in files:
            result = read_result(file)
            parts = {"examples": result.examples, "files": result.files, "ood_parts": {}}
            check_comparable(file, result, SimpleNamespace(protocol=protocol, **parts))
    other = result.model_copy(update={"settings": result.settings | {"layers": "all"}})
    with pytest.raises(sf.InputError, match="layers was 'all', is None"):
        check_comparable(file, other, SimpleNamespace(protocol=protocol, **parts))


def test_results_of_other_versions_are_kept_and_named(run, tmp_path):
    run(["deterministic"])
    file = tmp_path / "r" / "tiny" / "deterministic-seed0.json"
    stored = json.loads(file.read_text())
    stored["versions"]["surefind"] = "0.0.1"
    file.write_text(json.dumps(stored))
    said = []
    run(["deterministic"], say=said.append)
    assert len(said) == 1
    assert "surefind 0.0.1" in said[0]
    assert "deterministic-seed0.json" in said[0]


def test_places_are_looked_up_in_their_gallery(run, placed, novel):
    said = []
    results = run(["laplace-posthoc", *BASELINES], problem=placed, say=said.append)
    assert len(said) == len(NEED_CLASSES)
    for sentence, name in zip(said, NEED_CLASSES, strict=True):
        assert sentence.startswith(f"{name} is left out")
        assert f"{name}-seed0" not in results
    values = results["laplace-posthoc-seed0"].values
    assert values["recall@10"] > 0.9
    assert {"ausc", "agreement_ausc"} <= set(values)
    assert not {"ece", "auroc", "novelty_auroc"} & set(values)
    assert "nearest_distance_r_auroc" in values
    assert results["laplace-posthoc-seed0"].ood == {}
    assert results["laplace-posthoc-seed0"].corruptions == {}
    assert results["margin-seed0"].examples == {"train": 64, "test": 24, "gallery": 32}
    assert results["margin-seed0"].protocol["ood"] is None


def test_what_is_not_finite_is_left_out(run, monkeypatch):
    found = Evaluation({"recall@1": 1.0, "ausc": np.nan, "aurc": np.inf}, {}, {})
    monkeypatch.setattr("surefind.paper.running.measure", lambda *_, **__: found)
    assert run(["norm"])["norm-seed0"].values == {"recall@1": 1.0}


def two_sets(tiny):
    """The tiny problem with a near set: its own test images, dimmed."""
    near = sf.Dataset(torch.as_tensor(tiny.test.inputs) // 2, name="dim")
    protocol = replace(tiny.protocol, ood=(*tiny.protocol.ood, OodSet("dim", "all", "near")))
    return replace(tiny, protocol=protocol, more_ood={"dim": near})


def test_every_ood_set_is_measured_by_each_detector(run, tiny, novel, tmp_path):
    problem = two_sets(tiny)
    results = run(["laplace-posthoc", "norm"], problem=problem)
    lam = results["laplace-posthoc-seed0"]
    assert {n: (o.kind, o.examples) for n, o in lam.ood.items()} == {
        "noise": ("far", 20),
        "dim": ("near", 40),
    }
    learner = train_method("laplace-posthoc", problem, 0, tmp_path / "again", lambda *_: None)
    known, dim = learner.embed(problem.test), learner.embed(problem.more_ood["dim"])
    truth = [0] * len(known) + [1] * len(dim)
    both = torch.cat([known.mean, dim.mean])
    scores = {
        "auroc": torch.cat([known.uncertainty, dim.uncertainty]),
        "nearest_distance_auroc": torch.cdist(both, learner.embed(problem.train).mean).amin(1),
        "novelty_auroc": -torch.cat([known.novelty, dim.novelty]),
    }
    measured = lam.ood["dim"].values
    for name, by in scores.items():
        assert measured[name] == pytest.approx(roc_auc_score(truth, by), abs=2e-3)
    assert set(results["norm-seed0"].ood["dim"].values) == {"auroc"}
    # What is recorded of the protocol is the first set: results of one set compare.
    assert lam.protocol["ood"] == ["noise", "all"]
    assert lam.examples == {"train": 120, "test": 40, "ood": 20}


def test_results_of_fewer_ood_sets_are_kept_and_named(run, tiny, tmp_path):
    run(["norm"])
    said = []
    results = run(["norm", "margin"], problem=two_sets(tiny), say=said.append)
    assert len(said) == 1
    assert "OOD sets dim: norm-seed0.json" in said[0]
    assert list(results["norm-seed0"].ood) == ["noise"]
    assert list(results["margin-seed0"].ood) == ["noise", "dim"]
    assert len(read_results(tmp_path / "r").sets[0].results) == 2


def test_an_ood_set_of_another_size_is_refused(run, tiny):
    problem = two_sets(tiny)
    run(["norm"], problem=problem)
    fewer = replace(problem, more_ood={"dim": problem.more_ood["dim"][:7]})
    with pytest.raises(sf.InputError, match="dim had 40 inputs, has 7"):
        run(["norm"], problem=fewer)


def test_a_learner_without_novelty_has_no_such_row(run, plain):
    said = []
    results = run(["laplace-posthoc", "novelty"], say=said.append)
    assert list(results) == ["laplace-posthoc-seed0"]
    assert said == ["novelty of seed 0 is left out: the point estimate has none fitted."]
    values = results["laplace-posthoc-seed0"].values
    assert "nearest_distance_auroc" in values
    assert "novelty_auroc" not in values
