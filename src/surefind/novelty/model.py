"""Novelty of an input: how unlike it is to everything the model was trained on, as a p-value.

The statistics of each stage (`surefind.novelty.statistics`) are divided into their length and their
direction, as an embedding is: how strongly a stage reacts, and with which channels. Four scores of an
input, each fitted to a sample of the training data alone:

    shape       local outlier factor of the directions of all stages
    log_shape   the same of log |statistics|, which also sees channels that are too quiet; maps only
    magnitude   Mahalanobis distance of the logarithms of the lengths
    density     mean distance to the nearest training embeddings, counted twice

A local outlier factor (Breunig et al. 2000) is the mean distance to the nearest references, divided by
theirs to their own: where training data lie close together, a small distance is already much. It is
taken after standardising, each statistic within `FARTHEST`, and whitening (correlations shrunk by a
tenth towards none, the `DIRECTIONS` widest kept), among `REFERENCES` references. Scores but the
magnitude are logged; all are standardised on known examples, and added up:

    s(x) = Σ_j w_j softplus(score_j(x)),    softplus(t) = log(1 + e^t)

An input that is more usual than most in one score does not thereby make up for another.

**p-value.** Of n known examples that nothing was fitted to, k have a score of at least s(x). p(x) is the
upper confidence bound of the probability that a known input has one, given k of n. So for each α, decided
on before looking, and with probability at least ``confidence`` over these examples,

    P(p(x) <= α) <= α     for known inputs x, drawn like the examples.

This is the calibration-conditional form (Bates et al. 2023): it speaks of these very examples, not of an
average over all that might have been drawn. The bound is Garwood's (1936) for a Poisson count, which is
never below Clopper and Pearson's for a binomial one, and needs no incomplete beta function. The smallest
p that n examples can give is -log(1 - confidence) / n: at 95 % it takes 300 to reach 1 % and 3,000 to
reach 0.1 %.

**Held-out examples.** If none are given, the sample is divided into `FOLDS`, and each is scored by what
the others give. From `MANY_CLASSES` classes on, folds are of whole classes: with so many, as of people,
a gallery will hold others, and an example whose own class is among the references is nearer to them than
those will be. Cross-fitting is honest about the scores, but not about a network that has been trained on
these very examples: it knows them better than new ones, and of new ones more than α may be flagged.
Frozen vectors do not have this problem.

What is not promised: that an unknown input has a small p. Axes: ``n`` inputs, ``m`` statistics of a part,
``r`` references, ``z`` embedding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from surefind.errors import DegenerateError

REFERENCES = 2000
DIRECTIONS = 128
NEAREST = 10
FOLDS = 5
MANY_CLASSES = 50
"""Classes from which on cross-fitting leaves out whole ones: a gallery will hold others."""
SHRINKAGE = 0.1
LEAST = 20
"""Known examples below which nothing is fitted."""
CONFIDENCE = 0.95
WEIGHTS = {"shape": 1.0, "log_shape": 1.0, "magnitude": 1.0, "density": 2.0}
LEAST_SPREADS = {"shape": 0.01, "log_shape": 0.01, "magnitude": 0.5, "density": 0.01}
"""What a score's standard deviation is taken to be at least. That of a magnitude is about what χ has:
lengths that hardly differ (unit vectors) must not make rounding an event."""
FARTHEST, FARTHEST_VALUE = 5.0, 20.0
"""Standard deviations beyond which a single statistic is not followed: one channel that was silent for all
of the training data must not outweigh all others when it speaks. The values of vectors, of which most are
often near zero, have longer tails."""
CLOSE = 0.5
"""Factor of the usual distance below which being closer says nothing more."""
QUIET = 1e-3
"""What is added to a statistic before its logarithm, in units of the stage's typical length."""


@dataclass(frozen=True, eq=False)
class References:
    """Whitened references, and how close they lie to each other.

    Attributes:
        centre: Mean of the statistics (m).
        scale: What each of them differs by (m).
        directions: Whitening after these, widest directions only (m, r).
        points: References after it (k, r).
        spread: Mean distance of each to its own nearest (k).
        farthest: Standard deviations beyond which a statistic is not followed.
    """

    centre: Tensor
    scale: Tensor
    directions: Tensor
    points: Tensor
    spread: Tensor
    farthest: Tensor

    def score(self, values: Tensor) -> Tensor:
        """Return the logarithm of the local outlier factor of statistics (n, m)."""
        standard = _standard(values, self.centre, self.scale, float(self.farthest))
        distance, who = nearest_points(standard @ self.directions, self.points)
        return (distance.mean(1) / self.spread[who].mean(1)).clamp(min=CLOSE).log()


