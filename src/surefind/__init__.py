"""Retrieval that knows when it does not know."""

from surefind import methods, metrics
from surefind.curvature.dataset import dataset_curvature, dataset_kronecker_curvature
from surefind.curvature.head import head_curvature
from surefind.curvature.network import network_curvature
from surefind.curvature.structured import KroneckerCurvature, dense_curvature, kronecker_curvature
from surefind.data.dataset import Dataset
from surefind.data.preprocessing import Preprocessing
from surefind.embeddings import Embeddings
from surefind.errors import (
    DegenerateError,
    InputError,
    NumericalError,
    SurefindError,
)
from surefind.learner import MetricLearner, load
from surefind.losses import contrastive_loss
from surefind.mining import mine_pairs, mined_negative_weight
from surefind.models.encoder import Encoder
from surefind.pairs import pair_targets
from surefind.posterior.diagonal import HeadPosterior
from surefind.posterior.evidence import pair_loss, tune_on_pairs, tune_prior_precision
from surefind.posterior.structured import DensePosterior, KroneckerPosterior
from surefind.relations import Classes, PairList, Positions
from surefind.sphere import spherical_moments
from surefind.vmf import vmf_concentration, vmf_log_normalizer, vmf_match_score

__version__ = "0.1.0"

__all__ = [
    "Classes",
    "Dataset",
    "DegenerateError",
    "DensePosterior",
    "Embeddings",
    "Encoder",
    "HeadPosterior",
    "InputError",
    "KroneckerCurvature",
    "KroneckerPosterior",
    "MetricLearner",
    "NumericalError",
    "PairList",
    "Positions",
    "Preprocessing",
    "SurefindError",
    "contrastive_loss",
    "dataset_curvature",
    "dataset_kronecker_curvature",
    "dense_curvature",
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
    "spherical_moments",
    "tune_on_pairs",
    "tune_prior_precision",
    "vmf_concentration",
    "vmf_log_normalizer",
    "vmf_match_score",
]
