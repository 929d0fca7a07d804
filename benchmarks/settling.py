"""What the settings of frozen backbones were chosen by: parts of the training data, never a test set.

    python benchmarks/settling.py --data DATA --backbone FOLDER [--only cub200 | places] [--cache FOLDER]

CUB200: each third of the training classes in turn is asked about itself, and a head trained on the other
two. Places: Nordland from its 800th frame on, Nordland up to it, and SPED are asked (winter in summer, one
camera in another season), each by a head that was fitted to the other two. Every head is trained once, with
seed 0. Results that are there are kept, with what votes over labels and places reached then.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import environment

from surefind.evaluation.evaluate import evaluate
from surefind.learning.seeds import seeded
from surefind.pairs.relations import POSITIVE_RADIUS
from surefind.paper.catalogue import load
from surefind.paper.frozen import frozen_problem, with_features
from surefind.paper.photographs import CITY_STEP
from surefind.paper.protocols import PROTOCOLS, Problem, load_problem, training_parts
from surefind.paper.running import train_method

RESULTS = Path(__file__).parent / "results" / "settling.json"
THIRDS = 3
HALFWAY = 800
"""Nordland's frame that divides it, of 1,622 that lie half a radius apart."""

Settings = dict[str, Any]
UNTRAINED: Settings = {"epochs": 0}
WITHIN: Settings = {"head": "whitened-within"}
TRIED: dict[str, dict[str, Settings]] = {
    "cub200": {
        "identity, not trained": UNTRAINED,
        "identity, margin 0.5": {"margin": 0.5},
        "identity, margin 1 (taken)": {},
        "identity, margin 1.5": {"margin": 1.5},
        "identity, margin 1, 12 epochs": {"epochs": 12},
        "identity, margin 1, batches at random": {"examples_per_class": None},
        "identity, margin 1, 1e-5": {"learning_rate": 1e-5},
        "identity, margin 1, 3e-4": {"learning_rate": 3e-4},
        "whitened within, not trained": WITHIN | UNTRAINED,
        "whitened within, margin 1": WITHIN,
        "whitened within, margin 1.5": WITHIN | {"margin": 1.5},
    },
    "places": {
        "identity, not trained": {"head": "identity"} | UNTRAINED,
        "identity, margin 0.1 (the paper's, of MSLS)": {"head": "identity", "margin": 0.1},
        "identity, margin 1": {"head": "identity", "margin": 1.0},
        "whitened within, not trained": UNTRAINED,
        "whitened within, margin 0.1": {"margin": 0.1},
        "whitened within, margin 1": {"margin": 1.0},
        "whitened within, margin 1.5 (taken)": {},
    },
}
"""What differs from the protocol of a frozen backbone."""


def divided(name: str, data: Path, backbone: Path, cache: Path) -> Iterator[Problem]:
    """Make problems of the training part of a set."""
    named = {"cub200": "cub200", "places": "gardens-point"}[name]
    protocol = PROTOCOLS[named]
    if name == "places":
        protocol = replace(protocol, validation="none")
    whole = load_problem(named, data, backbone=backbone, protocol=protocol)
    # What is tested on is not even embedded.
    whole = replace(whole, test=whole.train, gallery=None, ood=None, more_ood={})
    whole = with_features(frozen_problem(whole, cache=cache), cache, lambda *_: None)
    if name == "cub200":
        yield from classes(whole)
    else:
        yield from places(whole, np.isin(whole.train.names, load(named, data)["train-query"].names))


def classes(whole: Problem) -> Iterator[Problem]:
    labels = np.unique(np.asarray(whole.train.labels), return_inverse=True)[1]
    for third in range(THIRDS):
        asked = labels % THIRDS == third
        yield replace(whole, train=rows(whole.train, ~asked), test=rows(whole.train, asked))


def places(whole: Problem, asking: np.ndarray) -> Iterator[Problem]:
    assert whole.train.positions is not None
    city, along = np.divmod(np.asarray(whole.train.positions)[:, 0], CITY_STEP)
    late = along >= HALFWAY * POSITIVE_RADIUS / 2
    nordland = city == city.min()
    for asked in (nordland & late, nordland & ~late, ~nordland):
        train, validation = training_parts(rows(whole.train, ~asked), "place")
        assert validation is not None
        yield replace(
            whole,
            train=train,
            validation=validation,
            test=rows(whole.train, asked & asking),
            gallery=rows(whole.train, asked & ~asking),
        )


def rows(part: Any, some: np.ndarray) -> Any:
    return part[np.flatnonzero(some)]


def measured(problem: Problem, settings: Settings) -> dict[str, float]:
    """Train a head with some settings, and ask it."""
    assert problem.freezing is not None
    head = settings.get("head", problem.freezing.head)
    changed = {name: value for name, value in settings.items() if name != "head"}
    problem = replace(
        problem,
        protocol=replace(problem.protocol, **changed, novelty=False),
        freezing=replace(problem.freezing, head=head),
    )
    with tempfile.TemporaryDirectory() as folder:
        learner = train_method("deterministic", problem, 0, Path(folder), lambda *_: None)
    found = evaluate(
        learner,
        problem.test,
        gallery=problem.gallery,
        generator=seeded(0, "evaluation"),
        ece_samples=0,
        train=problem.train,
    )
    return {"recall@1": found.values["recall@1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--only", choices=TRIED)
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen")
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    table["environment"] = environment()
    for name in [given.only] if given.only else TRIED:
        problems = list(divided(name, given.data, given.backbone, given.cache))
        found = table.setdefault(f"{name}, {given.backbone.name}", {})
        for setting, settings in TRIED[name].items():
            if setting not in found:
                found[setting] = [measured(problem, settings) for problem in problems]
                RESULTS.write_text(json.dumps(table, indent=1) + "\n")
            print(name, setting, found[setting], flush=True)


if __name__ == "__main__":
    main()
