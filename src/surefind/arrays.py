"""Numbers and labels as checked NumPy arrays: tensors of any device, arrays and plain lists alike.

Scores keep their order when they become float64, whatever they came as. NaN is refused everywhere:
it has no place in a ranking. Infinity is a score like any other (a direction that is unknown has
infinite uncertainty), and is refused only where a mean is taken.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.errors import DegenerateError, InputError


def as_array(value: Any) -> np.ndarray:
    """Return a tensor's, an array's or a list's values as a NumPy array."""
    if hasattr(value, "detach"):  # a tensor; PyTorch need not be there
        value = value.detach().cpu()
        whole = not value.dtype.is_floating_point
        return np.asarray(value if value.dtype.itemsize > 2 or whole else value.float())
    return np.asarray(value)


def as_scores(name: str, value: Any, *, length: int | None = None) -> Float[np.ndarray, " n"]:
    """Read one score per query; infinity is allowed.

    Args:
        name: What to call it in the message.
        value: Numbers (n).
        length: How many there must be, if another argument says so.

    Returns:
        The scores in float64.

    Raises:
        InputError: If it is no vector of numbers, holds NaN or has another length.
        DegenerateError: If it is empty.
    """
    array = as_array(value)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must be a vector of numbers, one per query; got {array.dtype} of shape "
            f"{array.shape}.",
            field=name,
        )
    if not len(array):
        raise DegenerateError(f"{name} is empty: give at least one query.", field=name)
    if length is not None and len(array) != length:
        raise InputError(
            f"{name} has {len(array)} values where the other arguments have {length}; "
            "give one value per query everywhere.",
            field=name,
        )
    scores = array.astype(np.float64)
    missing = np.isnan(scores)
    if missing.any():
        raise InputError(
            f"{name} holds {int(missing.sum())} NaN values, the first at {int(missing.argmax())}. "
            "NaN cannot be ranked: drop those queries or repair their scores.",
            field=name,
        )
    return scores


def as_correct(name: str, value: Any, *, length: int | None = None) -> Bool[np.ndarray, " n"]:
    """Read which answers were right: booleans, or numbers that are 0 or 1.

    Args:
        name: What to call it in the message.
        value: One entry per query (n).
        length: How many there must be, if another argument says so.

    Returns:
        The same as booleans.

    Raises:
        InputError: If a value is neither 0 nor 1.
    """
    scores = as_scores(name, value, length=length)
    other = (scores != 0) & (scores != 1)
    if other.any():
        raise InputError(
            f"{name} must be true or false (1 or 0) for each query; got {scores[other][0]:g}.",
            field=name,
        )
    return np.asarray(scores == 1)


def as_labels(name: str, value: Any, *, axes: int = 1) -> np.ndarray:
    """Read class labels: integers or names.

    Args:
        name: What to call it in the message.
        value: The labels.
        axes: How many axes they must have.

    Returns:
        An array of integers or of strings.

    Raises:
        InputError: If the shape or the kind of label does not fit.
        DegenerateError: If there are none.
    """
    array = as_array(value)
    if array.dtype == object and all(isinstance(label, str) for label in array.flat):
        array = array.astype(np.str_)
    if array.ndim != axes or array.dtype.kind not in "iubU":
        raise InputError(
            f"{name} must be integers or names with {axes} axes; got {array.dtype} of shape "
            f"{array.shape}. Convert float labels with .astype(int).",
            field=name,
        )
    if not array.size:
        raise DegenerateError(f"{name} is empty: give at least one label.", field=name)
    return array


def label_codes(
    query_labels: Any, gallery_labels: Any
) -> tuple[Int[np.ndarray, " q"], Int[np.ndarray, " g"]]:
    """Number the classes of queries and gallery alike.

    Args:
        query_labels: A label per query (q).
        gallery_labels: A label per gallery item (g), of the same kind.

    Returns:
        Whole numbers from 0 for both.

    Raises:
        InputError: If one has names and the other has numbers.
    """
    queries = as_labels("query_labels", query_labels)
    gallery = as_labels("gallery_labels", gallery_labels)
    if (queries.dtype.kind == "U") != (gallery.dtype.kind == "U"):
        raise InputError(
            f"query_labels ({queries.dtype}) and gallery_labels ({gallery.dtype}) must be of one "
            "kind, names or integers: otherwise none would ever be equal."
        )
    codes = np.unique(np.concatenate([queries, gallery]), return_inverse=True)[1]
    return codes[: len(queries)], codes[len(queries) :]
