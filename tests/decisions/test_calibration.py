import json
from dataclasses import replace

import numpy as np
import pytest
from decisions.worlds import everything_useful, faces, simulate_calibrations, two_ways_to_be_wrong

from surefind.decisions import Calibration, Signals, calibrate
from surefind.decisions.calibration import held_out_probability
from surefind.decisions.decision import (
    NOT_ENROLLED,
    SPLIT,
    TARGET_NOT_REACHED,
    UNCLEAR,
)
from surefind.errors import DegenerateError, InputError
from surefind.files import from_stored, to_stored


def calibrated(n=1500, seed=0, **options):
    rng = np.random.default_rng(seed)
    signals, right, enrolled = faces(n, rng)
    options = {"max_wrong": 0.05, "contributions": False} | options
    return calibrate(signals, right, enrolled=enrolled, rng=rng, **options)


@pytest.fixture(scope="module")
def calibration():
    return calibrated(contributions=True)


def one(log_kappa=5.3, distance=0.4, margin=0.35, density=0.48, consensus=7.0, evidence=2.5):
    return Signals(*np.array([consensus, evidence, log_kappa, distance, margin, density])[:, None])


def test_decisions_follow_the_probability(calibration):
    signals, _, _ = faces(2000, np.random.default_rng(1))
    found = calibration.decide(signals)
    assert len(found) == 2000
    np.testing.assert_array_equal(found.probability, calibration.probability(signals))
    assert 0 < calibration.floor <= 0.5 < calibration.threshold
    for p, decision, reasons in zip(found.probability, found.decision, found.reasons, strict=True):
        if p >= calibration.threshold:
            assert (decision, reasons) == ("match", ())
        else:
            assert decision == ("no_match" if p < calibration.floor else "review")
            assert reasons
    assert set(found.decision) == {"match", "review", "no_match"}


def test_the_guarantee_holds_for_fresh_queries(calibration):
    signals, right, _ = faces(20000, np.random.default_rng(2))
    found = calibration.decide(signals)
    match, thrown = found.decision == "match", found.decision == "no_match"
    assert match.mean() > 0.5
    assert (~right[match]).mean() <= 0.05
    assert (right & thrown).sum() / right.sum() <= 0.05
    assert right[thrown].mean() < 0.5


@pytest.mark.parametrize("world", [everything_useful, two_ways_to_be_wrong])
@pytest.mark.slow
def test_the_guarantee_holds_in_simulated_calibrations(world):
    found = simulate_calibrations(world, runs=40, queries=900, max_wrong=0.05)
    assert found.exceeded <= 0.15  # 5 % in truth gives more than this once in 300 times
    assert found.reached > 0.8
    assert found.coverage > 0.5
    assert 0.01 < found.wrong_rate < 0.05


def test_the_summary_says_what_was_found(calibration):
    assert calibration.reached
    assert calibration.more_queries == 0
    assert calibration.summary.startswith("Target reached: 5.00% wrong matches with 95% confidence")
    assert calibration.contributions.sentence in calibration.summary
    assert calibration.queries == 1500
    assert calibration.fitted == 500
    assert calibration.unknown == pytest.approx(225, abs=60)


def test_a_calibration_survives_json_exactly(calibration):
    grouped = calibrated(300, groups=[None, "a", 7] * 100)
    failed = calibrated(60, max_wrong=0.001)
    for original in (calibration, grouped, failed):
        stored = json.loads(json.dumps(to_stored(Calibration, original), allow_nan=False))
        again = from_stored(Calibration, stored, "it")
        assert (again, again.made) == (original, original.made)
        signals, _, _ = faces(100, np.random.default_rng(5))
        np.testing.assert_array_equal(again.probability(signals), original.probability(signals))


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: None,
        lambda stored: stored["value"],
        lambda stored: stored | {"value": stored["value"] | {"floor": 0.4}},
        lambda stored: sealed({n: x for n, x in stored["value"].items() if n != "floor"}),
        lambda stored: sealed(stored["value"] | {"extra": 1}),
        lambda stored: sealed(stored["value"] | {"floor": "high"}),
        lambda stored: sealed(stored["value"] | {"queries": True}),
    ],
)
def test_what_was_edited_or_is_of_another_version_is_refused(calibration, damage):
    """By the checksum; and, if that is right, by the types."""
    with pytest.raises(InputError) as refused:
        from_stored(Calibration, damage(to_stored(Calibration, calibration)), "it")
    assert refused.value.field == "stored"


