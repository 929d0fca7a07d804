"""Running the cells that are missing, seed by seed, row by row."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surefind.evaluation.bench.cells import (
    cell_file,
    check_cell,
    tell_versions,
    versions,
    write_cell,
)
from surefind.evaluation.bench.distance_baselines import PointEstimate, free_scores
from surefind.evaluation.bench.lineup import FREE, fitted, method_of, samples_of, settings_of
from surefind.evaluation.bench.protocols import Problem, load_problem
from surefind.evaluation.bench.showing import (
    corruptions,
    kappa_histograms,
    keep_pictures,
    picture_file,
)
from surefind.evaluation.evaluate import evaluate, judge, measure
from surefind.evaluation.results import read_cell
from surefind.learning.methods.laplace_posthoc import HeadEmbedder
from surefind.learning.seeds import seeded
from surefind.learning.session import Report
from surefind.posterior.contract import Posterior

OnCell = Callable[[str, int, dict[str, float] | None], None]
"""Called with row and seed before a cell, with None, and after it, with its values."""


def run_bench(
    name: str,
    rows: Iterable[str],
    seeds: Iterable[int],
    *,
    data: str | Path | None,
    results: Path,
    work: Path,
    backbone: str | Path | None = None,
    on_cell: OnCell = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    report: Report = lambda *_: None,
) -> None:
    """Run the missing cells of a set that is known by name.

    Args:
        name: One of `PROTOCOLS`.
        rows: From `rows_of`.
        seeds: One cell of each row for each seed.
        data: Folder that holds the data sets.
        results: Where cells are written.
        work: Where training and pictures are kept.
        backbone: Folder of a pretrained network, for the sets that need one.
        on_cell: Called before and after each cell.
        say: Called with sentences that the user should read.
        report: Called after each training step.
    """
    problem = load_problem(name, data, backbone=backbone)
    run_problem(
        problem,
        rows,
        seeds,
        results=results,
        work=work,
        on_cell=on_cell,
        say=say,
        report=report,
    )


def run_problem(
    problem: Problem,
    rows: Iterable[str],
    seeds: Iterable[int],
    *,
    results: Path,
    work: Path,
    on_cell: OnCell = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
    report: Report = lambda *_: None,
) -> None:
    """Run the missing cells of a problem; those that are there are checked first, and kept.

    Args:
        problem: From `load_problem` or `own_problem`.
        rows: From `rows_of`.
        seeds: One cell of each row for each seed.
        results: Where cells are written.
        work: Where training and pictures are kept.
        on_cell: Called before and after each cell.
        say: Called with sentences that the user should read.
        report: Called after each training step.
    """
    for note in problem.notes:
        say(note)
    wanted = list(rows)
    for row in wanted:
        method_of(row)
    if "mahalanobis" in wanted and problem.train.labels is None:
        say(f"mahalanobis is left out: it needs classes, and {problem.train.name} has positions.")
        wanted.remove("mahalanobis")
    files = {
        (seed, row): cell_file(results, problem.name, row, seed) for seed in seeds for row in wanted
    }
    kept = {file: read_cell(file) for file in files.values() if file.exists()}
    for file, cell in kept.items():
        check_cell(file, cell, problem)
    tell_versions(kept, say)
    points: dict[int, PointEstimate] = {}
    for (seed, row), file in files.items():
        if file in kept:
            continue
        on_cell(row, seed, None)
        start = time.perf_counter()
        folder = work / problem.name / f"seed{seed}"
        pictures = picture_file(work, problem.name, row, seed)
        if row in FREE:
            if seed not in points:
                points = {seed: PointEstimate(problem, fitted(row, problem, seed, folder, report))}
            cell = _free_cell(row, points[seed], seed, pictures)
        else:
            cell = _method_cell(row, problem, seed, folder, report, pictures)
        cell["seconds"] = time.perf_counter() - start
        write_cell(file, cell | _identity(row, seed, problem))
        on_cell(row, seed, cell["values"])


def _identity(row: str, seed: int, problem: Problem) -> dict[str, Any]:
    protocol = problem.protocol
    return {
        "set": problem.name,
        "row": row,
        "seed": seed,
        "ood": None if protocol.ood is None else protocol.ood[0],
        "settings": settings_of(row),
        "protocol": protocol.settings(),
        "examples": problem.examples,
        "files": problem.files,
        "versions": versions(),
    }


def _method_cell(
    row: str, problem: Problem, seed: int, folder: Path, report: Report, pictures: Path
) -> dict[str, Any]:
    learner = fitted(row, problem, seed, folder, report)
    samples = samples_of(row, problem)
    result = evaluate(
        learner,
        problem.test,
        problem.ood,
        gallery=problem.gallery,
        generator=seeded(seed, "evaluation"),
        ece_samples=samples,
    )
    cell = {
        "values": _finite(result.values),
        "intervals": result.intervals,
        "curves": result.curves,
        "left_out": result.left_out,
        "history": {k: [asdict(e) for e in v] for k, v in learner.history_.items()},
    }
    if "ausc" in result.values:
        cell |= {
            "kappa": kappa_histograms(result.uncertainty),
            "corruptions": corruptions(problem, learner, seeded(seed, "corruptions")),
            "ece_samples": samples,
        }
        generator = seeded(seed, "pictures")
        keep_pictures(pictures, problem, result.uncertainty, result.embeddings, generator)
    if isinstance(learner.fitted, HeadEmbedder):
        cell["posterior"] = _described(learner.fitted.posterior)
    return cell


def _described(posterior: Posterior) -> dict[str, float]:
    """Say what the rule for scale and prior came to: from which precision to which the weights have."""
    precision = posterior.precision
    return {
        "clipped": posterior.clipped,
        "least_precision": float(precision.min()),
        "median_precision": float(precision.median()),
        "largest_precision": float(precision.max()),
    }


def _free_cell(row: str, point: PointEstimate, seed: int, pictures: Path) -> dict[str, Any]:
    problem, scores = point.problem, free_scores(row, point)
    judged = judge(point.test, problem.test, point.gallery, problem.gallery)
    strange = None if scores.strange is None else (scores.known, scores.strange)
    result = measure(judged, seeded(seed, "evaluation"), doubt=scores.doubt, strange=strange)
    uncertainty = {"id": scores.known}
    if scores.strange is not None:
        uncertainty["ood"] = scores.strange
    keep_pictures(pictures, problem, uncertainty, {}, seeded(seed, "pictures"))
    return {
        "values": _finite(result.values),
        "intervals": result.intervals,
        "curves": result.curves,
        "left_out": result.left_out,
    }


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Leave out what is no number: JSON has none for it, and no table should."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
