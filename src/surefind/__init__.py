"""Retrieval that knows when it does not know.

Names are imported when they are first used: the command line answers `--help` without waiting for anything,
and the core (galleries, deciders, calibration, metrics) works without PyTorch. To add a public name, add
its line to ``__init__.pyi``.
"""

import lazy_loader

__version__ = "0.2.0"
_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _imported(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"surefind.{name} needs {error.name}, which surefind's extra 'all' brings.",
            name=error.name,
        ) from error
