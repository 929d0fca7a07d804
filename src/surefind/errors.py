"""Everything that surefind raises.

    SurefindError                   catch this to catch all of them
    ├── InputError                  (also a ValueError) what came cannot be used: shape, dtype, range
    │   ├── DegenerateError         well formed, but it holds no information: no pair, no direction
    │   └── StaleError              a calibration was made for another gallery, model or setting
    ├── StorageError                (also an OSError) a gallery's files or server failed
    ├── NumericalError              (also an ArithmeticError) the computation left its safe range
    └── CommandInterruptedError     a command was interrupted before its end

A message says what came and what was expected. ``field`` names the argument or file that is at fault, for
programs. A hint says what to do, for each door in its own terms: a keyword in Python, an option at the
command line, a part of the request over HTTP. ``str(error)`` is the message with the hint for Python.
"""

from dataclasses import dataclass
from typing import Literal

Door = Literal["library", "cli", "http"]


@dataclass(frozen=True)
class Hint:
    """What to do about an error, for each door; empty where a door has nothing to offer."""

    library: str = ""
    cli: str = ""
    http: str = ""


class SurefindError(Exception):
    """Base of every error that surefind raises on purpose.

    Attributes:
        message: What came and what was expected, in terms that hold for every door.
        field: The argument or file at fault, as the library calls it; None if it is not a single one.
        hint: What to do; a text holds for every door.
    """

    def __init__(
        self, message: str, *, field: str | None = None, hint: str | Hint | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint: Hint = Hint(hint, hint, hint) if isinstance(hint, str) else hint or Hint()

    def __str__(self) -> str:
        return self.text_for("library")

    def hint_for(self, door: Door) -> str:
        """Return what to do, in the terms of one door."""
        hint: str = getattr(self.hint, door)
        return hint

    def text_for(self, door: Door) -> str:
        """Return the message with the hint for one door."""
        return f"{self.message} {self.hint_for(door)}".rstrip()


class InputError(SurefindError, ValueError):
    """An argument cannot be used as it is."""


class DegenerateError(InputError):
    """The data are well formed but carry no information for what was asked."""


class StaleError(InputError):
    """A calibration was made for another gallery, model or setting than the one at hand."""


class StorageError(SurefindError, OSError):
    """A gallery's files or its server cannot be read or written; what was acknowledged is kept."""


class NumericalError(SurefindError, ArithmeticError):
    """A computation left the range in which its result can be trusted."""


class CommandInterruptedError(SurefindError):
    """A command was interrupted before its end; the message says how to resume it."""
