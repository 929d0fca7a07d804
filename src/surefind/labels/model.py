"""The label model: probabilities of labels, and of none, from labelled vectors alone.

Gaussian evidence (`surefind.labels.gaussian`) with a learned correction and a level for "none", chosen by
what it says of vectors that it has not seen (`surefind.labels.left_out`). Nothing needs a gradient through
a network, nothing is searched, and it answers at any size of a label:

    P(l | x) = (1 - P(none)) softmax_l(logits)          P(none) = σ(level - log Σ_l e^logit)

Vectors are taken as directions: rescaled to length 1. Those of many dimensions are projected on their
principal ones first.

**Policies.** A single label is told from none by how far its own vectors spread. Two labels are
one direction, and shrinkage. With one vector a label, W leans on the total covariance, or on
``background``: labelled vectors of others, as of people who are not enrolled. Vectors without a label are
left aside. A label whose last vector was removed is no label.

**Day two.** `add` and `remove` change the sums of one centre and cost its coordinates; a new label has no
correction until the next fit. What was learned is a value that is replaced: another thread that asks
meanwhile gets an answer by the old one or by the new one.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_directions, check_count, label_values
from surefind.errors import DegenerateError, InputError
from surefind.files import from_stored, to_stored
from surefind.labels.gaussian import Centres, LabelSums, Space, blocks, fit_space, principal
from surefind.labels.left_out import (
    CHOOSING,
    Folds,
    Learned,
    LeftOut,
    Settings,
    affordable,
    choose,
    fit_correction,
    offsets_of,
    own_odds,
    p_values,
    posterior_of,
)
from surefind.labels.posterior import LabelPosterior

MOST_FAR = 10_000
"""Distances that are kept for p-values."""


class LabelModel:
    """Which label a vector has, or that it has none of those enrolled.

    Args:
        seed: Deals vectors to folds.
        open_set: Whether queries may have no label. Else settings are chosen for telling the labels
            apart alone, in half of the time, and nothing is known of labels left out.
        ridge: τ of the correction; None to choose it.

    Examples:
        >>> model = sf.LabelModel().fit(vectors, labels)
        >>> model.posterior(queries).label
    """

    def __init__(self, *, seed: int = 0, open_set: bool = True, ridge: float | None = None) -> None:
        self.seed, self.open_set, self.ridge = seed, open_set, ridge
        self._learned: Learned | None = None
        self._left_out: LeftOut | None = None

    def __repr__(self) -> str:
        if self._learned is None:
            return "LabelModel(not fitted)"
        return f"LabelModel({len(self.labels):,} labels, {self.settings})"

    def fit(
        self, vectors: Any, labels: Any, *, groups: Any = None, background: Any = None
    ) -> "LabelModel":
        """Fit the model, and choose its settings by what it says of vectors left out.

        Args:
            vectors: Vectors of any length (n, d), none of them 0.
            labels: A string or an integer each, or None.
            groups: What vectors were taken from together (a video, a session), or None; left out together.
            background: A pair of vectors and labels that are not enrolled, but vary as these do.

        Returns:
            Itself.

        Raises:
            DegenerateError: If no vector has a label.
        """
        rows, names, codes = _labelled(vectors, labels)
        given = as_directions("vectors", vectors, normalize=True)
        found = given[rows]
        if groups is not None:
            groups = label_values("groups", groups, count=len(given))
        units = _units(found, None if groups is None else [groups[row] for row in rows])
        basis = principal(found)
        if basis is not None:
            found = found @ basis.T.astype(np.float32)
        beside = None
        if background is not None:
            where, others, their = _labelled(*background)
            extra = as_directions("background", background[0], dim=given.shape[1], normalize=True)
            extra = extra[where] if basis is None else extra[where] @ basis.T
            beside = LabelSums.of(extra, their, len(others))
        rng = np.random.default_rng(self.seed)
        some = np.sort(rng.permutation(len(found))[:CHOOSING])
        present, own = np.unique(codes[some], return_inverse=True)
        folds = Folds(found[some], own, units[some], beside, rng, open_set=self.open_set)
        best, plain = choose(folds, self.ridge)
        sums = LabelSums.of(found, codes, len(names))
        sums = sums if beside is None else sums.beside(beside)
        space = fit_space(sums, normalize=best.settings.normalize)
        coordinates = np.concatenate([space(block) for block in blocks(found)])
        each = best.settings.centres
        centres = Centres.of(coordinates, codes, len(names), space.spread, each=each, rng=rng)
        sharpness, correction = best.settings.sharpness, None
        able = folds.rows[folds.enrolled]
        train = affordable(able, len(present), len(space.spread), rng)
        if best.settings.ridge is not None and train is not None:
            place = np.searchsorted(folds.rows, train)
            factor, delta = fit_correction(
                coordinates[some[train]],
                space.spread,
                offsets_of(plain)[place],
                own[train],
                best.settings.ridge,
            )
            sharpness *= best.scale * factor
            correction = np.zeros((len(names), len(space.spread)))
            correction[present] = best.scale * delta
        settings = Settings(**{
            **vars(best.settings),
            "sharpness": float(sharpness),
            "items": len(rows),
            "seed": self.seed,
        })
        far = folds.far(folds.items)
        far = far[folds.enrolled] if folds.enrolled.any() else folds.far(folds.of_labels)
        far = np.sort(far[np.isfinite(far)])
        self._left_out = LeftOut(
            rows[some[folds.rows]],
            names[codes[some[folds.rows]]],
            folds.enrolled,
            np.where(folds.enrolled, own_odds(best.logits, own[folds.rows]), np.nan),
            posterior_of(best.logits, names[present], best.settings.level),
            posterior_of(best.unknown, names[present], best.settings.level)
            if len(best.unknown)
            else None,
            p_values(far, folds.far(folds.items)),
            p_values(far, folds.far(folds.of_labels)),
        )
        kept = far[:: max(1, -(-len(far) // MOST_FAR))]
        if basis is not None:
            space = Space(
                space.mean @ basis, space.transform @ basis, space.spread, space.normalize
            )
        self._learned = Learned(names, space, centres, settings, correction, kept)
        return self

    @property
    def settings(self) -> Settings:
        """What was chosen."""
        return self._now.settings

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self._now.space.transform.shape[1])

    @property
    def counts(self) -> dict[Any, int]:
        """How many vectors each label has."""
        now = self._now
        found = np.bincount(now.centres.owner, weights=now.centres.counts)
        return {name: int(n) for name, n in zip(now.names.tolist(), found, strict=True) if n}

    @property
    def labels(self) -> tuple[Any, ...]:
        """The labels that are enrolled."""
        return tuple(self.counts)

    def posterior(self, vectors: Any, *, labels: Any = None) -> LabelPosterior:
        """Return the probabilities of the labels of each query, and of none.

        Args:
            vectors: Queries (q, d).
            labels: Only these are possible; None for all.

        Returns:
            The posterior; of many labels the most probable are listed.

        Raises:
            InputError: If the vectors are of another width, or none of the labels is enrolled.
        """
        now = self._now
        queries = self._read(now, vectors)
        if labels is None:
            return now.posterior(queries)
        wanted = label_values("labels", labels)
        only = np.isin(now.names, np.array([*wanted, None], dtype=object)[:-1])
        if not only.any():
            raise InputError(
                f"none of the labels is enrolled, such as {wanted[0] if wanted else None!r}.",
                field="labels",
                hint="Give labels as the items have them (1 and '1' differ).",
            )
        return now.posterior(queries, only)

    def transform(self, vectors: Any) -> Float[np.ndarray, "n r"]:
        """Return coordinates, those in which labels differ most first, scaled by √(b/(b+1))."""
        now = self._now
        weights = np.sqrt(now.space.spread / (now.space.spread + 1))
        return np.asarray(now.space(self._read(now, vectors)) * weights)

    def novelty(self, vectors: Any) -> Float[np.ndarray, " q"]:
        """Return p-values (q): small for a vector that is far from everything.

        The share of vectors left out that are as far, by d² (`surefind.labels.gaussian`).
        """
        now = self._now
        return p_values(now.far, now.space.far(self._read(now, vectors)))

    def add(self, vectors: Any, labels: Any) -> "LabelModel":
        """Enrol further vectors; those without a label are left aside."""
        return self._changed(vectors, labels, +1)

    def remove(self, vectors: Any, labels: Any) -> "LabelModel":
        """Take vectors away that were fitted to or added.

        Args:
            vectors: Theirs.
            labels: Theirs.

        Returns:
            Itself.

        Raises:
            InputError: If a label has fewer vectors.
        """
        return self._changed(vectors, labels, -1)

    def recounted(self, vectors: Any, labels: Any) -> "LabelModel":
        """Return a model of these coordinates, settings and corrections, with the centres of other vectors.

        Args:
            vectors: All that are enrolled now (n, d).
            labels: Theirs.

        Returns:
            The model, which knows nothing of vectors left out.
        """
        now = self._now
        rows, names, codes = _labelled(vectors, labels)
        given, spread = self._read(now, vectors)[rows], now.space.spread
        centres = Centres.of(
            np.concatenate([now.space(block) for block in blocks(given)]),
            codes,
            len(names),
            spread,
            each=now.settings.centres,
            rng=np.random.default_rng(self.seed),
        )
        correction = now.correction
        if correction is not None:
            row = {name: at for at, name in enumerate(now.names.tolist())}
            known = [row.get(name, -1) for name in names.tolist()]
            correction = np.concatenate([correction, np.zeros((1, len(spread)))])[known]
        model = LabelModel(seed=self.seed)
        model._learned = Learned(names, now.space, centres, now.settings, correction, now.far)
        return model

    def left_out(self) -> LeftOut:
        """Return what the model says of the vectors it was fitted to, each left out.

        Raises:
            InputError: If it was loaded, and does not know them.
        """
        if self._left_out is None:
            raise InputError("this model does not know its vectors; fit it to them again.")
        return self._left_out

    def to_stored(self) -> dict[str, Any]:
        """Return what was learned as plain JSON values with a checksum; `from_stored` reads it."""
        return to_stored(Learned, self._now)

    @classmethod
    def from_stored(cls, stored: Any) -> "LabelModel":
        """Read what `to_stored` returned."""
        learned: Learned = from_stored(Learned, stored, "the label model")
        model = cls(seed=learned.settings.seed)
        model._learned = learned
        return model

    def _changed(self, vectors: Any, labels: Any, sign: int) -> "LabelModel":
        now = self._now
        rows, new, codes = _labelled(vectors, labels, needed=False)
        if not len(rows):
            return self
        coordinates = now.space(self._read(now, vectors)[rows])
        number = {name: code for code, name in enumerate(now.names.tolist())}
        fresh = [name for name in new.tolist() if name not in number]
        number.update({name: len(number) + i for i, name in enumerate(fresh)})
        own = np.array([number[name] for name in new.tolist()])[codes]
        before = now.centres
        owner = np.concatenate([before.owner, np.arange(len(now.names), len(number))])
        blank = np.zeros((len(fresh), before.totals.shape[1]))
        counts = np.concatenate([before.counts, np.zeros(len(fresh))])
        totals = np.concatenate([before.totals, blank])
        place = _nearest(owner, counts, totals, own, coordinates, sign)
        np.add.at(counts, place, sign)
        np.add.at(totals, place, sign * coordinates)
        if (counts < 0).any():
            short = [*number][int(owner[counts.argmin()])]
            raise InputError(
                f"more vectors of label {short!r} are to be removed than it has.", field="labels"
            )
        totals[counts == 0] = 0.0
        correction = now.correction
        if correction is not None:
            correction = np.concatenate([correction, blank])
        names = np.array([*number, None], dtype=object)[:-1]
        centres = Centres(owner, counts, totals, before.spread)
        self._learned = Learned(names, now.space, centres, now.settings, correction, now.far)
        self._left_out = None
        return self

    @property
    def _now(self) -> Learned:
        if self._learned is None:
            raise InputError("this label model is not fitted; call fit(vectors, labels).")
        return self._learned

    def _read(self, now: Learned, vectors: Any) -> Float[np.ndarray, "q d"]:
        return as_directions("vectors", vectors, dim=now.space.transform.shape[1], normalize=True)


def _labelled(
    vectors: Any, labels: Any, *, needed: bool = True
) -> tuple[Int[np.ndarray, " m"], np.ndarray, Int[np.ndarray, " m"]]:
    """Return the rows that have a label, the labels' names and each row's number among them."""
    read = label_values("labels", labels)
    check_count("labels", read, len(vectors))
    names = [name for name in dict.fromkeys(read) if name is not None]
    number: dict[Any, int] = {name: code for code, name in enumerate(names)}
    rows = np.array([row for row, name in enumerate(read) if name is not None], dtype=np.int64)
    if needed and not len(rows):
        raise DegenerateError(
            "no vector has a label, so none can be learned.",
            field="labels",
            hint="Give a string or an integer for each vector whose label is known.",
        )
    codes = np.array([number[read[row]] for row in rows], dtype=np.int64)
    return rows, np.array([*names, None], dtype=object)[:-1], codes


def _units(vectors: Float[np.ndarray, "n d"], groups: list[Any] | None) -> Int[np.ndarray, " n"]:
    """Number what is left out together: equal vectors, and those of one group."""
    seen: dict[bytes, int] = {}
    copies = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in vectors])
    if groups is None or not any(group is not None for group in groups):
        return copies
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    n, number = len(vectors), {name: code for code, name in enumerate(dict.fromkeys(groups))}
    pairs = [(row, number[name]) for row, name in enumerate(groups) if name is not None]
    rows, own = map(np.array, zip(*pairs, strict=True))
    starts = np.concatenate([np.arange(n), rows])
    ends = np.concatenate([n + copies, 2 * n + own])
    size = 2 * n + len(number)
    graph = coo_array((np.ones(len(starts)), (starts, ends)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1][:n])


def _nearest(
    owner: Int[np.ndarray, " c"],
    counts: Float[np.ndarray, " c"],
    totals: Float[np.ndarray, "c r"],
    codes: Int[np.ndarray, " n"],
    coordinates: Float[np.ndarray, "n r"],
    sign: int,
) -> Int[np.ndarray, " n"]:
    """Return the centre of its own label that is nearest to each vector and has some left."""
    left = counts.copy()
    first = np.searchsorted(owner, codes)
    several = np.searchsorted(owner, codes, side="right") - first
    for row in np.flatnonzero(several > 1):
        own = slice(first[row], first[row] + several[row])
        means = totals[own] / np.maximum(counts[own], 1)[:, None]
        away = np.square(means - coordinates[row]).sum(axis=1)
        first[row] += int(np.where(left[own] > 0, away, np.inf).argmin())
        left[first[row]] += sign
    return first
