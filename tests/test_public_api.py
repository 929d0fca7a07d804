"""The public surface: what docs/reference lists is what can be imported, no more, no less."""

import re
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest

import surefind

PUBLIC = """
Embeddings Dataset Preprocessing Encoder MetricLearner Freezing LaplaceHead load export_onnx methods
objectives
contrastive_loss pair_targets head_curvature dataset_curvature network_curvature
spherical_moments vmf_concentration vmf_log_normalizer vmf_match_score HeadPosterior
Classes Positions PairList
Gallery Decider LabelModel NeighbourModel LabelPosterior calibrate Answers Audit evaluate metrics Client
SurefindError InputError DegenerateError StorageError NumericalError
"""
METRICS = {"recall_at_k", "map_at_k", "auroc", "auprc", "ausc", "ece"}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def test_public_names_are_these_and_can_be_imported():
    assert surefind.__all__ == sorted(re.findall(r"\w+", PUBLIC)) == dir(surefind)
    assert all(hasattr(surefind, name) for name in surefind.__all__)
    assert set(surefind.metrics.__all__) >= METRICS
    with pytest.raises(AttributeError, match="nonsense"):
        _ = surefind.nonsense


def test_reference_lists_exactly_the_public_names():
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    listed = re.findall(r"^::: surefind\.(.+)$", pages, flags=re.MULTILINE)
    modules = {name: getattr(surefind, name).__all__ for name in ("methods", "metrics")}
    modules["objectives"] = ["Contrastive", "External"]
    members = {f"{module}.{name}" for module, names in modules.items() for name in names}
    assert sorted(listed) == sorted({*surefind.__all__, *members} - modules.keys())


LIGHT = """
import sys, surefind
heavy = {"torch", "numpy", "scipy", "sklearn", "pydantic", "rich", "typer", "faiss"}
assert not heavy & {*sys.modules}, "the import must not wait for anything that takes long"
from surefind.learning import METHOD_NAMES
assert not heavy & {*sys.modules}
"""


def test_import_waits_for_nothing():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_what_is_imported_when_used_is_checked_like_everything_else():
    """The tests' shape checks are put in at import; a late import must not slip past them."""
    with pytest.raises(jaxtyping.TypeCheckError):
        surefind.spherical_moments("no", "tensors")
