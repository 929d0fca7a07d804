"""Optional libraries, imported by the function that needs them and not before.

Messages say to install the libraries themselves: that works wherever surefind came from, a clone or a
wheel.
"""

from importlib import import_module
from typing import Any

from surefind.errors import InputError

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
