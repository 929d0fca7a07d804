"""Training an encoder: the loop, resumable sessions, several processes, and seven methods.

The methods are listed here, because completion and reports need their names and not PyTorch. A new one is
a class in a module of `surefind.learning.methods`, a line there and one here.
"""

import lazy_loader  # type: ignore[import-untyped]

__getattr__, *_ = lazy_loader.attach(__name__, ["methods"])

METHOD_TITLES = {
    "deterministic": "Deterministic",
    "laplace-posthoc": "LAM (post-hoc)",
    "laplace-online": "LAM (online)",
    "mc-dropout": "MC dropout",
    "deep-ensemble": "Deep ensemble",
    "pfe": "PFE",
    "hib": "HIB",
}
METHOD_NAMES = tuple(METHOD_TITLES)
