"""The figures of a run: its loss, and those of its last evaluation. Without matplotlib there are none."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefind.checks import install_command

if TYPE_CHECKING:
    import numpy as np

    from surefind.decisions import Calibration

NO_FIGURES = f"no figures: matplotlib is not installed ({install_command('matplotlib')})"
LOSS = "loss.svg"
"""The figure of the training; all others are of the last evaluation."""


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def draw_history(history: Mapping[str, Any], folder: Path) -> None:
    """Draw the mean loss of each epoch."""
    from surefind.evaluation.figures import loss_chart, write_figure

    losses = {stage: [e["loss"] for e in epochs] for stage, epochs in history.items()}
    write_figure(folder / LOSS, loss_chart(losses))


def draw_curves(curves: Mapping[str, Mapping[str, list[float]]], folder: Path) -> None:
    """Draw the curves of an evaluation, a file each."""
    from surefind.evaluation.figures import curve_chart, write_figure

    for name, points in curves.items():
        write_figure(folder / f"{name}.svg", curve_chart(name, points["x"], points["y"]))


def draw_identification(calibration: "Calibration", file: Path) -> None:
    """Draw FNIR against FPIR over all thresholds of a calibration."""
    from surefind.evaluation.figures import identification_chart, write_figure

    alt = "FNIR against FPIR over all thresholds"
    svg = identification_chart(calibration.identification, calibration.threshold, alt)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_figure(file, svg)


def draw_uncertainty(uncertainty: "Mapping[str, np.ndarray]", folder: Path) -> None:
    """Draw the distribution of κ as uncertainty.svg, if some uncertainty is positive and finite."""
    import numpy as np

    from surefind.evaluation import PARTS
    from surefind.evaluation.evaluate import kappa_histogram
    from surefind.evaluation.figures import kappa_chart, write_figure

    finite = {PARTS[part]: v[(v > 0) & np.isfinite(v)] for part, v in uncertainty.items()}
    finite = {part: v for part, v in finite.items() if len(v)}
    if finite:
        svg = kappa_chart(*kappa_histogram(finite), "Distribution of κ")
        write_figure(folder / "uncertainty.svg", svg)
