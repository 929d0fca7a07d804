"""Optional libraries, imported by the function that needs them and not before."""

from importlib import import_module
from typing import Any

from surefind.errors import InputError


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
        library = module.split(".")[0]
        brought = library if extra is None else f"'surefind[{extra}]'"
        raise InputError(
            f"{library} is needed to {purpose} and is not installed: pip install {brought}."
        ) from error
