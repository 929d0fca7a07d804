import pytest

from surefind.paper.published import PAPER, compare_published
from surefind.paper.results import read_results
from surefind.paper.vocabulary import METRICS, base_set, kind_of, method_title


@pytest.mark.parametrize(
    ("where", "number"),
    [
        (("fashion-mnist", "laplace-online", "recall@1"), (0.81, 0.0)),
        (("fashion-mnist", "hib", "ece"), (0.54, 0.08)),
        (("fashion-mnist", "deep-ensemble", "auroc"), (0.41, None)),
        (("cifar10", "laplace-online", "auroc"), (0.78, 0.04)),
        (("cifar10", "hib", "auprc"), (0.70, 0.1)),
        (("cub200", "laplace-posthoc", "ausc"), (0.66, 0.03)),
        (("lfw", "mc-dropout", "auroc"), (0.03, 0.01)),
        (("lfw", "laplace-online-arccos-fixed", "auroc"), (0.78, 0.18)),
        (("msls", "laplace-online", "recall@10"), (0.90, None)),
        (("msls-challenge", "laplace-online", "ausc"), (0.63, None)),
    ],
)
def test_numbers_are_the_papers(where, number):
    dataset, method, metric = where
    assert PAPER.values[dataset][method][metric] == number


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("cub200", ""),
        ("cub200-frozen-resnet50", "Ours is CUB200, frozen resnet50; the paper's networks "),
        ("cub200-last1-resnet50", "Ours is CUB200, last stage of resnet50 trained; the paper's "),
        ("cifar10-paper", ""),
    ],
)
def test_a_set_by_another_protocol_is_compared_with_the_same_numbers(name, note, result, put):
    protocol = {"ood": ["cars196", "test"]} | ({"frozen": True} if note else {})
    folder = put(result("laplace-posthoc", dataset=name, protocol=protocol))
    (found,) = compare_published(read_results(folder).sets[0], PAPER)
    theirs = dict(
        zip((m.name for m in found.table.metrics), found.table.lines[0].entries, strict=True)
    )
    mean, sd = PAPER.values[base_set(name)]["laplace-posthoc"]["auroc"]
    assert theirs["auroc"].published == f"{mean:.2f} ± {sd:.2f}"
    assert found.caveat.startswith(note or PAPER.caveat)
    assert found.caveat.endswith(PAPER.caveat)


def test_names_are_ours():
    known = {m.name for m in METRICS}
    for methods in PAPER.values.values():
        for method, metrics in methods.items():
            assert kind_of(method) == "ablation" or method_title(method) != method
            assert set(metrics) <= known
    variants = [m for m in PAPER.values[PAPER.ablation_dataset] if kind_of(m) == "ablation"]
    assert len(variants) == 12


def test_a_point_estimate_has_no_uncertainty():
    assert set(PAPER.values["cifar10"]["deterministic"]) == {"recall@1", "map@5", "map@10"}
