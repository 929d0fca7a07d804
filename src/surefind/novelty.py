"""Novelty of an input: how unlike it is to everything the model was trained on, as a p-value.

Three things are looked at, standardised on known examples and added up:

    s(x) = softplus(log f(x)) + 2 softplus(log ρ(x)) + softplus(M(x)),    softplus(t) = log(1 + e^t)

An input that is more usual than most in one does not thereby make up for another.

- *f*, local outlier factor (Breunig et al. 2000) of the vector of all layers (`surefind.learning.layered`),
  or of the vector itself that another model made: the mean distance to the nearest references, divided by
  theirs to their own; where training data lie close together, a small distance is already much. It is taken
  after standardising, each number within `FARTHEST`, and whitening (correlations shrunk by a tenth towards
  none, the `DIRECTIONS` widest kept), among `REFERENCES` references.
- *ρ*, mean distance of the embedding to the nearest of these references' embeddings.
- *M*, Mahalanobis distance of the first numbers of the vector alone, which say how strongly each stage of
  the network reacts; they are few, and would be lost among the others. Of plain vectors there are none.

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

What is not promised: that an unknown input has a small p. Axes: ``n`` inputs, ``m`` numbers of a vector,
``z`` embedding, ``r`` directions or references.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cache

import torch
from jaxtyping import Float
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
FARTHEST = 5.0
"""Standard deviations beyond which a single number is not followed: one channel that was silent for all of
the training data must not outweigh all others when it speaks."""
CLOSE = 0.5
"""Factor of the usual distance below which being closer says nothing more."""
LEAST_SPREADS = 0.01, 0.01, 0.5
"""What standard deviations are taken to be at least: rounding is no event."""
TINY = 1e-6
FAR = 1e6
"""Standard deviations that nothing has."""
MOST = 1e4
"""What is beyond any number is taken for."""
WEIGHTS = 1.0, 2.0, 1.0


@dataclass(frozen=True, eq=False)
class Novelty:
    """What is usual of vectors and embeddings, and known scores that give the p-value.

    Attributes:
        centre: Mean of the vectors (m).
        scale: What each of their numbers differs by (m).
        directions: Whitening after these, widest directions only (m, r).
        points: References after it (k, r).
        spread: Mean distance of each to its own nearest (k).
        references: Their embeddings (k, z).
        root: What whitens the first numbers of a vector (k, k).
        usual: Mean and standard deviation of log f, log ρ and, if there are such numbers, M, for known
            examples (2, 2 or 3).
        known: Scores of known examples, ascending (n).
        held_out: Whether they were held out from training; otherwise they were cross-fitted.
    """

    centre: Tensor
    scale: Tensor
    directions: Tensor
    points: Tensor
    spread: Tensor
    references: Tensor
    root: Tensor
    usual: Tensor
    known: Tensor
    held_out: bool = True

    @property
    def least(self) -> float:
        """The smallest p-value there can be, with as many known examples."""
        return -math.log(1 - CONFIDENCE) / len(self.known)

    def parts(
        self, vectors: Float[Tensor, "n m"], embeddings: Float[Tensor, "n z"]
    ) -> Float[Tensor, "n parts"]:
        """Return log f, log ρ and M."""
        x = (vectors.to(self.centre) - self.centre) / self.scale
        distance, who = nearest_points(x.clamp(-FARTHEST, FARTHEST) @ self.directions, self.points)
        factor = (distance.mean(1) / self.spread[who].mean(1)).clamp(min=CLOSE)
        density = nearest_points(embeddings.to(self.references), self.references)[0].mean(1)
        both = torch.stack([factor, density.clamp(min=TINY)], dim=1).log()
        if not len(self.root):
            return both
        strong = (x[:, : len(self.root)] @ self.root).square().sum(1, keepdim=True).sqrt()
        return torch.cat([both, strong], dim=1)

    def score(
        self, vectors: Float[Tensor, "n m"], embeddings: Float[Tensor, "n z"]
    ) -> Float[Tensor, " n"]:
        """Return s, higher for more novel inputs."""
        standard = (self.parts(vectors, embeddings) - self.usual[0]) / self.usual[1]
        # What is beyond any number (NaN and infinity in the input) is as novel as can be.
        within = (vectors.to(self.centre) - self.centre).abs() < FAR * self.scale
        standard = torch.where(within.all(1, keepdim=True), standard, MOST)
        standard = standard.clamp(-MOST, MOST)
        return softplus(standard) @ _weights(standard)

    def p_value(self, score: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the p-value of scores, in (0, 1]."""
        n = len(self.known)
        above = n - torch.searchsorted(self.known, score.to(self.known), right=False)
        table = upper_rates(n, CONFIDENCE).to(score)
        return table[above.to(table.device)]

    def of(
        self, vectors: Float[Tensor, "n m"], embeddings: Float[Tensor, "n z"]
    ) -> Float[Tensor, " n"]:
        """Return the p-value of inputs."""
        return self.p_value(self.score(vectors, embeddings))

    def tensors(self) -> dict[str, Tensor]:
        """Return all that it consists of, by name."""
        return {f.name: torch.as_tensor(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def restored(cls, tensors: dict[str, Tensor]) -> "Novelty":
        """Put together what `tensors` returned."""
        return cls(**{**tensors, "held_out": bool(tensors["held_out"])})  # type: ignore[arg-type]


def nearest_points(values: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances to the nearest points (n, k), ascending, and which these are."""
    # Without |x|², which changes no order and is added to the few that are found.
    squared = torch.addmm(points.square().sum(1), values, points.T, alpha=-2)
    found, who = squared.topk(min(NEAREST, len(points)), dim=1, largest=False)
    found = found + values.square().sum(1, keepdim=True)
    return found.clamp(min=0).sqrt(), who


def fit_novelty(
    vectors: Float[Tensor, "n m"],
    embeddings: Float[Tensor, "n z"],
    *,
    first: int = 0,
    held_out: tuple[Float[Tensor, "h m"], Float[Tensor, "h z"]] | None = None,
    groups: Tensor | None = None,
    generator: torch.Generator,
) -> Novelty:
    """Fit novelty to a sample of the training data.

    Args:
        vectors: Of training examples.
        embeddings: Of the same, at unit length.
        first: How many numbers of a vector say how strongly stages react; they come first.
        held_out: Both of known examples that the network was not trained on; None to cross-fit.
        groups: The class of each example: cross-fitting leaves out whole classes if there are
            `MANY_CLASSES`; None leaves out examples.
        generator: Chooses references and folds.

    Returns:
        The model.

    Raises:
        DegenerateError: If there are fewer than 20 examples, or 20 held-out ones.
    """
    n = len(vectors)
    for count, field in ((n, "dataset"), (n if held_out is None else len(held_out[0]), "held_out")):
        if count < LEAST:
            raise DegenerateError(
                f"{count} examples are too few for novelty; it takes {LEAST} at least, and at least "
                f"{math.ceil(-math.log(1 - CONFIDENCE) / 0.01)} for p-values down to 1 %.",
                field=field,
            )
    order = torch.randperm(n, generator=generator)
    whole = _fitted(vectors[order], embeddings[order], first)
    if held_out is not None:
        raw = whole.parts(*held_out)
    else:
        folds = _folds(order, groups, generator)
        raw = torch.empty(n, 2 + (first > 0))
        for own, rest in ((order[folds == f], order[folds != f]) for f in range(FOLDS)):
            part = _fitted(vectors[rest], embeddings[rest], first)
            raw[own] = part.parts(vectors[own], embeddings[own])
    least = raw.new_tensor(LEAST_SPREADS[: raw.shape[1]])
    usual = torch.stack([raw.mean(0), raw.std(0).maximum(least)])
    fitted = replace(whole, usual=usual, held_out=held_out is not None)
    known = softplus((raw - usual[0]) / usual[1]) @ _weights(raw)
    return replace(fitted, known=known.sort().values)


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


def _weights(parts: Float[Tensor, "n parts"]) -> Float[Tensor, " parts"]:
    return parts.new_tensor(WEIGHTS[: parts.shape[1]])


def _fitted(vectors: Float[Tensor, "n m"], embeddings: Float[Tensor, "n z"], first: int) -> Novelty:
    """Fit to examples in an order that is random; what is usual is still to be found."""
    x = vectors.float()
    centre, spread = x.mean(0), x.std(0)
    # A number that never moved must not turn a whisper into an event.
    scale = spread + 0.01 * spread.square().mean().sqrt() + 1e-12
    standard = (x - centre) / scale
    x = standard.clamp(-FARTHEST, FARTHEST)
    correlation = (1 - SHRINKAGE) * x.T @ x / len(x)
    correlation.diagonal().add_(SHRINKAGE)
    top, basis = (v[..., -DIRECTIONS:] for v in torch.linalg.eigh(correlation))
    moves = (
        top > SHRINKAGE * 1.001
    )  # of the others, which no example has, any choice would be arbitrary
    directions = (basis[:, moves] / top[moves].sqrt()).contiguous()
    points = x[:REFERENCES] @ directions
    # From float64, in which copies have no distance.
    distances = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    own = distances.topk(min(NEAREST, len(points) - 1), dim=1, largest=False).values.mean(1)
    # Copies have no distance, so that any rounding would be far: a tenth of the usual one is the least.
    own = own.clamp(min=max(TINY, 0.1 * float(own.mean()))).float()
    # Lengths that hardly differ must not make rounding an event: 1 % is the least spread.
    few = standard[:, :first]
    covariance = few.T @ few / len(few) + 1e-4 * torch.eye(first)
    values, vectors = torch.linalg.eigh(covariance.double())
    return Novelty(
        centre,
        scale,
        directions,
        points,
        own,
        embeddings[:REFERENCES].float(),
        (vectors / values.sqrt()).float(),
        torch.zeros(2, 2 + (first > 0)),
        centre[:0],
    )
