"""The watch: exact p-values, fair bets, and alarms that are rare where false and soon where not."""

import itertools
import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from oracles import betting_capital, conformal_p_values, likeliest_start
from scipy.stats import binom, kstest

from surefind.decisions.drift import (
    CHUNK,
    DIRECTION,
    WORDS,
    Alarm,
    Watch,
    WatchReport,
    odds,
    p_values,
    unspent,
)
from surefind.errors import InputError, SurefindError
from surefind.files import from_stored, to_stored

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def restored(stored):
    return from_stored(Watch, json.loads(json.dumps(stored, allow_nan=False)), "the drift")


def stable(n, rng):
    """Novelty p-values, and probabilities of which a fifth are low."""
    logit = np.where(rng.random(n) < 0.8, 4, -2) + 1.5 * rng.normal(size=n)
    return rng.random(n), 1 / (1 + np.exp(-logit))


def strange(n, share, rng):
    novelty, probability = stable(n, rng)
    return np.where(rng.random(n) < share, 0.004 * novelty, novelty), probability


def started(n=1000, seed=0, *, novelty=True):
    values = stable(n, np.random.default_rng([1, seed]))
    return Watch.start(values[0] if novelty else None, values[1], seed=seed)


def bin_of(value):
    """How many edges are below: log-odds -11.95, -11.85, … 11.95."""
    return sum(1 / (1 + math.exp(-(k + 0.5) / 10)) < value for k in range(-120, 120))


def densities():
    """The bets one by one: low, high, middle, ends."""
    found = []
    for side in (lambda p: p, lambda p: 1 - p):
        for tail in (0.001, 0.004, 0.016, 0.064, 0.25):
            for share in (0.03, 0.1, 0.3):
                found.append(lambda p, s=side, d=tail, e=share: 1 - e + (e / d if s(p) <= d else 0))
        for slope in (0.3, 0.8):
            found.append(lambda p, s=side, a=slope: 1 + a * (1 - 2 * s(p)))
    for bend in (0.8, -0.8):
        found.append(lambda p, a=bend: 1 + a * (6 * p * (1 - p) - 1))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_p_values_are_ranks_in_a_growing_list(seed):
    rng = np.random.default_rng(seed)
    reference, live = rng.integers(0, 9, size=rng.integers(0, 40)), rng.integers(0, 9, size=60)
    ties = rng.random(60)
    found = p_values(np.bincount(reference, minlength=9), live, ties)
    np.testing.assert_allclose(found, conformal_p_values(reference, live, ties), rtol=1e-14)


def test_p_values_are_uniform_whatever_the_distribution():
    """Also with many ties, few references and a long stream; with a bag that does not grow they are not."""
    rng = np.random.default_rng(3)
    growing, fixed = [], []
    for _ in range(60):
        bins = rng.geometric(0.4, size=30 + 500).clip(max=9)
        ties = rng.random(500)
        bag = np.bincount(bins[:30], minlength=10)
        growing.append(p_values(bag, bins[30:], ties))
        below = np.cumsum(bag) - bag
        fixed.append((below[bins[30:]] + ties * (bag[bins[30:]] + 1)) / 31)
    assert kstest(np.ravel(growing), "uniform").pvalue > 0.01
    means = np.mean(growing, axis=1)
    assert np.std(means) == pytest.approx(math.sqrt(1 / 12 / 500), rel=0.3)  # independent
    assert np.std(np.mean(fixed, axis=1)) > 2 * np.std(means)


def test_every_bet_is_fair_and_never_loses_all():
    p = (np.arange(100_000) + 0.5) / 100_000
    paid = odds(p)
    np.testing.assert_allclose(paid.mean(axis=0), 1, rtol=1e-9)
    assert paid.min() > 0.1
    expected = [[density(x) for density in densities()] for x in p[::997]]
    np.testing.assert_allclose(paid[::997], expected, rtol=1e-12)
    assert len(DIRECTION) == paid.shape[1]


def test_bets_pay_in_their_direction():
    """A little drift of each kind pays most to a bet that is called so."""
    rng = np.random.default_rng(4)
    p = rng.random(20_000)
    middle = rng.beta(2, 2, size=20_000)
    ends = rng.beta(0.6, 0.6, size=20_000)
    for direction, values in enumerate([p**1.5, 1 - p**1.5, middle, ends]):
        assert DIRECTION[np.log(odds(values)).mean(axis=0).argmax()] == direction


