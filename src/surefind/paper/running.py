"""Train and measure the methods of a benchmark that have no result yet, seed by seed.

A result that is there is kept, never measured twice. It is refused if it is invalid, or was made by another
protocol, on other data or with other settings of the method: then its numbers do not compare, and the user
decides which to keep.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_choice
from surefind.data.batches import like_network
from surefind.errors import InputError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation import DETECTORS
from surefind.evaluation.evaluate import (
    DEPTHS,
    LARGEST_UNCERTAINTY,
    Evaluation,
    evaluate,
    false_alarms,
    judge,
    kappa_histogram,
    measure,
)
from surefind.learning.methods import METHODS as METHOD_CLASSES
from surefind.learning.methods import DeepEnsemble, LaplaceOnline, LaplacePosthoc
from surefind.learning.methods.contract import Method
from surefind.learning.methods.laplace_posthoc import HeadEmbedder
from surefind.learning.seeds import seeded
from surefind.learning.session import Report
from surefind.metrics import auroc, recall_per_query
from surefind.paper.artifacts import extreme_images, write_strips
from surefind.paper.baselines import CLASSIFIERS, PointEstimate, baseline_scores
from surefind.paper.corruptions import corruption_curves
from surefind.paper.frozen import with_features
from surefind.paper.protocols import Problem, Protocol
from surefind.paper.recipes import SampledEmbedder
from surefind.paper.results import Result, read_result, result_file, write_result
from surefind.paper.vocabulary import ABLATION, BASELINES, LAYERS, METHODS

OF_LAYERS = (LAYERS, "layers-label-model")
"""Rows of the head in closed form on all layers."""
SHARED = ("deterministic", "laplace-posthoc", "pfe", "deep-ensemble", LAYERS, *BASELINES)
"""Methods whose first training stage is the point estimate."""
DIFFERENT = {
    "protocol": "by another protocol",
    "examples": "on other data",
    "files": "on other files",
    "settings": "with other settings of the method",
}
"""What it means if a result differs from what is to be measured."""
UNSAID = {"layers": "head"}
"""Settings that stored results name and methods do not: there is no other."""
NEED_CLASSES = ("mahalanobis", *CLASSIFIERS)
"""Distance baselines that data with positions only cannot have."""
WIDE = 50.0
"""Metres of the second radius, where the first is 25."""
CORRUPTED = 256
"""Test images that are corrupted."""
BATCH = 64

OnResult = Callable[[str, int, dict[str, float] | None], None]
"""Called with method and seed before a measurement, with None, and after it, with its values."""


def select_methods(names: Iterable[str], *, with_ablation: bool) -> list[str]:
    """Return the methods of these names ("all" for all), in the order in which they are best run."""
    known, wanted = [*METHODS, *BASELINES], set(names)
    for name in wanted:
        check_choice("method", name, ["all", *known])
    chosen = [name for name in known if wanted & {"all", name}]
    return [*chosen, *(ABLATION if with_ablation else ())]


def build_method(name: str, protocol: Protocol | None = None) -> Method:
    """Return a method with its options, the protocol's if it has some for it.

    Args:
        name: The method; a distance baseline's is the point estimate.
        protocol: How it is benchmarked; None for the defaults.

    Returns:
        The method.
    """
    check_choice("method", name, [*METHODS, *BASELINES, *ABLATION])
    given = (None if protocol is None else protocol.options) or {}
    if name in ABLATION:
        _, stage, *options = name.split("-")
        variant: Any = LaplacePosthoc if stage == "posthoc" else LaplaceOnline
        return cast(Method, variant(*options, **given.get(f"laplace-{stage}", {})))
    if name in OF_LAYERS:
        return LaplacePosthoc()
    kind: Any = METHOD_CLASSES["deterministic" if name in BASELINES else name]
    return cast(Method, kind(**given.get(name, {})))


def method_settings(name: str, protocol: Protocol | None = None) -> dict[str, Any]:
    """Return the options of a method as JSON holds them."""
    method = build_method(name, protocol)
    options: dict[str, Any] = asdict(method) if is_dataclass(method) else {}
    own = {"embedding": LAYERS} if name in OF_LAYERS else {}
    return {"method": type(method).__name__, **own, **json.loads(json.dumps(options))}


def joint_samples(name: str, problem: Problem) -> int:
    """Return how many joint samples a method needs; an ensemble has no more than its members."""
    method, wanted = build_method(name, problem.protocol), problem.protocol.ece_samples
    return min(wanted, method.members) if isinstance(method, DeepEnsemble) else wanted


def train_method(
    name: str, problem: Problem, seed: int, work: Path, report: Report
) -> MetricLearner:
    """Train a method, resume its training, or load what was trained.

    Args:
        name: The method.
        problem: Data, network and protocol.
        seed: Decides everything random.
        work: Folder of the seed's checkpoints.
        report: Called after each training step.

    Returns:
        The fitted learner.
    """
    protocol, method = problem.protocol, build_method(name, problem.protocol)
    online = isinstance(method, LaplaceOnline)
    learner = MetricLearner(
        problem.build(seeded(seed, "encoder")),
        method=method,
        epochs=protocol.online_epochs if online else protocol.epochs,
        seed=seed,
        batch_size=protocol.online_batch_size if online else protocol.batch_size,
        margin=protocol.margin,
        learning_rate=protocol.learning_rate,
        decay=protocol.decay,
        examples_per_class=protocol.examples_per_class,
        preprocessing=problem.preprocessing,
        objective=protocol.objective,
        embedding="layers" if name in OF_LAYERS else "head",
        novelty=protocol.novelty,
        freeze_backbone=problem.freezing or False,
    )
    learner.fit(
        problem.train,
        held_out=problem.validation,
        folder=work / checkpoint_folder(name),
        report=report,
    )
    if protocol.kappa_samples is not None and isinstance(learner.fitted, HeadEmbedder):
        learner.embedder_ = SampledEmbedder(learner.fitted, protocol.kappa_samples, seed)
    return learner


def checkpoint_folder(name: str) -> str:
    """Return the folder of a method's checkpoints; methods that train alike share one."""
    if name in SHARED or name.startswith("laplace-posthoc"):
        return "shared"
    return "laplace-online" if build_method(name) == LaplaceOnline() else name


