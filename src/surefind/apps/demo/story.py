"""What κ is for, on images that ship with scikit-learn: the experiment behind `surefind demo`.

An encoder learns the digits 0 to 7 and fills a gallery with them. Held-out digits, among them some 8s
that the gallery does not hold, calibrate its decisions. Then it is asked about digits it knows, the same
digits blurred or half covered, the digit 9, which nobody has shown it, and patches of photographs.
"""

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
NEVER_SHOWN = 9
KINDS = ("known digits", "blurred", "half covered", "the digit 9, never shown", "photographs")
DECISIONS = ("match", "review", "no_match")
MAX_WRONG = 0.05


@dataclass(frozen=True, eq=False)
class Example:
    """One query and what came back.

    Attributes:
        kind: One of `KINDS`.
        query: Its image.
        found: The images of its nearest items.
        label: The nearest item's label.
        kappa: Of the query.
        decision: One of `DECISIONS`.
        probability: That the label is right.
        reasons: Why it is no match.
    """

    kind: str
    query: np.ndarray
    found: np.ndarray
    label: str
    kappa: float
    decision: str
    probability: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Story:
    """What the demo found.

    Attributes:
        recall: Share of known digits whose nearest neighbour is right, by method.
        kappa: κ of each kind of query.
        auroc: How well known digits are told from each other kind: by κ, and by distance.
        decisions: Share of each decision, by kind of query.
        wrong: Share of wrong answers among the matches, and among all nearest neighbours: of digits,
            known or not, for which the calibration promises it; and of all queries.
        calibration: What the calibration says of itself.
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
    """The digits, parted: what is learnt, what calibrates, what is asked."""

    learn: Dataset
    calibrate: Dataset
    queries: dict[str, Tensor]
    truth: dict[str, list[str]]


def tell(folder: Path, *, epochs: int = 20, say: Callable[[str], None], report: Report) -> Story:
    """Train, build a gallery, calibrate it, ask, and tell what happened.

    Args:
        folder: Where the run, the gallery and its pictures are written.
        epochs: Passes over the digits, for each of the two encoders.
        say: Called with each sentence of the story.
        report: Called after each training step.

    Returns:
        The numbers and pictures.
    """
    digits = material()
    say(
        f"Two encoders learn the digits 0 to 7 from {len(digits.learn)} images: "
        "a plain one, and a Bayesian one."
    )
    learners = {
        method: MetricLearner(
            small_net(1, 8, 4, generator=seeded(0, "encoder")), method=method, epochs=epochs
        ).fit(digits.learn, report=report)
        for method in ("deterministic", "laplace-online")
    }
    plain, bayesian = learners.values()
    items = {name: learner.embed(digits.learn) for name, learner in learners.items()}
    asked = {
        name: {kind: learner.embed(x) for kind, x in digits.queries.items()}
        for name, learner in learners.items()
    }
    recall = {name: _recall(asked[name][KINDS[0]], items[name], digits) for name in learners}
    say(
        f"Both retrieve well: the nearest image shows the right digit for {recall['deterministic']:.0%} "
        f"of new images (plain) and {recall['laplace-online']:.0%} (Bayesian)."
    )
    kappa = {kind: e.numpy().kappa for kind, e in asked["laplace-online"].items()}
    say(
        "The plain encoder is never in doubt. The Bayesian one gives each answer a κ, high for sure:"
    )
    auroc = _auroc(asked, plain.embed(digits.learn))
    for kind in KINDS:
        told = (
            f", told from known digits with AUROC {auroc[kind]['κ']:.2f}" if kind in auroc else ""
        )
        say(f"  {kind}: median κ {np.median(kappa[kind]):.3g}{told}")
    bayesian.save(folder / "run")
    with _gallery(folder / "gallery", bayesian, digits) as gallery:
        calibration = gallery.calibration
        assert calibration is not None
        say(f"A gallery of {len(gallery)} digits, calibrated on {len(digits.calibrate)} others.")
        say(calibration.summary)
        answers = {kind: gallery.search(e, k=5) for kind, e in asked["laplace-online"].items()}
    decisions = {kind: _shares(a) for kind, a in answers.items()}
    for kind in KINDS:
        said = ", ".join(f"{decisions[kind][d]:.0%} {d.replace('_', ' ')}" for d in DECISIONS)
        say(f"  {kind}: {said}")
    like = {kind: answers[kind] for kind in (KINDS[0], KINDS[3])}
    wrong = {"promised": _wrong(like, digits), "all": _wrong(answers, digits)}
    say(
        "Of digits, known or not, {:.1%} of what is called a match is wrong; believing every nearest "
        "neighbour, {:.0%} would be.".format(*wrong["promised"])
    )
    say(
        "With the other queries, for which no promise was made, it is {:.1%} against {:.0%}.".format(
            *wrong["all"]
        )
    )
    examples = [_example(kind, digits, kappa, answers) for kind in (KINDS[0], KINDS[3], KINDS[4])]
    for one in examples:
        why = f" ({', '.join(one.reasons)})" if one.reasons else ""
        say(
            f"A query ({one.kind}): the nearest item says {one.label}; "
            f"{one.decision.replace('_', ' ')}, {one.probability:.0%} sure{why}."
        )
    return Story(recall, kappa, auroc, decisions, wrong, calibration.summary, examples)


def material() -> Material:
    """Part the digits.

    Returns:
        What is learnt, what calibrates, what is asked.
    """
    digits = load("digits")
    train = digits.train
    parts = validation_split(
        train[train.labels < UNKNOWN_IN_CALIBRATION], seeded(0, "demo"), share=0.4
    )
    held, unknown = parts["validation"], train[train.labels == UNKNOWN_IN_CALIBRATION]
    calibrate = Dataset(
        np.concatenate([held.inputs, unknown.inputs]),
        torch.cat([held.labels, unknown.labels]),
        name="calibration",
    )
    test = digits.test
    known = test[test.labels < UNKNOWN_IN_CALIBRATION]
    clean = known.read()
    covered = clean.clone()
    covered[..., 4:] = 0
    blurred = avg_pool2d(clean, 3, stride=1, padding=1)
    nine = test[test.labels == NEVER_SHOWN].read()
    names = [str(int(label)) for label in known.labels]
    queries = (clean, blurred, covered, nine, digits["ood"].read())
    truth = (names, names, names, ["9"] * len(nine), ["no digit"] * len(digits["ood"]))
    return Material(
        parts.train,
        calibrate,
        dict(zip(KINDS, queries, strict=True)),
        dict(zip(KINDS, truth, strict=True)),
    )


def _gallery(folder: Path, learner: MetricLearner, digits: Material) -> Gallery:
    """Fill a gallery with what was learnt, pictures beside it, and calibrate it on the rest."""
    gallery = Gallery(path=folder, model="surefind demo")
    names = [str(int(label)) for label in digits.learn.labels]
    ids = [f"digit-{i:04d}" for i in range(len(names))]
    pictures = folder.with_name("images")
    pictures.mkdir(parents=True, exist_ok=True)
    pil = require("PIL.Image", "write the gallery's pictures")
    for id_, pixels in zip(ids, np.asarray(digits.learn.inputs), strict=True):
        pil.fromarray(pixels).save(pictures / f"{id_}.png")
    payload = [{"path": f"{id_}.png"} for id_ in ids]
    gallery.add(learner.embed(digits.learn), ids=ids, labels=names, payload=payload)
    known = set(names)
    truth = [str(int(label)) for label in digits.calibrate.labels]
    gallery.calibrate(
        learner.embed(digits.calibrate),
        [t if t in known else None for t in truth],
        max_wrong=MAX_WRONG,
    )
    return gallery


def _recall(queries: Embeddings, items: Embeddings, digits: Material) -> float:
    found = nearest(queries.mean, items.mean, 1)
    labels = np.array(digits.truth[KINDS[0]], dtype=int)
    return metrics.recall_at_k(found.indices, labels, digits.learn.labels.numpy(), 1)


def _auroc(
    asked: dict[str, dict[str, Embeddings]], items: Embeddings
) -> dict[str, dict[str, float]]:
    """Compare κ of the Bayesian encoder with the plain encoder's best free signal."""
    distance = fit_nearest_distance(items.mean)
    far = {kind: distance.score(e.mean) for kind, e in asked["deterministic"].items()}
    doubt = {kind: e.uncertainty for kind, e in asked["laplace-online"].items()}
    clean = KINDS[0]
    return {
        kind: {
            "κ": metrics.auroc(doubt[clean], doubt[kind]),
            "distance": metrics.auroc(far[clean], far[kind]),
        }
        for kind in KINDS[1:]
    }


