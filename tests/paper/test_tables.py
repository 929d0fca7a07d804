import numpy as np
import pytest
from scipy.stats import ttest_rel

from surefind.paper.results import read_results
from surefind.paper.tables import ablation_table, compare
from surefind.paper.vocabulary import metric_of


@pytest.fixture
def methods(put, result):
    """Make methods of given values per seed, with intervals of a half width."""

    def make(name="auroc", width=None, **values):
        results = []
        for method, per_seed in values.items():
            for seed, value in enumerate(per_seed):
                if value is not None:
                    spans = {} if width is None else {name: [value - width, value + width]}
                    results.append(
                        result(method, seed, values={name: value}, intervals=spans, curves={})
                    )
        return read_results(put(*results)).sets[0].by_method("method")

    return make


def test_mean_and_deviation_are_numpys(methods):
    score = compare(methods(pfe=[0.5, 0.6, 0.8]), metric_of("auroc"))["pfe"]
    assert score.mean == pytest.approx(np.mean([0.5, 0.6, 0.8]))
    assert score.sd == pytest.approx(np.std([0.5, 0.6, 0.8], ddof=1))
    assert (score.seeds, score.rank, score.interval) == (3, "best", None)


def test_ranks_follow_the_better_direction(methods):
    made = {"pfe": [0.5], "hib": [0.7], "a": [0.6]}
    higher = compare(methods(**made), metric_of("auroc"))
    assert [higher[r].rank for r in ("pfe", "hib", "a")] == ["", "best", "second"]
    lower = compare(methods("ece", **made), metric_of("ece"))
    assert [lower[r].rank for r in ("pfe", "hib", "a")] == ["best", "", "second"]
    unknown = compare(methods("zeal", **made), metric_of("zeal"))
    assert [unknown[r].rank for r in ("pfe", "hib", "a")] == ["", "", ""]


def test_methods_that_read_alike_share_a_rank(methods):
    found = compare(methods(a=[0.7001], b=[0.7002], c=[0.5]), metric_of("auroc"))
    assert [found[r].rank for r in "abc"] == ["best", "best", "second"]
    assert found["a"].verdict == ""


def test_a_lucky_seed_wins_nothing(methods):
    """On the seed that both have, b is better; a's mean over all its seeds is the larger one."""
    made = methods(a=[0.6, 0.9], b=[0.7])
    found = compare(made, metric_of("auroc"))
    assert found["a"].mean > found["b"].mean
    assert (found["b"].rank, found["a"].rank) == ("best", "second")


def test_without_a_common_seed_nothing_is_best(methods):
    found = compare(methods(a=[0.6, None], b=[None, 0.7]), metric_of("auroc"))
    assert {score.rank for score in found.values()} == {""}


def test_a_method_without_the_metric_has_no_score(methods):
    both = methods(a=[0.7]) | {"b": ()}
    assert set(compare(both, metric_of("auroc"))) == {"a"}


def test_an_unranked_method_takes_no_part(methods):
    found = compare(methods(a=[0.7], b=[0.9]), metric_of("auroc"), frozenset({"b"}))
    assert (found["a"].rank, found["b"].rank, found["b"].mean) == ("best", "", 0.9)


@pytest.mark.parametrize("gap", [0.001, 0.01, 0.03, 0.1])
def test_three_seeds_are_tested_as_scipy_tests_them(methods, gap):
    best = [0.90, 0.92, 0.95]
    other = [0.90 - gap, 0.93 - gap, 0.94 - gap]
    found = compare(methods(best=best, other=other), metric_of("auroc"))["other"]
    expected = "alike" if ttest_rel(best, other).pvalue >= 0.05 else "different"
    assert (found.verdict, found.basis) == (expected, "seeds")


def test_only_common_seeds_are_tested(methods):
    found = compare(
        methods(best=[0.9, 0.91, 0.92, None], other=[None, 0.8, 0.8, 0.8], width=0.001),
        metric_of("auroc"),
    )["other"]
    assert (found.verdict, found.basis) == ("different", "intervals")


def test_a_constant_gap_differs(methods):
    found = compare(methods(best=[0.5, 0.75, 1.0], other=[0.25, 0.5, 0.75]), metric_of("auroc"))
    assert found["other"].verdict == "different"


def test_methods_that_differ_in_another_seed_only_share_a_rank(methods):
    found = compare(methods(one=[0.5, 0.5, 0.5, 0.9], other=[0.5, 0.5, 0.5]), metric_of("auroc"))
    assert [score.rank for score in found.values()] == ["best", "best"]


@pytest.mark.parametrize(("width", "verdict"), [(0.02, "different"), (0.06, "alike")])
def test_one_seed_is_judged_by_intervals(methods, width, verdict):
    found = compare(methods(best=[0.9], other=[0.8], width=width), metric_of("auroc"))["other"]
    assert (found.verdict, found.basis) == (verdict, "intervals")
    assert found.interval == pytest.approx((0.8 - width, 0.8 + width))


def test_without_seeds_and_intervals_nothing_is_claimed(methods):
    found = compare(methods(best=[0.9], other=[0.8]), metric_of("auroc"))["other"]
    assert (found.verdict, found.basis) == ("untested", "")
    apart = compare(methods(best=[0.9, None], other=[None, 0.8], width=0.1), metric_of("auroc"))
    assert apart["other"].verdict == "untested"


def test_the_ablation_leaves_out_what_needs_no_posterior(result, put):
    made = result("laplace-online-arccos-fixed")
    free = ("nearest_distance_auroc", "novelty_auroc", "novelty_r_auroc", "false_alarms_1")
    made["values"] |= dict.fromkeys(free, 0.5)
    (found,) = read_results(put(made)).sets
    assert {m.name for m in found.metrics("ablation")} >= {*free, "auroc"}
    shown = {m.name for m in ablation_table(found).metrics}
    assert not shown & {*free}
    assert {"recall@1", "auroc", "ausc"} <= shown
