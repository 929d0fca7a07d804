"""The demo: what κ is for, on images that ship with scikit-learn, told as a short story.

An encoder learns the digits 0 to 7. It is then asked about digits it knows, the same digits blurred or
half covered, the digits 8 and 9 which it has never seen, and patches of photographs. A plain encoder
answers all of them in the same voice. The Bayesian one (online LAM) says of each how sure it is.
"""

import base64
import html
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from surefind import metrics
from surefind.data.catalogue import load
from surefind.data.dataset import Dataset
from surefind.data.extras import require
from surefind.embeddings import Embeddings
from surefind.learner import MetricLearner
from surefind.models.convnets import small_net
from surefind.retrieval.baselines import fit_nearest_distance
from surefind.retrieval.search import nearest
from surefind.runs import Report
from surefind.seeds import seeded

HELD_OUT = (8, 9)
KINDS = ("known digits", "blurred", "half covered", "unseen digits 8 and 9", "photographs")


@dataclass(frozen=True, eq=False)
class Story:
    """What the demo found.

    Attributes:
        recall: Share of known digits whose nearest neighbour is right, by method.
        kappa: κ of each kind of query, by kind.
        auroc: How well known digits are told from each other kind: by κ, and by distance.
        examples: Queries with their nearest gallery images.
        surer_than: For each example, the share of known digits that are less sure.
    """

    recall: dict[str, float]
    kappa: dict[str, np.ndarray]
    auroc: dict[str, dict[str, float]]
    examples: list[tuple[str, np.ndarray, np.ndarray]]
    surer_than: list[float]


def tell(*, epochs: int = 12, say: Callable[[str], None], report: Report) -> Story:
    """Train, ask, and tell what happened.

    Args:
        epochs: Passes over the digits, for each of the two encoders.
        say: Called with each sentence of the story.
        report: Called after each training step.

    Returns:
        The numbers and pictures.
    """
    digits = load("digits")
    known = ~torch.isin(digits.train.labels, torch.tensor(HELD_OUT))
    train = digits.train[known]
    say(
        f"Two encoders learn the digits 0 to 7 from {len(train)} images: a plain one, and a Bayesian one."
    )
    learners = {
        method: MetricLearner(
            small_net(1, 8, 4, generator=seeded(0, "encoder")), method=method, epochs=epochs
        ).fit(train, report=report)
        for method in ("deterministic", "laplace-online")
    }
    queries = _queries(digits.test, digits["ood"])
    gallery = {name: learner.embed(train) for name, learner in learners.items()}
    answers = {
        name: {kind: learner.embed(x) for kind, x in queries.items()}
        for name, learner in learners.items()
    }
    labels = digits.test.labels[~torch.isin(digits.test.labels, torch.tensor(HELD_OUT))]
    recall = {
        name: _recall(answers[name]["known digits"], gallery[name], labels, train.labels)
        for name in learners
    }
    say(
        f"Both retrieve well: the nearest image shows the right digit for {recall['deterministic']:.0%} "
        f"of new images (plain) and {recall['laplace-online']:.0%} (Bayesian)."
    )
    bayesian = answers["laplace-online"]
    kappa = {kind: np.asarray(e.kappa, dtype=float) for kind, e in bayesian.items()}
    say(
        "The plain encoder says nothing about how sure it is. The Bayesian one gives each answer a κ:"
    )
    for kind in KINDS:
        say(f"  {kind}: median κ {np.median(kappa[kind]):.0f}")
    auroc = _auroc(answers, gallery["deterministic"])
    for kind in KINDS[1:]:
        by = auroc[kind]
        say(
            f"  {kind} are told from known digits with AUROC {by['κ']:.2f} by κ, "
            f"{by['distance']:.2f} by distance to the nearest image."
        )
    examples, surer = _examples(queries, bayesian, gallery["laplace-online"], train)
    return Story(recall, kappa, auroc, examples, surer)


