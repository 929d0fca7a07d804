"""Pictures of a run: its loss, and what an evaluation found. Nothing is drawn without matplotlib.

Figures are made without pyplot, which would keep state in the process.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

NO_PICTURES = "no pictures: matplotlib is not installed (pip install 'surefind[demo]')"
LOSS = "loss.svg"
"""The picture of the training; all others are of the last evaluation."""
BLUE, ORANGE = "#0072b2", "#d55e00"
CURVES = {
    "roc": ("known inputs called strange", "strange inputs called strange"),
    "precision-recall": ("strange inputs found", "of those called strange, strange"),
    "sparsification": ("share of unsure queries left out", "recall@1 of the rest"),
    "calibration": ("confidence", "share that is right"),
}
"""The axes of each curve of an evaluation."""


def can_draw() -> bool:
    """Say whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw_history(history: Mapping[str, Any], folder: Path) -> None:
    """Draw the mean loss of each epoch.

    Args:
        history: Epochs of each stage, each with a loss.
        folder: Where loss.svg is written.
    """
    figure, axis = _axis()
    for stage, epochs in history.items():
        axis.plot(range(1, len(epochs) + 1), [e["loss"] for e in epochs], "o-", label=stage, ms=3)
    axis.set_xlabel("epoch")
    axis.set_ylabel("mean loss")
    if history:
        axis.legend(frameon=False)
    _save(figure, folder / LOSS)


def draw_curves(curves: Mapping[str, Mapping[str, list[float]]], folder: Path) -> None:
    """Draw the curves of an evaluation, a file each.

    Args:
        curves: Points x and y, by name.
        folder: Where they are written.
    """
    for name, points in curves.items():
        figure, axis = _axis()
        axis.plot(points["x"], points["y"], color=BLUE)
        if name in ("roc", "calibration"):
            axis.plot([0, 1], [0, 1], ":", color="#888888")
        across, up = CURVES.get(name, ("", ""))
        axis.set_xlabel(across)
        axis.set_ylabel(up)
        _save(figure, folder / f"{name}.svg")


def draw_uncertainty(uncertainty: "Mapping[str, np.ndarray]", folder: Path) -> None:
    """Draw how uncertain known and strange inputs are.

    Args:
        uncertainty: 1/κ of "id" and, if there are any, "ood" inputs.
        folder: Where uncertainty.svg is written; not if no value is positive and finite.
    """
    import numpy as np

    logs = {k: np.log10(v[(v > 0) & np.isfinite(v)]) for k, v in uncertainty.items()}
    logs = {k: v for k, v in logs.items() if len(v)}
    if not logs:
        return
    edges = np.linspace(
        min(v.min() for v in logs.values()), max(v.max() for v in logs.values()), 41
    )
    figure, axis = _axis()
    for kind, name, colour in (("id", "known", BLUE), ("ood", "strange", ORANGE)):
        if kind in logs:
            weights = np.full(len(logs[kind]), 1 / len(logs[kind]))
            axis.hist(logs[kind], edges, weights=weights, histtype="step", color=colour, label=name)
    axis.set_xlabel("log10 of the uncertainty 1/κ (right: less sure)")
    axis.set_ylabel("share of inputs")
    axis.legend(frameon=False)
    _save(figure, folder / "uncertainty.svg")


def _axis() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    return figure, figure.add_subplot()


def _save(figure: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a date, so that the same numbers give the same file.
    figure.savefig(file, metadata={"Date": None}, facecolor="white")
