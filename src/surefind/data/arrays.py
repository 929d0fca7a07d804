"""Arrays that NumPy saved, read without unpickling anything."""

from pathlib import Path

import numpy as np

from surefind.errors import InputError


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read a .npz or .npy file.

    Args:
        path: The file.

    Returns:
        The arrays by name; that of a .npy file is called ``"array"``.

    Raises:
        InputError: If it is missing, broken, or holds Python objects.
    """
    try:
        # Opened here, because NumPy leaves the file of a broken archive open.
        with Path(path).open("rb") as file:
            if file.read(4) not in (b"\x93NUM", b"PK\x03\x04", b"PK\x05\x06"):
                raise InputError(
                    f"{path} is not a file that NumPy saved. Write it with numpy.save."
                )
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            return {"array": stored} if isinstance(stored, np.ndarray) else dict(stored)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except InputError:
        raise
    except Exception as error:  # the readers of zip and header raise whatever they trip over
        raise InputError(f"{path} is damaged or half copied ({error}). Copy it again.") from error