def run_problem(
    problem: Problem,
    methods: Iterable[str],
    seeds: Iterable[int],
    *,
    results: Path,
    work: Path,
    on_result: OnResult = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    report: Report = lambda *_: None,
) -> None:
    """Measure what has no result yet; the results that are there are checked first, and kept.

    Args:
        problem: From `load_problem` or `custom_problem`.
        methods: From `select_methods`.
        seeds: One result of each method for each seed.
        results: Folder of the results.
        work: Folder of checkpoints and artifacts.
        on_result: Called before and after each measurement.
        say: Called with sentences that the user should read.
        report: Called after each training step.
    """
    for note in problem.notes:
        say(note)
    wanted = _measurable(methods, problem, say)
    files = {
        (seed, method): result_file(results, problem.name, method, seed)
        for seed in seeds
        for method in wanted
    }
    kept = {file: read_result(file) for file in files.values() if file.exists()}
    for file, result in kept.items():
        check_comparable(file, result, problem)
    _report_kept(kept, problem, say)
    if len(kept) < len(files):
        problem = with_features(problem, work, report)
    versions = {package: version(package) for package in ("surefind", "torch", "numpy")}
    versions["python"] = platform.python_version()
    points: dict[tuple[int, bool], PointEstimate] = {}
    for (seed, method), file in files.items():
        if file in kept:
            continue
        on_result(method, seed, None)
        start = time.perf_counter()
        train = partial(train_method, method, problem, seed, work / problem.name / f"seed{seed}")
        artifacts = work / problem.name / f"{method}-seed{seed}.npz"
        if method in BASELINES:
            key = seed, method in OF_LAYERS
            if key not in points:
                points = {key: PointEstimate(problem, train(report))}
            if method == "novelty" and not points[key].has_novelty:
                say(f"novelty of seed {seed} is left out: the point estimate has none fitted.")
                continue
            measured = _measure_baseline(method, points[key], seed, artifacts)
        else:
            measured = _measure_method(method, problem, train(report), seed, artifacts)
        result = Result(
            **measured,
            seconds=time.perf_counter() - start,
            dataset=problem.name,
            method=method,
            seed=seed,
            **_conditions(method, problem),
            versions=versions,
        )
        write_result(results, result)
        on_result(method, seed, result.values)


