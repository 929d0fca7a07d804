"""Seven ways to learn an encoder that says how sure it is, behind one contract.

A method is one module with one class; its line below makes it known by name.
"""

from surefind.methods.contract import Method
from surefind.methods.deterministic import Deterministic
from surefind.methods.dropout import MCDropout
from surefind.methods.ensemble import DeepEnsemble
from surefind.methods.hib import HIB
from surefind.methods.laplace_online import LaplaceOnline
from surefind.methods.laplace_posthoc import LaplacePosthoc
from surefind.methods.pfe import PFE

METHODS: dict[str, type[Method]] = {
    "deterministic": Deterministic,
    "laplace-posthoc": LaplacePosthoc,
    "laplace-online": LaplaceOnline,
    "mc-dropout": MCDropout,
    "deep-ensemble": DeepEnsemble,
    "pfe": PFE,
    "hib": HIB,
}

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
