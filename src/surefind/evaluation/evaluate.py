"""Evaluation of a fitted learner on data it has not seen.

*Closed set*: the test data are queries and gallery at once, without the query itself. With a *gallery*,
they are looked up there. Relevant is what has the query's label; where the data have positions instead of
labels, what was taken at most ``radius`` away. Queries without a relevant item are left out of every
retrieval metric, and counted.

Uncertainty is 1/κ. A second uncertainty is the *disagreement* of joint samples: one sampled network embeds
queries and gallery, and each query has a nearest neighbour under it; the uncertainty is one minus the
fraction of samples that agree on its most frequent class, or, without classes, on the most frequent item.
ECE takes the most frequent class as prediction and its fraction as confidence, so it needs classes.

Beside 1/κ stand its rivals, *detectors* that need no posterior: the distance to the nearest vector and
the *novelty* of the embedding, if it was fitted, as -log p. For OOD detection the distance is to the
nearest training embedding, or, where the training data are not given, to the nearest item that is searched;
for error detection it is always the latter. They are measured for a learner without uncertainty too.

A learner without uncertainty (κ = ∞ everywhere) has no values of the metrics that need one: they are left
out, not set to chance.

| name | what | better |
| --- | --- | --- |
| recall@k, map@k | retrieval | higher |
| auroc, auprc, fpr95 | detecting out-of-distribution inputs by uncertainty | higher, higher, lower |
| nearest_distance_auroc, novelty_auroc | the first of them by distance, by novelty | higher |
| ausc, r_auroc, aurc | detecting wrong retrievals by uncertainty | higher, higher, lower |
| false_alarms_1, false_alarms_5 | known inputs that novelty flags at p <= 1 %, 5 % | at most that |
| nearest_distance_r_auroc, novelty_r_auroc | r_auroc by distance, by novelty | higher |
| ece | calibration of the sampled neighbours' agreement | lower |
| agreement_ausc, agreement_r_auroc | detecting wrong retrievals by disagreement | higher |

Samples (s, n, z) of a large set do not fit into memory. They are drawn in passes over the data, of as many
networks as `SAMPLE_BYTES` hold, and only the neighbours found are kept.

Axes: ``s`` samples, ``q`` queries, ``n`` examples of a part, ``z`` embedding.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind import metrics
from surefind.data.dataset import Dataset, as_dataset
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation import PARTS
from surefind.neighbours import nearest, nearest_distance, sampled_nearest
from surefind.pairs.relations import POSITIVE_RADIUS

SAMPLE_BYTES = 2 << 30
"""Samples held at once."""
BATCH = 256
"""Inputs that a network sees at once."""
VECTORS = 2048
"""The same of vectors, such as a frozen backbone's features: sampled heads are drawn once a batch."""
DEPTHS = (1, 5, 10)
CURVE_POINTS = 200
KAPPA_BINS = 60
LARGEST_UNCERTAINTY = 1e30
"""Larger uncertainties are clipped: ∞ has no place on a logarithmic scale."""
RESAMPLES = 200
"""Bootstrap resamples of metrics that are no mean over queries."""


def sampled_neighbours(
    learner: MetricLearner,
    test: Dataset,
    gallery: Dataset | None = None,
    *,
    n_samples: int,
    generator: torch.Generator,
) -> Int[np.ndarray, "s q"]:
    """Find the nearest item of each query under each of several sampled networks.

    Args:
        learner: A fitted learner that can be sampled.
        test: The queries.
        gallery: Where they are looked up; None: the test data themselves, and no query finds itself.
        n_samples: How many networks.
        generator: Draws them.

    Returns:
        Rows of the gallery.
    """
    rows = len(test) + (0 if gallery is None else len(gallery))
    most = SAMPLE_BYTES // (4 * rows * learner.outputs)
    # Whole tens, so that the members of an ensemble, which come in turn, come equally often.
    most = most - most % 10 if most >= 10 else max(1, most)
    found = []
    for start in range(0, n_samples, most):
        count = min(most, n_samples - start)
        # One sampler for both parts: the same networks must embed what is compared.
        draw = learner.sampler(test, count, joint=True, generator=generator)
        samples = _drawn(learner, test, draw, count)
        items = None if gallery is None else _drawn(learner, gallery, draw, count)
        found.append(sampled_nearest(samples, items).numpy())
    return np.concatenate(found)


