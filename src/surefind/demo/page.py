"""The demo's report: one self-contained HTML page."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from surefind.decisions.decision import p_text
from surefind.demo.experiment import (
    BLURRED,
    GATE,
    KINDS,
    KNOWN,
    MAX_WRONG,
    NINE,
    OCCLUDED,
    PHOTOGRAPHS,
    Findings,
)
from surefind.evaluation.evaluate import kappa_histogram
from surefind.evaluation.figures import (
    fill_template,
    identification_chart,
    image_strip,
    kappa_chart,
    palette_css,
    write_figure,
)
from surefind.files import write_atomically

CHARTED = (KNOWN, BLURRED, OCCLUDED, NINE, PHOTOGRAPHS)
"""As many as a chart has lines that can be told apart."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SIGNS = {"match": "✓ match", "review": "? review", "no_match": "✗ no match"}


def write_page(findings: Findings, path: Path) -> None:
    """Write the findings as one HTML page, and its figure as ``kappa.svg`` next to it."""
    histogram = kappa_histogram({kind: 1 / findings.kappa[kind] for kind in CHARTED}, bins=36)
    figure = kappa_chart(*histogram, "Distribution of κ for each kind of query")
    page = fill_template(
        Path(__file__).with_name("page.html.j2"),
        f=findings,
        palette=palette_css(),
        figure=figure,
        strangers=identification_chart(
            findings.calibration.identification,
            findings.calibration.threshold,
            "FNIR against FPIR over all thresholds",
        ),
        kinds=KINDS,
        nine=NINE,
        signs=SIGNS,
        max_wrong=MAX_WRONG,
        gate=GATE,
        p_text=p_text,
        scale=_log_scale(findings.novelty),
        quantiles={kind: np.quantile(p, QUANTILES) for kind, p in findings.novelty.items()},
        medians={kind: np.median(kappa) for kind, kappa in findings.kappa.items()},
        # Dark ink on white ground.
        strip=lambda images: image_strip((255 * (1 - images)).astype(np.uint8)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    write_figure(path.with_name("kappa.svg"), figure)


def _log_scale(novelty: Mapping[str, np.ndarray]) -> Callable[[float], float]:
    """Return where a p-value stands on a logarithmic scale from 1 downwards, in percent of its width."""
    least = min(p.min() for p in novelty.values())
    decades = -np.log10(least / 2)  # so that the smallest does not stand on the edge
    return lambda p: float(-100 * np.log10(p) / decades)
