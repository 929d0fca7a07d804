"""What a gallery raises beside `InputError`: its place failed, or its decisions are out of date."""

from surefind.errors import InputError, SurefindError


class StorageError(SurefindError, OSError):
    """A gallery's files or its server cannot be read or written; what was acknowledged is kept."""


class StaleError(InputError):
    """A calibration was made for another gallery, model or setting than the one at hand."""
