from xml.etree import ElementTree

from surefind.paper.figures import curve_charts, line_styles, ood_charts
from surefind.paper.results import Result
from surefind.paper.vocabulary import DISTANCE_BASELINES, METHODS


def words(svg):
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_every_method_has_a_look_of_its_own():
    methods = [*METHODS, *DISTANCE_BASELINES, "mine", "yours"]
    looks = line_styles(methods)
    assert len({(s["color"], str(s["linestyle"]), s["marker"]) for s in looks.values()}) == len(
        methods
    )
    assert line_styles(["pfe"])["pfe"] == looks["pfe"]


def test_text_stays_text_and_the_same_numbers_give_the_same_bytes(result):
    results = {m: Result(**result(m)) for m in ("pfe", "mahalanobis")}
    first, again = curve_charts(results), curve_charts(results)
    assert [f.svg for f in first] == [f.svg for f in again]
    value = results["pfe"].values["auroc"]
    assert f"PFE {value:.3f}" in words(first[0].svg)
    assert first[0].title == "ROC curves"


def test_ood_sets_are_drawn_by_detector_where_there_are_several(result):
    one = {"mnist": {"examples": 9, "auroc": 0.9, "novelty_auroc": 0.8}}
    two = one | {"cifar100": {"kind": "near", "examples": 9, "auroc": 0.7}}
    results = {
        "pfe": Result(**result("pfe", ood=two)),
        "hib": Result(**result("hib", ood=one)),
        "margin": Result(**result("margin", ood=two)),
        "mc-dropout": Result(**result("mc-dropout")),
    }
    (chart,) = ood_charts(results)
    assert chart.title == "PFE"
    assert chart.caption == "Mean over its sets: κ 0.800, novelty 0.800."
    shown = words(chart.svg)
    for text in ("MNIST", "CIFAR100 (near)", "κ", "novelty"):
        assert text in shown
    assert "nearest distance" not in shown
