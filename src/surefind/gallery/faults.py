"""What a gallery raises beside `InputError`: its place failed, or its decisions are out of date."""

from surefind.errors import StaleError, StorageError

__all__ = ["StaleError", "StorageError"]
