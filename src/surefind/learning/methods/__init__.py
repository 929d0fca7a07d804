"""Seven ways to learn an encoder that says how sure it is, behind one contract.

A method is one module with one class; its line in `METHODS` gives it a name, and one in
`surefind.learning.METHOD_TITLES` a title.
"""

from surefind.learning.methods.contract import Method
from surefind.learning.methods.deterministic import Deterministic
from surefind.learning.methods.dropout import MCDropout
from surefind.learning.methods.ensemble import DeepEnsemble
from surefind.learning.methods.gaussian import HIB, PFE
from surefind.learning.methods.laplace_online import LaplaceOnline
from surefind.learning.methods.laplace_posthoc import LaplacePosthoc

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
