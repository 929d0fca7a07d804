"""Signals: what the neighbours of a query say about the label it is answered with, six numbers a query.

With distances d_1 <= ... <= d_k to the nearest items, and the answer a, the most probable label
(`surefind.decisions.label_posterior`),

    consensus = log-odds of a against all other labels          larger is better
    evidence  = log-odds of a against all else, none included   larger is better
    log_kappa = log κ of the query                              larger is better
    distance  = min {d_i : l_i = a}                             smaller is better
    margin    = min {d_i : l_i != a} - distance                 larger is better; < 0 if a rival is nearer
    density   = mean of the first `DENSE` of d_1 ... d_k        smaller is better

Distances are angles or Euclidean distances of unit vectors, so none exceeds π. Where no neighbour has
another label the margin is π: nothing competes. Where no neighbour has a label at all, the distance is d_1
and the margin 0. κ is kept between 1e-12 and 1e12, so that a query without uncertainty (κ = ∞) has a
finite signal; if all have it, the signal is constant and adds nothing.

Axes: ``q`` queries, ``k`` neighbours.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from surefind.arrays import as_array, as_scores
from surefind.decisions.label_posterior import LabelPosterior
from surefind.errors import InputError

MARGIN_CAP = float(np.pi)
"""The largest distance of two directions, by angle or by chord."""

KAPPA_RANGE = 1e-12, 1e12
DENSE = 10


@dataclass(frozen=True, eq=False)
class Signals:
    """Six signals for each query, finite and in float64.

    Attributes:
        consensus: Log-odds of the answer against its rivals (q).
        evidence: Log-odds of the answer against its rivals and none (q).
        log_kappa: Logarithm of the query's κ (q).
        distance: Distance to the answer's nearest item (q).
        margin: How much farther the nearest item of another label is (q).
        density: Mean distance to the nearest items (q).
    """

    names: ClassVar[tuple[str, ...]] = (
        "consensus",
        "evidence",
        "log_kappa",
        "distance",
        "margin",
        "density",
    )
    signs: ClassVar[tuple[float, ...]] = (1.0, 1.0, 1.0, -1.0, 1.0, -1.0)

    consensus: np.ndarray
    evidence: np.ndarray
    log_kappa: np.ndarray
    distance: np.ndarray
    margin: np.ndarray
    density: np.ndarray

    def __post_init__(self) -> None:
        """Check that all are finite and equally long, and keep them in float64."""
        if self._right():
            return
        length = None
        for name in self.names:
            values = as_scores(name, getattr(self, name), length=length)
            if np.isinf(values).any():
                raise InputError(
                    f"{name} is infinite at {int(np.isinf(values).argmax())}; signals must be "
                    "finite. neighbour_signals makes them so.",
                    field=name,
                )
            object.__setattr__(self, name, values)
            length = len(values)

    def _right(self) -> bool:
        """Return whether all are as they should be; where not, each is looked at, to say which is not."""
        columns = [getattr(self, name) for name in self.names]
        alike = {(type(x), x.dtype, x.shape) for x in columns if isinstance(x, np.ndarray)}
        usual = len(alike) == 1 and all(isinstance(x, np.ndarray) for x in columns)
        return usual and (
            columns[0].dtype == np.float64
            and columns[0].ndim == 1
            and columns[0].size > 0
            and bool(np.isfinite(columns).all())
        )

    def __len__(self) -> int:
        return len(self.log_kappa)

    def __getitem__(self, rows: Any) -> "Signals":
        return Signals(*(getattr(self, name)[rows] for name in self.names))

    def matrix(self) -> Float[np.ndarray, "q s"]:
        """Return the signals as columns, in the order of ``names``."""
        return np.stack([getattr(self, name) for name in self.names], axis=1)

    def oriented(self) -> Float[np.ndarray, "q s"]:
        """Return the signals as columns, signed so that larger is better."""
        return np.asarray(self.matrix() * SIGNS)


SIGNS = np.array(Signals.signs)


def neighbour_signals(
    kappa: Any, distances: Any, labels: Any, posterior: LabelPosterior
) -> Signals:
    """Compute the signals from the neighbours that a search found, and the posterior over their labels.

    Args:
        kappa: Concentration of each query (q), above 0; infinity for a query without uncertainty.
        distances: Distances to the neighbours (q, k), ascending; infinity where there is none.
        labels: Numbers of their labels (q, k), below 0 for an item without one.
        posterior: Of the labels of the same neighbours.

    Returns:
        One row a query.

    Raises:
        InputError: If shapes do not fit together, κ is not above 0, a distance is negative or NaN, a
            row is not ascending, or a query has no neighbour.
    """
    concentration = as_scores("kappa", kappa)
    if not (concentration > 0).all():
        raise InputError(f"kappa must be above 0; got {concentration.min():g}.", field="kappa")
    near, names = np.asarray(as_array(distances), dtype=np.float64), as_array(labels)
    lengths = {len(concentration), len(near), len(names), len(posterior)}
    if near.ndim != 2 or near.shape != names.shape or len(lengths) > 1:
        raise InputError(
            f"distances and labels must both be (q, k) with one row for each of the "
            f"{len(concentration)} queries; got {near.shape} and {names.shape}."
        )
    if not near.shape[1] or not np.isfinite(near[:, 0]).all():
        raise InputError(
            "a query has no neighbour: search a gallery that holds at least one item.",
            field="distances",
        )
    # Also false for NaN, which is neither above nor below anything. ∞ - ∞ is never formed.
    if not ((near >= 0).all() and (near[:, 1:] >= near[:, :-1]).all()):
        raise InputError(
            "distances must be numbers from 0 up, the nearest first in each row.", field="distances"
        )
    there = np.isfinite(near)
    answered = posterior.candidates[:, :1] >= 0
    column = np.maximum(posterior.candidates[:, :1], 0)
    rows = np.arange(len(near))[:, None]
    own = np.where(answered[:, 0], near[rows, column][:, 0], near[:, 0])
    other = np.asarray(names != names[rows, column], dtype=bool) & there
    rival = np.where(other, near, np.inf).min(axis=1)
    dense, (low, high) = there[:, :DENSE], KAPPA_RANGE
    return Signals(
        consensus=posterior.consensus,
        evidence=posterior.evidence,
        log_kappa=np.log(np.minimum(np.maximum(concentration, low), high)),
        distance=own,
        margin=np.where(answered[:, 0], np.minimum(rival - own, MARGIN_CAP), 0.0),
        density=np.where(dense, near[:, :DENSE], 0).sum(axis=1) / dense.sum(axis=1),
    )
