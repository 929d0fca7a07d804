"""Read what callers give, once: what came, what was expected, what to do.

"Parse, don't validate": public functions call these, take the converted arrays and lists that they return,
and everything behind them trusts its arguments. ``name`` is the argument's name: it stands in the message,
and is the error's ``field``. Tensors: `surefind.tensor_checks`.

**Labels** follow one rule everywhere: learners, galleries, deciders, metrics and files (`label_values`). A
label is a text or a whole number. Whole numbers may come as floats (pandas makes floats of integers with a
gap), booleans are 0 and 1, and bytes are text in UTF-8. None and NaN mean: no label. A fraction is refused:
as a class, a measured quantity would make almost every pair negative. Ids and groups follow the same rule.
What is read can be written again by every interface: text is valid Unicode (no lone surrogates), whole
numbers have at most 128 bits (room for a UUID).

**Vectors** are tables of finite real numbers (`as_vectors`); integers, as of quantised vectors, are taken
for what they are, and booleans are refused.

**Scores** keep their order when they become float64, whatever they came as: tensors of any device, arrays
and lists alike. NaN is refused everywhere: it has no place in a ranking. Infinity is a score like any other
(a direction that is unknown has infinite uncertainty), and is refused only where a mean is taken.

**Optional libraries** are imported by the function that needs them (`require`); the message names the extra
that brings them.
"""

import difflib
import json
import math
import reprlib
from collections import Counter
from collections.abc import Collection
from importlib import import_module
from numbers import Integral, Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.errors import DegenerateError, InputError

VECTOR_KINDS = "fiu"
"""NumPy's kinds of numbers that vectors may have."""

INTEGERS = 2**128
"""Whole numbers that are ids or labels lie between this and its negative."""

DEPTH = 100
"""Lists and dicts within a payload's lists and dicts. Readers of JSON give up at 128 and more."""

LONGEST_PAYLOAD = 2**14
"""Characters of a payload's JSON: answers may hold the payloads of some hundred items."""

UNIT_TOLERANCE = 1e-3
"""How far a unit vector's length may be from one: room for float16 storage, none for raw vectors."""

SHOWN = 3
"""Rows that a message lists."""


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
    """Require one of a few names; a similar one is suggested."""
    if not isinstance(value, str) or value not in choices:
        close = difflib.get_close_matches(str(value).lower(), choices, n=1)
        raise InputError(
            f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.",
            field=name,
            hint=f"Did you mean {close[0]!r}?" if close else None,
        )


def check_count(name: str, values: Collection[Any], count: int) -> None:
    """Require one value per example."""
    if len(values) != count:
        raise InputError(
            f"{name} has {len(values)} rows where the other arguments have {count}; give one per example.",
            field=name,
        )


def as_array(value: Any) -> np.ndarray:
    """Return a tensor's, an array's or a list's values as a NumPy array."""
    if hasattr(value, "detach"):  # a tensor; PyTorch need not be there
        value = value.detach().cpu()
        whole = not value.dtype.is_floating_point
        return np.asarray(value if value.dtype.itemsize > 2 or whole else value.float())
    return np.asarray(value)


def as_vectors(name: str, value: Any, *, dim: int | None = None) -> Float[np.ndarray, "n d"]:
    """Read vectors, one row per example.

    Args:
        name: What to call them in the message.
        value: Numbers (n, d): a tensor, an array, a data frame or lists.
        dim: d, if it is known.

    Returns:
        Their values in float32 or float64, whichever holds them exactly.

    Raises:
        InputError: If it is no table of finite numbers, or has another width.
        DegenerateError: If it is empty.
    """
    try:
        array = as_array(value)
    except ValueError:  # rows of different lengths
        array = np.empty(len(value), dtype=object)
    if array.ndim != 2 or array.dtype.kind not in VECTOR_KINDS:
        raise InputError(
            f"{name} must be a table of numbers, one row per example; got {array.dtype} of shape "
            f"{array.shape}.",
            field=name,
        )
    if 0 in array.shape:
        raise DegenerateError(f"{name} is empty: shape {array.shape}.", field=name)
    if dim is not None and array.shape[1] != dim:
        raise InputError(
            f"{name} must have {dim} columns; got {array.shape[1]}.",
            field=name,
            hint="Embed everything with one model.",
        )
    array = array.astype(np.result_type(array.dtype, np.float32), copy=False)
    check_rows(name, array)
    return array


