"""The demo's report: one HTML page with its pictures inside.

Pixels are drawn as SVG rectangles and curves as SVG lines, in colours that follow the reader's light or
dark setting; nothing is loaded from elsewhere.
"""

import html
from pathlib import Path

import numpy as np

from surefind.apps.demo.story import DECISIONS, KINDS, MAX_WRONG, Example, Story

COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "")
SIGNS = {"match": "✓ match", "review": "? review", "no_match": "✗ no match"}


def write_page(story: Story, path: Path) -> None:
    """Write the story as one HTML page.

    Args:
        story: What the demo found.
        path: The file.
    """
    page = _PAGE.format(
        plain=f"{story.recall['deterministic']:.0%}",
        bayes=f"{story.recall['laplace-online']:.0%}",
        histogram=kappa_chart(story.kappa),
        legend="".join(f"<li>{_line(i)}{html.escape(kind)}</li>" for i, kind in enumerate(KINDS)),
        rows="".join(_row(kind, story) for kind in KINDS),
        bars="".join(_bar(kind, story.decisions[kind]) for kind in KINDS),
        summary=html.escape(story.calibration),
        target=f"{MAX_WRONG:.0%}",
        wrong="{:.1%}".format(story.wrong["promised"][0]),
        always="{:.0%}".format(story.wrong["promised"][1]),
        all_wrong="{:.1%}".format(story.wrong["all"][0]),
        all_always="{:.0%}".format(story.wrong["all"][1]),
        examples="".join(map(_example, story.examples)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    path.with_name("kappa.svg").write_text(standalone(story.kappa), encoding="utf-8")


def kappa_chart(kappa: dict[str, np.ndarray]) -> str:
    """Draw the distribution of log κ of each kind of query.

    Args:
        kappa: κ by kind.

    Returns:
        An SVG element.
    """
    logs = {kind: np.log10(np.maximum(values, 1e-6)) for kind, values in kappa.items()}
    everything = np.concatenate(list(logs.values()))
    low, high = float(everything.min()), float(everything.max()) + 1e-6
    edges = np.linspace(low, high, 36)
    shares = {kind: np.histogram(v, edges)[0] / len(v) for kind, v in logs.items()}
    top = max(s.max() for s in shares.values())
    middle = (edges[1:] + edges[:-1]) / 2
    lines = "".join(
        f'<polyline fill="none" stroke="{COLOURS[i]}" stroke-width="2.5" stroke-dasharray="{DASHES[i]}" '
        'points="'
        + " ".join(
            f"{20 + 660 * (x - low) / (high - low):.1f},{190 - 170 * y / top:.1f}"
            for x, y in zip(middle, share, strict=True)
        )
        + '"/>'
        for i, share in enumerate(shares.values())
    )
    decades = range(int(np.ceil(low)), int(np.floor(high)) + 1)
    ticks = "".join(
        f'<text x="{20 + 660 * (d - low) / (high - low):.0f}" y="210" text-anchor="middle">'
        f"{10.0**d:g}</text>"
        for d in decades
    )
    return (
        '<svg viewBox="0 0 700 235" role="img" aria-label="How often each κ occurs, for each kind of '
        f'query"><line x1="20" y1="190" x2="680" y2="190" stroke="currentColor"/>{lines}{ticks}'
        '<text x="680" y="230" text-anchor="end">κ, surer to the right</text></svg>'
    )


def standalone(kappa: dict[str, np.ndarray]) -> str:
    """Draw the same as a picture for a page that is not ours: on white, with its legend.

    Args:
        kappa: κ by kind.

    Returns:
        An SVG file.
    """
    chart = kappa_chart(kappa).removeprefix("<svg ").removesuffix("</svg>")
    legend = "".join(
        f'<line x1="{30 + 225 * (i % 3)}" y1="{250 + 24 * (i // 3)}" x2="{62 + 225 * (i % 3)}" '
        f'y2="{250 + 24 * (i // 3)}" stroke="{COLOURS[i]}" stroke-width="3" '
        f'stroke-dasharray="{DASHES[i]}"/><text x="{70 + 225 * (i % 3)}" y="{255 + 24 * (i // 3)}">'
        f"{html.escape(kind)}</text>"
        for i, kind in enumerate(kappa)
    )
    taller = chart.replace('viewBox="0 0 700 235"', 'viewBox="0 0 700 290"', 1)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="14" color="#222" '
        + taller.replace(">", '><rect width="700" height="290" fill="#fff"/>', 1)
        + legend
        + "</svg>\n"
    )


def _line(i: int) -> str:
    return (
        f'<svg width="34" height="10" aria-hidden="true"><line x1="0" y1="5" x2="30" y2="5" '
        f'stroke="{COLOURS[i]}" stroke-width="3" stroke-dasharray="{DASHES[i]}"/></svg>'
    )


def _row(kind: str, story: Story) -> str:
    by = story.auroc.get(kind)
    cells = (
        "<td>–</td><td>–</td>"
        if by is None
        else "".join(f"<td>{by[signal]:.2f}</td>" for signal in ("κ", "distance"))
    )
    median = f"{np.median(story.kappa[kind]):.3g}"
    return f"<tr><th>{html.escape(kind)}</th><td>{median}</td>{cells}</tr>"


def _bar(kind: str, shares: dict[str, float]) -> str:
    parts = "".join(
        f'<span class="{d}" style="flex:{shares[d]:.4f}">'
        f"{f'{SIGNS[d]} {shares[d]:.0%}' if shares[d] >= 0.2 else ''}</span>"
        for d in DECISIONS
        if shares[d] > 0
    )
    said = ", ".join(f"{SIGNS[d]} {shares[d]:.0%}" for d in DECISIONS)
    name = html.escape(kind)
    return (
        f'<p class="kind">{name}</p><div class="bar" role="img" aria-label="{said}">{parts}</div>'
    )


def _example(one: Example) -> str:
    pictures = _pixels(one.query, "query") + "".join(_pixels(image, "") for image in one.found)
    why = "".join(f"<li>{html.escape(reason)}</li>" for reason in one.reasons)
    return (
        f'<figure><div class="strip">{pictures}</div><figcaption>'
        f"<b>{html.escape(one.kind)}</b>, κ {one.kappa:.3g}. The nearest item says "
        f'“{html.escape(one.label)}”: <b class="{one.decision}">{SIGNS[one.decision]}</b>, '
        f"{one.probability:.0%} sure.<ul>{why}</ul></figcaption></figure>"
    )


def _pixels(image: np.ndarray, kind: str) -> str:
    """Draw a small grey image, dark on white."""
    height, width = image.shape
    squares = "".join(
        f'<rect x="{x}" y="{y}" width="1.02" height="1.02" fill="rgb({v},{v},{v})"/>'
        for y in range(height)
        for x in range(width)
        if (v := int(255 * (1 - float(image[y, x])))) < 255
    )
    return (
        f'<svg class="pixels {kind}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{squares}</svg>'
    )


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>surefind demo</title>
<style>
:root {{ color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #999; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #eee; --paper: #181818; --line: #666; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); }}
svg text {{ fill: var(--ink); font-size: 14px; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child {{ text-align: left; }}
.legend {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }}
.kind {{ margin: .6rem 0 .1rem; }}
.bar {{ display: flex; height: 1.8rem; border: 1px solid var(--line); overflow: hidden; }}
.bar span {{ padding: 0 .4rem; white-space: nowrap; overflow: hidden; color: #fff; font-size: .9rem;
  line-height: 1.8rem; }}
.bar .match {{ background: #00694b; }} .bar .review {{ background: #8a5a00; }}
.bar .no_match {{ background: #7a2230; }}
.strip {{ display: flex; gap: .4rem; }} .pixels {{ width: 4.2rem; border: 1px solid var(--line); }}
.pixels.query {{ border: 4px solid #d55e00; margin-right: .8rem; }}
figure {{ margin: 1.2rem 0; }} figcaption ul {{ margin: 0; }}
@media print {{ body {{ max-width: none; }} .bar {{ print-color-adjust: exact; }} }}
</style>
<h1>Retrieval that knows when it does not know</h1>
<p>Two encoders learnt the digits 0 to 7. Both retrieve well: the nearest image shows the right digit for
{plain} of new images (plain) and {bayes} (Bayesian, online LAM). Then both were asked about things they
know, and about things they do not.</p>
<h2>How sure?</h2>
<p>κ is the concentration of an embedding on the sphere: high when all weights that the training data allow
agree on where an input belongs, low when they do not. The plain encoder has no κ; it answers everything in
the same voice.</p>
{histogram}
<ul class="legend">{legend}</ul>
<table><tr><th>query</th><th>median κ</th><th>AUROC by κ</th><th>AUROC by distance</th></tr>{rows}</table>
<p>AUROC: how well a kind is told from known digits; 0.5 is chance, 1 is perfect. The distance to the
nearest gallery image, of the plain encoder, is the free baseline to beat.</p>
<h2>Act on it?</h2>
<p>The gallery was calibrated on held-out digits, some of them not in it, to be wrong in at most {target}
of what it calls a match. {summary}</p>
{bars}
<p>Of digits, known or not, {wrong} of what is called a match is wrong; believing every nearest neighbour,
{always} would be. The promise is made for queries like those of the calibration. Blurred and covered
digits and photographs were not among them: with these, it is {all_wrong} against {all_always}.</p>
<h2>Three queries</h2>
<p>Left, framed: a typical query of its kind. Beside it its nearest gallery images: something always comes
back.</p>
{examples}
</html>
"""
