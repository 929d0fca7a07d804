"""The public surface: what docs/reference lists is what can be imported, no more, no less."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest

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
    *("Gallery", "Decider"),
}
"""The fixed names: they are never renamed or taken away."""
MORE = {
    *(
        "Classes",
        "Positions",
        "PairList",
        "mine_pairs",
        "mined_negative_weight",
        "Preprocessing",
        "Novelty",
        "Freezing",
    ),
    *(
        "KroneckerCurvature",
        "kronecker_curvature",
        "dense_curvature",
        "dataset_kronecker_curvature",
    ),
    *("KroneckerPosterior", "DensePosterior", "tune_prior_precision", "tune_on_pairs", "pair_loss"),
    *("SurefindError", "InputError", "DegenerateError", "NumericalError", "methods"),
    *("Answers", "Audit", "StaleError", "StorageError", "Evaluation", "evaluate", "read_reviews"),
    "export_onnx",
}
WITH_EXTRAS = {"Client", "LaplaceHead"}
"""Public too, and left out of ``from surefind import *``, which needs the core alone."""
METRICS = {"recall_at_k", "map_at_k", "auroc", "auprc", "ausc", "ece"}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def test_reference_lists_exactly_the_exported_names():
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    listed = re.findall(r"^::: surefind\.(.+)$", pages, flags=re.MULTILINE)
    modules = {name: getattr(surefind, name).__all__ for name in ("methods", "metrics")}
    members = {f"{module}.{name}" for module, names in modules.items() for name in names}
    assert sorted(listed) == sorted({*surefind.__all__, *WITH_EXTRAS, *members} - modules.keys())


def test_exported_names_are_the_promised_ones_and_nothing_else():
    assert set(surefind.__all__) == PROMISED | MORE
    assert set(surefind.metrics.__all__) >= METRICS


def test_all_is_sorted_and_importable():
    assert sorted(surefind.__all__) == surefind.__all__
    assert all(hasattr(surefind, name) for name in surefind.__all__)


IMPORT_ALL = """
import sys, surefind
heavy = {"torch", "numpy", "scipy", "sklearn", "pydantic", "rich", "typer", "faiss"}
assert not heavy & {*sys.modules}, "the import must not wait for anything that takes long"
assert set(surefind.__all__) <= set(dir(surefind))
from surefind import *
print(*{m.split('.')[0] for m in sys.modules})
"""


def test_import_leaves_optional_libraries_alone():
    """`import surefind` loads nothing heavy; all of its names need the core dependencies only."""
    loaded = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True
    )
    names = set(loaded.stdout.split())
    assert "torch" in names
    assert not {"scipy", "sklearn", "matplotlib", "mpmath", "beartype", "faiss"} & names


def test_names_imported_when_used_are_those_that_type_checkers_see():
    """The block under TYPE_CHECKING, the table of modules and __all__ say the same."""
    tree = ast.parse(Path(surefind.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {a.name: n.module for n in block.body for a in n.names}
    modules = {"methods", "metrics"}
    assert set(seen) == {*surefind.__all__, *WITH_EXTRAS}
    homes = {name: f"surefind.{module}" for name, module in surefind._HOME.items()}
    assert homes == {k: v for k, v in seen.items() if k not in modules}


def test_modules_are_there_without_being_imported_by_name():
    assert surefind.objectives.External
    with pytest.raises(AttributeError, match="module 'surefind' has no attribute 'nonsense'"):
        _ = surefind.nonsense


def test_what_is_imported_when_used_is_checked_like_everything_else():
    """The tests' shape checks are put in at import; a late import must not slip past them."""
    with pytest.raises(jaxtyping.TypeCheckError):
        surefind.spherical_moments("no", "tensors")