def check_rows(name: str, array: np.ndarray) -> None:
    """Refuse NaN and infinity, and name the rows that hold them."""
    # Any of them makes the sum non-finite: one pass without a temporary in the good case. A sum of finite
    # numbers that overflows falls through to the exact check.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum()):
            return
    flat = np.reshape(array, (len(array) if array.ndim else 1, -1))
    nan, infinite = np.isnan(flat).any(axis=1), np.isinf(flat).any(axis=1)
    rows = np.flatnonzero(nan | infinite)
    if len(rows):
        what = " and ".join(["NaN"] * bool(nan.any()) + ["infinity"] * bool(infinite.any()))
        raise InputError(
            f"{name} holds {what} in {named_rows(rows)} ({len(rows)} of {len(flat)}).",
            field=name,
            hint="Drop or repair those rows.",
        )


def as_directions(
    name: str, value: Any, *, dim: int | None = None, normalize: bool = False
) -> Float[np.ndarray, "n z"]:
    """Read unit vectors, one row per example.

    Args:
        name: What to call them in the message.
        value: Numbers (n, z), as `as_vectors` takes them.
        dim: z, if it is known; otherwise any from 2 on.
        normalize: Whether to rescale vectors of any length.

    Returns:
        Rows in float32, rescaled in float64 to length 1.

    Raises:
        InputError: If they have other lengths, or one dimension.
    """
    rows = as_vectors(name, value, dim=dim).astype(np.float64)
    if rows.shape[1] < 2:
        raise InputError(f"{name} must have at least 2 dimensions; got 1.", field=name)
    lengths = _lengths(rows)
    # What is right needs one look; what is wrong is looked at again, to say what.
    if not (abs(lengths - 1) < UNIT_TOLERANCE).all():
        check_directed(name, rows)
        if not normalize:
            check_unit_rows(name, rows, hint="Rescale its rows to length 1, or set normalize.")
        # Squares of what is very long or short are out of range where the length is not.
        rows = rows / abs(rows).max(axis=1, keepdims=True)
        lengths = _lengths(rows)
    return np.ascontiguousarray((rows / lengths[:, None]).astype(np.float32))


def check_unit_rows(
    name: str, array: np.ndarray, *, hint: str = "Rescale its rows to length 1."
) -> None:
    """Require rows of length one."""
    lengths = _lengths(array)
    off = np.flatnonzero(~(abs(lengths - 1) <= UNIT_TOLERANCE))
    if len(off):
        raise InputError(
            f"{name} must have rows of length 1; row {off[0]} has length {lengths[off[0]]:.4g} "
            f"({len(off)} of {len(array)} have another).",
            field=name,
            hint=hint,
        )


def check_directed(name: str, array: np.ndarray) -> None:
    """Require rows that have a direction, that is, are not zero."""
    zero = np.flatnonzero(~array.any(axis=1))
    if len(zero):
        raise DegenerateError(
            f"{name} is zero in {named_rows(zero)} ({len(zero)} of {len(array)}): a zero vector has no "
            "direction on the sphere.",
            field=name,
            hint="Drop those examples.",
        )


def _lengths(rows: Float[np.ndarray, "n z"]) -> Float[np.ndarray, " n"]:
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.einsum("nz,nz->n", rows, rows)))


