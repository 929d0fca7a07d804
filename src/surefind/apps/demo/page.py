"""The demo's report: one self-contained HTML page."""

import html
from pathlib import Path

import numpy as np

from surefind.apps.demo.experiment import DECISIONS, KINDS, MAX_WRONG, Example, Findings
from surefind.evaluation.evaluate import kappa_histogram
from surefind.evaluation.figures import image_strip, kappa_chart, palette_css, write_figure
from surefind.files import write_atomically

SIGNS = {"match": "✓ match", "review": "? review", "no_match": "✗ no match"}


def write_page(findings: Findings, path: Path) -> None:
    """Write the findings as one HTML page, and its figure as ``kappa.svg`` next to it."""
    uncertainty = {kind: 1 / kappa for kind, kappa in findings.kappa.items()}
    alt = "Distribution of κ for each kind of query"
    figure = kappa_chart(*kappa_histogram(uncertainty, bins=36), alt)
    page = _PAGE.format(
        palette=palette_css(),
        deterministic=f"{findings.recall['deterministic']:.0%}",
        bayesian=f"{findings.recall['laplace-online']:.0%}",
        figure=figure,
        kinds="".join(_line(kind, findings) for kind in KINDS),
        bars="".join(_bar(kind, findings.decisions[kind]) for kind in KINDS),
        summary=html.escape(findings.calibration),
        target=f"{MAX_WRONG:.0%}",
        wrong="{:.1%}".format(findings.wrong["calibrated"][0]),
        always="{:.0%}".format(findings.wrong["calibrated"][1]),
        all_wrong="{:.1%}".format(findings.wrong["all"][0]),
        all_always="{:.0%}".format(findings.wrong["all"][1]),
        examples="".join(map(_example, findings.examples)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    write_figure(path.with_name("kappa.svg"), figure)


def _line(kind: str, findings: Findings) -> str:
    by = findings.auroc.get(kind)
    numbers = ("–", "–") if by is None else (f"{by[signal]:.2f}" for signal in ("κ", "distance"))
    columns = "".join(f"<td>{number}</td>" for number in numbers)
    median = f"{np.median(findings.kappa[kind]):.3g}"
    return f"<tr><th>{html.escape(kind)}</th><td>{median}</td>{columns}</tr>"


def _bar(kind: str, fractions: dict[str, float]) -> str:
    parts = "".join(
        f'<span class="{d}" style="flex:{fractions[d]:.4f}">'
        f"{f'{SIGNS[d]} {fractions[d]:.0%}' if fractions[d] >= 0.2 else ''}</span>"
        for d in DECISIONS
        if fractions[d] > 0
    )
    alt = ", ".join(f"{SIGNS[d]} {fractions[d]:.0%}" for d in DECISIONS)
    name = html.escape(kind)
    return f'<p class="kind">{name}</p><div class="bar" role="img" aria-label="{alt}">{parts}</div>'


def _example(one: Example) -> str:
    images = (
        f'<img class="query" src="{image_strip(_dark_on_white(one.query[None]))}" alt="query">'
        f'<img src="{image_strip(_dark_on_white(one.neighbours))}" alt="nearest items">'
    )
    why = "".join(f"<li>{html.escape(reason)}</li>" for reason in one.reasons)
    return (
        f'<figure><div class="strip">{images}</div><figcaption>'
        f"<b>{html.escape(one.kind)}</b>, κ {one.kappa:.3g}. The nearest item's label is "
        f'“{html.escape(one.label)}”: <b class="{one.decision}">{SIGNS[one.decision]}</b>, '
        f"probability {one.probability:.0%}.<ul>{why}</ul></figcaption></figure>"
    )


def _dark_on_white(images: np.ndarray) -> np.ndarray:
    return (255 * (1 - images)).astype(np.uint8)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>surefind demo</title>
<style>
{palette}
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--bg); }}
.chart {{ width: 100%; max-width: 40rem; height: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid var(--soft); text-align: right; }}
th:first-child {{ text-align: left; }}
.kind {{ margin: .6rem 0 .1rem; }}
.bar {{ display: flex; height: 1.8rem; border: 1px solid var(--soft); overflow: hidden; }}
.bar span {{ padding: 0 .4rem; white-space: nowrap; overflow: hidden; color: #fff; font-size: .9rem;
  line-height: 1.8rem; }}
.bar .match {{ background: #00694b; }} .bar .review {{ background: #8a5a00; }}
.bar .no_match {{ background: #7a2230; }}
.strip {{ display: flex; gap: 1rem; align-items: center; }}
.strip img {{ height: 4.2rem; image-rendering: pixelated; min-width: 0; }}
.strip .query {{ border: 4px solid var(--orange); }}
figure {{ margin: 1.2rem 0; }} figcaption ul {{ margin: 0; }}
@media print {{ body {{ max-width: none; }} .bar {{ print-color-adjust: exact; }} }}
</style>
<h1>Retrieval that knows when it does not know</h1>
<p>Two encoders were trained on the digits 0 to 7. Both retrieve well: recall@1 on test images is
{deterministic} (deterministic) and {bayesian} (Bayesian, online LAM). Then both were queried with digits of
the trained classes, and with inputs they were not trained for.</p>
<h2>Certainty</h2>
<p>κ is the concentration of an embedding on the sphere: high where all weights that the training data allow
agree on where an input belongs, low where they do not. The deterministic encoder has no κ: it answers every
query alike.</p>
{figure}
<table><tr><th>query</th><th>median κ</th><th>AUROC by κ</th><th>AUROC by distance</th></tr>{kinds}</table>
<p>AUROC: how well a kind of query is detected among known digits; 0.5 is chance, 1 is perfect. The distance
to the nearest gallery image, in the deterministic encoder's embedding, is the baseline.</p>
<h2>Decisions</h2>
<p>The gallery was calibrated on held-out digits, some of them not in it, so that at most {target} of its
matches are wrong. {summary}</p>
{bars}
<p>Of digits, seen or not, {wrong} of the matches are wrong; accepting every nearest neighbour, {always}
would be. The guarantee holds for queries like those of the calibration. Blurred and occluded digits and
photographs were not among them: with these, it is {all_wrong} against {all_always}.</p>
<h2>Three queries</h2>
<p>Left, framed: a typical query of its kind; right, its nearest gallery images. A search always returns
something.</p>
{examples}
</html>
"""
