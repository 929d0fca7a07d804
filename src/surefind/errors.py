"""Everything that surefind raises.

    SurefindError                   catch this to catch all of them
    ├── InputError                  (also a ValueError) what came cannot be used: shape, dtype, range
    │   ├── DegenerateError         well formed, but it holds no information: no pair, no direction
    │   └── StaleError              a calibration was made for another gallery, model or setting
    ├── StorageError                (also an OSError) a gallery's files or server failed
    └── NumericalError              (also an ArithmeticError) the computation left its safe range

Each message says what came, what was expected, and what to do.
"""


class SurefindError(Exception):
    """Base of every error that surefind raises on purpose."""


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
