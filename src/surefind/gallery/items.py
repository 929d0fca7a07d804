"""What comes through the gallery's doors: vectors, ids, labels and payload, checked once.

Policies:

* Plain vectors have no uncertainty that is known: their κ is infinite, and they have no novelty.
* Vectors must have length 1 within `surefind.checks.UNIT_TOLERANCE`, unless ``normalize`` asks to
  rescale them. Zero vectors and NaN are refused either way. All are rescaled in float64 and kept as
  float32.
* An id is a string or an integer; ``1`` and ``"1"`` are different ids.
* What is kept can be read back at every door: strings are text that UTF-8 can write (no lone surrogates),
  integers lie below `INTEGERS`, and a payload has at most `DEPTH` lists and dicts in one another.
* A label is a string, an integer other than -1, or None; whole floats and NaN are read as `surefind.checks`
  says. -1 and None in a calibration mean: not in the gallery.
* A payload is a dict that JSON can hold; it comes back as JSON gives it back (tuples as lists).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import VECTOR_KINDS, label_values
from surefind.embeddings import Embeddings
from surefind.errors import Hint, InputError
from surefind.gallery.engine import Id, Label
from surefind.tensor_checks import (
    UNIT_TOLERANCE,
    check_directed,
    check_matrix,
    check_unit_rows,
)

NOT_ENROLLED = -1
"""The label of a query that has no match in the gallery; None means the same."""

INTEGERS = 2**128
"""Ids and labels that are integers lie between this and its negative: room for a UUID."""

DEPTH = 100
"""Lists and dicts within a payload's lists and dicts. Readers of JSON give up at 128 and more."""