def test_starts_share_one_stake():
    left = unspent(np.arange(100_000))
    assert left[0] == 1
    assert left[1] == 0.5
    assert (np.diff(left) < 0).all()
    assert unspent(np.array([10**12]))[0] < 0.03


@pytest.mark.parametrize("seed", range(4))
def test_the_capital_is_that_of_all_bets_and_starts(seed):
    """Query by query, against every start of every bet by itself; some queries have one value only."""
    rng = np.random.default_rng([5, seed])
    calibration, live = np.array(stable(40, rng)), np.array(strange(50, 0.1, rng))
    live[0, rng.random(50) < 0.2] = np.nan
    live[1, rng.random(50) < 0.1] = np.nan
    watch = Watch.start(*calibration, seed=seed)
    ties = np.random.Generator(np.random.PCG64(seed)).random((50, 2)).T
    paid = [[[1.0] * len(DIRECTION)] * 50, [[1.0] * len(DIRECTION)] * 50]
    for stream in range(2):
        there = np.flatnonzero(~np.isnan(live[stream]))
        ranks = conformal_p_values(
            [bin_of(x) for x in calibration[stream]],
            [bin_of(x) for x in live[stream, there]],
            ties[stream, there],
        )
        for t, p in zip(there, ranks, strict=True):
            paid[stream][t] = [density(p) for density in densities()]
    left = unspent(np.arange(51))
    for t in range(50):
        report = watch.see(*live[:, t : t + 1])
        bets = [betting_capital(rows[: t + 1], -np.diff(left)) for rows in paid]
        capital = max(np.mean(stream) for stream in bets) / 2
        assert report.capital == pytest.approx(capital, rel=1e-9)
        if report.alarm is not None:
            break
    for stream, rows in enumerate(paid):
        np.testing.assert_allclose(watch.stakes[stream], bets[stream], rtol=1e-9)
        for b, since in enumerate(watch.since[stream].tolist()):
            payments = [row[b] for row in rows[: t + 1]]
            best = likeliest_start(payments)
            assert math.prod(payments[since - 1 :]) == pytest.approx(math.prod(payments[best:]))


def test_a_renewal_starts_probabilities_again_and_novelty_goes_on():
    """Against all starts since the renewal; novelty as if there had been none."""
    rng = np.random.default_rng(8)
    (novelty, before), (_, after) = stable(60, rng), stable(50, rng)
    live, again = strange(30, 0.2, rng), stable(25, rng)
    watch, untouched = (Watch.start(novelty, before, seed=3) for _ in range(2))
    for one in (watch, untouched):
        one.see(*live)
    watch.renew(after)
    assert watch.report.queries == 30
    report = watch.see(*again)
    untouched.see(*again)
    ties = np.random.Generator(np.random.PCG64(3)).random((55, 2))[30:, 1]
    ranks = conformal_p_values([bin_of(x) for x in after], [bin_of(x) for x in again[1]], ties)
    paid = [[density(p) for density in densities()] for p in ranks]
    bets = betting_capital(paid, -np.diff(unspent(np.arange(30, 56))))
    np.testing.assert_allclose(watch.stakes[1], bets, rtol=1e-9)
    for name in ("bags", "stakes", "growth", "since"):
        np.testing.assert_array_equal(getattr(watch, name)[0], getattr(untouched, name)[0])
    assert watch.since[1].min() > 30
    assert report.capital == pytest.approx(max(np.mean(bets), np.mean(watch.stakes[0])) / 2)
    after = restored(to_stored(Watch, watch))
    assert after.see(*again) == watch.see(*again)


def test_strange_inputs_are_noticed_through_renewals():
    """Every ten queries an item is enrolled; an alarm stays whatever is renewed."""
    rng = np.random.default_rng(9)
    watch = started()
    for _ in range(100):
        watch.renew(stable(600, rng)[1])
        report = watch.see(*strange(10, 0.2, rng))
    assert report.alarm.stream == "novelty"
    assert report.alarm.query < 300
    assert watch.report == report
    watch.renew(stable(600, rng)[1])
    assert watch.report == report