def sealed(plain):
    return to_stored(dict, plain)


def test_too_few_queries_say_how_many_are_needed():
    few = calibrated(90, max_wrong=0.01)
    assert not few.reached
    assert few.threshold is None
    assert 299 <= few.more_queries < 30000
    assert f"about {90 + few.more_queries:,} calibration queries in all" in few.summary
    assert "Another split of the same queries is no remedy" in few.summary
    signals, _, _ = faces(300, np.random.default_rng(6))
    found = few.decide(signals)
    assert "match" not in found.decision
    assert all(found.reasons)
    assert any(reasons == (TARGET_NOT_REACHED,) for reasons in found.reasons)


def test_noise_says_that_more_queries_do_not_help():
    rng = np.random.default_rng(7)
    right = rng.random(800) < 0.5
    noise = Signals(*rng.normal(size=(6, 800)))
    enrolled = np.ones(800, dtype=bool)
    lost = calibrate(noise, right, enrolled=enrolled, rng=rng, contributions=False)
    assert not lost.reached
    assert lost.more_queries is None
    assert "will not help" in lost.summary


def test_all_right_matches_what_looks_like_it():
    rng = np.random.default_rng(8)
    signals, _, _ = faces(900, rng)
    sure = calibrate(
        signals, np.ones(900), enrolled=np.ones(900), rng=rng, max_wrong=0.01, confidence=0.95
    )
    assert sure.reached
    assert sure.contributions is None
    assert "All answers were right" in sure.summary
    assert (sure.decide(signals).decision == "match").mean() > 0.95
    bad = one(log_kappa=0, distance=3, margin=0, density=3, consensus=0, evidence=-20)
    assert sure.decide(bad).decision[0] != "match"


def test_all_wrong_matches_nothing():
    rng = np.random.default_rng(9)
    signals, _, _ = faces(200, rng)
    lost = calibrate(signals, np.zeros(200), enrolled=np.zeros(200), rng=rng)
    assert lost.more_queries is None
    assert "unknown: no answer could be right" in lost.summary
    assert "match" not in lost.decide(signals).decision


def test_without_unknown_queries_a_note_says_so(calibration):
    rng = np.random.default_rng(10)
    signals, right = everything_useful(200, rng)
    known = calibrate(signals, right, enrolled=np.ones(200), contributions=False, rng=rng)
    assert any("does not cover" in note for note in known.notes)
    assert not any("does not cover" in note for note in calibration.notes)


def test_reasons_are_what_a_person_would_say(calibration):
    def reasons(**signals):
        return calibration.decide(one(**signals)).reasons[0]

    assert reasons() == ()
    assert UNCLEAR in reasons(log_kappa=1, margin=0.01, consensus=0.2)
    assert NOT_ENROLLED in reasons(distance=2.5, density=2.6, margin=0.3, evidence=-20)
    assert reasons(margin=0.001, consensus=0.1) == (SPLIT,)
    assert reasons(distance=0.75, density=0.8, margin=0.3, evidence=-1.5) == (NOT_ENROLLED,)


def test_neighbours_of_one_mind_are_no_split(calibration):
    calm = replace(calibration, limits=replace(calibration.limits, low_consensus=6.0))
    found = calm.decide(
        one(distance=0.9, density=0.95, consensus=5.0, evidence=-3.5),
        rivals=lambda rows: ["1.00 a"] * len(rows),
    )
    assert found.decision[0] != "match"
    assert found.reasons[0] == (NOT_ENROLLED,)


def test_a_split_says_what_competes(calibration):
    two = one(margin=0.001, consensus=0.1)[[0, 0]]

    def said(rows):
        return [["0.55 a, 0.41 b", ""][row] for row in rows]

    first, second = calibration.decide(two, rivals=said).reasons
    assert first == (f"{SPLIT}: 0.55 a, 0.41 b",)
    assert second == (SPLIT,)


def test_reasons_without_a_passed_limit(calibration):
    signals, _, _ = faces(5000, np.random.default_rng(11))
    limits = replace(
        calibration.limits,
        low_log_kappa=-9.0,
        low_consensus=-99.0,
        low_evidence=-99.0,
    )
    found = replace(calibration, limits=limits).decide(signals)
    for decision, reasons in zip(found.decision, found.reasons, strict=True):
        if decision == "no_match":
            assert reasons == (NOT_ENROLLED,)
        if decision == "review":
            assert len(reasons) == 1
            assert reasons[0] in {UNCLEAR, SPLIT, NOT_ENROLLED}