def write_page(story: Story, path: Path) -> None:
    """Write the story as one HTML page with its pictures inside.

    Args:
        story: What the demo found.
        path: The file.
    """
    rows = "".join(
        f"<tr><th>{html.escape(kind)}</th><td>{np.median(story.kappa[kind]):.0f}</td>"
        + "".join(
            f"<td>{story.auroc[kind][by]:.2f}</td>" if kind in story.auroc else "<td>–</td>"
            for by in ("κ", "distance")
        )
        + "</tr>"
        for kind in KINDS
    )
    examples = "".join(
        f"<figure><img src='{_examples_picture(query, found)}' alt='{html.escape(kind)} and its five "
        f"nearest images'><figcaption><b>{html.escape(kind)}</b>: surer than {surer:.0%} of known digits"
        f"{'' if surer > 0.05 else ' — do not act on this match'}</figcaption></figure>"
        for (kind, query, found), surer in zip(story.examples, story.surer_than, strict=True)
    )
    page = _PAGE.format(
        plain=f"{story.recall['deterministic']:.0%}",
        bayes=f"{story.recall['laplace-online']:.0%}",
        histogram=_histogram(story.kappa),
        rows=rows,
        examples=examples,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def _queries(test: Dataset, ood: Dataset) -> dict[str, Tensor]:
    held = torch.isin(test.labels, torch.tensor(HELD_OUT))
    clean = test[~held].read()
    covered = clean.clone()
    covered[..., 4:] = 0
    blurred = avg_pool2d(clean, 3, stride=1, padding=1)
    return dict(zip(KINDS, (clean, blurred, covered, test[held].read(), ood.read()), strict=True))


def _recall(queries: Embeddings, gallery: Embeddings, labels: Tensor, known: Tensor) -> float:
    found = nearest(queries.mean, gallery.mean, 1)
    return metrics.recall_at_k(found.indices, labels, known, 1)


def _auroc(
    answers: dict[str, dict[str, Embeddings]], gallery: Embeddings
) -> dict[str, dict[str, float]]:
    """Compare κ of the Bayesian encoder with the plain encoder's best free signal."""
    distance = fit_nearest_distance(gallery.mean)
    far = {kind: distance.score(e.mean) for kind, e in answers["deterministic"].items()}
    doubt = {kind: e.uncertainty for kind, e in answers["laplace-online"].items()}
    clean = KINDS[0]
    return {
        kind: {
            "κ": metrics.auroc(doubt[clean], doubt[kind]),
            "distance": metrics.auroc(far[clean], far[kind]),
        }
        for kind in KINDS[1:]
    }


def _examples(
    queries: dict[str, Tensor], answers: dict[str, Embeddings], gallery: Embeddings, train: Dataset
) -> tuple[list[tuple[str, np.ndarray, np.ndarray]], list[float]]:
    """Take a typical query of three kinds: the one whose κ is the median of its kind."""
    images, examples, surer = train.read(), [], []
    known = answers[KINDS[0]].kappa
    for kind in (KINDS[0], KINDS[1], KINDS[4]):
        at = int(answers[kind].kappa.argsort()[len(answers[kind]) // 2])
        one = answers[kind][at]
        found = torch.as_tensor(nearest(one.mean, gallery.mean, 5).indices[0])
        examples.append((kind, queries[kind][at, 0].numpy(), images[found, 0].numpy()))
        surer.append(float((known < one.kappa).float().mean()))
    return examples, surer


def _examples_picture(query: np.ndarray, found: np.ndarray) -> str:
    plt = require("matplotlib.pyplot", "draw the report")
    figure, axes = plt.subplots(1, 6, figsize=(6, 1.15))
    for axis, image in zip(axes, [query, *found], strict=True):
        axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axis.set_xticks([])
        axis.set_yticks([])
    for side in axes[0].spines.values():
        side.set_color("#d55e00")
        side.set_linewidth(3)
    return _embedded(figure, plt)


def _histogram(kappa: dict[str, np.ndarray]) -> str:
    plt = require("matplotlib.pyplot", "draw the report")
    figure, axis = plt.subplots(figsize=(7, 2.6))
    low = np.log10(max(min(v.min() for v in kappa.values()), 1e-3))
    high = np.log10(max(v.max() for v in kappa.values()))
    colours = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00")
    styles = ("-", "--", "-.", ":", "-")
    for (kind, values), colour, style in zip(kappa.items(), colours, styles, strict=True):
        counts, edges = np.histogram(np.log10(values), np.linspace(low, high, 40), density=True)
        middle = 10 ** ((edges[1:] + edges[:-1]) / 2)
        axis.plot(middle, counts, style, color=colour, label=kind, linewidth=2)
    axis.set_xscale("log")
    axis.set_xlabel("κ: how sure (right: surer)")
    axis.set_yticks([])
    axis.legend(frameon=False, fontsize=8)
    return _embedded(figure, plt)


def _embedded(figure, plt) -> str:  # type: ignore[no-untyped-def]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>surefind demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }}
img {{ max-width: 100%; background: #fff; }} table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .8rem; border-bottom: 1px solid #999; text-align: right; }}
th:first-child {{ text-align: left; }} figure {{ margin: 1rem 0; }}
@media (prefers-color-scheme: dark) {{ body {{ color: #eee; background: #181818; }} }}
</style>
<h1>Retrieval that knows when it does not know</h1>
<p>Two encoders learnt the digits 0 to 7. Both retrieve well: the nearest image shows the right digit for
{plain} of new images (plain) and {bayes} (Bayesian, online LAM).</p>
<h2>How sure?</h2>
<p>κ is the concentration of an embedding on the sphere: high when all weights that the training data allow
agree on where an input belongs, low when they do not. The plain encoder has no κ; it answers everything
in the same voice.</p>
<img src="{histogram}" alt="Distribution of κ for each kind of query">
<table><tr><th>query</th><th>median κ</th><th>AUROC by κ</th><th>AUROC by distance</th></tr>{rows}</table>
<p>AUROC: how well a kind is told from known digits; 0.5 is chance, 1 is perfect. The distance to the
nearest gallery image, of the plain encoder, is the free baseline to beat.</p>
<h2>Three queries</h2>
<p>Left, framed: a typical query of its kind. Beside it its five nearest gallery images: something always
comes back.</p>
{examples}
</html>
"""
