"""Optional libraries, imported by the function that needs them and not before."""

from importlib import import_module
from typing import Any

from surefind.errors import InputError


def require(module: str, purpose: str, *, extra: str = "data") -> Any:
    """Import an optional library.

    Args:
        module: Its import name, for example ``"PIL.Image"``.
        purpose: What it is needed for, to complete "… is needed to".
        extra: The package's extra that brings it.

    Returns:
        The module.

    Raises:
        InputError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{module.split('.')[0]} is needed to {purpose} and is not installed: "
            f"pip install 'surefind[{extra}]'."
        ) from error