def _measurable(methods: Iterable[str], problem: Problem, say: Callable[[str], None]) -> list[str]:
    """Return the methods without those that the data cannot have, and say which these are."""
    wanted = list(methods)
    for method in wanted:
        build_method(method)
    for method in NEED_CLASSES if problem.train.labels is None else ():
        if method in wanted:
            say(f"{method} is left out: it needs classes, and {problem.train.name} has positions.")
            wanted.remove(method)
    return wanted


def _conditions(method: str, problem: Problem) -> dict[str, Any]:
    """Return under what a method is measured: results that differ in it do not compare."""
    return {
        "settings": method_settings(method, problem.protocol),
        "protocol": problem.protocol.settings(),
        "examples": problem.examples,
        "files": problem.files,
    }


def check_comparable(file: Path, result: Result, problem: Problem) -> None:
    """Refuse a stored result that was measured under other conditions than this problem has."""
    conditions = _conditions(result.method, problem)
    for field, how in DIFFERENT.items():
        stored, now = getattr(result, field), conditions[field]
        then = {k: v for k, v in stored.items() if (k, v) not in UNSAID.items()}
        if then != now:
            changed = [k for k in {**now, **then} if then.get(k) != now.get(k)]
            said = ", ".join(f"{k} was {then.get(k)!r}, is {now.get(k)!r}" for k in changed)
            raise InputError(
                f"{file} was measured {how}: {said}. Write to another folder of results, or move this one "
                "away to measure it again."
            )
    for name, part in problem.ood_parts.items():
        there = result.ood.get(name)
        if there is not None and there.examples != len(part):
            raise InputError(
                f"{file} was measured on other OOD data: {name} had {there.examples} inputs, has "
                f"{len(part)}. Write to another folder of results, or move this one away to measure it "
                "again."
            )


def _report_kept(
    results: Mapping[Path, Result], problem: Problem, say: Callable[[str], None]
) -> None:
    """Say which results another version of surefind made, or were measured on fewer OOD sets."""
    here, others = version("surefind"), dict[str, list[str]]()
    for file, result in results.items():
        missing = [name for name in problem.more_ood if name not in result.ood]
        for why, holds in (
            (f"made by surefind {result.version}, and this is {here}", result.version != here),
            (f"not measured on the OOD sets {', '.join(missing)}", missing),
        ):
            if holds:
                others.setdefault(why, []).append(file.name)
    for why, files in sorted(others.items()):
        say(
            f"{len(files)} results are kept that were {why}: {', '.join(files)}. Delete them to measure "
            "them again."
        )


def _measure_method(
    name: str, problem: Problem, learner: MetricLearner, seed: int, artifacts: Path
) -> dict[str, Any]:
    samples = joint_samples(name, problem)
    found = evaluate(
        learner,
        problem.test,
        problem.ood,
        gallery=problem.gallery,
        generator=seeded(seed, "evaluation"),
        ece_samples=samples,
        train=problem.train,
        more_ood=problem.more_ood,
    )
    measured = _measured(found) | {
        "ood": _ood_results(problem, found.values, found.more_ood),
        "history": {
            stage: [{"loss": e.loss, "seconds": e.seconds} for e in v]
            for stage, v in learner.history_.items()
        },
    }
    if "ausc" in found.values:
        edges, counts = kappa_histogram(found.uncertainty)
        measured |= {
            "kappa": {"edges": edges, **counts},
            "corruptions": _corruptions(problem, learner, seeded(seed, "corruptions")),
            "ece_samples": samples,
        }
        _save_strips(artifacts, problem, found.uncertainty)
    if problem.protocol.metres:
        measured["values"] |= _wider_recall(problem, learner)
    fitted = learner.embedder_for(problem.test)
    if isinstance(fitted, SampledEmbedder):
        fitted = fitted.embedder
    posterior = fitted.posterior if isinstance(fitted, HeadEmbedder) else None
    if learner.layers_ is not None and learner.layers_.posterior is not None:
        posterior = learner.layers_.posterior
    if posterior is not None:
        precision = posterior.precision
        measured["posterior"] = {
            "clipped": posterior.clipped,
            "least_precision": float(precision.min()),
            "median_precision": float(precision.median()),
            "largest_precision": float(precision.max()),
        }
    return measured