def test_an_alarm_is_raised_at_the_first_query_that_reaches_100():
    rng = np.random.default_rng(6)
    watch, live = started(), strange(300, 0.3, rng)
    for t in range(300):
        before = watch.report.capital
        report = watch.see(live[0][t : t + 1], live[1][t : t + 1])
        assert before < 100
        assert (report.alarm is None) == (report.capital < 100)
        if report.alarm is not None:
            break
    assert report.alarm.query == report.queries == t + 1


@pytest.mark.parametrize("share", [0, 0.3])
def test_batches_do_not_matter(share):
    rng = np.random.default_rng(7)
    novelty, probability = strange(3 * CHUNK, share, rng)
    novelty[rng.random(len(novelty)) < 0.1] = np.nan
    whole, parts = started(), started()
    whole.see(novelty, probability)
    cuts = [0, 1, 2, 2, 100, CHUNK + 30, 3 * CHUNK]
    for first, last in itertools.pairwise(cuts):
        parts.see(novelty[first:last], probability[first:last])
    assert to_stored(Watch, whole) == to_stored(Watch, parts)
    assert (whole.report.alarm is not None) == (share > 0)


def test_capital_is_seldom_large_where_nothing_changes():
    """Ville: at most one in c watches ever reaches c, here for few calibration queries and many ties."""
    highest = []
    for seed in range(200):
        rng = np.random.default_rng([8, seed])
        novelty, probability = (np.round(x, 1) for x in stable(50 + 400, rng))
        watch = Watch.start(novelty[:50], probability[:50], seed=seed)
        seen = [watch.see(novelty[i : i + 80], probability[i : i + 80]) for i in range(50, 450, 80)]
        highest.append(max(report.capital for report in seen))
    for capital in (2, 5, 20, 100):
        reached = sum(h >= capital for h in highest)
        assert reached <= binom.ppf(0.999, 200, 1 / capital), capital


@pytest.mark.parametrize("before", [0, 600])
def test_strange_inputs_are_noticed_and_dated(before):
    delays, errors = [], []
    for seed in range(15):
        rng = np.random.default_rng([9, seed])
        watch = started(seed=seed)
        watch.see(*stable(before, rng))
        alarm = watch.see(*strange(200, 0.2, rng)).alarm
        assert alarm is not None
        assert (alarm.stream, alarm.direction) == ("novelty", "more unusual inputs")
        delays.append(alarm.query - before)
        errors.append(abs(alarm.since_query - before - 1))
    assert np.median(delays) <= 60
    assert np.median(errors) <= 20


@pytest.mark.parametrize("novelty", [True, False])
@pytest.mark.parametrize(("power", "direction"), [(3, "lower"), (1 / 3, "higher")])
def test_other_probabilities_are_noticed_without_novelty(novelty, power, direction):
    rng = np.random.default_rng(10)
    watch, (usual, probability) = started(novelty=novelty), stable(400, rng)
    alarm = watch.see(usual if novelty else None, probability**power).alarm
    assert (alarm.stream, alarm.direction) == ("probability", f"{direction} probabilities")


