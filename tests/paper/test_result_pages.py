"""The short pages of results, on made-up results of many sets and protocols."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from surefind.evaluation.figures import write_figure
from surefind.paper.results import read_results

DOCS = Path(__file__).parents[2] / "docs"
NAMES = [
    "fashion-mnist",
    "fashion-mnist-paper",
    "cifar10",
    "cifar10-paper",
    "cub200-frozen-efficientnet-lite0",
    "cub200-frozen-resnet50",
    "cub200-last1-resnet50",
    "lfw-frozen-mobilefacenet",
    "lfw-frozen-resnet50",
    "gardens-point-frozen-efficientnet-lite0",
    "st-lucia-frozen-efficientnet-lite0",
    "berlin-halensee-frozen-efficientnet-lite0",
    "mine",
]
PLACES = ("gardens", "st-lucia", "berlin")
METHODS = ("deterministic", "laplace-posthoc", "laplace-online", "pfe", "mahalanobis", "knn-vote")


@pytest.fixture(scope="module")
def module():
    """The module of the pages, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return importlib.import_module("result_pages")


def trained(made, **values):
    """Give a result epochs and further values."""
    history = {"encoder": [{"loss": 0.5, "seconds": 60.0}, {"loss": 0.4, "seconds": 120.0}]}
    return made | {"history": history, "values": made["values"] | values}


def without_ood(made):
    values = {k: v for k, v in made["values"].items() if k not in ("auroc", "auprc", "fpr95")}
    return made | {"values": values, "protocol": made["protocol"] | {"ood": None}}


def costs(folder):
    """Write what the benchmarks of cost would."""
    names = ("head 128, 9216→3, euclidean fixed", "jacobians 128, 9216→3, euclidean fixed")
    cases = {name: {"seconds": s} for name, s in zip(names, (0.001, 10.0), strict=True)}
    (folder / "core.json").write_text(json.dumps({"cases": cases}))
    return folder


@pytest.fixture
def everything(put, result):
    made = [
        trained(result(method, seed, name, values=result(method, seed + 7 * place)["values"]))
        for place, name in enumerate(NAMES)
        for method in METHODS
        for seed in (0, 1)
    ]
    return costs(put(*(without_ood(m) if m["dataset"].startswith(PLACES) else m for m in made)))


def test_every_set_has_a_row_where_it_has_the_metric(module, everything, tmp_path):
    pages = {page.name: page for page in module.result_pages(read_results(everything))}
    assert list(pages) == ["retrieval", "ood", "wrong-answers", "calibration", "cost"]
    rows = {name: page.table.count("\n") - 1 for name, page in pages.items()}
    places = sum(name.startswith(PLACES) for name in NAMES)
    assert rows["retrieval"] == rows["wrong-answers"] == rows["cost"] == len(NAMES)
    assert rows["ood"] == len(NAMES) - places
    for name, page in pages.items():
        assert page.markdown.startswith(f"# {page.title}\n")
        assert f"]({name}.svg)" in page.markdown
        assert "nan" not in page.markdown
        write_figure(tmp_path / "page.svg", page.svg)
        assert (tmp_path / "page.svg").stat().st_size < 60_000


def test_a_cell_is_the_mean_over_seeds_with_the_papers_number(module, everything, result):
    found = read_results(everything)
    (part,) = (s for s in found.sets if s.name == "cub200-last1-resnet50")
    values = [r.values["recall@1"] for r in part.by_method("method")["laplace-online"]]
    row = next(
        line.split(" | ")
        for line in module.result_pages(found)[0].table.splitlines()
        if line.startswith("| CUB200 (last stage of resnet50 trained) |")
    )
    expected = f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert re.sub(r"[≈*] ?", "", row[3]) == f"{expected} (0.61)"


def test_numbers_of_frozen_networks_are_not_counted_against_the_papers_and_recipes_apart(
    module, put, result
):
    made = [
        result("laplace-posthoc", dataset=name, values={"recall@1": recall}, protocol=protocol)
        for name, recall, protocol in (
            ("cifar10", 0.7, {"ood": None}),
            ("fashion-mnist-paper", 0.7, {"ood": None, "recipe": "paper"}),
            ("lfw-frozen-resnet50", 0.9, {"ood": None, "frozen": True}),
        )
    ]
    (page,) = module.result_pages(read_results(put(*made)))
    assert "better in 1 of 1 numbers that it has too and worse in 0;" in page.markdown
    assert (
        "recipe, ours is better in 0 of 1 numbers that it has too and worse in 1." in page.markdown
    )
    assert "beside frozen ones its numbers are for orientation. On LFW it counts" in page.notes
    assert "0.900 (0.44)" in page.table


def test_a_baseline_without_results_is_read_off_the_models_own(module, put, result):
    values = {"recall@1": 0.8, "auroc": 0.6, "novelty_auroc": 0.9, "nearest_distance_auroc": 0.7}
    found = read_results(put(result("laplace-posthoc", values=values)))
    scores = module.scores_of(found.sets[0], "auroc")
    assert {name: score.mean for name, score in scores.items()} == {
        "laplace-posthoc": 0.6,
        "nearest-distance": 0.7,
        "novelty": 0.9,
    }
    assert scores["novelty"].rank == "best"


def test_the_lower_error_is_the_better_one(module, put, result):
    eces = {"laplace-posthoc": 0.02, "laplace-online": 0.01, "pfe": 0.3}
    made = [result(m) for m in eces]
    made = [m | {"values": m["values"] | {"ece": eces[m["method"]]}} for m in made]
    scores = module.scores_of(read_results(put(*made)).sets[0], "ece")
    assert module.best_of(scores, "ece", eces) == "laplace-online"
