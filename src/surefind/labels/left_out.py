"""What a label model says of its own vectors when it has not seen them, and how it is chosen by that.

Vectors are dealt to folds, those of one group and equal ones together. For each fold everything is made
without it: coordinates, centres and correction; so what the model then says of the fold is honest, also
where there are hardly more vectors than dimensions. The same is done with folds of *labels*: vectors of a
label that the model has never seen are unknown queries.

**Correction.** The Gaussian may be wrong and the vectors may know better:

    logits  l = T (c s_l(x) + δ_lᵀ h)        h: √(b/(b+1)) x̃, of root mean square 1

c and δ have the least  - Σ_i log softmax_l(c s_l(x_i) + δ_lᵀ h_i)[l_i] + τ/2 Σ_l |δ_l|²,  one convex
problem, in which directions that labels hardly differ in cannot correct much; s_l(x_i) is by the folds, so
that δ corrects what the Gaussian does to vectors that it has not seen. τ = ∞ is the Gaussian alone, τ → 0
logistic regression in good coordinates. T, which undoes overconfidence, has the least log loss on the
folds, one error more counted than was seen.

**None.** With E = log Σ_l e^logit,  P(none) = σ(level - E). The level is 0, as if none were one more label,
unless the labels that were left out say that this is too sure even if only one query in four is unknown:
then it is the level of least log loss for that mixture. Such vectors may be harder to tell from the known
than those that will come, so a level below 0 is not believed.

**Choice.** Length normalisation, centres a label and τ have the least sum of two log losses: which label,
by folds of vectors; and whether any, by folds of labels. A closed-set likelihood alone likes corrections
that destroy "unknown".

Axes: ``n`` vectors, ``r`` coordinates, ``l`` labels, ``q`` queries.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.files import Array
from surefind.labels.gaussian import Centres, LabelSums, Space, fit_space
from surefind.labels.posterior import LabelPosterior

FOLDS = 5
UNKNOWN_SHARE = 0.25
"""Share of the queries that are taken for unknown where nobody knows."""

CHOOSING = 50_000
"""Vectors by which settings are chosen and that can play queries, at most."""

SCORES = 5 * 10**7
"""Scores of vectors by labels that are kept at once for that, at most."""

LISTED = 16
"""Labels of a query that are kept where there are many."""

CENTRES = 4, 16
FOR_CENTRES = 200
"""Labels beyond which each has one centre."""

RIDGES = 10.0, 1.0, 0.1
BUDGET = 10**9
"""Vectors x labels x coordinates of a correction; beyond it is fitted to a sample, ..."""
FOR_CORRECTION = 5
"""... and not at all if that has fewer vectors a label."""

FARTHEST = 600.0
"""Log-odds of a known label, at most: even the most unlikely label has a probability above 0."""

STEPS = 60
BETTER = 1e-3
"""Nats by which a richer model must be better."""


@dataclass(frozen=True)
class Settings:
    """What was chosen for a label model, and by how much.

    Attributes:
        normalize: Whether coordinates are scaled to one length.
        centres: How many each label has.
        ridge: τ of the correction; None without one.
        sharpness: T c: what the Gaussian's log-odds are worth.
        level: Evidence at which a known label and none are equally probable.
        items: Vectors that it was fitted to.
        seed: Of the model.
        nats: Log loss of the labels of vectors that were left out; None if there were none.
    """

    normalize: bool = True
    centres: int = 1
    ridge: float | None = None
    sharpness: float = 1.0
    level: float = 0.0
    items: int = 0
    seed: int = 0
    nats: float | None = None


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What the model says of vectors that it was fitted without.

    Attributes:
        rows: Which vectors of those given (r).
        truth: Their labels (r).
        enrolled: Whether others have the label too (r).
        own: Log-odds of that label against all others, of a vector without itself; NaN if not enrolled (r).
        known: Posterior by a model without the vector, its group and its copies.
        unknown: Posterior by a model without the vector's label; None with less than two labels.
        novelty: p-values by the former (r).
        unknown_novelty: p-values by the latter (r).
    """

    rows: np.ndarray
    truth: np.ndarray
    enrolled: np.ndarray
    own: np.ndarray
    known: LabelPosterior
    unknown: LabelPosterior | None
    novelty: np.ndarray
    unknown_novelty: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Learned:
    """All that answers a query: an immutable value.

    Attributes:
        names: Names of the labels (l), as objects.
        space: Coordinates of the vectors, those of many dimensions projected.
        centres: Where the labels are.
        settings: What was chosen.
        correction: T δ for x̃ in place of h (l, r), or None.
        far: Rising d² of vectors that were left out, for p-values.
    """

    names: Array
    space: Space
    centres: Centres
    settings: Settings
    correction: Array | None
    far: Array

    def logits(self, vectors: Float[np.ndarray, "q d"]) -> Float[np.ndarray, "q l"]:
        """Return the logit of each label."""
        coordinates = self.space(vectors)
        found = self.settings.sharpness * self.centres.scores(coordinates)
        if self._correction is not None:
            found += coordinates @ self._correction.T
        return found

    @cached_property
    def _correction(self) -> Any:
        return None if self.correction is None else self.correction.astype(np.float32)

    def posterior(
        self, vectors: Float[np.ndarray, "q d"], only: Bool[np.ndarray, " l"] | None = None
    ) -> LabelPosterior:
        """Return probabilities of the labels, perhaps of some only."""
        parts = []
        step = max(1, SCORES // (10 * len(self.names)))
        for start in range(0, len(vectors), step):
            logits = self.logits(vectors[start : start + step])
            if only is not None:
                logits = np.where(only, logits, -np.inf)
            parts.append(posterior_of(logits, self.names, self.settings.level))
        return joined(parts)


def posterior_of(
    logits: Float[np.ndarray, "q l"], names: np.ndarray, level: float
) -> LabelPosterior:
    """Turn logits into probabilities of labels and none; of many labels the most probable are listed."""
    if logits.shape[1] <= LISTED:
        logits = logits.astype(np.float64)
    evidence = log_total(logits).astype(np.float64)
    odds = np.exp(np.clip(evidence - level, -FARTHEST, FARTHEST))
    none, known = 1 / (1 + odds), odds / (1 + odds)
    if logits.shape[1] > LISTED:
        columns = np.argpartition(-logits, LISTED, axis=1)[:, :LISTED]
        logits, names = np.take_along_axis(logits, columns, axis=1), names[columns]
    finite = np.where(np.isfinite(evidence), evidence, 0.0)
    share = np.exp(logits.astype(np.float64) - finite[:, None])
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)  # the total was rounded as float32
    return LabelPosterior(names, share * known[:, None], none)


