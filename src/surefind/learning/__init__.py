"""Training an encoder: the loop, resumable sessions, several processes, and seven methods.

The methods are listed here, because completion and reports need their names and not PyTorch. A new one is
a module of `surefind.learning.methods` and a line of `METHOD_ENTRIES`.
"""

from typing import NamedTuple

import lazy_loader  # type: ignore[import-untyped]

__getattr__, *_ = lazy_loader.attach(__name__, ["methods"])


class MethodEntry(NamedTuple):
    """A method's title for readers, and where its class is, below `surefind.learning.methods`."""

    title: str
    path: str


METHOD_ENTRIES = {
    "deterministic": MethodEntry("Deterministic", "deterministic.Deterministic"),
    "laplace-posthoc": MethodEntry("LAM (post-hoc)", "laplace_posthoc.LaplacePosthoc"),
    "laplace-online": MethodEntry("LAM (online)", "laplace_online.LaplaceOnline"),
    "mc-dropout": MethodEntry("MC dropout", "dropout.MCDropout"),
    "deep-ensemble": MethodEntry("Deep ensemble", "ensemble.DeepEnsemble"),
    "pfe": MethodEntry("PFE", "gaussian.PFE"),
    "hib": MethodEntry("HIB", "gaussian.HIB"),
}
METHOD_NAMES = tuple(METHOD_ENTRIES)