def named_rows(rows: Int[np.ndarray, " r"]) -> str:
    """Name rows in words: "row 3", "rows 3, 17, 20, …"."""
    shown = ", ".join(map(str, rows[:SHOWN].tolist()))
    return f"row{'s' * (len(rows) > 1)} {shown}{', …' * (len(rows) > SHOWN)}"


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
    if length is not None:
        check_count(name, array, length)
    scores = array.astype(np.float64)
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
        raise InputError(
            f"{name} holds NaN in {named_rows(missing)} ({len(missing)} of {len(scores)}), which cannot be "
            "ranked.",
            field=name,
            hint="Drop those queries or repair their scores.",
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


def label_values(name: str, values: Any, *, count: int | None = None) -> list[str | int | None]:
    """Read labels, as everything that takes labels does; also groups.

    Args:
        name: What to call them in the message.
        values: An array, a tensor, a column of pandas or a list, of one axis; one text or number for a
            single label.
        count: How many there must be, if another argument says so.

    Returns:
        A text, an integer, or None where there is none.

    Raises:
        InputError: If one is a fraction, or neither a text nor a number; or if there are more or fewer.
    """
    listed = [values] if isinstance(values, str | int) else values
    if hasattr(values, "dtype"):
        array = as_array(values)
        if array.ndim != 1:
            raise InputError(
                f"{name} must have one entry per example; got shape {array.shape}.", field=name
            )
        listed = array.tolist()
    whole = hasattr(values, "dtype") and array.dtype.kind in "iu"
    read = listed if whole else [_label(name, row, x) for row, x in enumerate(listed)]
    if count is not None:
        check_count(name, read, count)
    return read


def _label(name: str, row: int, value: Any) -> str | int | None:
    if getattr(value, "ndim", None) == 0:  # of NumPy or PyTorch
        value = value.item()
    if isinstance(value, str | bytes):
        return _text(name, row, value)
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        if abs(int(value)) < INTEGERS:
            return int(value)
        shown = f"one of {int(value).bit_length()} bits"
    elif value is None or (isinstance(value, float) and math.isnan(value)) or str(value) == "<NA>":
        return None  # the last of pandas, which need not be there
    else:
        shown = reprlib.repr(value)
    raise InputError(
        f"{name} must be texts, whole numbers of at most 128 bits, or None; row {row} has {shown}.",
        field=name,
        hint="A measured quantity is no label: give classes." if isinstance(value, float) else None,
    )


def _text(name: str, row: int, value: str | bytes) -> str:
    """Require what UTF-8 can write, so that every file, log and answer can hold it."""
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
        text.encode()
    except UnicodeError as error:
        raise InputError(
            f"{name} must be text that UTF-8 can write; row {row} has {value!a}.",
            field=name,
            hint="Decode it with the encoding that it was written in.",
        ) from error
    return text


def _present(name: str, values: list[str | int | None]) -> list[str | int]:
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        raise InputError(
            f"{name} must have one for each example; row {values.index(None)} has none.",
            field=name,
            hint="Leave those examples out.",
        )
    return present


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
    labels = _present(name, label_values(name, values))
    texts = sum(isinstance(label, str) for label in labels)
    numbers = [label for label in labels if not isinstance(label, str)]
    if (texts and numbers) or any(abs(number) >= 2**63 for number in numbers):
        raise InputError(
            f"{name} must be all texts, or all whole numbers of at most 64 bits; {texts} of {len(labels)} "
            "are texts.",
            field=name,
        )
    return np.array(labels, dtype=np.str_ if texts else np.int64)


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
        DegenerateError: If there are none.
    """
    queries = complete_labels("query_labels", query_labels)
    gallery = complete_labels("gallery_labels", gallery_labels)
    if not len(queries) or not len(gallery):
        empty = "gallery_labels" if len(queries) else "query_labels"
        raise DegenerateError(f"{empty} is empty: give at least one label.", field=empty)
    if queries.dtype.kind != gallery.dtype.kind:
        raise InputError(
            f"query_labels ({queries.dtype}) and gallery_labels ({gallery.dtype}) must be of one "
            "kind, names or integers: otherwise none would ever be equal."
        )
    codes = np.unique(np.concatenate([queries, gallery]), return_inverse=True)[1]
    return codes[: len(queries)], codes[len(queries) :]


def id_values(
    name: str, values: Any, *, count: int | None = None, distinct: bool = True
) -> list[str | int]:
    """Read ids, texts or whole numbers; ``1`` and ``"1"`` differ.

    Args:
        name: What to call them in the message.
        values: As `label_values` takes them.
        count: How many there must be, if another argument says so.
        distinct: Whether each may come only once.

    Returns:
        The ids.

    Raises:
        InputError: If one is missing or comes twice.
    """
    ids = _present(name, label_values(name, values, count=count))
    if distinct and len(set(ids)) < len(ids):
        twice = next(i for i, times in Counter(ids).items() if times > 1)
        raise InputError(
            f"{name} must be distinct; {twice!r} comes more than once in this call.", field=name
        )
    return ids


def payload_values(name: str, values: Any, *, count: int) -> list[str | None]:
    """Read what is kept beside items: dicts that JSON can hold, or None.

    Args:
        name: What to call them in the message.
        values: A list of them, one dict for a single item, or None if there is nothing.
        count: How many there must be.

    Returns:
        JSON texts.

    Raises:
        InputError: If their number is wrong, or JSON cannot hold one.
    """
    listed = [None] * count if values is None else [values] if isinstance(values, dict) else values
    check_count(name, listed, count)
    return [_json_text(name, value) for value in listed]


def _json_text(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict) or _deeper(value, DEPTH):
        raise InputError(
            f"{name} must be a dict or None, with at most {DEPTH} lists and dicts in one another; got "
            f"{reprlib.repr(value)}.",
            field=name,
            hint="Flatten it, or keep it elsewhere under the id.",
        )
    try:
        text = json.dumps(value, allow_nan=False)
        if len(text) > LONGEST_PAYLOAD:
            raise ValueError(f"it has {len(text):,} characters, and may have {LONGEST_PAYLOAD:,}")
        if "\\ud" in text:  # a surrogate: half of a character, or a lone one
            json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be what JSON can hold: {error}.",
            field=name,
            hint="Turn it into numbers, strings, lists and dicts.",
        ) from error
    return text


def _deeper(value: Any, levels: int) -> bool:
    """Return whether lists and dicts go deeper than so many levels."""
    if not isinstance(value, dict | list | tuple):
        return False
    within = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in within)


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


def require(module: str, purpose: str, *, extra: str | None = "torch") -> Any:
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
