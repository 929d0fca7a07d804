"""The public surface: what docs/reference.md lists is what can be imported, no more, no less."""

import re
import subprocess
import sys
from pathlib import Path

import surefind

PROMISED = {
    *(
        "contrastive_loss",
        "pair_targets",
        "head_curvature",
        "dataset_curvature",
        "network_curvature",
    ),
    *("spherical_moments", "vmf_concentration", "vmf_log_normalizer", "vmf_match_score"),
    *("Embeddings", "HeadPosterior", "Encoder", "Dataset", "MetricLearner", "load", "metrics"),
}
"""The fixed names: they are never renamed or taken away."""
MORE = {
    *("Classes", "Positions", "PairList", "mine_pairs", "mined_negative_weight", "Preprocessing"),
    *(
        "KroneckerCurvature",
        "kronecker_curvature",
        "dense_curvature",
        "dataset_kronecker_curvature",
    ),
    *("KroneckerPosterior", "DensePosterior", "tune_prior_precision", "tune_on_pairs", "pair_loss"),
    *("SurefindError", "InputError", "DegenerateError", "NumericalError", "methods"),
}
METRICS = {"recall_at_k", "map_at_k", "auroc", "auprc", "ausc", "ece"}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def test_reference_lists_exactly_the_exported_names():
    listed = re.findall(r"^### `(\w+)", REFERENCE.read_text(), flags=re.MULTILINE)
    assert sorted(listed) == surefind.__all__


def test_exported_names_are_the_promised_ones_and_nothing_else():
    assert set(surefind.__all__) == PROMISED | MORE
    assert set(surefind.metrics.__all__) >= METRICS


def test_all_is_sorted_and_importable():
    assert sorted(surefind.__all__) == surefind.__all__
    assert all(hasattr(surefind, name) for name in surefind.__all__)


def test_import_leaves_optional_libraries_alone():
    """`import surefind` needs the core dependencies only."""
    code = "import sys, surefind; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"scipy", "sklearn", "matplotlib", "mpmath", "beartype"} & set(loaded.stdout.split())
