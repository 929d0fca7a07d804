"""A watch on the promise: do live queries still look like the calibration's?

A calibration promises something about queries that are exchangeable with its own: every order of all of
them is equally likely. Two values of each decided query are watched, each as a stream of its own: its
novelty p-value, and the probability that its answer is right.

**Ranks.** A value becomes a bin of a grid that depends on no data (`EDGES`, even in log-odds). A bag holds
the bins of the calibration's queries. The bin x of a live query gets the conformal p-value

    p = (#{y < x} + u (#{y = x} + 1)) / (n + 1)      y over the n bins in the bag, u uniform on [0, 1)

and is then put into the bag. If the values of a stream, the calibration's and the live ones, are
exchangeable, its p-values are independent and uniform: exactly, for any distribution, any n and any number
of ties (Vovk, Gammerman and Shafer, 2005). A bag that did not grow would not do: all p-values would share
the luck of one sample, and in a long stream that would show.

**Bets.** A density f on [0, 1] is a fair bet on a uniform p: it pays f(p) for a stake of 1. With the
p-values p_t of a stream, weights w_s >= 0 of the starts s that sum to 1, and B densities, the capital

    M_t = 1/B Σ_b S_b,t

    S_b,t = Σ_{s<=t} w_s Π_{i=s..t} f_b(p_i) = (S_b,t-1 + w_t) f_b(p_t)

is that of a gambler who puts 1/B on each bet and enters the share w_s of it with query s. With what has not
entered yet it is a non-negative martingale that begins with 1, so P(M ever reaches c) <= 1/c (Ville). The
densities (`odds`) say that a share ε of the p-values has moved into the lowest δ, or the highest; that all
of them shift to one side; that they gather in the middle, or at both ends. Half of the weight enters at
once, for a calibration that never fitted; the rest, `unspent` after t queries, goes to zero so slowly that
no drift comes too late.

**Alarm**, when one of the K <= 2 streams reaches K / `FALSE_ALARM`: a false one, ever, has a probability of
at most 1 % per watch, over its calibration queries and the live ones together. The streams share this by
Bonferroni's inequality. Their average would not do: M is a martingale given the past of its own stream.
Given the past of both, a p-value need not be uniform, since how ranks went together says something about
the bag. Little is lost: where one stream wins most, the average reaches 100 when that one reaches 200.

**Since when.** For each bet the start s that maximises Π_{i=s..t} f_b(p_i) is kept; an alarm names that of
the largest S_b in the stream that raised it. It is an estimate.

**What is not guaranteed.** No alarm is no proof: a drift that leaves both distributions as they were is not
seen, and one so slow that the bag gets used to it may not be. An alarm does not say that the promise is
broken, but that its premise is.

**Renewals.** When items come and go, the calibration is made again and probabilities are on another scale:
`Watch.renew` starts their stream again, with the renewed calibration's values in the bag and none of the
live ones, since those would have to be asked again. The novelty of a query does not depend on the gallery,
so that stream goes on with all it has won; without novelty, queries are watched from one renewal to the
next only. Whoever has entered leaves the game, and what has not is left to bet with. If the weight W enters
between two renewals, that part of the capital reaches c with a probability of at most W/c, and all W sum to
1: the false alarms of any number of renewals are within the same 1 %, if these do not depend on the
queries. An alarm stays.

**Equally fresh.** The probability of queries that it was fitted to is too good, so these are left out of
that stream (NaN). With a gate only queries that pass are fitted to; then those that do not pass are left
out of it too, the calibration's and the live ones, or there would be too many of them in the bag.

Axes: ``q`` queries, ``s`` streams, ``b`` bets, ``c`` bins.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_array, check_count, check_int
from surefind.decisions.risk import Values
from surefind.errors import DegenerateError, InputError
from surefind.files import Array

FALSE_ALARM = 0.01
"""Probability, at most, that a watch on exchangeable queries ever raises an alarm."""

StreamName = Literal["novelty", "probability"]
STREAMS: tuple[StreamName, ...] = ("novelty", "probability")

EDGES = 1 / (1 + np.exp(-(np.arange(-120, 120) + 0.5) / 10))
"""Between bins: log-odds -11.95, -11.85, … 11.95. None is a round number, which float32 could put on either
side."""

TAIL = np.repeat([0.001, 0.004, 0.016, 0.064, 0.25], 3)
SHARE = np.tile([0.03, 0.1, 0.3], 5)
"""δ and ε: every pair of these."""

SLOPE = np.array([0.3, 0.8])
BEND = np.array([0.8, -0.8])

DIRECTION = np.repeat(range(4), [len(TAIL) + len(SLOPE), len(TAIL) + len(SLOPE), 1, 1])
"""What each bet is on (b): low values, high ones, the middle, both ends."""

WORDS: dict[StreamName, tuple[str, ...]] = {
    "novelty": (
        "more unusual inputs",
        "fewer unusual inputs",
        "fewer very unusual and very usual inputs",
        "more very unusual and very usual inputs",
    ),
    "probability": (
        "lower probabilities",
        "higher probabilities",
        "fewer very low and very high probabilities",
        "more very low and very high probabilities",
    ),
}

AT_ONCE = 0.5
SCALE = 1000
"""Half of the weight of later starts is on the first 1,700 queries."""

CHUNK = 256
"""Queries that are ranked at a time: more would cost more for each, fewer too."""


@dataclass(frozen=True)
class Alarm:
    """When queries were found to differ from the calibration's, and how.

    Attributes:
        query: The live query with which the capital was reached, the first being 1.
        when: Its time, if times were given.
        since_query: The most likely first query that differs.
        since: Its time.
        stream: "novelty" or "probability": where the difference was found.
        direction: What it is, in words.
    """

    query: int
    when: datetime | None
    since_query: int
    since: datetime | None
    stream: StreamName
    direction: str


@dataclass(frozen=True)
class WatchReport:
    """What a watch has found.

    Attributes:
        queries: Live queries seen.
        when: Time of the last of them, if one was given.
        capital: The largest capital of a stream over the number of streams; 100 raises the alarm, and after
            that nothing is bet any more.
        alarm: None as long as there is none.
    """

    queries: int
    when: datetime | None
    capital: float
    alarm: Alarm | None

    @property
    def sentence(self) -> str:
        """The finding in words; a time without a day is one of the day of the last query."""
        alarm = self.alarm
        if alarm is None:
            return f"Nothing says that the {self.queries:,} queries differ from the calibration's."
        begin = f"query {alarm.since_query:,}"
        if alarm.since is not None:
            today = self.when is not None and self.when.date() == alarm.since.date()
            begin = format(alarm.since, "%H:%M" if today else "%Y-%m-%d %H:%M")
        return (
            f"Since {begin} queries differ from the calibration's: mostly {alarm.stream} "
            f"({alarm.direction})."
        )


def p_values(bag: Int[np.ndarray, " c"], bins: Int[np.ndarray, " q"], ties: Values) -> Values:
    """Rank values in a bag that grows by each of them.

    Args:
        bag: How many values of each bin were there before.
        bins: Bins of the new values, in order.
        ties: Uniform numbers.

    Returns:
        Conformal p-values, small for low bins.
    """
    earlier = np.tri(len(bins), k=-1, dtype=bool)
    row, column = bins[None, :], bins[:, None]
    below = (np.cumsum(bag) - bag)[bins] + (earlier & (row < column)).sum(axis=1)
    same = bag[bins] + (earlier & (row == column)).sum(axis=1)
    return np.asarray((below + ties * (same + 1)) / (bag.sum() + 1 + np.arange(len(bins))))


def odds(p: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n b"]:
    """Return what each bet pays for a stake of 1: densities on [0, 1], at p."""
    low = p[..., None]
    pays = []
    for side in (low, 1 - low):
        pays += [1 - SHARE + SHARE / TAIL * (side <= TAIL), 1 + SLOPE * (1 - 2 * side)]
    return np.concatenate([*pays, 1 + BEND * (6 * low * (1 - low) - 1)], axis=-1)


def unspent(queries: Int[np.ndarray, " q"]) -> Values:
    """Return the weight of all starts after so many queries."""
    later = (1 - AT_ONCE) / (1 + np.log1p(np.maximum(queries - 1, 0) / SCALE))
    return np.where(queries == 0, 1.0, later)


@dataclass(eq=False)
class Watch:
    """Bets that live queries differ from the calibration's, and says when it has won too much for luck.

    `see` and `renew` change it, so one caller at a time. With a new calibration, start a new one; with the
    same one renewed, `renew` it. It is stored in a few kilobytes, however many queries it
    has seen.
    """

    streams: tuple[StreamName, ...]
    seed: int
    queries: int
    when: datetime | None
    capital: float
    alarm: Alarm | None
    bags: Array
    stakes: Array
    growth: Array  # Σ log f_b(p_i) over all queries so far,
    lowest: Array  # the least that it was before a query,
    since: Array  # and before which one
    since_when: Array

    @classmethod
    def start(cls, novelty: Any, probability: Any, *, seed: int = 0) -> "Watch":
        """Start from the calibration's queries.

        Args:
            novelty: Novelty p-value of each (q); None if the calibration has no gate.
            probability: Probability that its answer is right (q). NaN, in both, leaves a query out of one
                stream; of this one, queries that the probability was fitted to.
            seed: Of the numbers that break ties.

        Returns:
            A watch that has seen no live query.

        Raises:
            DegenerateError: If a stream has no value at all.
        """
        check_int("seed", seed, least=0)
        streams = STREAMS if novelty is not None else STREAMS[1:]
        shape = len(streams), len(DIRECTION)
        watch = cls(
            streams,
            int(seed),
            queries=0,
            when=None,
            capital=0.0,
            alarm=None,
            bags=np.zeros((len(streams), len(EDGES) + 1), dtype=np.int64),
            stakes=np.zeros(shape),
            growth=np.zeros(shape),
            lowest=np.zeros(shape),
            since=np.ones(shape, dtype=np.int64),
            since_when=np.full(shape, None, dtype=object),
        )
        values = watch._read(novelty, probability)
        for stream, bins in enumerate(_bins(values)):
            watch._begin(stream, bins)
        return watch

    def renew(self, probability: Any) -> None:
        """Go on with the same calibration, made again for a gallery that has changed.

        Args:
            probability: Of the calibration's queries (q), as for `start`, by the renewed calibration.

        Raises:
            DegenerateError: If there is no value at all; everything stays as it was then.
        """
        if self.alarm is None:
            self._begin(len(self.streams) - 1, _bins(_fractions("probability", probability)))
            self.capital = float(self.stakes.mean(axis=1).max()) / len(self.streams)

    def see(self, novelty: Any, probability: Any, when: Any = None) -> WatchReport:
        """Bet on live queries, in the order in which they came.

        Args:
            novelty: Novelty p-value of each (q), NaN for a query without; not used if the watch was started
                without.
            probability: Probability that its answer is right (q), NaN for a query without.
            when: When they came, a datetime; None for no time.

        Returns:
            The report after them.

        Raises:
            InputError: If these are no numbers from 0 to 1, or when is no time; nothing is bet then.
        """
        if when is not None and not isinstance(when, datetime):
            raise InputError(
                f"when must be a datetime; got {type(when).__name__}.",
                field="when",
                hint="Give datetime.now(UTC), or leave it out.",
            )
        bins = _bins(self._read(novelty, probability))
        length = bins.shape[1]
        if not length:
            return self.report
        self.when = when
        generator = np.random.Generator(np.random.PCG64(self.seed).advance(2 * self.queries))
        ties = generator.random((length, len(STREAMS))).T[-len(bins) :]
        end = self.queries + length
        for first in range(0, length, CHUNK):
            if self.alarm is None:
                self._bet(bins[:, first : first + CHUNK], ties[:, first : first + CHUNK])
        self.queries = end
        return self.report

    @property
    def report(self) -> WatchReport:
        """What was found so far."""
        return WatchReport(self.queries, self.when, self.capital, self.alarm)

    def _read(self, novelty: Any, probability: Any) -> Float[np.ndarray, "s q"]:
        """Read the values of the streams that are watched."""
        likely = _fractions("probability", probability)
        if "novelty" not in self.streams:
            return likely[None]
        if novelty is None:
            raise InputError(
                "the watch was started with novelty, and these queries come without.",
                field="novelty",
                hint="Give NaN for single queries without, or start a watch without novelty.",
            )
        unusual = _fractions("novelty", novelty)
        check_count("novelty", unusual, len(likely))
        return np.stack([unusual, likely])

    def _begin(self, stream: int, bins: Int[np.ndarray, " q"]) -> None:
        """Start a stream, or start it again: with a new bag, and nothing at stake."""
        name = self.streams[stream]
        if (bins < 0).all():
            raise DegenerateError(
                f"{name} has no value; live queries are compared with those of the calibration.",
                field=name,
                hint="Give the calibration's queries, and None for novelty if they have none.",
            )
        for nothing in (self.bags, self.stakes, self.growth, self.lowest):
            nothing[stream] = 0
        self.since[stream], self.since_when[stream] = self.queries + 1, None
        _add(self.bags[stream], bins)

    def _bet(self, bins: Int[np.ndarray, "s q"], ties: Float[np.ndarray, "s q"]) -> None:
        """Bet on each query in turn, as far as an alarm if there is one."""
        # A query without a value pays the stake back.
        paid = np.ones((bins.shape[1], *self.stakes.shape))
        for i, bag in enumerate(self.bags):
            there = bins[i] >= 0
            paid[there, i] = odds(p_values(bag, bins[i, there], ties[i, there]))
        left = unspent(self.queries + np.arange(len(paid) + 1))
        entering = (left[:-1] - left[1:]).tolist()
        each, limit = np.full(len(DIRECTION), 1 / len(DIRECTION)), len(bins) / FALSE_ALARM
        for used, payment in enumerate(paid, start=1):
            self.stakes += entering[used - 1]
            self.stakes *= payment
            capital = max((self.stakes @ each).tolist())
            if capital >= limit:
                break
        self.capital = capital / len(bins)
        for bag, seen in zip(self.bags, bins[:, :used], strict=True):
            _add(bag, seen)
        self._date(np.log(paid[:used]))
        self.queries += used
        if capital >= limit:
            self._raise_alarm()

    def _date(self, gains: Float[np.ndarray, "q s b"]) -> None:
        """Keep the most likely start of each bet: where the sum of its gains before was lowest, at last."""
        growth = np.cumsum(np.concatenate([self.growth[None], gains]), axis=0)
        backwards = growth[-2::-1]
        steps = backwards.argmin(axis=0)
        lowest = np.take_along_axis(backwards, steps[None], axis=0)[0]
        later = lowest <= self.lowest
        self.lowest = np.where(later, lowest, self.lowest)
        self.since = np.where(later, self.queries + len(gains) - steps, self.since)
        now = None if self.when is None else self.when.isoformat()
        self.since_when = np.where(later, np.array(now, dtype=object), self.since_when)
        self.growth = growth[-1]

    def _raise_alarm(self) -> None:
        stream = int(self.stakes.sum(axis=1).argmax())
        bet = int(self.stakes[stream].argmax())
        name, begin = self.streams[stream], self.since_when[stream, bet]
        since = None if begin is None else datetime.fromisoformat(begin)
        what, first = WORDS[name][DIRECTION[bet]], int(self.since[stream, bet])
        self.alarm = Alarm(self.queries, self.when, first, since, name, what)


def _fractions(name: str, value: Any) -> Values:
    """Read one number from 0 to 1 per query, or NaN."""
    array = as_array(value)
    numbers = array.ndim == 1 and (array.dtype.kind in "fiub" or not array.size)
    values = array.astype(np.float64) if numbers else np.full(1, np.inf)
    if ((values < 0) | (values > 1)).any():
        raise InputError(
            f"{name} must be a vector of numbers from 0 to 1, one per query, NaN for a query without; got "
            f"{array.dtype} of shape {array.shape}, or others.",
            field=name,
        )
    return values


def _bins(values: Float[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Return the bin of each value, -1 for NaN."""
    return np.where(np.isnan(values), -1, np.searchsorted(EDGES, values))


def _add(bag: Int[np.ndarray, " c"], bins: Int[np.ndarray, " q"]) -> None:
    bag += np.bincount(bins[bins >= 0], minlength=len(bag))
