"""The gate: what is unlike the training data is never a match."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from decisions.worlds import NAMES, asked, is_right
from oracles import gated
from scipy.stats import binomtest

from surefind.decisions.calibration import Target, calibrate
from surefind.decisions.decision import UNLIKE, UNUSUAL, Gate, GateCounts, p_text
from surefind.errors import InputError
from surefind.labels.posterior import LabelPosterior


def calibrated(posterior, truth, novelty=None, **options):
    return calibrate(posterior, truth, **{"novelty": novelty, "max_wrong": 0.05, **options})


@pytest.fixture(scope="module")
def calibration():
    return calibrated(*asked(1500, np.random.default_rng(0)))


def test_outcomes_change_at_the_marks():
    edges = np.array([0.0, 0.02, np.nextafter(0.02, 1), 0.2, np.nextafter(0.2, 1), 1.0])
    expected = ["unlike", "unlike", "unusual", "unusual", "pass", "pass"]
    assert Gate(0.02).outcome(edges).tolist() == expected


@pytest.mark.parametrize("seed", range(8))
def test_decisions_are_those_of_the_definition(calibration, seed):
    rng = np.random.default_rng([21, seed])
    alpha = float(10 ** rng.uniform(-4, -1.01))
    posterior, _, _ = asked(400, rng)
    novelty = np.where(rng.random(400) < 0.5, 10 ** rng.uniform(-6, 0, 400), alpha)
    found = replace(calibration, gate=Gate(alpha)).decide(posterior, novelty=novelty)
    plain = replace(calibration, gate=None).decide(posterior)
    expected = [gated(p, alpha, d) for p, d in zip(novelty, plain.decision, strict=True)]
    assert found.decision.tolist() == expected
    np.testing.assert_array_equal(found.probability, plain.probability)
    for p, decision, reasons, others in zip(
        novelty, found.decision, found.reasons, plain.reasons, strict=True
    ):
        assert bool(reasons) == (decision != "match")
        if p <= alpha:
            assert reasons == (f"{UNLIKE} ({p_text(p)})",)
        elif p <= 10 * alpha:
            assert reasons == (f"{UNUSUAL} ({p_text(p)})", *others)
        else:
            assert reasons == others


def test_no_evidence_is_good_enough_for_what_is_unlike(calibration):
    best = LabelPosterior(NAMES, [[1.0] + [0.0] * 5], [0.0])
    decided = {p: calibration.decide(best, novelty=[p]).decision[0] for p in (1.0, 0.05, 1e-9)}
    assert decided == {1.0: "match", 0.05: "review", 1e-9: "no_match"}


def test_a_calibration_is_that_of_the_queries_that_pass():
    """Only these are fitted to and tested; what the gate holds back counts in the coverage alone."""
    posterior, truth, novelty = asked(1500, np.random.default_rng(0))
    enrolled, through = np.array([name is not None for name in truth]), novelty > 0.1
    whole = calibrated(posterior, truth, novelty)
    part = calibrated(
        posterior[through], [name for name, there in zip(truth, through, strict=True) if there]
    )
    assert whole.model == part.model
    assert (whole.floor, whole.limits) == (part.floor, part.limits)
    for name in ("thresholds", "accepted", "wrong", "upper_bound", "first", "chosen"):
        assert getattr(whole.risk_curve, name) == getattr(part.risk_curve, name)
    np.testing.assert_allclose(
        whole.risk_curve.coverage, through.mean() * np.array(part.risk_curve.coverage), rtol=2e-3
    )
    assert (whole.gate, part.gate, part.gate_counts) == (Gate(0.01), None, None)
    unlike, unusual = novelty <= 0.01, (novelty > 0.01) & (novelty <= 0.1)
    assert asdict(whole.gate_counts) == {
        "unlike": sum(unlike),
        "unusual": sum(unusual),
        "enrolled": sum(enrolled),
        "enrolled_unlike": sum(unlike & enrolled),
        "enrolled_unusual": sum(unusual & enrolled),
    }
    assert f"OOD rejection         {sum(unlike)} of 1,500 queries" in whole.summary


def test_gated_strangers_are_no_false_positives_and_gated_enrolled_are_missed():
    posterior, truth, _ = asked(3000, np.random.default_rng(1))
    unknown = np.array([name is None for name in truth])
    novelty = np.where(np.random.default_rng(7).random(3000) < 0.3, 0.001, 0.9)
    made = calibrated(posterior, truth, novelty, max_wrong=0.5)
    found = made.risk_curve
    assert found.unknown + found.enrolled == 3000 - 2 * Target(max_wrong=0.5).most_fitted
    match = made.decide(posterior, novelty=novelty).decision == "match"
    i = made.risk_curve.chosen
    assert found.fpir[i] == pytest.approx(match[unknown].mean(), abs=0.05)
    right = is_right(posterior, truth)
    assert found.fnir[i] == pytest.approx(1 - (match & right)[~unknown].mean(), abs=0.05)


def test_suspicion_is_an_exact_binomial_test():
    for alpha in (0.002, 0.01, 0.05):
        for n in (0, 1, 30, 200, 1500):
            for k in {0, 1, 2, int(alpha * n), int(1.5 * alpha * n), int(2 * alpha * n), n}:
                if k <= n:
                    p = binomtest(k, n, alpha, alternative="greater").pvalue if n else 1.0
                    assert GateCounts(k, 0, n, k, 0).suspicious(Gate(alpha)) == (p <= 0.01)
    posterior, truth, novelty = asked(900, np.random.default_rng(2))
    plain, odd = calibrated(posterior, truth, novelty), calibrated(posterior, truth, novelty**2)
    assert not any("fit novelty" in note for note in plain.notes)
    assert any("fit novelty on data like them" in note for note in odd.notes)


def test_without_a_gate_novelty_changes_nothing(calibration):
    posterior, _, _ = asked(50, np.random.default_rng(3))
    plain = replace(calibration, gate=None)
    a, b = plain.decide(posterior), plain.decide(posterior, novelty=np.zeros(50))
    np.testing.assert_array_equal(a.decision, b.decision)
    assert b.novelty.tolist() == [0.0] * 50
    with pytest.raises(InputError) as refused:  # a gate without novelty fails closed
        calibration.decide(posterior)
    assert refused.value.field == "novelty"


def test_p_values_are_short():
    told = {0.0004: "= 0.0004", 0.0312: "= 0.031", 0.00009: "< 0.0001", 0.0: "< 0.0001"}
    assert {p: p_text(p) for p in told} == {p: f"p {text}" for p, text in told.items()}
