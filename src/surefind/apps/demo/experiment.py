"""The experiment behind `surefind demo`, on images that ship with scikit-learn.

An encoder is trained on the digits 0 to 7 and fills a gallery with them. Held-out digits, among them 8s
that the gallery does not hold, calibrate its decisions. The queries are test digits of the trained classes,
the same digits blurred or half occluded, the digit 9, a class never seen, and patches of photographs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from surefind import metrics
from surefind.data.catalogue import load
from surefind.data.dataset import Dataset
from surefind.data.splits import validation_split
from surefind.dependencies import require
from surefind.embeddings import Embeddings
from surefind.estimators.learner import MetricLearner
from surefind.gallery.answers import Answers
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.learning.session import Report
from surefind.models.convnets import small_net
from surefind.retrieval.baselines import fit_nearest_distance
from surefind.retrieval.search import nearest

UNKNOWN_IN_CALIBRATION = 8
NEVER_SEEN = 9
KINDS = ("known digits", "blurred", "half occluded", "the digit 9, never seen", "photographs")
DECISIONS = ("match", "review", "no_match")
MAX_WRONG = 0.05


@dataclass(frozen=True, eq=False)
class Example:
    """One query and its answer.

    Attributes:
        kind: One of `KINDS`.
        query: Its image (h, w) in [0, 1].
        evidence: The images of the nearest items of its label (k, h, w), then those of the strongest rival.
        label: The most probable one.
        kappa: Of the query.
        decision: One of `DECISIONS`.
        probability: That the label is right.
        reasons: Why it is no match.
    """

    kind: str
    query: np.ndarray
    evidence: np.ndarray
    label: str
    kappa: float
    decision: str
    probability: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Findings:
    """What the demo found.

    Attributes:
        recall: recall@1 of known digits, by method.
        kappa: κ of each kind of query.
        auroc: Detection of each other kind of query among known digits: by κ, and by distance.
        decisions: Fraction of each decision, by kind of query.
        wrong: Error rate of the matches, and of all answers: "calibrated" for digits, seen or not, which
            the calibration's guarantee covers; "all" for all queries.
        calibration: The calibration's summary.
        examples: Typical queries.
    """

    recall: dict[str, float]
    kappa: dict[str, np.ndarray]
    auroc: dict[str, dict[str, float]]
    decisions: dict[str, dict[str, float]]
    wrong: dict[str, tuple[float, float]]
    calibration: str
    examples: list[Example]


@dataclass(frozen=True, eq=False)
class Material:
    """The digits, divided into training data, calibration data and queries with their labels."""

    train: Dataset
    calibration: Dataset
    queries: dict[str, Tensor]
    truth: dict[str, list[str]]


def run_demo(
    folder: Path, *, epochs: int = 20, say: Callable[[str], None], report: Report
) -> Findings:
    """Train, build and calibrate a gallery, query it, and report what was found.

    Args:
        folder: Where the run, the gallery and its images are written.
        epochs: Training epochs of each of the two encoders.
        say: Called with each sentence of the report.
        report: Called after each training step.

    Returns:
        The findings.
    """
    digits = material()
    say(
        f"Two encoders are trained on {len(digits.train)} images of the digits 0 to 7: "
        "a deterministic one, and a Bayesian one (online LAM)."
    )
    learners = {
        method: MetricLearner(
            small_net(1, 8, 4, generator=seeded(0, "encoder")), method=method, epochs=epochs
        ).fit(digits.train, report=report)
        for method in ("deterministic", "laplace-online")
    }
    deterministic, bayesian = learners.values()
    items = {name: learner.embed(digits.train) for name, learner in learners.items()}
    asked = {
        name: {kind: learner.embed(x) for kind, x in digits.queries.items()}
        for name, learner in learners.items()
    }
    recall = {name: _recall(asked[name][KINDS[0]], items[name], digits) for name in learners}
    say(
        f"Both retrieve well: recall@1 on test images is {recall['deterministic']:.0%} (deterministic) and "
        f"{recall['laplace-online']:.0%} (Bayesian)."
    )
    kappa = {kind: e.numpy().kappa for kind, e in asked["laplace-online"].items()}
    say(
        "The deterministic encoder has no uncertainty. The Bayesian one gives each query a certainty κ:"
    )
    auroc = _auroc(asked, deterministic.embed(digits.train))
    for kind in KINDS:
        detected = f", detected with AUROC {auroc[kind]['κ']:.2f}" if kind in auroc else ""
        say(f"  {kind}: median κ {np.median(kappa[kind]):.3g}{detected}")
    bayesian.save(folder / "run")
    with _gallery(folder / "gallery", bayesian, digits) as gallery:
        calibration = gallery.calibration
        assert calibration is not None
        say(f"A gallery of {len(gallery)} digits, calibrated on {len(digits.calibration)} others.")
        say(calibration.summary)
        answers = {kind: gallery.search(e, k=5) for kind, e in asked["laplace-online"].items()}
    decisions = {
        kind: {d: float(np.mean(a.decision == d)) for d in DECISIONS} for kind, a in answers.items()
    }
    for kind in KINDS:
        parts = (f"{decisions[kind][d]:.0%} {d.replace('_', ' ')}" for d in DECISIONS)
        say(f"  {kind}: {', '.join(parts)}")
    covered = {kind: answers[kind] for kind in (KINDS[0], KINDS[3])}
    wrong = {"calibrated": _wrong(covered, digits), "all": _wrong(answers, digits)}
    say(
        "Of digits, seen or not, {:.1%} of the matches are wrong; accepting every answer, "
        "{:.0%} would be.".format(*wrong["calibrated"])
    )
    against = "{:.1%} against {:.0%}".format(*wrong["all"])
    say(f"With the other queries, which the guarantee does not cover, it is {against}.")
    examples = [_example(kind, digits, answers) for kind in (KINDS[0], KINDS[3], KINDS[4])]
    for one in examples:
        why = f" ({', '.join(one.reasons)})" if one.reasons else ""
        say(
            f"A query ({one.kind}): the most probable label is {one.label}; "
            f"{one.decision.replace('_', ' ')}, probability {one.probability:.0%}{why}."
        )
    return Findings(recall, kappa, auroc, decisions, wrong, calibration.summary, examples)


def material() -> Material:
    """Divide the digits into training data, calibration data and queries."""
    digits = load("digits")
    train, test = digits.train, digits.test
    known = train[train.labels < UNKNOWN_IN_CALIBRATION]
    parts = validation_split(known, seeded(0, "demo"), share=0.4)
    held, unknown = parts["validation"], train[train.labels == UNKNOWN_IN_CALIBRATION]
    calibrate = Dataset(
        np.concatenate([held.inputs, unknown.inputs]),
        torch.cat([held.labels, unknown.labels]),
        name="calibration",
    )
    asked = test[test.labels < UNKNOWN_IN_CALIBRATION]
    clean, names = asked.read(), _names(asked)
    occluded = clean.clone()
    occluded[..., 4:] = 0
    blurred = avg_pool2d(clean, 3, stride=1, padding=1)
    nine, photographs = test[test.labels == NEVER_SEEN].read(), digits["ood"].read()
    queries = (clean, blurred, occluded, nine, photographs)
    truth = (names, names, names, ["9"] * len(nine), ["no digit"] * len(photographs))
    named = partial(zip, KINDS, strict=True)
    return Material(parts.train, calibrate, dict(named(queries)), dict(named(truth)))


def _names(digits: Dataset) -> list[str]:
    return [str(int(label)) for label in digits.labels]


def _gallery(folder: Path, learner: MetricLearner, digits: Material) -> Gallery:
    """Fill a gallery with the training data, save their images, and calibrate it on held-out data."""
    gallery = Gallery(path=folder)  # no name: `surefind search --run` names models by their digest
    names = _names(digits.train)
    ids = [f"digit-{i:04d}" for i in range(len(names))]
    images = folder.with_name("images")
    images.mkdir(parents=True, exist_ok=True)
    pil = require("PIL.Image", "write the gallery's images")
    for id_, pixels in zip(ids, np.asarray(digits.train.inputs), strict=True):
        pil.fromarray(pixels).save(images / f"{id_}.png")
    payload = [{"path": f"{id_}.png"} for id_ in ids]
    gallery.add(learner.embed(digits.train), ids=ids, labels=names, payload=payload)
    truth = [name if name in names else None for name in _names(digits.calibration)]
    gallery.calibrate(learner.embed(digits.calibration), truth, max_wrong=MAX_WRONG)
    return gallery


def _recall(queries: Embeddings, items: Embeddings, digits: Material) -> float:
    found = nearest(queries.mean, items.mean, 1)
    labels = np.array(digits.truth[KINDS[0]], dtype=int)
    return metrics.recall_at_k(found.indices, labels, digits.train.labels.numpy(), 1)


def _auroc(
    asked: dict[str, dict[str, Embeddings]], items: Embeddings
) -> dict[str, dict[str, float]]:
    """Compare κ of the Bayesian encoder with the deterministic encoder's nearest distance."""
    distance = fit_nearest_distance(items.mean)
    far = {kind: distance.score(e.mean) for kind, e in asked["deterministic"].items()}
    uncertainty = {kind: e.uncertainty for kind, e in asked["laplace-online"].items()}
    clean = KINDS[0]
    return {
        kind: {
            "κ": metrics.auroc(uncertainty[clean], uncertainty[kind]),
            "distance": metrics.auroc(far[clean], far[kind]),
        }
        for kind in KINDS[1:]
    }


def _wrong(answers: dict[str, Answers], digits: Material) -> tuple[float, float]:
    """Return the error rate of the matches, and of all answers."""
    wrong = np.concatenate([
        a.label != np.array(digits.truth[kind], dtype=object) for kind, a in answers.items()
    ])
    matched = np.concatenate([a.decision == "match" for a in answers.values()])
    return float(wrong[matched].mean()) if matched.any() else 0.0, float(wrong.mean())


def _example(kind: str, digits: Material, answers: dict[str, Answers]) -> Example:
    """Take the query whose probability is the median of its kind."""
    answer = answers[kind]
    assert answer.probability is not None
    assert answer.decision is not None
    at = int(np.argsort(answer.probability)[len(answer) // 2])
    shown = [id_ for found in answer.evidence(at) for id_ in found.ids]
    rows = [int(str(id_).rpartition("-")[2]) for id_ in shown]
    return Example(
        kind,
        digits.queries[kind][at, 0].numpy(),
        digits.train.read(rows)[:, 0].numpy(),
        str(answer.label[at]),
        float(answer.kappa[at]),
        str(answer.decision[at]),
        float(answer.probability[at]),
        tuple(answer.reasons[at]),
    )