def read_vectors(
    embeddings: Any, *, normalize: bool, dim: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read unit vectors, their concentrations and their novelty.

    Args:
        embeddings: `surefind.Embeddings`, or vectors (n, z) as a tensor, an array or lists.
        normalize: Whether to rescale plain vectors of any length.
        dim: The dimension that they must have, or None for any from 2 on.

    Returns:
        Unit vectors (n, z) in float32, κ (n) in float64, and p-values (n) in float64 if there are some.

    Raises:
        InputError: If they cannot be used.
    """
    if isinstance(embeddings, Embeddings):
        arrays = embeddings.numpy()
        rows, kappa, novelty = np.asarray(arrays.mean), arrays.kappa, arrays.novelty
    else:
        rows, kappa, novelty = _plain(embeddings), None, None
    rows = rows.astype(np.float64)
    lengths = _lengths(rows)
    # What is right needs one look; what is wrong is looked at again, to say what.
    usual = bool((abs(lengths - 1) < UNIT_TOLERANCE).all()) and 0 not in rows.shape
    if rows.ndim != 2 or not usual:
        tensor = torch.from_numpy(rows)
        check_matrix("embeddings", tensor)
        check_directed("embeddings", tensor)
        if not normalize:
            _check_length(tensor)
        # Squares of what is very long or short are out of range where the length is not.
        rows = rows / abs(rows).max(axis=1, keepdims=True)
        lengths = _lengths(rows)
    if rows.shape[1] < 2:
        raise InputError("embeddings must have at least 2 dimensions; got 1.", field="embeddings")
    if dim is not None and rows.shape[1] != dim:
        raise InputError(
            f"embeddings have {rows.shape[1]} dimensions and the gallery {dim}; "
            "embed both with one model.",
            field="embeddings",
        )
    unit = (rows / lengths[:, None]).astype(np.float32)
    known = np.full(len(rows), np.inf) if kappa is None else np.asarray(kappa, dtype=np.float64)
    own = None if novelty is None else np.asarray(novelty, dtype=np.float64)
    return np.ascontiguousarray(unit), known, own


def _check_length(rows: Tensor) -> None:
    try:
        check_unit_rows("embeddings", rows)
    except InputError as error:
        hint = Hint(
            f"{error.hint.library} Or pass normalize=True.",
            "Add --normalize; or --run RUN, if a run embedded the gallery.",
            error.hint.http,
        )
        raise InputError(error.message, field=error.field, hint=hint) from None


def _lengths(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.einsum("...z,...z->...", rows, rows)))


def _plain(vectors: Any) -> np.ndarray:
    if isinstance(vectors, Tensor):
        return vectors.detach().cpu().double().numpy()
    array = np.asarray(vectors)
    if array.dtype.kind not in VECTOR_KINDS:
        raise InputError(
            f"embeddings must be surefind.Embeddings or a matrix of numbers; got "
            f"{type(vectors).__name__} of {array.dtype}.",
            field="embeddings",
        )
    return array


def read_ids(ids: Any) -> list[Id]:
    """Read ids that are to be distinct.

    Args:
        ids: A list or an array of strings or integers, or a single one.

    Returns:
        The ids.

    Raises:
        InputError: If one is neither, or one comes twice.
    """
    listed = [
        _string_or_int("ids", i, "an id must be a string or an integer") for i in _listed(ids)
    ]
    if len(set(listed)) < len(listed):
        twice = next(i for i, times in Counter(listed).items() if times > 1)
        raise InputError(
            f"ids must be distinct; {twice!r} comes more than once in this call.", field="ids"
        )
    return listed


def read_query_ids(ids: Any, count: int) -> list[Id]:
    """Read one id per query, which may repeat; None for the number of its row."""
    listed = list(range(count) if ids is None else _listed(ids))
    check_count("ids", listed, count)
    return [_string_or_int("ids", i, "an id must be a string or an integer") for i in listed]


def read_labels(labels: Any, count: int, *, queries: bool = False) -> list[Label]:
    """Read one label per embedding.

    Args:
        labels: A list or an array, or None if nothing has a label.
        count: How many there must be.
        queries: Whether they are of queries, where -1 means None.

    Returns:
        The labels.

    Raises:
        InputError: If their number or kind is wrong.
    """
    listed = [None] * count if labels is None else label_values("labels", list(_listed(labels)))
    listed = [_label(x) for x in listed]
    check_count("labels", listed, count)
    if queries:
        return [None if x == NOT_ENROLLED else x for x in listed]
    if NOT_ENROLLED in listed:
        raise InputError(
            f"a label must not be {NOT_ENROLLED}, which stands for 'not in the gallery'; "
            "use None for an item without a label.",
            field="labels",
        )
    return listed


def read_groups(groups: Any, count: int) -> list[Label]:
    """Read one group per embedding: a list or an array, or None if nothing has one."""
    expected = "a group must be a string, an integer or None"
    listed = [None] * count if groups is None else list(_listed(groups))
    check_count("groups", listed, count)
    return [None if x is None else _string_or_int("groups", x, expected) for x in listed]


def read_payload(payload: Any, count: int) -> list[str | None]:
    """Read one payload per embedding.

    Args:
        payload: A list of dicts or None, or None if there is none at all.
        count: How many there must be.

    Returns:
        JSON strings.

    Raises:
        InputError: If their number is wrong, or JSON cannot hold one.
    """
    if payload is None:
        return [None] * count
    if isinstance(payload, dict):
        payload = [payload]
    check_count("payload", payload, count)
    return [_payload(x) for x in payload]


def check_count(name: str, values: Sequence[Any], count: int) -> None:
    """Require one value per embedding.

    Args:
        name: What to call them in the message.
        values: The values.
        count: The number of embeddings.

    Raises:
        InputError: If there are more or fewer.
    """
    if len(values) != count:
        raise InputError(
            f"{name} must have one entry per embedding, {count}; got {len(values)}.", field=name
        )


def _listed(values: Any) -> Iterable[Any]:
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    return [values] if isinstance(values, str | int) else list(values)


def _label(value: Any) -> Label:
    expected = "a label must be a string, an integer or None"
    return None if value is None else _string_or_int("labels", value, expected)


def _string_or_int(name: str, value: Any, expected: str) -> Id:
    if isinstance(value, str):
        return _text(name, str(value))
    if isinstance(value, Integral) and not isinstance(value, bool | np.bool_):
        if abs(int(value)) < INTEGERS:
            return int(value)
        expected = f"{expected}, and an integer must have at most {INTEGERS.bit_length() - 1} bits"
        raise InputError(f"{expected}; got one of {int(value).bit_length()}.", field=name)
    raise InputError(f"{expected}; got {value!r}.", field=name)


def _text(name: str, value: str) -> str:
    """Require what UTF-8 can write, so that every file, log and answer can hold it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} must be text; {value!a} has a lone surrogate at {error.start}, which no file in UTF-8 "
            "can hold.",
            field=name,
            hint="Decode it with the encoding that it was written in.",
        ) from error
    return value


def _payload(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(
            f"a payload must be a dict or None; got {type(value).__name__}.", field="payload"
        )
    if _deeper(value, DEPTH):
        raise InputError(
            f"a payload may have {DEPTH} lists and dicts in one another; this one has more.",
            field="payload",
            hint="Flatten it, or keep it elsewhere under the id.",
        )
    try:
        text = json.dumps(value, allow_nan=False)
        if "\\ud" in text:  # a surrogate: half of a character, or a lone one
            json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a payload must be what JSON can hold: {error}. Turn it into numbers, strings, lists, dicts.",
            field="payload",
        ) from error
    return text


def _deeper(value: Any, levels: int) -> bool:
    """Return whether lists and dicts go deeper than so many levels."""
    if not isinstance(value, dict | list | tuple):
        return False
    within = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in within)
