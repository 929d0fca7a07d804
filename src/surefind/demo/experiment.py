"""The experiment behind `surefind demo`, on images that ship with scikit-learn.

An encoder is trained on the digits 0 to 7 and fills a gallery with them; others of them, which it was not
trained on, tell novelty what is usual. Further ones, with 8s that the gallery does not hold, calibrate its
decisions. All digits are divided at random, so that queries with known digits and 8s are drawn like the
calibration's, and its promise is about them.

The other queries it says nothing about: digits blurred or half occluded, the digit 9, a class never seen,
patches of photographs, blank images and noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from surefind import metrics
from surefind.checks import require
from surefind.data.dataset import Dataset
from surefind.data.sources import load_digits
from surefind.decisions.calibration import Calibration
from surefind.decisions.decision import Gate
from surefind.embeddings import Embeddings
from surefind.estimators.learner import MetricLearner
from surefind.gallery.answers import Answers
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.learning.session import Report
from surefind.models.networks import small_net
from surefind.neighbours import nearest, nearest_distance

UNKNOWN_IN_CALIBRATION = 8
NEVER_SEEN = 9
KNOWN, BLURRED, OCCLUDED = "known digits", "blurred", "half occluded"
EIGHT, NINE = "the digit 8, not in the gallery", "the digit 9, never seen"
PHOTOGRAPHS, NOISE = "photographs", "blank and noise"
KINDS = (KNOWN, EIGHT, NINE, BLURRED, OCCLUDED, PHOTOGRAPHS, NOISE)
COVERED = (KNOWN, EIGHT)
"""Kinds of query that are drawn like those of the calibration."""
DECISIONS = ("match", "review", "no_match")
MAX_WRONG = 0.05
GATE = Gate(max_false_alarms=0.01)
TRAIN = 480
HELD_OUT = 480
"""Known digits for novelty: with 475 or more, an input beyond all but one of them still has p <= 1 %."""
NOISE_IMAGES = 98
PARTS = {
    "shape": "which channels of the network's layers react",
    "log_shape": "which channels of the network's layers react",
    "magnitude": "how strongly the network's layers react",
    "density": "its place among the embeddings",
}
"""What each score of novelty looks at."""


@dataclass(frozen=True, eq=False)
class Example:
    """One query and its answer.

    Attributes:
        kind: One of `KINDS`.
        query: Its image (h, w) in [0, 1].
        evidence: The images of the nearest items of its label (k, h, w), then those of the strongest rival.
        label: The most probable one.
        kappa: Of the query.
        novelty: Its p-value.
        decision: One of `DECISIONS`.
        probability: That the label is right; None where the gate decided, for which it was not tested.
        reasons: Why it is no match.
        differs: What differs most from the training data, if it is unlike them.
    """

    kind: str
    query: np.ndarray
    evidence: np.ndarray
    label: str
    kappa: float
    novelty: float
    decision: str
    probability: float | None
    reasons: tuple[str, ...]
    differs: str | None


@dataclass(frozen=True, eq=False)
class Findings:
    """What the demo found.

    Attributes:
        recall: recall@1 of known digits, by method.
        kappa: κ of each kind of query.
        novelty: p-values of each kind of query.
        flagged: Fraction of each outcome of the gate, by kind of query.
        auroc: Detection of each other kind of query among known digits: by κ, by distance, by novelty.
        decisions: Fraction of each decision, by kind of query.
        wrong: Error rate of the matches, and of all answers: "calibrated" for `COVERED` queries, which the
            calibration's guarantee is about; "all" for all queries.
        calibration: What the gallery decides by.
        examples: Typical queries.
    """

    recall: dict[str, float]
    kappa: dict[str, np.ndarray]
    novelty: dict[str, np.ndarray]
    flagged: dict[str, dict[str, float]]
    auroc: dict[str, dict[str, float]]
    decisions: dict[str, dict[str, float]]
    wrong: dict[str, tuple[float, float]]
    calibration: Calibration
    examples: list[Example]


@dataclass(frozen=True, eq=False)
class Material:
    """The digits, divided: to train, for novelty, to calibrate, and queries with their labels."""

    train: Dataset
    held_out: Dataset
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
        f"Two encoders are trained on {len(digits.train)} images of the digits 0 to 7: a deterministic "
        f"one, and a Bayesian one (online LAM). {len(digits.held_out)} others say what is usual."
    )
    learners = {
        method: MetricLearner(
            small_net(1, 8, 4, generator=seeded(0, "encoder")), method=method, epochs=epochs
        ).fit(digits.train, held_out=digits.held_out, report=report)
        for method in ("deterministic", "laplace-online")
    }
    deterministic, bayesian = learners.values()
    items = {name: learner.embed(digits.train) for name, learner in learners.items()}
    asked = {
        name: {kind: learner.embed(x) for kind, x in digits.queries.items()}
        for name, learner in learners.items()
    }
    recall = {name: _recall(asked[name][KNOWN], items[name], digits) for name in learners}
    say(
        f"Both retrieve well: recall@1 on test images is {recall['deterministic']:.0%} (deterministic) and "
        f"{recall['laplace-online']:.0%} (Bayesian)."
    )
    found = {kind: e.numpy() for kind, e in asked["laplace-online"].items()}
    kappa = {kind: e.kappa for kind, e in found.items()}
    novelty = {kind: np.asarray(e.novelty) for kind, e in found.items()}
    flagged = {
        kind: {o: float(np.mean(GATE.outcome(p) == o)) for o in ("unlike", "unusual", "pass")}
        for kind, p in novelty.items()
    }
    auroc = _auroc(asked, deterministic.embed(digits.train))
    say(
        "The Bayesian one gives each query a certainty κ. Novelty gives it a p-value, small for what is "
        "unlike the training data. How well each detects what is no clean known digit (AUROC):"
    )
    for kind in KINDS:
        scores = ", ".join(f"{name} {value:.2f}" for name, value in auroc.get(kind, {}).items())
        unlike = f"{flagged[kind]['unlike']:.0%} unlike anything seen"
        say(
            f"  {kind}: {', '.join(filter(None, (scores, unlike)))}; median κ {np.median(kappa[kind]):.3g}"
        )
    bayesian.save(folder / "run")
    with _gallery(folder / "gallery", bayesian, digits) as gallery:
        calibration = gallery.calibration
        assert calibration is not None
        say(f"A gallery of {len(gallery)} digits, calibrated on {len(digits.calibration)} others.")
        say(calibration.summary)
        # The demo's queries are not live ones: whoever serves its gallery starts without an alarm.
        answers = {
            kind: gallery.search(e, k=5, watch=False) for kind, e in asked["laplace-online"].items()
        }
    decisions = {
        kind: {d: float(np.mean(a.decision == d)) for d in DECISIONS} for kind, a in answers.items()
    }
    for kind in KINDS:
        parts = (f"{decisions[kind][d]:.0%} {d.replace('_', ' ')}" for d in DECISIONS)
        say(f"  {kind}: {', '.join(parts)}")
    covered = {kind: answers[kind] for kind in COVERED}
    wrong = {"calibrated": _wrong(covered, digits), "all": _wrong(answers, digits)}
    say(
        "Of known digits and 8s, which the promise is about, {:.1%} of the matches are wrong; accepting "
        "every answer, {:.0%} would be.".format(*wrong["calibrated"])
    )
    say(
        "With all the other queries, which the promise is not about, it is {:.1%} against {:.0%}.".format(
            *wrong["all"]
        )
    )
    shown = (KNOWN, NINE, PHOTOGRAPHS, NOISE)
    examples = [_example(kind, digits, answers[kind], bayesian) for kind in shown]
    for one in examples:
        chance = "" if one.probability is None else f", probability {one.probability:.0%}"
        why = f" ({', '.join(one.reasons)})" if one.reasons else ""
        say(
            f"A query ({one.kind}): the most probable label is {one.label}; "
            f"{one.decision.replace('_', ' ')}{chance}{why}."
        )
    return Findings(recall, kappa, novelty, flagged, auroc, decisions, wrong, calibration, examples)


def material() -> Material:
    """Divide all digits at random: to train, for novelty, to calibrate, and queries."""
    loaded = load_digits()
    digits = _together([loaded.train, loaded.test])
    generator = seeded(0, "demo")
    known = _shuffled(digits[digits.labels < UNKNOWN_IN_CALIBRATION], generator)
    eights = _shuffled(digits[digits.labels == UNKNOWN_IN_CALIBRATION], generator)
    train, held_out, rest = (
        known[:TRAIN],
        known[TRAIN : TRAIN + HELD_OUT],
        known[TRAIN + HELD_OUT :],
    )
    calibration = _together([rest[::2], eights[::2]])
    asked, eight, nine = rest[1::2], eights[1::2], digits[digits.labels == NEVER_SEEN]
    clean = asked.read()
    occluded = clean.clone()
    occluded[..., 4:] = 0
    size = clean.shape[1:]
    queries = {
        KNOWN: clean,
        EIGHT: eight.read(),
        NINE: nine.read(),
        BLURRED: avg_pool2d(clean, 3, stride=1, padding=1),
        OCCLUDED: occluded,
        PHOTOGRAPHS: loaded["ood"].read(),
        NOISE: torch.cat([
            torch.zeros(1, *size),
            torch.ones(1, *size),
            torch.rand(NOISE_IMAGES, *size, generator=generator),
        ]),
    }
    labelled = {KNOWN: asked, BLURRED: asked, OCCLUDED: asked, EIGHT: eight, NINE: nine}
    truth = {
        kind: _names(labelled[kind]) if kind in labelled else ["no digit"] * len(images)
        for kind, images in queries.items()
    }
    return Material(train, held_out, calibration, queries, truth)


def _together(parts: list[Dataset]) -> Dataset:
    inputs = np.concatenate([part.inputs for part in parts])
    return Dataset(inputs, torch.cat([part.labels for part in parts]), name="digits")


def _shuffled(dataset: Dataset, generator: torch.Generator) -> Dataset:
    return dataset[torch.randperm(len(dataset), generator=generator)]


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
    gallery.describe(images=str(images.resolve()))
    truth = [name if name in names else None for name in _names(digits.calibration)]
    gallery.calibrate(
        learner.embed(digits.calibration),
        truth,
        max_wrong=MAX_WRONG,
        max_false_alarms=GATE.max_false_alarms,
    )
    return gallery


def _recall(queries: Embeddings, items: Embeddings, digits: Material) -> float:
    found = nearest(queries.mean, items.mean, 1)
    labels = np.array(digits.truth[KNOWN], dtype=int)
    return metrics.recall_at_k(found.indices, labels, digits.train.labels.numpy(), 1)


def _auroc(
    asked: dict[str, dict[str, Embeddings]], items: Embeddings
) -> dict[str, dict[str, float]]:
    """Compare κ and novelty of the Bayesian encoder with the deterministic encoder's nearest distance."""
    far = {kind: nearest_distance(e.mean, items.mean) for kind, e in asked["deterministic"].items()}
    uncertainty = {kind: e.uncertainty for kind, e in asked["laplace-online"].items()}
    unlike = {kind: -np.asarray(e.novelty) for kind, e in asked["laplace-online"].items()}
    signals = {"κ": uncertainty, "distance": far, "novelty": unlike}
    return {
        kind: {name: metrics.auroc(s[KNOWN], s[kind]) for name, s in signals.items()}
        for kind in KINDS
        if kind != KNOWN
    }


