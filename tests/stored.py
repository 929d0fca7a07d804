"""Reading what a command wrote."""

import numpy as np


def npz(path):
    """Read all arrays of an archive and close it: NumPy leaves it open, and that is a warning some day."""
    with np.load(path) as archive:
        return dict(archive)
