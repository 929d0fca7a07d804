"""The rows of the benchmark: seven methods, five free baselines, twelve rows of the ablation."""

from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from surefind.estimators.learner import MetricLearner
from surefind.evaluation.bench.protocols import Problem
from surefind.learning.methods import METHODS, DeepEnsemble, LaplaceOnline, LaplacePosthoc
from surefind.learning.methods.contract import Method
from surefind.learning.seeds import seeded
from surefind.learning.session import Report
from surefind.validation import check_choice

FREE = ("nearest-distance", "margin", "knn-density", "mahalanobis", "norm")
"""Uncertainties that cost nothing: from the point estimate's embeddings and features."""
SHARED = ("deterministic", "laplace-posthoc", "pfe", "deep-ensemble", *FREE)
"""Methods whose first stage is the point estimate."""


def ablation() -> dict[str, Method]:
    """Name the twelve rows of the paper's ablation: when × distance × approximation."""
    rows: dict[str, Method] = {}
    for distance in ("euclidean", "arccos"):
        for approximation in ("fixed", "positive", "full"):
            kind = f"{distance}-{approximation}"
            rows[f"laplace-posthoc-{kind}"] = LaplacePosthoc(distance, approximation)
            rows[f"laplace-online-{kind}"] = LaplaceOnline(distance, approximation)
    return rows


def rows_of(methods: Iterable[str], *, with_ablation: bool) -> list[str]:
    """Resolve what was asked for to rows, in the order in which they are best run.

    Args:
        methods: Names, or "all".
        with_ablation: Whether the twelve rows of the ablation are wanted too.

    Returns:
        The rows.
    """
    known = [*METHODS, *FREE]
    wanted = set(methods)
    for name in wanted - {"all"}:
        check_choice("method", name, ["all", *known])
    chosen = [name for name in known if "all" in wanted or name in wanted]
    return [*chosen, *(ablation() if with_ablation else {})]


def method_of(row: str) -> Method:
    """Give a row's method with its options; that of a free baseline is the point estimate.

    Args:
        row: Its name.

    Returns:
        The method.
    """
    rows = ablation()
    if row in rows:
        return rows[row]
    name = "deterministic" if row in FREE else row
    check_choice("row", name, [*METHODS, *FREE, *rows])
    return METHODS[name]()


def settings_of(row: str) -> dict[str, Any]:
    """Give the options of a row's method, for its cell."""
    method = method_of(row)
    options: dict[str, Any] = asdict(method) if is_dataclass(method) else {}
    return {"method": type(method).__name__, **options}


def samples_of(row: str, problem: Problem) -> int:
    """Say how many joint samples a row needs: of an ensemble, each member once says it all."""
    method, wanted = method_of(row), problem.protocol.ece_samples
    return min(wanted, method.members) if isinstance(method, DeepEnsemble) else wanted


def fitted(row: str, problem: Problem, seed: int, work: Path, report: Report) -> MetricLearner:
    """Train a row, go on with its training, or read it back.

    Args:
        row: Its name.
        problem: Data, network and protocol.
        seed: Decides everything random.
        work: Where the seed's training is kept.
        report: Called after each training step.

    Returns:
        The fitted learner.
    """
    protocol, method = problem.protocol, method_of(row)
    online = isinstance(method, LaplaceOnline)
    learner = MetricLearner(
        problem.build(seeded(seed, "encoder")),
        method=method,
        epochs=protocol.online_epochs if online else protocol.epochs,
        seed=seed,
        batch_size=protocol.online_batch_size if online else protocol.batch_size,
        margin=protocol.margin,
        learning_rate=protocol.learning_rate,
        decay=protocol.decay,
        examples_per_class=protocol.examples_per_class,
        preprocessing=problem.preprocessing,
    )
    return learner.fit(problem.train, folder=work / stage_of(row), report=report)


def stage_of(row: str) -> str:
    """Name the folder of a row's training; rows that train the same have the same."""
    if row in SHARED or row.startswith("laplace-posthoc"):
        return "shared"
    return "laplace-online" if method_of(row) == LaplaceOnline() else row
