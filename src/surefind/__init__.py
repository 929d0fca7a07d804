"""Retrieval that knows when it does not know.

Names are imported when they are first used, so that the command line answers `--help` without waiting for
PyTorch. To add a public name: its line under `TYPE_CHECKING`, in `_HOME` and in `__all__`. `LaplaceHead`, a
scikit-learn estimator, and the clients of a service need more than the core, so ``from surefind import *``,
which must work with that alone, leaves them out.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefind import metrics
    from surefind.curvature.dataset import dataset_curvature, dataset_kronecker_curvature
    from surefind.curvature.head import (
        KroneckerCurvature,
        dense_curvature,
        head_curvature,
        kronecker_curvature,
    )
    from surefind.curvature.network import network_curvature
    from surefind.data.dataset import Dataset
    from surefind.data.inputs import Preprocessing
    from surefind.decisions.decider import Decider
    from surefind.embeddings import Embeddings
    from surefind.errors import (
        DegenerateError,
        InputError,
        NumericalError,
        StaleError,
        StorageError,
        SurefindError,
    )
    from surefind.estimators.laplace_head import LaplaceHead  # noqa: F401
    from surefind.estimators.learner import MetricLearner, load
    from surefind.estimators.onnx_export import export_onnx
    from surefind.evaluation.evaluate import Evaluation, evaluate
    from surefind.gallery.answers import Answers
    from surefind.gallery.findings import Audit
    from surefind.gallery.gallery import Gallery
    from surefind.learning import methods
    from surefind.learning.frozen import Freezing
    from surefind.learning.novelty_pass import Novelty
    from surefind.models.encoder import Encoder
    from surefind.pairs.losses import (
        contrastive_loss,
        mine_pairs,
        mined_negative_weight,
        pair_targets,
    )
    from surefind.pairs.relations import Classes, PairList, Positions
    from surefind.posterior.fit import tune_prior_precision
    from surefind.posterior.head import DensePosterior, HeadPosterior, KroneckerPosterior
    from surefind.posterior.sphere import spherical_moments
    from surefind.posterior.tuning import pair_loss, tune_on_pairs
    from surefind.posterior.vmf import vmf_concentration, vmf_log_normalizer, vmf_match_score
    from surefind.service.client import Client  # noqa: F401
    from surefind.service.reviews import read_reviews

__version__ = "0.2.0"

_HOME = {
    "Answers": "gallery.answers",
    "Audit": "gallery.findings",
    "Classes": "pairs.relations",
    "Client": "service.client",
    "Dataset": "data.dataset",
    "Decider": "decisions.decider",
    "DegenerateError": "errors",
    "DensePosterior": "posterior.head",
    "Embeddings": "embeddings",
    "Encoder": "models.encoder",
    "Evaluation": "evaluation.evaluate",
    "Gallery": "gallery.gallery",
    "HeadPosterior": "posterior.head",
    "InputError": "errors",
    "KroneckerCurvature": "curvature.head",
    "KroneckerPosterior": "posterior.head",
    "LaplaceHead": "estimators.laplace_head",
    "MetricLearner": "estimators.learner",
    "NumericalError": "errors",
    "PairList": "pairs.relations",
    "Positions": "pairs.relations",
    "Freezing": "learning.frozen",
    "Novelty": "learning.novelty_pass",
    "Preprocessing": "data.inputs",
    "StaleError": "errors",
    "StorageError": "errors",
    "SurefindError": "errors",
    "contrastive_loss": "pairs.losses",
    "dataset_curvature": "curvature.dataset",
    "dataset_kronecker_curvature": "curvature.dataset",
    "dense_curvature": "curvature.head",
    "evaluate": "evaluation.evaluate",
    "export_onnx": "estimators.onnx_export",
    "head_curvature": "curvature.head",
    "kronecker_curvature": "curvature.head",
    "load": "estimators.learner",
    "mine_pairs": "pairs.losses",
    "mined_negative_weight": "pairs.losses",
    "network_curvature": "curvature.network",
    "pair_loss": "posterior.tuning",
    "pair_targets": "pairs.losses",
    "read_reviews": "service.reviews",
    "spherical_moments": "posterior.sphere",
    "tune_on_pairs": "posterior.tuning",
    "tune_prior_precision": "posterior.fit",
    "vmf_concentration": "posterior.vmf",
    "vmf_log_normalizer": "posterior.vmf",
    "vmf_match_score": "posterior.vmf",
}
"""The module of each public name."""

_MODULES = {"methods": "learning.methods", "objectives": "pairs.losses"}
"""Modules that are public under a shorter name."""

__all__ = [
    "Answers",
    "Audit",
    "Classes",
    "Dataset",
    "Decider",
    "DegenerateError",
    "DensePosterior",
    "Embeddings",
    "Encoder",
    "Evaluation",
    "Freezing",
    "Gallery",
    "HeadPosterior",
    "InputError",
    "KroneckerCurvature",
    "KroneckerPosterior",
    "MetricLearner",
    "Novelty",
    "NumericalError",
    "PairList",
    "Positions",
    "Preprocessing",
    "StaleError",
    "StorageError",
    "SurefindError",
    "contrastive_loss",
    "dataset_curvature",
    "dataset_kronecker_curvature",
    "dense_curvature",
    "evaluate",
    "export_onnx",
    "head_curvature",
    "kronecker_curvature",
    "load",
    "methods",
    "metrics",
    "mine_pairs",
    "mined_negative_weight",
    "network_curvature",
    "pair_loss",
    "pair_targets",
    "read_reviews",
    "spherical_moments",
    "tune_on_pairs",
    "tune_prior_precision",
    "vmf_concentration",
    "vmf_log_normalizer",
    "vmf_match_score",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, when it is first asked for."""
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{_MODULES.get(name, name)}"):
        value = import_module(f"{__name__}.{_MODULES.get(name, name)}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what is there and what can be asked for."""
    return sorted({*globals(), *__all__})
