"""Preflight: before anything long, check where it writes, and estimate its time and memory.

Training is tried on a copy for a few steps; the first of them is left out, because it pays for what happens
once. So the estimate is of the steps of the first stage alone: loading libraries and data, later stages, a
posterior after the steps, saving and drawing come on top, and dominate where training is short. Where the
backbone is frozen, the pass that computes features is timed on two batches, and the steps on theirs.

A fit without steps is estimated as a whole, from small parts of its data: the pass over them and their
pairs, the tuning of the posterior, and novelty; the last two look at samples, and do not grow beyond them.

Memory is the peak of the process so far, on the GPU if one is in use, and what is known to be held later.
Both are rough: another program on the same machine changes the first, a larger last batch the second.
"""

import copy
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import surefind as sf
from surefind.errors import CommandInterruptedError, DegenerateError, InputError

WARM_UP = 3
"""Steps that are timed, after a first one."""
PASSED = 2
"""Batches that pass a frozen backbone to be timed, the first among them."""
LEAST = 512
"""Examples from which a pass can be timed."""
HELD = 4
"""How often a fit without steps holds the outputs of all examples at once, as measured."""


@dataclass(frozen=True)
class Estimate:
    """Time in seconds, and memory in bytes, or None where the system does not report it."""

    seconds: float
    memory: int | None

    def __str__(self) -> str:
        room = "" if self.memory is None else f", {size_text(self.memory)} of memory"
        return f"about {duration_text(self.seconds)}{room}"


def training_estimate(learner: "sf.MetricLearner", dataset: "sf.Dataset") -> Estimate | None:
    """Time a few training steps and extrapolate; nothing is changed or written.

    Returns:
        The estimate for all steps of the first stage, times the members of an ensemble; None if there is no
        step to try.
    """
    from surefind.learning.methods import METHODS

    if not learner.epochs:
        return None  # or else the trial would be the whole fit
    times: list[float] = []
    total = 0

    def watch(_stage: str, at: Any) -> None:
        nonlocal total
        times.append(time.perf_counter())
        total = at.epochs * at.steps
        if len(times) > WARM_UP or len(times) == total:
            raise CommandInterruptedError("enough steps were timed.")

    tried = copy.copy(learner)
    tried.novelty = None  # its pass is no training step
    start = time.perf_counter()
    with suppress(CommandInterruptedError):
        tried.fit(dataset, report=watch)
    if not times:
        return None
    step = times[0] - start if len(times) == 1 else (times[-1] - times[0]) / (len(times) - 1)
    method = METHODS[learner.method]() if isinstance(learner.method, str) else learner.method
    return Estimate(step * total * getattr(method, "members", 1), peak_memory())


def frozen_trial(
    learner: "sf.MetricLearner", dataset: "sf.Dataset"
) -> "tuple[Estimate, sf.MetricLearner, sf.Dataset]":
    """Time the pass of a few batches through a frozen backbone; nothing is changed or written.

    Returns:
        The estimate for all images and views; and a learner with a data set of these few features, each
        many times over, on which what comes after the pass can be timed.
    """
    import numpy as np

    from surefind.data.feature_views import FeatureViews
    from surefind.learning.feature_pass import BATCH

    freezing = learner.freezing
    assert freezing is not None
    times = [time.perf_counter()]
    tried = copy.copy(learner)
    tried.freeze_backbone = replace(freezing, cache=None, views=0, head="given")
    few = dataset[: PASSED * BATCH]
    found = tried.features(few, report=lambda *_: times.append(time.perf_counter()))
    first = len(times) > 2  # the first batch pays for what happens once
    rows = len(few) - BATCH if first else len(few)
    seconds = (times[-1] - times[1 if first else 0]) / rows
    views = found.inputs
    assert isinstance(views, FeatureViews)
    repeated = replace(views, rows=np.arange(len(dataset)) % len(few))
    stand_in = replace(dataset, inputs=repeated)
    whole = seconds * len(dataset) * (1 + freezing.views)
    return Estimate(whole, peak_memory()), tried, stand_in


