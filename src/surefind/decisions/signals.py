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

from surefind.checks import as_array, as_scores
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
        if not all(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in columns):
            return False
        shape = columns[0].shape
        return (
            len(shape) == 1
            and shape[0] > 0
            and all(x.shape == shape for x in columns)
            and bool(np.isfinite(np.concatenate(columns)).all())
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

    def rows(self) -> Float[np.ndarray, "s q"]:
        """Return the same as rows, which are quicker to go through."""
        columns = [getattr(self, name) for name in self.names]
        return np.asarray(np.concatenate(columns).reshape(len(columns), -1) * SIGNS[:, None])


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
    # Also false for NaN, which is neither above nor below anything. ∞ - ∞ is never formed.
    if not ((near >= 0).all() and (near[:, 1:] >= near[:, :-1]).all()):
        raise InputError(
            "distances must be numbers from 0 up, the nearest first in each row.", field="distances"
        )
    return measured_signals(concentration, near, names, posterior)


def measured_signals(
    kappa: Float[np.ndarray, " q"],
    distances: Float[np.ndarray, "q k"],
    labels: np.ndarray,
    posterior: LabelPosterior,
) -> Signals:
    """Compute the signals as `neighbour_signals` does, from what is known to be in order."""
    there, (low, high) = np.isfinite(distances), KAPPA_RANGE
    complete = bool(there.all())
    if not distances.shape[1] or not (complete or there[:, 0].all()):
        raise InputError(
            "a query has no neighbour: search a gallery that holds at least one item.",
            field="distances",
        )
    columns = posterior.candidates[:, 0]
    answered = columns >= 0
    places = np.arange(0, distances.size, distances.shape[1]) + np.maximum(columns, 0)
    own = distances.take(places)
    other = labels != labels.take(places)[:, None]
    near, dense = distances[:, :DENSE], there[:, :DENSE]
    if not complete:
        other &= there
        near = np.where(dense, near, 0)
    margin = np.minimum(np.where(other, distances, np.inf).min(axis=1) - own, MARGIN_CAP)
    if not answered.all():
        own = np.where(answered, own, distances[:, 0])
        margin = np.where(answered, margin, 0.0)
    return Signals(
        consensus=posterior.consensus,
        evidence=posterior.evidence,
        log_kappa=np.log(np.minimum(np.maximum(kappa, low), high)),
        distance=own,
        margin=margin,
        density=near.sum(axis=1) / dense.sum(axis=1),
    )