def _drawn(
    learner: MetricLearner,
    part: Dataset,
    draw: Callable[[Dataset, int], Iterator[Tensor]],
    count: int,
) -> Float[Tensor, "s n z"]:
    """Draw samples of a whole part without a second copy of them."""
    vectors = part.read(slice(0, 1), preprocessing=learner.input_spec_).ndim == 2
    out, at = torch.empty(count, len(part), learner.outputs), 0
    for some in draw(part, VECTORS if vectors else BATCH):
        out[:, at : at + some.shape[1]] = some
        at += some.shape[1]
    return out


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics and curves of one learner on one test set.

    Attributes:
        values: Each metric by name.
        intervals: Bootstrap intervals over queries, (low, high) by name.
        curves: x and y by name.
        left_out: Queries without a relevant item, which no retrieval metric counts.
        embeddings: Of the test inputs ("id"), and of the out-of-distribution inputs ("ood"), the gallery
            and the training data ("train"), if they were given.
        more_ood: AUROC of each detector on each further out-of-distribution set, by the set's name.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    curves: dict[str, dict[str, list[float]]]
    left_out: int = 0
    embeddings: dict[str, Embeddings] = field(default_factory=dict, repr=False)
    more_ood: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def uncertainty(self) -> dict[str, np.ndarray]:
        """1/κ of in-distribution and out-of-distribution inputs, by part."""
        shown = {part: self.embeddings[part] for part in PARTS if part in self.embeddings}
        return {part: e.uncertainty.double().numpy() for part, e in shown.items()}