def _wrong(answers: dict[str, Answers], digits: Material) -> tuple[float, float]:
    """Return the error rate of the matches, and of all answers."""
    wrong = np.concatenate([
        a.label != np.array(digits.truth[kind], dtype=object) for kind, a in answers.items()
    ])
    matched = np.concatenate([a.decision == "match" for a in answers.values()])
    return float(wrong[matched].mean()) if matched.any() else 0.0, float(wrong.mean())


def _example(kind: str, digits: Material, answer: Answers, learner: MetricLearner) -> Example:
    """Take the query whose probability is the median of its kind."""
    assert answer.probability is not None
    assert answer.decision is not None
    assert answer.novelty is not None
    assert answer.gate is not None
    at = int(np.argsort(answer.probability)[len(answer) // 2])
    shown = [id_ for found in answer.evidence(at) for id_ in found.ids]
    rows = [int(str(id_).rpartition("-")[2]) for id_ in shown]
    image = digits.queries[kind][at]
    gated = answer.gate[at]
    return Example(
        kind,
        image[0].numpy(),
        digits.train.read(rows)[:, 0].numpy(),
        str(answer.label[at]),
        float(answer.kappa[at]),
        float(answer.novelty[at]),
        str(answer.decision[at]),
        float(answer.probability[at]) if gated == "pass" else None,
        tuple(answer.reasons[at]),
        _differs(learner, image) if gated == "unlike" else None,
    )


def _differs(learner: MetricLearner, image: Tensor) -> str:
    """Say what the score that objects most to an image looks at."""
    guard = learner.novelty_
    assert guard is not None
    worst = int(guard.parts(learner.fitted, image[None])[0].argmax())
    return PARTS[guard.model.names[worst]]