def joined(parts: list[LabelPosterior]) -> LabelPosterior:
    """Join posteriors of the same labels query by query."""
    if len(parts) == 1:
        return parts[0]
    names = parts[0].labels
    if names.ndim > 1:
        names = np.concatenate([part.labels for part in parts])
    columns = (
        np.concatenate([getattr(part, x) for part in parts]) for x in ("probability", "none")
    )
    return LabelPosterior(names, *columns)


def log_total(logits: Float[np.ndarray, "q l"]) -> Float[np.ndarray, " q"]:
    """Return the logarithm of the sum over labels."""
    top = logits.max(axis=1)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(np.exp(logits - top[:, None]).sum(axis=1)))


def p_values(far: Float[np.ndarray, " m"], found: Float[np.ndarray, " q"]) -> np.ndarray:
    """Return the share of vectors left out that are at least as far, each counted in (q)."""
    return (1 + len(far) - np.searchsorted(far, found, side="left")) / (1 + len(far))


def deal(
    codes: Int[np.ndarray, " n"],
    units: Int[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """Deal vectors to folds, label by label; those of one unit together."""
    order = rng.permutation(len(codes))
    first = order[np.unique(units[order], return_index=True)[1]]  # a vector of each unit
    own = codes[first]
    by_label = np.lexsort((rng.random(len(first)), own))
    starts = np.searchsorted(own[by_label], own[by_label])
    turn = rng.integers(FOLDS, size=codes.max() + 1)
    fold = np.empty(len(first), dtype=np.int64)
    fold[by_label] = (np.arange(len(first)) - starts + turn[own[by_label]]) % FOLDS
    return fold[np.searchsorted(units[first], units)]


@dataclass(frozen=True, eq=False)
class Fold:
    """A space made without some of the vectors.

    Attributes:
        rows: Which they are, as far as they are scored.
        train: The others.
        kept: Labels that the others have, as numbers.
        space: Without length normalisation.
    """

    rows: np.ndarray
    train: np.ndarray
    kept: np.ndarray
    space: Space


@dataclass(frozen=True, eq=False)
class Trial:
    """A setting, and what it says of vectors left out.

    Attributes:
        settings: Of this trial.
        logits: Of vectors left out, by all labels (n, l).
        unknown: The same of vectors whose label was left out; without rows where there is one label.
        loss: Sum of both log losses.
        models: Space and centres, and with a correction its factor and δ, by folds of vectors and
            of labels.
        scale: T.
    """

    settings: Settings
    logits: np.ndarray
    unknown: np.ndarray
    loss: float
    models: tuple[list[Any], list[Any]]
    scale: float = 1.0


class Folds:
    """Fits and scores settings by folds of vectors and of labels.

    Args:
        vectors: Unit vectors, projected (n, d).
        codes: Numbers of their labels (n).
        units: Numbers of what is left out together (n).
        background: Sums of vectors of other labels, which are in every fold.
        rng: Deals the vectors.
        open_set: Whether labels are left out too; else settings are chosen for telling labels apart alone.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        codes: Int[np.ndarray, " n"],
        units: Int[np.ndarray, " n"],
        background: LabelSums | None,
        rng: np.random.Generator,
        *,
        open_set: bool = True,
    ) -> None:
        self.vectors, self.codes, self.labels = vectors, codes, int(codes.max()) + 1
        self.rng = rng
        fold = deal(codes, units, rng)
        most = max(1, min(len(codes), SCORES // self.labels))
        scored = np.zeros(len(codes), dtype=bool)
        scored[rng.permutation(len(codes))[:most]] = True
        total = LabelSums.of(vectors, codes, self.labels)
        of_label = np.empty(self.labels, dtype=np.int64)
        of_label[rng.permutation(self.labels)] = np.arange(self.labels) % min(FOLDS, self.labels)

        def made(out: Bool[np.ndarray, " n"]) -> Fold:
            left = total - LabelSums.of(vectors[out], codes[out], self.labels)
            sums = left if background is None else left.beside(background)
            kept = np.flatnonzero(left.counts)
            space = fit_space(sums, normalize=False)
            return Fold(np.flatnonzero(out & scored), np.flatnonzero(~out), kept, space)

        outs = [fold == f for f in range(FOLDS)]
        self.items = [made(out) for out in outs if out.any() and not out.all()]
        self.of_labels = []
        if self.labels > 1 and open_set:
            outs = [of_label[codes] == f for f in range(min(FOLDS, self.labels))]
            self.of_labels = [made(out) for out in outs]
        self.rows = np.flatnonzero(scored)
        others = np.zeros(len(codes), dtype=bool)
        for one in self.items:
            others[one.rows] = np.isin(codes[one.rows], one.kept)
        self.enrolled = others[self.rows]

    def far(self, folds: list[Fold]) -> Float[np.ndarray, " n"]:
        """Return d² of the scored vectors by the folds that leave them out, NaN of others."""
        found = np.full(len(self.codes), np.nan)
        for fold in folds:
            found[fold.rows] = fold.space.far(self.vectors[fold.rows])
        return found[self.rows]

    def gaussian(self, normalize: bool, each: int) -> Trial:
        """Try a setting without a correction."""
        models = ([], [])  # type: ignore[var-annotated]
        for folds, fitted in zip((self.items, self.of_labels), models, strict=True):
            for fold in folds:
                space = replace(fold.space, normalize=normalize)
                centres = Centres.of(
                    space(self.vectors[fold.train]),
                    self.codes[fold.train],
                    self.labels,
                    space.spread,
                    each=each,
                    rng=self.rng,
                )
                fitted.append((space, centres))
        scores = self._scored(models[0], self.items, lambda model, z: model[1].scores(z))
        usual = 1.5 / np.sqrt(self.vectors.shape[1])
        sharpness = self._scale(scores, usual)
        settings = Settings(normalize, each, None, sharpness, items=len(self.codes))
        unknown = self._scored(models[1], self.of_labels, lambda model, z: model[1].scores(z))
        return self._judged(settings, sharpness * scores, sharpness * unknown, models)

    def corrected(
        self, plain: Trial, offsets: Float[np.ndarray, "n l"], ridge: float
    ) -> Trial | None:
        """Try a correction on top of a setting."""
        fitted: tuple[list[Any], list[Any]] = ([], [])
        for folds, models, own in zip(
            (self.items, self.of_labels), plain.models, fitted, strict=True
        ):
            for fold, (space, centres, *_) in zip(folds, models, strict=True):
                able = np.intersect1d(fold.train, self.rows[self.enrolled])
                train = affordable(able, len(fold.kept), len(space.spread), self.rng)
                if train is None:
                    return None
                place = np.searchsorted(self.rows, train)
                made = fit_correction(
                    space(self.vectors[train]),
                    space.spread,
                    offsets[place][:, fold.kept],
                    np.searchsorted(fold.kept, self.codes[train]),
                    ridge,
                )
                own.append((space, centres, *spread_over(made, fold.kept, self.labels)))

        def logits(model: Any, z: np.ndarray) -> np.ndarray:
            _, centres, sharper, correction = model
            scores = plain.settings.sharpness * sharper * centres.scores(z)
            return np.asarray(scores + z @ correction.T)

        found = self._scored(fitted[0], self.items, logits)
        scale = self._scale(found, 1.0)
        settings = replace(plain.settings, ridge=ridge)
        unknown = self._scored(fitted[1], self.of_labels, logits)
        return self._judged(settings, scale * found, scale * unknown, fitted, scale)

    def _scored(
        self,
        models: list[Any],
        folds: list[Fold],
        logits: Callable[[Any, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        rows = len(self.rows) if folds is self.items or folds else 0
        found = np.full((rows, self.labels), -np.inf, dtype=np.float32)
        for fold, model in zip(folds, models, strict=True):
            place = np.searchsorted(self.rows, fold.rows)
            found[place] = logits(model, model[0](self.vectors[fold.rows]))
        return found

    def _scale(self, logits: Float[np.ndarray, "n l"], usual: float) -> float:
        """Return the factor of least log loss; the usual one where nothing was left out.

        One error more is counted than was seen, of the strongest rivals: n vectors cannot make it surer.
        """
        from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

        rows = np.flatnonzero(self.enrolled)[: SCORES // (5 * self.labels)]
        if len(rows) < FOLDS or self.labels < 2:
            return usual
        some, truth = logits[rows], self.codes[self.rows[rows]]
        rivals = some.copy()
        np.put_along_axis(rivals, truth[:, None], -np.inf, axis=1)
        strongest = rivals.argmax(axis=1)

        def loss(log: float) -> float:
            scaled = np.exp(log) * some
            return log_loss(scaled, truth) + log_loss(scaled, strongest) / len(rows)

        found = minimize_scalar(
            loss,
            bounds=(-6.0, 3.0),
            method="bounded",
            options={"xatol": 0.01},
        )
        return float(np.exp(found.x))

    def _judged(
        self,
        settings: Settings,
        logits: np.ndarray,
        unknown: np.ndarray,
        models: Any,
        scale: float = 1.0,
    ) -> Trial:
        known = logits[self.enrolled]
        nats = log_loss(known, self.codes[self.rows[self.enrolled]]) if len(known) else None
        level, loss = fit_level(log_total(known), log_total(unknown))
        settings = replace(settings, level=level, nats=nats)
        return Trial(settings, logits, unknown, (nats or 0.0) + loss, models, scale)


def choose(folds: Folds, ridge: float | None = None) -> tuple[Trial, Trial]:
    """Choose length normalisation, then centres, then the correction.

    Args:
        folds: Of the vectors.
        ridge: τ, if it is given.

    Returns:
        The best setting, and the best one without a correction.
    """
    # Scaled to one length, vectors cannot be far from a single label's.
    best = folds.gaussian(folds.labels > 1, 1)
    if not folds.enrolled.any() or folds.labels == 1:
        return best, best
    best = min(best, folds.gaussian(False, 1), key=lambda trial: trial.loss)
    usual = np.median(np.bincount(folds.codes))
    for each in CENTRES:
        if folds.labels <= FOR_CENTRES and usual >= 3 * each:
            rival = folds.gaussian(best.settings.normalize, each)
            best = rival if rival.loss < best.loss - BETTER else best
    plain, offsets = best, offsets_of(best)
    for tau in RIDGES if ridge is None else (ridge,):
        rival = folds.corrected(plain, offsets, tau)  # type: ignore[assignment]
        if rival is None or (ridge is None and rival.loss > best.loss - BETTER):
            break
        best = rival
    return best, plain


def offsets_of(trial: Trial) -> Float[np.ndarray, "n l"]:
    """Return finite logits: of a label that a fold does not have, far below the others."""
    lowest = trial.logits.max(axis=1, keepdims=True) - 50.0
    return np.asarray(np.maximum(trial.logits, lowest))


def affordable(
    rows: Int[np.ndarray, " n"], labels: int, coordinates: int, rng: np.random.Generator
) -> Int[np.ndarray, " m"] | None:
    """Return as many rows as a correction may be fitted to; None if these are too few."""
    most = BUDGET // (labels * coordinates)
    rows = rows if len(rows) <= most else np.sort(rng.permutation(rows)[:most])
    return rows if len(rows) >= FOR_CORRECTION * labels else None


FARTHEST = 40.0
"""Where the logarithm of the offsets' factor ends: a search for the best one may try what overflows."""


def fit_correction(
    coordinates: Float[np.ndarray, "n r"],
    spread: Float[np.ndarray, " r"],
    offsets: Float[np.ndarray, "n l"],
    codes: Int[np.ndarray, " n"],
    ridge: float,
) -> tuple[float, Float[np.ndarray, "l r"]]:
    """Fit δ, and a factor of the offsets, by ridge logistic regression.

    Args:
        coordinates: x̃.
        spread: b.
        offsets: c s_l.
        codes: Numbers of the labels, among the columns.
        ridge: τ.

    Returns:
        The factor of the offsets, and δ for x̃ in place of h.
    """
    from scipy.optimize import minimize

    n, labels = offsets.shape
    scale = np.sqrt(spread / (spread + 1))
    scale /= float(np.sqrt(np.square(coordinates * scale).mean())) or 1.0
    z, s = (coordinates * scale).astype(np.float32), offsets.astype(np.float32)
    own, unit = np.arange(n), np.sqrt(n)

    def loss(p: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = np.float32(np.exp(min(p[0] / unit, FARTHEST))) * s
        logits = scaled + z @ p[1:].reshape(labels, -1).astype(np.float32).T
        logits -= logits.max(axis=1, keepdims=True)
        right = logits[own, codes].sum(dtype=np.float64)
        np.exp(logits, out=logits)
        total = logits.sum(axis=1, keepdims=True)
        logits /= total
        logits[own, codes] -= 1
        slope = np.empty_like(p)
        slope[0] = np.einsum("nl,nl->", logits, scaled) / unit
        slope[1:] = (logits.T @ z).ravel()
        slope[1:] += ridge * p[1:]
        value = np.log(total).sum(dtype=np.float64) - right
        return float(value) + 0.5 * ridge * float(p[1:] @ p[1:]), slope

    found = minimize(
        loss,
        np.zeros(1 + labels * z.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": STEPS, "maxcor": 6, "ftol": 1e-5},
    ).x
    return float(np.exp(min(found[0] / unit, FARTHEST))), found[1:].reshape(labels, -1) * scale


def spread_over(
    made: tuple[float, Float[np.ndarray, "k r"]], kept: Int[np.ndarray, " k"], labels: int
) -> tuple[float, Float[np.ndarray, "l r"]]:
    """Give labels that were not there a correction of 0."""
    correction = np.zeros((labels, made[1].shape[1]))
    correction[kept] = made[1]
    return made[0], correction


def own_odds(
    logits: Float[np.ndarray, "n l"], codes: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return log-odds of each vector's own label against all others."""
    rest = logits.astype(np.float64)
    own = np.take_along_axis(rest, codes[:, None], axis=1)[:, 0]
    np.put_along_axis(rest, codes[:, None], -np.inf, axis=1)
    with np.errstate(invalid="ignore"):  # of a label that nothing else has
        return np.asarray(own - log_total(rest))


def log_loss(logits: Float[np.ndarray, "n l"], codes: Int[np.ndarray, " n"]) -> float:
    """Return the mean log loss of the labels, in nats."""
    own = logits[np.arange(len(codes)), codes]
    return float((log_total(logits) - own).mean(dtype=np.float64))


def fit_level(
    known: Float[np.ndarray, " n"], unknown: Float[np.ndarray, " m"]
) -> tuple[float, float]:
    """Return the level of none, and the log loss of whether a label is known, both kinds weighed alike.

    Args:
        known: Evidence of vectors that were left out.
        unknown: Evidence of vectors whose label was left out.

    Returns:
        The level, and the log loss at the best one for as many of both. The level is at least 0 where there
        are both; without unknown vectors, most known ones are above it, without known ones, few unknown.
    """
    from scipy.optimize import minimize_scalar

    if not len(unknown):
        return min(0.0, float(np.quantile(known, 0.05))) if len(known) else 0.0, 0.0
    if not len(known):
        return float(np.quantile(unknown, 0.99)), 0.0

    def loss(level: float, share: float) -> float:
        of_known = np.logaddexp(0, level - known).mean()
        return float((1 - share) * of_known + share * np.logaddexp(0, unknown - level).mean())

    ends = min(known.min(), unknown.min()), max(known.max(), unknown.max())
    at = {
        share: minimize_scalar(loss, bounds=ends, args=(share,), method="bounded")
        for share in (UNKNOWN_SHARE, 0.5)
    }
    return max(0.0, float(at[UNKNOWN_SHARE].x)), float(at[0.5].fun)
