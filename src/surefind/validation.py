"""Checks at the doors: what came, what was expected, what to do.

Public functions call these once; everything behind them trusts its arguments. ``name`` is the argument's
name: it stands in the message, and is the error's ``field``. Tensors: `surefind.tensor_validation`.
"""

from collections.abc import Collection
from numbers import Integral, Real

from surefind.errors import InputError


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