def test_the_sentence_says_since_when():
    rng = np.random.default_rng(11)
    watch = started()
    assert watch.report.sentence == (
        "Nothing says that the 0 queries differ from the calibration's."
    )
    for minute in range(40):
        report = watch.see(*stable(10, rng), NOON + timedelta(minutes=minute))
    assert report.sentence.startswith("Nothing says that the 400 queries")
    for minute in range(40, 60):
        report = watch.see(*strange(10, 0.4, rng), NOON + timedelta(minutes=minute))
    alarm = report.alarm
    assert NOON + timedelta(minutes=38) <= alarm.since <= alarm.when
    assert alarm.when == NOON + timedelta(minutes=(alarm.query - 1) // 10)
    assert alarm.since == NOON + timedelta(minutes=(alarm.since_query - 1) // 10)
    assert report.sentence == (
        f"Since 12:{alarm.since.minute} queries differ from the calibration's: mostly novelty "
        "(more unusual inputs)."
    )
    later = watch.see(*stable(1, rng), NOON + timedelta(days=1))
    assert later.sentence.startswith(f"Since 2026-03-02 12:{alarm.since.minute} queries differ")
    without = WatchReport(5000, None, 120.0, Alarm(4321, None, 4300, None, "probability", "…"))
    assert without.sentence.startswith("Since query 4,300 queries differ")


@pytest.mark.parametrize("share", [0, 0.2, 0.9])
@pytest.mark.parametrize("novelty", [True, False])
def test_a_stored_watch_has_the_same_future(share, novelty):
    rng = np.random.default_rng(13)
    watch = started(seed=5, novelty=novelty)
    watch.see(*stable(300, rng), NOON)
    watch.see(*strange(40, share, rng))
    again = restored(to_stored(Watch, watch))
    assert again.report == watch.report
    more = strange(400, share, rng)
    assert watch.see(*more, NOON) == again.see(*more, NOON)
    assert to_stored(Watch, watch) == to_stored(Watch, again)
    assert len(json.dumps(to_stored(Watch, watch))) < 30_000


def test_queries_without_a_value_are_left_out_of_that_stream():
    rng = np.random.default_rng(14)
    (novelty, probability), gone = strange(300, 0.5, rng), np.full(300, np.nan)
    probability = probability**4
    assert started().see(novelty, gone).alarm.stream == "novelty"
    alone = started().see(gone, probability)
    assert alone.alarm.stream == "probability"
    neither = started().see(gone, gone)
    assert neither.alarm is None
    assert neither.queries == 300
    calibration = np.array(stable(1000, np.random.default_rng([1, 0])))
    calibration[0, ::3] = np.nan
    fewer = Watch.start(*calibration).bags
    assert fewer.sum(axis=1).tolist() == [666, 1000]


def test_values_that_are_all_the_same_are_no_drift():
    for value in (0, 0.3, 1):
        same = np.full(3000, value)
        watch = Watch.start(same[:50], same[:50])
        assert watch.see(same, same).alarm is None
    one = started().see(np.zeros(200), np.full(200, 0.9))
    assert one.alarm.direction == WORDS["novelty"][0]
    again = started(novelty=False).see(None, np.full(300, 0.9))  # one query, asked again and again
    assert again.alarm is not None


def test_a_long_stream_stays_in_range():
    rng = np.random.default_rng(15)
    watch = started()
    report = watch.see(*stable(60_000, rng))
    assert report.alarm is None
    assert 0 < report.capital < 100
    assert np.isfinite(watch.stakes).all()
    assert watch.stakes.min() > 0
    # Afterwards nearly everything is strange, which is noticed as ever.
    assert watch.see(*strange(200, 0.9, rng)).alarm.since_query == pytest.approx(60_000, abs=20)


@pytest.mark.parametrize(
    ("novelty", "probability", "field"),
    [
        ([0.5, 1.5], [0.5, 0.5], "novelty"),
        ([-0.1, 0.5], [0.5, 0.5], "novelty"),
        ([0.5, 0.5], [0.5, np.inf], "probability"),
        ([0.5, 0.5], [0.5, -1e-9], "probability"),
        ([0.5], [0.5, 0.5], "novelty"),
        ([[0.5, 0.5]], [0.5, 0.5], "novelty"),
        ([0.5, 0.5], ["a", "b"], "probability"),
        ([0.5, 0.5], 0.5, "probability"),
    ],
)
def test_what_is_no_fraction_is_refused_and_changes_nothing(novelty, probability, field):
    watch = started(30)
    before = to_stored(Watch, watch)
    for use in (Watch.start, watch.see):
        with pytest.raises(InputError) as refused:
            use(novelty, probability)
        assert refused.value.field == field
    assert to_stored(Watch, watch) == before


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda watch: watch.see(None, [0.5]), "novelty"),
        (lambda watch: watch.see([0.5], [0.5], "14:20"), "when"),
        (lambda watch: watch.see([0.5], [0.5], 1.7e9), "when"),
        (lambda watch: watch.renew([np.nan] * 5), "probability"),
        (lambda watch: Watch.start([np.nan], [0.5]), "novelty"),
        (lambda watch: Watch.start(None, [np.nan]), "probability"),
        (lambda watch: Watch.start(None, []), "probability"),
        (lambda watch: Watch.start(None, [0.5], seed=-1), "seed"),
        (lambda watch: Watch.start(None, [0.5], seed=True), "seed"),
    ],
)
def test_what_cannot_be_watched_is_refused_and_changes_nothing(call, field):
    watch = started(30)
    before = to_stored(Watch, watch)
    with pytest.raises(SurefindError) as refused:
        call(watch)
    assert refused.value.field == field
    assert to_stored(Watch, watch) == before
