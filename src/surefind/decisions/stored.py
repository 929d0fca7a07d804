"""Frozen values back from plain JSON.

A value is rebuilt by the types of its fields: dataclasses from objects, tuples from lists, None where it
may be. Floats come back exactly: JSON writes them in the shortest form that reads back the same.
"""

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from surefind.errors import InputError


def restore(kind: Any, stored: Any) -> Any:
    """Rebuild a value of a type.

    Args:
        kind: A dataclass, tuple[X, ...], X | None, or a plain type.
        stored: Plain JSON.

    Returns:
        The value.

    Raises:
        InputError: If a field is missing or unknown, or a value has another type.
    """
    if isinstance(kind, UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
        return None if stored is None else restore(kind, stored)
    if is_dataclass(kind):
        names = {field.name for field in fields(kind)}
        if not isinstance(stored, dict) or set(stored) != names:
            odd = sorted(names ^ set(stored)) if isinstance(stored, dict) else type(stored).__name__
            raise InputError(
                f"a stored {getattr(kind, '__name__', kind)} does not have the expected fields: {odd}. "
                "The file is damaged or of another version; calibrate again."
            )
        hints = get_type_hints(kind)
        return kind(**{name: restore(hints[name], stored[name]) for name in names})  # type: ignore[operator]
    if kind is float and type(stored) is int:  # other writers of JSON leave out the ".0"
        return float(stored)
    expected = list if get_origin(kind) is tuple else kind
    if not isinstance(stored, expected) or isinstance(stored, bool):
        raise InputError(
            f"a stored value should be {expected.__name__}; got {stored!r}. "
            "The file is damaged; calibrate again."
        )
    if expected is list:
        return tuple(restore(get_args(kind)[0], entry) for entry in stored)
    return stored
