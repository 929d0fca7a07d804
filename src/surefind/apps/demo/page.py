"""The demo's report: one self-contained HTML page."""

from pathlib import Path

import numpy as np

from surefind.apps.demo.experiment import KINDS, MAX_WRONG, Findings
from surefind.evaluation.evaluate import kappa_histogram
from surefind.evaluation.figures import image_strip, kappa_chart, palette_css, write_figure
from surefind.evaluation.report.page import fill_template
from surefind.files import write_atomically

SIGNS = {"match": "✓ match", "review": "? review", "no_match": "✗ no match"}


def write_page(findings: Findings, path: Path) -> None:
    """Write the findings as one HTML page, and its figure as ``kappa.svg`` next to it."""
    histogram = kappa_histogram({kind: 1 / k for kind, k in findings.kappa.items()}, bins=36)
    figure = kappa_chart(*histogram, "Distribution of κ for each kind of query")
    page = fill_template(
        Path(__file__).with_name("page.html.j2"),
        f=findings,
        palette=palette_css(),
        figure=figure,
        kinds=KINDS,
        signs=SIGNS,
        max_wrong=MAX_WRONG,
        medians={kind: np.median(kappa) for kind, kappa in findings.kappa.items()},
        # Dark ink on white ground.
        strip=lambda images: image_strip((255 * (1 - images)).astype(np.uint8)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    write_figure(path.with_name("kappa.svg"), figure)
