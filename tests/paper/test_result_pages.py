"""The short pages of results, on made-up results of many sets and protocols."""

import importlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

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


def test_sets_are_in_the_order_of_the_vocabulary(module, everything):
    assert [part.name for part in module.in_order(read_results(everything))] == NAMES


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


def test_the_readme_has_five_rows_and_a_column_for_each_of_the_papers_sets(module, everything):
    heads, _, *rows = module.summary_table(read_results(everything)).splitlines()
    assert heads == (
        "|  | FashionMNIST | CIFAR10 | CUB200 (last stage of resnet50 trained) | LFW (frozen resnet50) |"
    )
    assert len(rows) == 5
    assert rows[-1].endswith("| 3 min | 3 min | 3 min | 3 min |")


@pytest.mark.parametrize(
    ("mahalanobis", "said"),
    [
        (0.95, "on 1 of 1 sets**: Mahalanobis on 1."),
        (0.85, "No free baseline is better than the best method on any of 1 sets."),
        (0.9001, "No free baseline"),  # they read alike
    ],
)
def test_it_is_said_where_a_free_baseline_wins(module, put, result, mahalanobis, said):
    aurocs = {"laplace-posthoc": 0.9, "pfe": 0.8, "mahalanobis": mahalanobis}
    made = [result(m, values={"recall@1": 0.8, "auroc": auroc}) for m, auroc in aurocs.items()]
    pages = {page.name: page for page in module.result_pages(read_results(put(*made)))}
    assert said in pages["ood"].headline


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


def test_what_has_no_results_is_left_out(module, put, result):
    found = read_results(put(result("deterministic")))
    assert [page.name for page in module.result_pages(found)] == ["retrieval"]
    rows = module.summary_table(found).splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["– |"] * 5


def test_the_lower_error_is_the_better_one(module, put, result):
    eces = {"laplace-posthoc": 0.02, "laplace-online": 0.01, "pfe": 0.3}
    made = [result(m) for m in eces]
    made = [m | {"values": m["values"] | {"ece": eces[m["method"]]}} for m in made]
    scores = module.scores_of(read_results(put(*made)).sets[0], "ece")
    assert module.best_of(scores, "ece", eces) == "laplace-online"


def words(svg):
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_dots_name_their_rows_and_published_numbers_are_rings(module):
    looks = module.line_styles(["pfe", "hib"])
    values = [{"CUB200\nfrozen": 0.5, "LFW": 0.7}, {"LFW": 0.6}]
    plain, ringed = (
        module.dot_chart(
            [
                module.Dots(m, looks[m], v, p)
                for m, v, p in zip(looks, values, published, strict=True)
            ],
            "recall@1",
            "in words",
            chance=0.5,
        )
        for published in ([{}, {}], [{"LFW": 0.4, "unknown": 0.1}, {}])
    )
    assert {"CUB200", "frozen", "LFW", "pfe", "hib", "recall@1"} <= {*words(plain)}
    rings = [
        len(re.findall(r'<use [^>]*style="fill-opacity: 0; stroke', svg)) for svg in (plain, ringed)
    ]
    assert rings == [0, 1]
    assert 'aria-label="in words"' in plain


def test_a_logarithmic_axis_of_dots_has_plain_numbers(module):
    look = module.line_styles(["pfe"])["pfe"]
    svg = module.dot_chart(
        [module.Dots("ours", look, {"fit": 0.002, "embed": 30.0})], "seconds", "", logarithmic=True
    )
    assert {"0.01", "1", "10"} <= {*words(svg)}


@pytest.mark.parametrize("sets", [1, 2, 7])
def test_panels_have_a_title_each_and_one_legend(module, sets):
    curve = (np.linspace(0, 1, 100).tolist(), np.linspace(0.7, 1, 100).tolist())
    looks = module.line_styles(["pfe", "knn-vote"])
    panels = {
        f"set {i}": {"pfe": curve} | ({"knn-vote": curve} if i == 0 else {}) for i in range(sets)
    }
    found = words(module.panel_chart("sparsification", panels, looks, "in words"))
    assert [found.count(text) for text in (*panels, "pfe", "knn-vote")] == [1] * (sets + 2)
    assert found.count("accuracy of the rest") == 1
