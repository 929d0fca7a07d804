"""Seven ways to learn an encoder that says how sure it is, behind one contract.

A method is one module with one class; its line in `surefind.learning.METHOD_ENTRIES` gives it a name.
"""

from importlib import import_module

from surefind.learning import METHOD_ENTRIES
from surefind.learning.methods.contract import Method
from surefind.learning.methods.deterministic import Deterministic
from surefind.learning.methods.dropout import MCDropout
from surefind.learning.methods.ensemble import DeepEnsemble
from surefind.learning.methods.gaussian import HIB, PFE
from surefind.learning.methods.laplace_online import LaplaceOnline
from surefind.learning.methods.laplace_posthoc import LaplacePosthoc


def _class_at(path: str) -> type[Method]:
    module, _, name = path.rpartition(".")
    found: type[Method] = getattr(import_module(f"{__name__}.{module}"), name)
    return found


METHODS = {name: _class_at(entry.path) for name, entry in METHOD_ENTRIES.items()}

__all__ = [
    "HIB",
    "METHODS",
    "PFE",
    "DeepEnsemble",
    "Deterministic",
    "LaplaceOnline",
    "LaplacePosthoc",
    "MCDropout",
]