def posterior_estimate(learner: "sf.MetricLearner", dataset: "sf.Dataset") -> Estimate | None:
    """Time fits without training steps on two small parts of the data, and extrapolate.

    A pass over the data grows linearly, one over its pairs with the square.

    Returns:
        The estimate; None if there are so few data that it would take as long as the fit, or a part has
        no pairs.
    """
    import torch

    from surefind.learning.methods import LaplacePosthoc
    from surefind.learning.seeds import seeded

    n = len(dataset)
    m = max(LEAST, n // 32)
    if 4 * m > n:
        return None
    # At random: data are often in the order of their classes.
    order = torch.randperm(n, generator=seeded(0, "estimate"))
    tried = copy.copy(learner)
    tried.novelty = None
    if isinstance(tried.method, LaplacePosthoc):
        tried.method = replace(tried.method, scale=1.0, prior_precision=1.0)
    fits, looks = [], []
    for size in (m, m, 2 * m):  # the first only pays for what happens once
        part = dataset[order[:size]]
        try:
            fits.append(_timed(lambda: tried.fit(part)))  # noqa: B023
        except DegenerateError:
            return None
        if learner.novelty is not None:
            tried.novelty = learner.novelty
            looks.append(_timed(lambda: tried.fit_novelty(part)))  # noqa: B023
            tried.novelty = None
    seconds = _extrapolated(fits[1], fits[2], n / m)
    if learner.novelty is not None:
        seconds += _extrapolated(looks[1], looks[2], min(n, learner.novelty.sample) / m)
    seconds += tuning_seconds(learner, tried, dataset, order)
    return Estimate(seconds, _with_outputs(learner, n))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _extrapolated(one: float, two: float, times: float) -> float:
    """Return how long it takes for ``times`` as much, where once and twice as much took so long."""
    square = max(0.0, two - 2 * one) / 2
    line = max(0.0, one - square)
    return line * times + square * times**2


def tuning_seconds(
    learner: "sf.MetricLearner", tried: "sf.MetricLearner", dataset: "sf.Dataset", order: Any
) -> float:
    """Estimate how long the posterior is tuned, from the first two of the candidates.

    Args:
        learner: What is to be fitted.
        tried: The same, fitted without tuning.
        dataset: The training data.
        order: Row numbers in a random order.

    Returns:
        Seconds; 0 if nothing is tuned.
    """
    import torch

    from surefind.learning.freezing import FrozenEmbedder
    from surefind.learning.inference import like_network
    from surefind.learning.methods import LaplacePosthoc
    from surefind.learning.methods.laplace_posthoc import HeadEmbedder
    from surefind.posterior.tuning import EXAMPLES, SPREADS, TuningSample, calibrate_scale

    method = learner.method
    given = isinstance(method, LaplacePosthoc) and (method.scale, method.prior_precision)
    whole = tried.fitted
    fitted = whole.upper if isinstance(whole, FrozenEmbedder) else whole
    if given != (None, None) or not isinstance(fitted, HeadEmbedder) or dataset.labels is None:
        return 0.0
    rows = order[:EXAMPLES]
    with torch.no_grad():
        inputs = dataset.read(rows, preprocessing=tried.preprocessing)
        features = fitted.encoder.features(like_network(inputs, fitted.encoder))
    sample = TuningSample(features, (), dataset.labels[rows]).float()
    drawn = torch.Generator().manual_seed(0)
    # Heads are drawn for the first candidate, and serve them all.
    first, both = (
        _timed(partial(calibrate_scale, fitted.posterior, sample, drawn, SPREADS[:n]))
        for n in (1, 2)
    )
    return first + (len(SPREADS) - 1) * max(0.0, both - first)


def _with_outputs(learner: "sf.MetricLearner", n: int) -> int | None:
    """Return the peak memory so far with what a fit of ``n`` examples holds: features, outputs, scans."""
    peak = peak_memory()
    if peak is None:
        return None
    outputs, inputs = learner.encoder.head_weights().shape
    return int(peak + 4 * n * (inputs + HELD * outputs))


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes; None where the system does not report it."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def duration_text(seconds: int | float) -> str:
    """Format a duration for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def size_text(size: int | float) -> str:
    """Format a number of bytes for people, to two digits or more: 812 bytes, 1.3 MB, 420 MB, 1.3 GB."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    exact = units[0] == "bytes" or size >= 9.95
    return f"{round(size):,} {units[0]}" if exact else f"{size:.1f} {units[0]}"


def check_place(folder: Path, needed: int, *, field: str = "out") -> None:
    """Require a folder, perhaps yet to be made, that can be written and has room for ``needed`` bytes."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(
            f"cannot write to {folder}: {there} is {'read-only' if there.is_dir() else 'a file'}. Give "
            "another folder.",
            field=field,
        )
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"{folder} needs about {size_text(needed)}, {size_text(needed - free)} more than the disk has "
            f"left ({size_text(free)}). Free some space, or write elsewhere.",
            field=field,
        )


def check_file(file: Path, suffixes: Sequence[str]) -> None:
    """Require a name with one of these suffixes that a file can be written under."""
    if file.suffix.lower() not in suffixes:
        raise InputError(
            f"{file} must end in {' or '.join(suffixes)}, which decides what is written.",
            field="out",
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the name of a file.", field="out")
    check_place(file.parent, 0)