@dataclass(frozen=True, eq=False)
class Magnitude:
    """A Gaussian of the logarithms of lengths.

    Attributes:
        centre: Mean (stages).
        root: Whitening (stages, stages).
    """

    centre: Tensor
    root: Tensor

    def score(self, values: Tensor) -> Tensor:
        """Return the Mahalanobis distance; not its logarithm, since lengths are logarithms already."""
        return ((values - self.centre) @ self.root).square().sum(1).sqrt()


@dataclass(frozen=True, eq=False)
class NoveltyModel:
    """Four scores, what is usual for each, and the known examples that give the p-value.

    Attributes:
        unit: Typical length of each stage's statistics (stages).
        widths: How many statistics each stage has (stages).
        shape: References of the directions.
        log_shape: References of the logarithms; None for plain vectors.
        magnitude: Of the lengths.
        embeddings: Unit embeddings of training examples (r, z).
        usual: Mean and standard deviation of each score for known examples (scores, 2).
        known: Scores s of known examples, ascending (n).
        confidence: With what probability over these the promise holds.
        held_out: Whether they were held out from training; otherwise they were cross-fitted.
    """

    unit: Tensor
    widths: Tensor
    shape: References
    log_shape: References | None
    magnitude: Magnitude
    embeddings: Tensor
    usual: Tensor
    known: Tensor
    confidence: float = CONFIDENCE
    held_out: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(name for name in WEIGHTS if name != "log_shape" or self.log_shape is not None)

    @property
    def least(self) -> float:
        """The smallest p-value there can be, with as many known examples."""
        return -math.log(1 - self.confidence) / len(self.known)

    def parts(self, statistics: Sequence[Tensor], embeddings: Tensor) -> Tensor:
        """Return each score of inputs, standardised on known examples (n, scores).

        Args:
            statistics: Of each stage (n, m), the same stages as in the fit.
            embeddings: Unit embeddings (n, z).

        Returns:
            Near 0 for what is usual, high for what is novel; columns as `names` says.
        """
        raw = self._scores(statistics, embeddings)
        # What is beyond any number (NaN and infinity in the input) is as novel as can be.
        standard = (raw - self.usual[:, 0]) / self.usual[:, 1]
        return torch.nan_to_num(standard, nan=MOST, posinf=MOST, neginf=-MOST).clamp(-MOST, MOST)

    def score(self, statistics: Sequence[Tensor], embeddings: Tensor) -> Tensor:
        """Return s of inputs (n), higher for more novel ones; arguments as for `parts`."""
        return softplus(self.parts(statistics, embeddings)) @ self._weights()

    def p_value(self, score: Tensor) -> Tensor:
        """Return the p-value of scores s (n), in (0, 1]."""
        n = len(self.known)
        above = n - torch.searchsorted(self.known, score.to(self.known), right=False)
        table = upper_rates(n, self.confidence).to(score)
        return table[above.to(table.device)]

    def tensors(self) -> dict[str, Tensor]:
        """Return all that it consists of, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        flat: dict[str, Tensor] = {}
        for name, value in found.items():
            if isinstance(value, References | Magnitude):
                flat |= {f"{name}.{f.name}": getattr(value, f.name) for f in fields(value)}
            elif isinstance(value, Tensor):
                flat[name] = value
        flat["confidence"] = torch.tensor(self.confidence, dtype=torch.float64)
        flat["held_out"] = torch.tensor(self.held_out)
        return flat

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> "NoveltyModel":
        """Put together what `tensors` returned."""

        def part(kind: Any, name: str) -> Any:
            own = {f.name: tensors[f"{name}.{f.name}"] for f in fields(kind)}
            return kind(**own)

        log_shape = part(References, "log_shape") if "log_shape.centre" in tensors else None
        plain = ("unit", "widths", "embeddings", "usual", "known")
        return cls(
            shape=part(References, "shape"),
            log_shape=log_shape,
            magnitude=part(Magnitude, "magnitude"),
            confidence=float(tensors["confidence"]),
            held_out=bool(tensors["held_out"]),
            **{name: tensors[name] for name in plain},
        )

    def _weights(self) -> Tensor:
        return self.usual.new_tensor([WEIGHTS[name] for name in self.names])

    def _scores(self, statistics: Sequence[Tensor], embeddings: Tensor) -> Tensor:
        like = self.usual
        stages = [values.to(like) for values in statistics]
        scores = [self.shape.score(shapes(stages))]
        if self.log_shape is not None:
            scores.append(self.log_shape.score(log_shapes(stages, self.unit)))
        scores.append(self.magnitude.score(magnitudes(stages, self.unit)))
        distance, _ = nearest_points(embeddings.to(like), self.embeddings)
        scores.append(distance.mean(1).clamp(min=TINY).log())
        return torch.stack(scores, dim=1)


TINY = 1e-6
MOST = 1e4


def shapes(stages: Sequence[Tensor]) -> Tensor:
    """Return the directions of each stage's statistics, side by side (n, m), of mean square 1."""
    return torch.cat([x / _rms(x).clamp(min=1e-30)[:, None] for x in stages], dim=1)


