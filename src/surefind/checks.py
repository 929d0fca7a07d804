"""Checks of what callers give: what came, what was expected, what to do; and arrays made of it.

Public functions call these once, and everything behind them trusts its arguments. ``name`` is the
argument's name: it stands in the message, and is the error's ``field``. Tensors: `surefind.tensor_checks`.

**Scores** keep their order when they become float64, whatever they came as: tensors of any device, arrays
and lists alike. NaN is refused everywhere: it has no place in a ranking. Infinity is a score like any other
(a direction that is unknown has infinite uncertainty), and is refused only where a mean is taken.

**Labels** are the same everywhere, `fit`, galleries and files alike (`label_values`): texts, and whole
numbers, also those that came as floats (pandas makes floats of integers with a gap) or as booleans. What is
missing, None or NaN, is no label. A fraction is none either: as a class, a measured quantity would make
almost every pair negative.

**Vectors** are tables of real numbers (`VECTOR_KINDS`); integers, as of quantised vectors, are taken for
what they are, and booleans are refused.

**Optional libraries** are imported by the function that needs them (`require`). Messages name the library:
installing it works wherever surefind came from, a clone or a wheel.
"""

import math
from collections.abc import Collection
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.errors import DegenerateError, InputError


def check_positive(name: str, value: float) -> None:
    """Require a finite number above zero."""
    if not isinstance(value, Real) or not 0 < value < float("inf"):
        raise InputError(f"{name} must be a finite number above 0; got {value!r}.", field=name)


def check_int(name: str, value: object, *, least: int) -> None:
    """Require a whole number that is not too small."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(
            f"{name} must be a whole number of at least {least}; got {value!r}.", field=name
        )


def check_fraction(name: str, value: float) -> None:
    """Require a number in the closed interval from 0 to 1."""
    if not isinstance(value, Real) or not 0 <= value <= 1:
        raise InputError(f"{name} must lie between 0 and 1; got {value!r}.", field=name)


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Require one of a few names."""
    if value not in choices:
        raise InputError(
            f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.", field=name
        )


VECTOR_KINDS = "fiu"
"""NumPy's kinds of numbers that vectors may have."""


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


def label_values(name: str, values: Any) -> list[str | int | None]:
    """Read labels as every door does.

    Args:
        name: What to call them in the message.
        values: An array, a tensor or a list, of one axis.

    Returns:
        A text, an integer, or None where there is none.

    Raises:
        InputError: If one is a fraction, infinite, or neither a text nor a number.
    """
    array = values if isinstance(values, list) else as_array(values)
    if not isinstance(array, list):
        if array.ndim != 1:
            raise InputError(
                f"{name} must have one entry per example; got shape {array.shape}.", field=name
            )
        if array.dtype.kind in "iuU":
            plain: list[str | int | None] = array.tolist()
            return plain
        array = array.tolist()
    return [_label(name, row, value) for row, value in enumerate(array)]


def _label(name: str, row: int, value: Any) -> str | int | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name} must be text; that of row {row} is not UTF-8: {value!r}.", field=name
            ) from error
    if isinstance(value, Integral | np.bool_):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            return None
        if number.is_integer():
            return int(number)
        raise InputError(
            f"{name} must be texts or whole numbers; row {row} has {number:g}.",
            field=name,
            hint="A measured quantity is no label: give classes.",
        )
    if value is None or str(value) == "<NA>":  # of pandas, which need not be there
        return None
    raise InputError(
        f"{name} must be texts, whole numbers or None; row {row} has {value!r}.", field=name
    )


def complete_labels(name: str, values: Any) -> np.ndarray:
    """Read labels where every example must have one, all of them texts or all of them integers.

    Args:
        name: What to call them in the message.
        values: An array, a tensor or a list, of one axis.

    Returns:
        An array of strings or of int64.

    Raises:
        InputError: If one is missing, or some are texts and some are numbers.
    """
    labels = label_values(name, values)
    if None in labels:
        raise InputError(
            f"{name} must have one for each example; row {labels.index(None)} has none.",
            field=name,
            hint="Leave those examples out.",
        )
    texts = sum(isinstance(label, str) for label in labels)
    if texts and texts < len(labels):
        raise InputError(
            f"{name} must be all texts or all whole numbers; {texts} of {len(labels)} are texts.",
            field=name,
        )
    try:
        return np.array(labels, dtype=np.str_ if texts else np.int64)
    except OverflowError as error:
        raise InputError(f"{name} must be integers of at most 64 bits.", field=name) from error


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


IMPORTED_AS = {"faiss-cpu": "faiss", "pillow": "PIL", "scikit-learn": "sklearn"}
"""What libraries are imported as; the others by their own name, with an underscore for a hyphen."""


def install_command(*libraries: str) -> str:
    """Return the command that installs libraries, by their names on PyPI."""
    return f"pip install {' '.join(libraries)}"


def distribution(module: str) -> str:
    """Return the name on PyPI of the library that a module belongs to."""
    package = module.split(".")[0]
    named = {imported: name for name, imported in IMPORTED_AS.items()}
    return named.get(package, package.replace("_", "-"))


def require(module: str, purpose: str, *, extra: str | None = "data") -> Any:
    """Import an optional library, or raise `InputError` with its purpose and the extra that brings it.

    Args:
        module: What to import.
        purpose: What it is needed to do.
        extra: Ours that brings it; None for a library that none does.

    Returns:
        The module.

    Raises:
        InputError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = distribution(module)
        brought = "" if extra is None else f" (surefind's extra {extra!r} brings it)"
        raise InputError(
            f"{library} is needed to {purpose} and is not installed: {install_command(library)}{brought}."
        ) from error