def _shares(answers: Answers) -> dict[str, float]:
    return {d: float(np.mean(answers.decision == d)) for d in DECISIONS}


def _wrong(answers: dict[str, Answers], digits: Material) -> tuple[float, float]:
    """Say which share is wrong among matches, and among all nearest neighbours."""
    wrong = np.concatenate([
        a.labels[:, 0] != np.array(digits.truth[kind], dtype=object) for kind, a in answers.items()
    ])
    matched = np.concatenate([a.decision == "match" for a in answers.values()])
    return float(wrong[matched].mean()) if matched.any() else 0.0, float(wrong.mean())


def _example(
    kind: str, digits: Material, kappa: dict[str, np.ndarray], answers: dict[str, Answers]
) -> Example:
    """Take the query whose probability is the median of its kind."""
    answer = answers[kind]
    assert answer.probability is not None
    assert answer.decision is not None
    at = int(np.argsort(answer.probability)[len(answer) // 2])
    rows = [int(str(id_).rpartition("-")[2]) for id_ in answer.ids[at]]
    return Example(
        kind,
        digits.queries[kind][at, 0].numpy(),
        digits.learn.read(rows)[:, 0].numpy(),
        str(answer.labels[at, 0]),
        float(kappa[kind][at]),
        str(answer.decision[at]),
        float(answer.probability[at]),
        tuple(answer.reasons[at]),
    )
