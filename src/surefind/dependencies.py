"""Optional libraries, imported by the function that needs them and not before."""

from importlib import import_module
from typing import Any

from surefind.errors import InputError


def require(module: str, purpose: str, *, extra: str = "data") -> Any:
    """Import an optional library, or raise `InputError` with its purpose and the extra that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{module.split('.')[0]} is needed to {purpose} and is not installed: "
            f"pip install 'surefind[{extra}]'."
        ) from error