def test_a_constant_kappa_is_never_to_blame():
    rng = np.random.default_rng(15)
    signals, right, enrolled = faces(900, rng)
    blind = replace(signals, log_kappa=np.full(900, 5.0))
    calibration = calibrate(
        blind, right, enrolled=enrolled, max_wrong=0.01, contributions=False, rng=rng
    )
    assert calibration.limits.typical_parts[Signals.names.index("log_kappa")] is None
    assert UNCLEAR not in {reason for some in calibration.decide(blind).reasons for reason in some}


def grouped_calibration():
    """Group "easy" is nearly always right, "bad" is wrong at random, "small" has few queries."""
    rng = np.random.default_rng(12)
    signals, right, enrolled = faces(3000, rng)
    groups = rng.choice(
        np.array(["easy", "bad", "small"], dtype=object), 3000, p=[0.624, 0.37, 0.006]
    )
    right &= (groups != "bad") | (rng.random(3000) < 0.8)
    calibration = calibrate(
        signals,
        right,
        enrolled=enrolled,
        max_wrong=0.15,
        groups=list(groups),
        contributions=False,
        rng=rng,
    )
    return calibration, signals


def test_groups_have_their_own_threshold_where_data_are_enough():
    calibration, signals = grouped_calibration()
    by_name = {group.name: group for group in calibration.groups}
    assert calibration.reached
    assert by_name["easy"].status == "own"
    assert by_name["easy"].threshold < calibration.threshold
    assert by_name["bad"].status == "refused"
    assert by_name["small"].status == "common"
    assert by_name["small"].threshold == calibration.threshold
    assert "Group bad" in calibration.summary
    common = calibration.decide(signals).decision == "match"
    n = len(signals)
    easy = calibration.decide(signals, groups=["easy"] * n).decision == "match"
    assert easy.sum() > common.sum()
    assert "match" not in calibration.decide(signals, groups=["bad"] * n).decision
    for groups in (["small"] * n, ["never seen"] * n, [None] * n):
        np.testing.assert_array_equal(
            calibration.decide(signals, groups=groups).decision == "match", common
        )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_wrong": 0.0}, "max_wrong"),
        ({"max_wrong": 1.0}, "max_wrong"),
        ({"confidence": 1.0}, "confidence"),
        ({"max_missed": float("nan")}, "max_missed"),
        ({"right": np.ones(99)}, "right"),
        ({"enrolled": np.ones(101)}, "enrolled"),
        ({"enrolled": np.zeros(100)}, None),
        ({"groups": ["a"] * 3}, "groups"),
    ],
)
def test_unusable_input_is_refused(change, field):
    rng = np.random.default_rng(13)
    signals, right = everything_useful(100, rng)
    given = {"right": right, "enrolled": np.ones(100)} | change
    with pytest.raises(InputError) as refused:
        calibrate(signals, rng=rng, **given)
    assert refused.value.field == field
    with pytest.raises(DegenerateError):
        calibrate(signals[:19], right[:19], enrolled=np.ones(19), rng=rng)


def test_probabilities_of_the_testing_part_can_be_had_again():
    """Those that the risk curve counts, by the same split."""
    rng = np.random.default_rng(4)
    signals, right = everything_useful(600, rng)
    novelty = rng.random(600)
    options = {"enrolled": right | (rng.random(600) < 0.5), "contributions": False}
    for known in (None, novelty):
        made = calibrate(
            signals, right, novelty=known, max_wrong=0.1, rng=np.random.default_rng(5), **options
        )
        chance = held_out_probability(made, signals, novelty=known, rng=np.random.default_rng(5))
        there = ~np.isnan(chance)
        passing = 600 if known is None else int((novelty > 0.1).sum())
        assert there.sum() == passing - made.fitted
        assert known is None or (novelty[there] > 0.1).all()
        curve = made.risk_curve
        for threshold, accepted, wrong in zip(
            curve.thresholds, curve.accepted, curve.wrong, strict=True
        ):
            assert (chance[there] >= threshold).sum() == accepted
            assert (~right[there] & (chance[there] >= threshold)).sum() == wrong