def log_shapes(stages: Sequence[Tensor], unit: Tensor) -> Tensor:
    """Return the logarithms of the statistics, in units of each stage's typical length (n, m)."""
    parts = [(x.abs() / u + QUIET).log() for x, u in zip(stages, unit, strict=True)]
    return torch.cat(parts, dim=1)


def magnitudes(stages: Sequence[Tensor], unit: Tensor) -> Tensor:
    """Return the logarithm of the length of each stage's statistics, in typical lengths (n, stages)."""
    lengths = torch.stack([_rms(x) / u for x, u in zip(stages, unit, strict=True)], dim=1)
    return (lengths + TINY).log()


def nearest_points(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances to the nearest points (n, k), ascending, and which these are."""
    # Without |x|², which changes no order and is added to the few that are found.
    squared = torch.addmm(points.square().sum(1), values, points.T, alpha=-2)
    found, who = squared.topk(min(NEAREST, len(points)), dim=1, largest=False)
    found = found + values.square().sum(1, keepdim=True)
    return found.clamp(min=0).sqrt(), who


def fit_novelty_model(
    statistics: Sequence[Tensor],
    embeddings: Tensor,
    *,
    maps: bool,
    held_out: tuple[Sequence[Tensor], Tensor] | None = None,
    groups: Tensor | None = None,
    confidence: float = CONFIDENCE,
    generator: torch.Generator,
) -> NoveltyModel:
    """Fit novelty to a sample of the training data.

    Args:
        statistics: Of each stage (n, m).
        embeddings: Unit embeddings of the same examples (n, z).
        maps: Whether the statistics are those of maps, so that a small one means a quiet channel.
        held_out: The same of known examples that the network was not trained on; None to cross-fit.
        groups: The class of each example: cross-fitting leaves out whole classes if there are
            `MANY_CLASSES`; None leaves out examples.
        confidence: With what probability over the known examples the promise holds.
        generator: Chooses references and folds.

    Returns:
        The model.

    Raises:
        DegenerateError: If there are fewer than 20 examples, or 20 held-out ones.
    """
    n = len(embeddings)
    for count, what in ((n, "training"), (n if held_out is None else len(held_out[1]), "held-out")):
        if count < LEAST:
            raise DegenerateError(
                f"{count} {what} examples are too few for novelty; it takes {LEAST} at least, and at least "
                f"{math.ceil(-math.log(1 - confidence) / 0.01)} for p-values down to 1 %.",
                field="held_out" if what == "held-out" else "dataset",
            )
    order = torch.randperm(n, generator=generator)
    whole = _fit_scores(statistics, embeddings, order, maps)
    if held_out is not None:
        raw = whole._scores(*held_out)
    else:
        raw = torch.empty(n, len(whole.names), dtype=whole.usual.dtype)
        folds = _folds(order, groups, generator)
        for fold in range(FOLDS):
            own, others = order[folds == fold], order[folds != fold]
            part = _fit_scores(statistics, embeddings, others, maps)
            raw[own] = part._scores([x[own] for x in statistics], embeddings[own])
    least = raw.new_tensor([LEAST_SPREADS[name] for name in whole.names])
    usual = torch.stack([raw.mean(0), raw.std(0).maximum(least)], dim=1)
    standard = ((raw - usual[:, 0]) / usual[:, 1]).clamp(-MOST, MOST)
    known = softplus(standard) @ whole._weights()
    return NoveltyModel(
        whole.unit,
        whole.widths,
        whole.shape,
        whole.log_shape,
        whole.magnitude,
        whole.embeddings,
        usual,
        known.sort().values,
        confidence,
        held_out is not None,
    )


def _folds(order: Tensor, groups: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return the fold of each example, in the order given: by example, or by class if there are many."""
    by_example = torch.arange(len(order)) % FOLDS
    if groups is None:
        return by_example
    _, code = torch.unique(groups, return_inverse=True)
    classes = int(code.max()) + 1
    if classes < MANY_CLASSES:
        return by_example
    return (torch.randperm(classes, generator=generator) % FOLDS)[code[order]]


@cache
def upper_rates(n: int, confidence: float) -> Tensor:
    """Return the upper confidence bound of a rate after k = 0 … n of n (n + 1), float64.

    Garwood's bound λ of a Poisson count, P(Poisson(λ) <= k) = 1 - confidence, divided by n; at most 1.
    """
    k = torch.arange(n + 1, dtype=torch.float64)
    low, high = k.clone(), k + 20 + 10 * (k + 1).sqrt()
    for _ in range(60):
        middle = (low + high) / 2
        # P(Poisson(λ) <= k) is the upper regularised gamma function of k + 1 at λ.
        too_low = torch.special.gammaincc(k + 1, middle) > 1 - confidence
        low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
    return (high / n).clamp(max=1.0)


def _fit_scores(
    statistics: Sequence[Tensor], embeddings: Tensor, rows: Tensor, maps: bool
) -> NoveltyModel:
    """Fit the four scores to rows in an order that is random; what is usual is still to be found."""
    stages = [x[rows].double() for x in statistics]
    unit = torch.stack([_rms(x).square().mean().sqrt().clamp(min=1e-30) for x in stages])
    lengths = magnitudes(stages, unit)
    centre = lengths.mean(0)
    gap = lengths - centre
    # Lengths that hardly differ (unit vectors) must not make rounding an event: 1 % is the least spread.
    covariance = gap.T @ gap / len(gap) + 1e-4 * torch.eye(len(unit), dtype=gap.dtype)
    values, vectors = torch.linalg.eigh(covariance)
    single = torch.float32
    return NoveltyModel(
        unit.to(single),
        torch.tensor([x.shape[1] for x in stages]),
        _fit_references(shapes(stages), FARTHEST if maps else FARTHEST_VALUE),
        _fit_references(log_shapes(stages, unit), FARTHEST) if maps else None,
        Magnitude(centre.to(single), (vectors / values.sqrt()).to(single)),
        embeddings[rows[:REFERENCES]].to(single),
        torch.zeros(3 + maps, 2),
        torch.zeros(0),
    )


def _fit_references(values: Tensor, farthest: float) -> References:
    centre = values.mean(0)
    spread = values.std(0)
    # A channel that never moved must not turn a whisper into an event.
    scale = spread + 0.01 * _rms(spread[None])[0] + 1e-12
    x = _standard(values, centre, scale, farthest)
    correlation = (1 - SHRINKAGE) * x.T @ x / len(x)
    correlation.diagonal().add_(SHRINKAGE)
    found, vectors = torch.linalg.eigh(correlation)
    keep = slice(-min(DIRECTIONS, len(found)), None)
    directions = vectors[:, keep] / found[keep].sqrt()
    points = (x[:REFERENCES] @ directions).float()
    distances = torch.cdist(points.double(), points.double())
    distances.fill_diagonal_(torch.inf)
    k = min(NEAREST, len(points) - 1)
    own = distances.topk(k, dim=1, largest=False).values.mean(1)
    # Copies have no distance, so that any rounding would be far: a tenth of the usual one is the least.
    own = own.clamp(min=max(TINY, 0.1 * float(own.mean())))
    limit = torch.tensor(farthest)
    return References(centre.float(), scale.float(), directions.float(), points, own.float(), limit)


def _standard(values: Tensor, centre: Tensor, scale: Tensor, farthest: float) -> Tensor:
    return ((values - centre) / scale).clamp(-farthest, farthest)


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(1).sqrt()
