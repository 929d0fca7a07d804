"""Variables of MATLAB files, read by SciPy."""

from pathlib import Path
from typing import Any

from surefind.data.extras import require
from surefind.errors import InputError


def read_mat(path: str | Path, key: str) -> Any:
    """Read one variable.

    Args:
        path: The .mat file.
        key: The variable's name.

    Returns:
        Its value as SciPy gives it, with axes of length one removed from structures only.

    Raises:
        InputError: If the file is missing or broken, or has no such variable.
    """
    scipy_io = require("scipy.io", "read .mat files")
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist.")
    try:
        variables = scipy_io.loadmat(path, variable_names=[key])
    except Exception as error:  # SciPy's parser raises whatever a broken file makes it trip over
        raise InputError(f"{path} is damaged or half copied ({error}). Copy it again.") from error
    if key not in variables:
        raise InputError(f"{path} has no variable {key!r}; is it the published file?")
    return variables[key]
