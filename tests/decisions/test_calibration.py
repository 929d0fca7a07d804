"""A calibration keeps its promise, says what it found, and answers by it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from decisions.worlds import NAMES, asked, is_right
from scipy.stats import beta

from surefind.decisions.calibration import Calibration, Evidence, Split, Target, calibrate
from surefind.decisions.decision import (
    COMPETE,
    NOT_ENROLLED,
    TARGET_NOT_REACHED,
    UNCLEAR,
    UNTESTED,
    Limits,
)
from surefind.errors import DegenerateError, InputError
from surefind.files import from_stored, to_stored
from surefind.labels.posterior import LabelPosterior


def calibrated(n=1500, seed=0, **options):
    posterior, truth, _ = asked(n, np.random.default_rng(seed))
    return calibrate(posterior, truth, **{"max_wrong": 0.05, **options})


@pytest.fixture(scope="module")
def calibration():
    return calibrated()


@pytest.fixture(scope="module")
def fresh():
    posterior, truth, novelty = asked(20_000, np.random.default_rng(77))
    return posterior, is_right(posterior, truth), novelty


def test_decisions_follow_the_probability(calibration, fresh):
    found = calibration.decide(fresh[0])
    assert 0 < calibration.floor <= 0.5 <= calibration.threshold
    np.testing.assert_array_equal(found.probability, calibration.model(fresh[0]))
    match, low = (
        found.probability >= calibration.threshold,
        found.probability < calibration.floor,
    )
    expected = np.where(match, "match", np.where(low, "no_match", "review"))
    np.testing.assert_array_equal(found.decision, expected)
    assert [bool(reasons) for reasons in found.reasons] == (~match).tolist()


def test_a_query_is_decided_the_same_alone(calibration, fresh):
    """A query may lie exactly on a threshold."""
    together = calibration.decide(fresh[0][:300])
    alone = [calibration.decide(fresh[0][row : row + 1]).probability[0] for row in range(300)]
    np.testing.assert_array_equal(together.probability, alone)


def test_what_is_promised_holds_for_fresh_queries(calibration, fresh):
    posterior, right, _ = fresh
    found = calibration.decide(posterior)
    match, thrown = found.decision == "match", found.decision == "no_match"
    assert match.mean() > 0.4
    assert (~right[match]).mean() <= 0.05
    assert (right & thrown).sum() / right.sum() <= 0.05


MANY = [pytest.param(25, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("runs", MANY)
@pytest.mark.parametrize("gate", [False, True])
def test_all_promises_hold_in_simulated_calibrations(runs, gate, fresh):
    """Wrong matches, and unknown queries matched, both at once; with a gate that stops the wrong ones."""
    everyone, right, novelty = fresh
    _, truth, _ = asked(20_000, np.random.default_rng(77))
    unknown = np.array([name is None for name in truth])
    novelty = novelty ** np.where(right, 3, 1)
    broken = reached = 0
    for seed in range(runs):
        rows = np.random.default_rng([2, seed]).integers(20_000, size=1500)
        made = calibrate(
            everyone[rows],
            [truth[row] for row in rows],
            max_wrong=0.06,
            max_fpir=0.15,
            novelty=novelty[rows] if gate else None,
            seed=seed,
        )
        match = made.decide(everyone, novelty=novelty).decision == "match"
        reached += made.reached
        broken += bool(match.any()) and bool(
            (~right[match]).mean() > 0.06 or match[unknown].mean() > 0.15
        )
        assert not gate or (novelty[match] > 0.1).all()
    assert reached > 0.7 * runs
    assert broken <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize("n", [20, 300, 2000])
def test_all_right_is_a_match_for_what_looks_like_it(n):
    """300 queries all right must not make a match of what is hardly probable."""
    rng = np.random.default_rng(8)
    posterior, _, _ = asked(n, rng, unknown=0)
    made = calibrate(posterior, posterior.label, max_wrong=0.05)
    answers = made.decide(posterior)
    told = (posterior.among > 0) & (posterior.known > 0)
    assert (answers.probability[told] >= (n / 4 / (n / 4 + 2)) ** 2 - 0.05).all()
    assert made.reached == (n > 20)
    assert (answers.probability[answers.decision == "match"] >= 0.5).all()
    assert any("All answers were right" in note for note in made.notes)
    assert any("covers enrolled labels only" in note for note in made.notes)
    odd = LabelPosterior(NAMES, [[0.01] * 6], [0.94])
    assert made.decide(odd).decision[0] != "match"


def test_nothing_below_a_half_is_a_match():
    posterior, truth, _ = asked(900, np.random.default_rng(1), unknown=0.7)
    made = calibrate(posterior, truth, max_wrong=0.9)
    assert made.threshold >= 0.5


def test_the_split_is_a_quarter_of_those_that_pass_and_of_the_others():
    through = np.arange(300) % 5 > 0
    split = Split.draw(through, Target(seed=3))
    assert sorted([*split.fit, *split.test]) == list(range(300))
    assert (through[split.fit].sum(), (~through[split.fit]).sum()) == (60, 15)
    np.testing.assert_array_equal(split.fit, Split.draw(through, Target(seed=3)).fit)
    assert (split.fit != Split.draw(through, Target(seed=4)).fit).any()
    many = Split.draw(np.ones(5000, dtype=bool), Target(max_wrong=0.1))
    assert len(many.fit) == 8 * 29  # of 29 queries without an error 10 % are refuted


def test_probabilities_that_tested_it_are_those_of_the_curve():
    posterior, truth, novelty = asked(900, np.random.default_rng(4))
    right = is_right(posterior, truth)
    for values in (None, novelty):
        made = calibrate(posterior, truth, max_wrong=0.05, novelty=values)
        chance, curve = made.tested_probability, made.risk_curve
        there = ~np.isnan(chance)
        assert values is None or (novelty[there] > 0.1).all()
        for t, accepted, wrong in zip(curve.thresholds, curve.accepted, curve.wrong, strict=True):
            assert (chance[there] >= t).sum() == accepted
            assert (~right[there] & (chance[there] >= t)).sum() == wrong


def test_a_share_of_unknown_queries_is_a_weight(fresh):
    """One in two here, one in ten to come."""
    rng = np.random.default_rng(6)
    posterior, truth, _ = asked(3000, rng, unknown=0.5)
    plain, made = (
        calibrate(posterior, truth, max_wrong=0.05, unknown_share=share) for share in (None, 0.1)
    )
    assert made.queries == plain.queries == 3000
    expected, theirs, _ = asked(20_000, rng, unknown=0.1)
    match = made.decide(expected).decision == "match"
    wrong = ~is_right(expected, theirs)[match]
    i = made.risk_curve.chosen
    assert match.mean() == pytest.approx(made.risk_curve.coverage[i], abs=0.04)
    assert wrong.mean() <= made.risk_curve.upper_bound[i] <= 0.05
    assert match.mean() > (plain.decide(expected).decision == "match").mean()
    assert "at 10 % unknown" in made.summary
    none = calibrate(posterior, truth, max_wrong=0.05, unknown_share=0)
    assert none.threshold <= made.threshold + 0.2


def test_labels_left_out_are_unknown_queries():
    rng = np.random.default_rng(7)
    posterior, truth, _ = asked(1500, rng, unknown=0)
    strange, _, p = asked(600, rng, unknown=1)
    made = calibrate(posterior, truth, max_wrong=0.05, left_out=Evidence(strange))
    chance = made.model(strange)
    assert made.left_out_queries == 600
    assert made.left_out_matched == (chance >= made.threshold).sum()
    line = made.summary.splitlines()[3]
    bound = beta.ppf(0.95, made.left_out_matched + 1, 600 - made.left_out_matched)
    assert f"{made.left_out_matched} of 600 with their label left out" in line
    assert f"upper bound {100 * bound:.3g}" in line
    # They keep max_fpir where no query is unknown: a quarter of them plans.
    kept = calibrate(posterior, truth, max_wrong=0.05, max_fpir=0.05, left_out=Evidence(strange))
    assert kept.left_out_queries == 450
    bound = beta.ppf(0.95, kept.left_out_matched + 1, 450 - kept.left_out_matched)
    assert bound <= 0.05 < made.left_out_matched / 600
    assert kept.threshold > made.threshold
    gated = calibrate(
        posterior,
        truth,
        max_wrong=0.05,
        novelty=np.ones(1500),
        left_out=Evidence(strange, p),
    )
    assert gated.left_out_matched == ((chance >= made.threshold) & (p > 0.1)).sum()


def test_too_few_and_hopeless_queries_are_told_apart():
    few = calibrated(90, max_wrong=0.01)
    assert not few.reached
    assert 200 <= few.more_queries < 30_000
    assert f"about {few.more_queries:,} more would reach it" in few.summary
    assert few.summary.startswith("Not reached: at most 1 % of matches are wrong")
    posterior, truth, _ = asked(800, np.random.default_rng(9))
    found = few.decide(posterior)
    assert "match" not in found.decision
    assert (TARGET_NOT_REACHED,) in found.reasons.tolist()
    noise = np.random.default_rng(10).permutation(truth).tolist()
    lost = calibrate(posterior, noise, max_wrong=0.01)
    assert lost.more_queries is None
    assert "more queries will not help" in lost.summary
    strict = calibrated(900, max_fpir=0.001)
    assert "max_fpir needs 2,995 unknown queries" in strict.summary


def test_the_summary_is_six_lines_and_the_notes(calibration):
    i, found = calibration.risk_curve.chosen, calibration.risk_curve
    lines = calibration.summary.splitlines()
    assert lines[0] == "Guarantee: at most 5 % of matches are wrong (95 % confidence)"
    assert lines[1] == f"  match threshold       probability >= {calibration.threshold:.3f}"
    accepted, wrong = calibration.risk_curve.accepted[i], calibration.risk_curve.wrong[i]
    assert lines[2].startswith(f"  answered as a match   {accepted} of 1,125 test queries (")
    assert f", {wrong} wrong (upper bound " in lines[2]
    unknown = f"{found.false_positives[i]} of {found.unknown} unknown queries (FPIR, "
    assert lines[3].startswith(f"  unknown but matched   {unknown}")
    assert lines[4].startswith(f"  known but missed      {found.missed[i]} of {found.enrolled} (")
    assert lines[5] == (
        "  OOD rejection         off: pass novelty= to reject inputs unlike the training data"
    )
    assert len(lines) == 6 + len(calibration.notes)
    noted = calibrated(notes=["The moon was full."])
    assert noted.summary.splitlines()[6] == "Note: The moon was full."


def test_it_survives_json_exactly(fresh):
    for original in (
        calibrated(300, groups=[None, "a", 7] * 100, kappa=np.arange(1.0, 301)),
        calibrated(60, max_wrong=0.001, novelty=np.ones(60)),
        calibrated(300, unknown_share=0.1, max_fpir=0.2),
    ):
        stored = json.loads(json.dumps(to_stored(Calibration, original), allow_nan=False))
        again = from_stored(Calibration, stored, "it")
        assert (again, again.made) == (original, original.made)
        np.testing.assert_array_equal(again.tested_probability, original.tested_probability)
        np.testing.assert_array_equal(again.model(fresh[0]), original.model(fresh[0]))


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


def one(shares, none):
    """Return a query whose labels share what none leaves."""
    shares = np.array([*shares, *[0.0] * (6 - len(shares))])
    return LabelPosterior(NAMES, [(1 - none) * shares / shares.sum()], [none])


def test_reasons_are_what_a_person_would_say(calibration):
    limited = replace(calibration, limits=Limits(among=1.0, known=0.0, log_kappa=2.0))

    def reasons(shares, none, **options):
        return limited.decide(one(shares, none), **options).reasons[0]

    assert reasons([0.999, 0.001], 1e-6) == ()
    assert reasons([0.55, 0.41, 0.04], 0.01) == (f"{COMPETE}: 0.55 label 0, 0.41 label 1",)
    assert reasons([0.9, 0.1], 0.8) == (NOT_ENROLLED,)
    # Both are bad: what is worse.
    assert reasons([0.5, 0.5], 0.99) == (NOT_ENROLLED,)
    assert reasons([0.3, 0.3, 0.2, 0.2], 0.55)[0].startswith(COMPETE)
    assert reasons([0.55, 0.45], 0.01, kappa=[1.0]) == (
        UNCLEAR,
        f"{COMPETE}: 0.55 label 0, 0.45 label 1",
    )
    # Usual in all: what costs most.
    easy = replace(calibration, limits=Limits(among=-9.0, known=-9.0, log_kappa=None))
    assert easy.decide(one([0.999, 0.001], 0.8)).reasons[0] == (NOT_ENROLLED,)
    assert easy.decide(one([0.4, 0.3, 0.3], 0.01)).reasons[0][0].startswith(COMPETE)
    assert limited.decide(LabelPosterior(NAMES, [[0.0] * 6], [1.0])).reasons[0] == (NOT_ENROLLED,)


def test_a_label_that_was_not_tested_is_a_review_at_most(calibration, fresh):
    plain = calibration.decide(fresh[0])
    held = replace(calibration, labels=(*NAMES[:2], *NAMES[3:])).decide(fresh[0])
    new = plain.label == NAMES[2]
    np.testing.assert_array_equal(plain.decision[~new], held.decision[~new])
    match = new & (plain.decision == "match")
    assert (held.decision[match] == "review").all()
    assert {*held.reasons[match]} == {(UNTESTED,)}
    gone = new & (plain.decision == "no_match")
    np.testing.assert_array_equal(held.reasons[gone], plain.reasons[gone])


def test_groups_have_their_own_threshold_where_data_are_enough():
    """Group "easy" is nearly always right, "bad" is wrong at random, "small" has few queries."""
    rng = np.random.default_rng(12)
    n = 3000
    posterior, truth, _ = asked(n, rng, unknown=0.1)
    groups = rng.choice(["easy", "bad", "small"], n, p=[0.624, 0.37, 0.006])
    spoilt = (groups == "bad") & (rng.random(n) < 0.3)
    truth = [NAMES[0] if bad else name for bad, name in zip(spoilt, truth, strict=True)]
    made = calibrate(posterior, truth, max_wrong=0.15, groups=groups)
    by_name = {group.name: group for group in made.groups}
    assert [by_name[name].status for name in ("easy", "bad", "small")] == [
        "own",
        "refused",
        "common",
    ]
    assert by_name["easy"].threshold < made.threshold == by_name["small"].threshold
    assert "Note: Group bad" in made.summary
    common = made.decide(posterior).decision == "match"
    easy = made.decide(posterior, groups=["easy"] * n).decision == "match"
    assert easy.sum() > common.sum()
    assert "match" not in made.decide(posterior, groups=["bad"] * n).decision
    for other in ("small", "never seen", None):
        found = made.decide(posterior, groups=[other] * n).decision == "match"
        np.testing.assert_array_equal(found, common)


def test_kappa_decides_only_where_it_was_learned():
    rng = np.random.default_rng(13)
    posterior, truth, _ = asked(1500, rng)
    kappa = np.exp(is_right(posterior, truth) + 0.7 * rng.normal(size=1500))
    made = calibrate(posterior, truth, max_wrong=0.05, kappa=kappa)
    assert made.model.uses_kappa
    low, high = (made.decide(posterior, kappa=np.full(1500, k)) for k in (0.1, 10.0))
    assert (low.probability <= high.probability).all()
    assert UNCLEAR in {reason for reasons in low.reasons for reason in reasons}
    assert made.decide(posterior, kappa=kappa).kappa[3] == kappa[3]
    for absent in (None, np.full(1500, np.inf)):
        with pytest.raises(InputError) as refused:
            made.decide(posterior, kappa=absent)
        assert refused.value.field == "kappa"
    unknown = calibrate(posterior, truth, max_wrong=0.05, kappa=np.full(1500, np.inf))
    assert not unknown.model.uses_kappa
    # What is left out without κ could not be compared.
    strange, _, _ = asked(300, rng, unknown=1)
    assert not calibrate(posterior, truth, kappa=kappa, left_out=Evidence(strange)).model.uses_kappa


def test_truth_that_is_listed_by_no_row_counts_as_unknown_unless_said():
    posterior, truth, _ = asked(300, np.random.default_rng(14), unknown=0)
    renamed = ["nobody" if name == NAMES[0] else name for name in truth]
    assert calibrate(posterior, renamed).unknown == truth.count(NAMES[0])
    assert calibrate(posterior, renamed, enrolled=np.ones(300)).unknown == 0
    numbers = LabelPosterior(range(6), posterior.probability, posterior.none)
    codes = [NAMES.index(name) for name in truth]
    codes[:30] = [-1] * 30
    assert calibrate(numbers, codes).unknown == 30


REFUSALS = {
    "max_wrong": [0.0, 1.0, "1 %"],
    "max_fpir": [0.0],
    "confidence": [1.0],
    "max_false_alarms": [0.0, 0.1, float("nan")],
    "unknown_share": [-0.1, 1.0, "half"],
    "seed": [-1, 0.5],
    "truth": [NAMES[:1] * 99, [7] * 100],
    "groups": [["a"] * 3],
    "kappa": [np.ones(99), -np.ones(100)],
    "novelty": [np.ones(99), np.full(100, np.nan), np.full(100, 1.1), np.full(100, 0.1)],
    "enrolled": [np.zeros(100), np.ones(101)],
}


@pytest.mark.parametrize(
    ("field", "value"), [(name, value) for name, some in REFUSALS.items() for value in some]
)
def test_unusable_input_is_refused(field, value):
    posterior, truth, _ = asked(100, np.random.default_rng(13))
    with pytest.raises(InputError) as refused:
        calibrate(posterior, **{"truth": truth, field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "options", "rows"),
    [
        ("truth", {}, slice(19)),
        ("max_fpir", {"max_fpir": 0.1}, "known"),
        ("unknown_share", {"unknown_share": 0.2}, "known"),
        ("unknown_share", {"unknown_share": 0.2}, "unknown"),
        ("unknown_share", {"unknown_share": 0.0}, "unknown"),
        (
            "novelty",
            {"left_out": Evidence(asked(30, np.random.default_rng(0))[0]), "novelty": 1.0},
            "known",
        ),
    ],
)
def test_queries_that_a_target_lacks_are_named(field, options, rows):
    posterior, truth, _ = asked(400, np.random.default_rng(13))
    known = np.array([name is not None for name in truth])
    rows = np.arange(400)[{"known": known, "unknown": ~known}.get(str(rows), rows)]
    if "novelty" in options:
        options = options | {"novelty": np.ones(len(rows))}
    with pytest.raises(InputError) as refused:
        calibrate(posterior[rows], [truth[row] for row in rows], **options)
    assert refused.value.field == field
    assert isinstance(refused.value, DegenerateError) == (field != "novelty")


def test_evidence_of_another_kind_is_refused(calibration):
    posterior, _, _ = asked(5, np.random.default_rng(0), none=False)
    with pytest.raises(InputError) as refused:
        calibration.decide(posterior)
    assert refused.value.field == "posterior"


def test_a_target_can_be_changed():
    target = Target(max_fpir=0.1)
    assert target.changed(max_wrong=0.2, max_fpir=None) == Target(0.2, 0.1)
    assert Target(0.01).least_queries == 399