def _wider_recall(problem: Problem, learner: MetricLearner) -> dict[str, float]:
    """Return recall where anything within `WIDE` metres is the same place."""
    gallery = problem.gallery
    items = None if gallery is None else learner.embed(gallery).mean
    judged = judge(learner.embed(problem.test).mean, problem.test, items, gallery, radius=WIDE)
    return {f"recall@{k}_{WIDE:g}m": float(recall_per_query(judged, k).mean()) for k in DEPTHS}


def _measure_baseline(
    name: str, point: PointEstimate, seed: int, artifacts: Path
) -> dict[str, Any]:
    problem, scores = point.problem, baseline_scores(name, point)
    items = None if problem.gallery is None else point.unit(problem.gallery)
    judged = judge(point.unit(problem.test), problem.test, items, problem.gallery)
    if scores.answers is not None:
        hits = np.zeros_like(judged.hits)
        hits[:, 0] = scores.answers == np.asarray(problem.test.labels)
        judged = replace(judged, hits=hits)
    uncertainty, detection = {"id": scores.id}, None
    if scores.ood is not None:
        uncertainty["ood"], detection = scores.ood, (scores.id, scores.ood)
    draws = np.random.default_rng(seeded(seed, "evaluation").initial_seed())
    found = measure(judged, draws, uncertainty=scores.retrieval, detection=detection)
    if name == "novelty":
        found.values.update(false_alarms(scores.id))
    if scores.answers is not None:
        values, intervals = _of_answers(found.values), _of_answers(found.intervals)
        found = replace(found, values=values, intervals=intervals)
    _save_strips(artifacts, problem, uncertainty)
    more = {name: {"auroc": auroc(scores.id, ood)} for name, ood in scores.more_ood.items()}
    return _measured(found) | {"ood": _ood_results(problem, found.values, more)}


def _of_answers(measured: dict[str, Any]) -> dict[str, Any]:
    """Name the share of right answers so, and leave out what ranks items."""
    return {"right": measured["recall@1"]} | {k: v for k, v in measured.items() if "@" not in k}


def _ood_results(
    problem: Problem, first: Mapping[str, float], more: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Return what a result records of each out-of-distribution set, the first one's among its values."""
    names = {f"{prefix}auroc" for prefix in DETECTORS}
    recorded = {}
    for name, part in problem.ood_parts.items():
        values = more.get(name, first)
        recorded[name] = {
            "kind": problem.ood_kind(name),
            "examples": len(part),
            **{key: values[key] for key in sorted(names & values.keys())},
        }
    return recorded


def _measured(found: Evaluation) -> dict[str, Any]:
    return {
        # JSON has no word for NaN and infinity, and no table should.
        "values": {name: v for name, v in found.values.items() if math.isfinite(v)},
        "intervals": found.intervals,
        "curves": found.curves,
        "left_out": found.left_out,
    }


def _corruptions(
    problem: Problem, learner: MetricLearner, generator: torch.Generator
) -> dict[str, Any]:
    """Trace uncertainty against blur, noise and occlusion of test images, if these pass the network."""
    if not problem.images or problem.freezing is not None:
        return {}
    chosen = torch.randperm(len(problem.test), generator=generator)[:CORRUPTED].sort().values
    images = problem.test.read(chosen, preprocessing=problem.shown)

    def uncertainty(batch: Tensor) -> np.ndarray:
        wanted = problem.preprocessing
        inputs = batch if wanted is None else wanted.normalise(batch)
        parts = like_network(inputs, learner.encoder).split(BATCH)  # type: ignore[no-untyped-call]
        found = torch.cat([learner.fitted.embed(x).uncertainty for x in parts])
        return np.asarray(found.double().clamp(max=LARGEST_UNCERTAINTY))

    return dict(corruption_curves(uncertainty, images, generator))


def _save_strips(file: Path, problem: Problem, uncertainty: Mapping[str, np.ndarray]) -> None:
    """Save the least and the most uncertain images, if there are any."""
    strips: dict[str, np.ndarray] = {}
    for part, values in uncertainty.items() if problem.images else ():
        read = partial(problem.data(part).read, preprocessing=problem.shown)
        strips |= extreme_images(part, read, values)
    if strips:
        write_strips(file, strips)
