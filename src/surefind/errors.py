"""Everything that surefind raises.

    SurefindError                   catch this to catch all of them
    ├── InputError                  (also a ValueError) what came cannot be used: shape, dtype, range
    │   └── DegenerateError         well formed, but it holds no information: no pair, no direction
    ├── StorageError                (also an OSError) a gallery's files or server failed
    ├── NumericalError              (also an ArithmeticError) the computation left its safe range
    └── CommandInterruptedError     a command was interrupted before its end

A message says what came and what was expected. ``field`` names the argument or file at fault, and ``hint``
says what to do, both in the words of the library's arguments; the command line names its options instead.
``str(error)`` is the message with the hint.
"""


class SurefindError(Exception):
    """Base of every error that surefind raises on purpose.

    Attributes:
        message: What came and what was expected.
        field: The argument or file at fault; None if it is not a single one.
        hint: What to do; may be empty.
    """

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint or ""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class InputError(SurefindError, ValueError):
    """An argument cannot be used as it is."""


class DegenerateError(InputError):
    """The data are well formed but carry no information for what was asked."""


class StorageError(SurefindError, OSError):
    """A gallery's files or its server cannot be read or written; what was acknowledged is kept."""


class NumericalError(SurefindError, ArithmeticError):
    """A computation left the range in which its result can be trusted."""


class CommandInterruptedError(SurefindError):
    """A command was interrupted before its end; the message says how to resume it."""