def evaluate(
    learner: MetricLearner,
    test: Any,
    ood: Any = None,
    *,
    gallery: Any = None,
    radius: Any = POSITIVE_RADIUS,
    generator: torch.Generator,
    ece_samples: int = 100,
    train: Any = None,
    more_ood: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a fitted learner.

    Data are `Dataset`s, or map-style data sets or loaders of PyTorch (`surefind.data.dataset`).

    Args:
        learner: A fitted learner.
        test: Data it has not seen, with labels or positions; the queries.
        ood: Out-of-distribution data.
        gallery: Where the queries are looked up; None for the test data themselves.
        radius: Distance up to which two positions are the same place.
        generator: Draws samples; its seed decides bootstrap resamples.
        ece_samples: Joint samples for calibration and agreement; 0 leaves them out.
        train: The training data, to whose embeddings distances are measured; None takes what is searched.
        more_ood: Further out-of-distribution data by name.

    Returns:
        The metrics, with the embeddings they come from.
    """
    test = as_dataset("test", test)
    # One of PyTorch that is given twice is read once, and stays the same.
    given = {"ood": ood, "gallery": gallery, "train": train}
    ours = {id(part): as_dataset(name, part) for name, part in given.items() if part is not None}
    ood, gallery, train = (ours.get(id(part)) for part in given.values())
    more_ood = {name: as_dataset(name, part) for name, part in (more_ood or {}).items()}
    check_parts(test, gallery)
    parts = {"id": test, "ood": ood, "gallery": gallery, "train": train}
    embeddings = {name: learner.embed(part) for name, part in parts.items() if part is not None}
    items = embeddings.get("gallery")
    draws = np.random.default_rng(generator.initial_seed())
    means = embeddings["id"].mean, None if items is None else items.mean
    judged = judge(means[0], test, means[1], gallery, radius=radius)
    if torch.isinf(embeddings["id"].kappa).all():
        result = measure(judged, draws)
    else:
        uncertainty = {p: e.uncertainty.double().numpy() for p, e in embeddings.items()}
        detection = (uncertainty["id"], uncertainty["ood"]) if "ood" in uncertainty else None
        result = measure(judged, draws, uncertainty=uncertainty["id"], detection=detection)
        if ece_samples:
            found = sampled_neighbours(
                learner, test, gallery, n_samples=ece_samples, generator=generator
            )
            _add_agreement(result, found, judged, test, gallery, draws)
    detectors = Detectors.of(embeddings["id"], items, embeddings.get("train"))
    detectors.add_to(result, judged, embeddings.get("ood"), draws)
    others = {name: detectors.aurocs(learner.embed(part)) for name, part in more_ood.items()}
    return replace(result, embeddings=embeddings, more_ood=others)


@dataclass(frozen=True, eq=False)
class Detectors:
    """What the inputs of one learner can be doubted by: 1/κ, distance, novelty; higher is less sure.

    Attributes:
        known: Embeddings of the test data.
        searched: Uncertainties of the test data by the prefix of their metrics, distances to what is
            searched; without 1/κ.
        reference: Vectors to which distances are measured for OOD detection (n, z).
        scores: Uncertainties of the test data for OOD detection, with 1/κ if there is one.
    """

    known: Embeddings
    searched: dict[str, np.ndarray]
    reference: Tensor
    scores: dict[str, np.ndarray]

    @classmethod
    def of(
        cls, known: Embeddings, items: Embeddings | None, train: Embeddings | None
    ) -> "Detectors":
        """Score the test data.

        Args:
            known: Their embeddings.
            items: The gallery's; None: the test data are the gallery.
            train: The training data's, to measure distances to; None takes what is searched.

        Returns:
            The detectors.
        """
        gallery = known.mean if items is None else items.mean
        searched = _rivals(known, gallery, exclude_self=items is None)
        reference = gallery if train is None else train.mean
        rivals = searched if train is None else _rivals(known, reference)
        return cls(known, searched, reference, _by_kappa(known) | rivals)

    def pairs(self, ood: Embeddings) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the uncertainties of test and OOD inputs, by prefix."""
        theirs = _by_kappa(ood) | _rivals(ood, self.reference)
        return {p: (self.scores[p], theirs[p]) for p in self.scores if p in theirs}

    def aurocs(self, ood: Embeddings) -> dict[str, float]:
        """Compute the AUROC of each detector on out-of-distribution embeddings."""
        return {f"{p}auroc": metrics.auroc(*both) for p, both in self.pairs(ood).items()}

    def add_to(
        self,
        result: Evaluation,
        judged: metrics.Relevance,
        ood: Embeddings | None,
        generator: np.random.Generator,
    ) -> None:
        """Add what κ's rivals reach, with intervals, to the metrics."""
        asked = judged.answerable
        for prefix, uncertainty in self.searched.items():
            scored = judged.hits[asked, 0], uncertainty[asked]
            add_metric(result, f"{prefix}r_auroc", metrics.r_auroc, scored, generator)
        if "novelty_" in self.scores:
            result.values.update(false_alarms(self.scores["novelty_"]))
        pairs = {} if ood is None else self.pairs(ood)
        for prefix, both in pairs.items():
            if prefix:  # κ's own is there already
                add_metric(
                    *(result, f"{prefix}auroc", metrics.auroc, both, generator), independent=True
                )


def novelty_score(novelty: Any) -> np.ndarray:
    """Return p-values as uncertainties: -log p, which tells small ones apart where 1 - p rounds to one."""
    return -np.log(np.asarray(novelty, dtype=np.float64))


def false_alarms(score: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Return the shares of known inputs that are flagged at p <= 1 % and 5 %, from `novelty_score`."""
    # A hair above, because p went through a logarithm.
    return {f"false_alarms_{a}": float(np.mean(np.exp(-score) <= a / 100 + 1e-9)) for a in (1, 5)}


def _by_kappa(embeddings: Embeddings) -> dict[str, np.ndarray]:
    """Return 1/κ, or nothing if every direction is exact."""
    if torch.isinf(embeddings.kappa).all():
        return {}
    return {"": embeddings.uncertainty.double().numpy()}


def _rivals(
    embeddings: Embeddings, reference: Tensor, *, exclude_self: bool = False
) -> dict[str, np.ndarray]:
    distance = nearest_distance(embeddings.mean, reference, exclude_self=exclude_self)
    found = {"nearest_distance_": distance.double().numpy()}
    if embeddings.novelty is not None:
        found["novelty_"] = novelty_score(embeddings.novelty)
    return found


def check_parts(test: Dataset, gallery: Dataset | None = None) -> None:
    """Refuse what cannot be evaluated, before anything is computed.

    Args:
        test: The queries.
        gallery: Where they are looked up; None for the test data themselves.

    Raises:
        InputError: If labels and positions are missing or differ in kind, or there is too little to search.
        DegenerateError: If no query has anything to find.
    """
    searched = test if gallery is None else gallery
    labelled = test.labels is not None and searched.labels is not None
    placed = test.positions is not None and searched.positions is not None
    if not labelled and not placed:
        raise InputError(
            f"evaluation needs test data with labels or positions, and a gallery with the same; got "
            f"{_kind(test)} and {_kind(searched)}."
        )
    least = max(DEPTHS) + (gallery is None)
    if len(searched) < least or not len(test):
        raise InputError(
            f"evaluation looks at {max(DEPTHS)} neighbours of each query, so it needs {least} examples "
            f"to search; got {len(searched)}, and {len(test)} queries.",
            field="test",
            hint="Give more examples.",
        )
    if labelled and not placed and not _answerable(test, gallery):
        raise DegenerateError(
            f"no query of {test.name} has a second example of its class to find, so there is nothing to "
            "score. Give test classes with two examples or more, or a gallery that holds their classes."
        )


def _answerable(test: Dataset, gallery: Dataset | None) -> bool:
    """Return whether some query has another example of its class where it is looked up."""
    assert test.labels is not None
    if gallery is None:
        return bool((test.labels.unique(return_counts=True)[1] > 1).any())
    assert gallery.labels is not None
    return bool(torch.isin(test.labels, gallery.labels).any())


def judge(
    queries: Tensor,
    test: Dataset,
    items: Tensor | None = None,
    gallery: Dataset | None = None,
    *,
    radius: Any = POSITIVE_RADIUS,
) -> metrics.Relevance:
    """Search each query and mark which of its neighbours are relevant.

    Args:
        queries: Unit vectors of the test data (q, z).
        test: Their labels or positions.
        items: Unit vectors of the gallery (g, z); None: the queries are the gallery.
        gallery: Its labels or positions.
        radius: Distance up to which two positions are the same place.

    Returns:
        Hits among the first neighbours, and how many there could be.
    """
    closed = items is None or gallery is None
    if items is None or gallery is None:
        items, gallery = queries, test
    found = nearest(queries, items, max(DEPTHS), exclude_self=closed).indices
    if test.labels is not None and gallery.labels is not None:
        return metrics.relevance(found, test.labels, gallery.labels, self_in_gallery=closed)
    places = test.positions, gallery.positions, radius
    return metrics.relevance_within(found, *places, self_in_gallery=closed)


def measure(
    judged: metrics.Relevance,
    generator: np.random.Generator,
    *,
    uncertainty: np.ndarray | None = None,
    detection: tuple[np.ndarray, np.ndarray] | None = None,
) -> Evaluation:
    """Compute all metrics that need no samples.

    Args:
        judged: From `judge`.
        generator: Draws bootstrap resamples.
        uncertainty: Of each query, to detect wrong retrievals; None leaves error detection out.
        detection: Uncertainty of in-distribution and of OOD inputs; None leaves OOD detection out.

    Returns:
        The metrics, without embeddings.
    """
    result = Evaluation({}, {}, {}, judged.unanswerable)
    per_query = {"recall": metrics.recall_per_query, "map": metrics.average_precision_per_query}
    for k, (name, of) in product(DEPTHS, per_query.items()):
        scores = of(judged, k)
        result.values[f"{name}@{k}"] = float(scores.mean())
        interval = metrics.bootstrap_interval(scores, generator=generator)
        result.intervals[f"{name}@{k}"] = (interval.low, interval.high)
    if uncertainty is not None:
        scored = judged.hits[judged.answerable, 0], uncertainty[judged.answerable]
        add_metric(result, "ausc", metrics.ausc, scored, generator)
        add_metric(result, "r_auroc", metrics.r_auroc, scored, generator)
        result.values["aurc"] = metrics.aurc(*scored)
        sparse = metrics.sparsification_curve(*scored)
        result.curves["sparsification"] = _points(sparse.dropped, sparse.accuracy)
    if detection is not None:
        add_metric(result, "auroc", metrics.auroc, detection, generator, independent=True)
        result.values["auprc"] = metrics.auprc(*detection)
        result.values["fpr95"] = metrics.fpr_at_tpr(*detection)
        roc = metrics.roc_curve(*detection)
        result.curves["roc"] = _points(roc.fpr, roc.tpr)
        pr = metrics.precision_recall_curve(*detection)
        result.curves["precision-recall"] = _points(pr.recall, pr.precision)
    return result


def kappa_histogram(
    uncertainty: Mapping[str, np.ndarray], bins: int = KAPPA_BINS
) -> tuple[list[float], dict[str, list[int]]]:
    """Count log10 κ of each group of inputs in common bins.

    Args:
        uncertainty: 1/κ by group.
        bins: How many.

    Returns:
        The bins' edges, and the counts by group.
    """
    clip = 1 / LARGEST_UNCERTAINTY, LARGEST_UNCERTAINTY
    logs = {group: -np.log10(np.clip(values, *clip)) for group, values in uncertainty.items()}
    low, high = np.quantile(np.concatenate(list(logs.values())), [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), bins + 1)
    counts = {group: np.histogram(values, edges)[0].tolist() for group, values in logs.items()}
    return edges.round(4).tolist(), counts


def _add_agreement(
    result: Evaluation,
    found: np.ndarray,
    judged: metrics.Relevance,
    test: Dataset,
    gallery: Dataset | None,
    generator: np.random.Generator,
) -> None:
    """Add the metrics of the sampled neighbours (s, q)."""
    searched = test if gallery is None else gallery
    found, asked = found[:, judged.answerable], judged.answerable
    if test.labels is not None and searched.labels is not None:
        prediction, confidence = metrics.agreement(searched.labels.numpy()[found])
        right = prediction == test.labels.numpy()[asked]
        add_metric(result, "ece", metrics.ece, (confidence, right), generator)
        curve = metrics.calibration_curve(confidence, right)
        full = curve.counts > 0
        result.curves["calibration"] = _points(curve.confidence[full], curve.accuracy[full])
    else:
        _, confidence = metrics.agreement(found)
    correct, disagreement = judged.hits[asked, 0], 1 - confidence
    result.values["agreement_ausc"] = metrics.ausc(correct, disagreement)
    if 0 < correct.mean() < 1:
        result.values["agreement_r_auroc"] = metrics.r_auroc(correct, disagreement)


def add_metric(
    result: Evaluation,
    name: str,
    metric: Callable[..., float],
    arrays: tuple[np.ndarray, np.ndarray],
    generator: np.random.Generator,
    *,
    independent: bool = False,
) -> None:
    """Add a metric and its interval; leave out what these data do not define."""
    try:
        result.values[name] = metric(*arrays)
        bootstrap = partial(metrics.bootstrap_interval, n_resamples=RESAMPLES, generator=generator)
        interval = bootstrap(*arrays, statistic=metric, independent=independent)
    except DegenerateError:
        return
    result.intervals[name] = (interval.low, interval.high)


def _kind(part: Dataset) -> str:
    has = [n for n in ("labels", "positions") if getattr(part, n) is not None]
    return f"{part.name} with {' and '.join(has) or 'neither'}"


def _points(x: Any, y: Any) -> dict[str, list[float]]:
    """Thin a curve out to what a figure can show."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).astype(int))
    return {"x": x[keep].round(6).tolist(), "y": y[keep].round(6).tolist()}
