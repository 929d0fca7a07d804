"""Benchmarks on a frozen backbone: every part passes it once, and methods see its features.

`surefind bench cub200 --backbone FOLDER --freeze-backbone` trains a head, which starts as the identity, on
features of the backbone; with ``--trained-stages 1`` its last stage too. Results are under
``{set}-frozen-{backbone}`` or ``{set}-last1-{backbone}``. What differs from the protocol that trains the
whole network:

| | head alone | with the last stage |
| --- | --- | --- |
| learning rate | 1e-4 | 1e-5 |
| epochs | 6 | 3 |
| head starts as | the identity; of places, whitened within them | the same |
| margin | the set's own; of places 1.5 | the same |
| examples of a class in a batch | 4, or the set's own number | the same |
| networks of MC dropout, joint samples | 20 | 20 |
| temperature of online LAM | 0.01 | 0.01 |

Settled on CUB200's training classes (ResNet-50, two thirds of them trained on, recall@1 on the others):
0.798 as it comes; 0.811 after four epochs at 3e-5 with batches of four images a class, 0.802 at 1e-5 with
batches at random; 0.813 after six at 1e-4, 0.784 at 3e-4. A head that starts whitened within classes begins
at 0.80 and ends at the same 0.814; whitening all features costs 0.01 (0.848 to 0.835 over three such parts,
before training).

Places differ from birds: the same one by day and by night, in summer and in winter, differs in directions
that all places share, and whitening within them (`surefind.pairs.whitening`) takes these out. Settled on
the training places (EfficientNet-Lite0; fitted on SPED and one part of Nordland, tested on the other, and
fitted on Nordland, tested on SPED), six epochs at 1e-4, recall@1, and R-AUROC of the vote:

    identity, not trained                           0.096, 0.083, 0.481     0.720, 0.824, 0.852
    identity, margin 0.1 (the paper's, of MSLS)     0.234, 0.151, 0.473     0.797, 0.773, 0.839
    identity, margin 1                              0.227, 0.175, 0.493     0.809, 0.800, 0.872
    whitened within, not trained                    0.257, 0.175, 0.502     0.746, 0.791, 0.878
    whitened within, margin 1                       0.266, 0.164, 0.511     0.781, 0.801, 0.868
    whitened within, margin 1.5                     0.287, 0.207, 0.506     0.768, 0.796, 0.887

With the last, votes have the lowest log loss of these in the mean. After whitening, images of two places
are at a squared distance of about 2, so that a margin of 0.1 has nothing to push apart. With the last stage
trained it was not tried.

Heads drawn from online LAM's prior, which is as wide as the head's first weights, have noise as long as
their outputs, and a head that starts as the identity works already. A first run, at a temperature of 1, had
recall@1 0.50 on LFW's test people where the point estimate had 0.65; on people left out of its training,
0.01 leaves recall@1 where it is without noise (0.650 after three epochs), and nothing else was tried.

Images are not augmented: their features are computed once, the plain view alone. Corruptions, which would
have to pass the backbone for every method, are left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefind.data.dataset import Dataset
from surefind.data.feature_views import FeatureViews
from surefind.errors import InputError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.bench.protocols import Problem
from surefind.learning.freezing import Freezing
from surefind.learning.seeds import seeded
from surefind.learning.session import Report

HEAD: Mapping[str, Any] = {
    "epochs": 6,
    "online_epochs": 6,
    "learning_rate": 1e-4,
    "head": "identity",
    "options": {"mc-dropout": {"n_samples": 20}, "laplace-online": {"temperature": 0.01}},
}
LAST_STAGE: Mapping[str, Any] = {**HEAD, "epochs": 3, "online_epochs": 3, "learning_rate": 1e-5}
"""What a frozen protocol changes: with nothing but the head to train, and with the last stages."""
PLACES: Mapping[str, Any] = {"head": "whitened-within", "margin": 1.5}
"""What it changes besides for data that have positions in place of labels."""
EXAMPLES_PER_CLASS = 4
"""K of the batches, where the set's protocol has none: half a batch would be of classes alone in it."""
ECE_SAMPLES = 20
"""Joint samples: a hundred of 2048 outputs take longer than everything else."""
PARTS = ("train", "validation", "test", "gallery", "ood")


def frozen_problem(
    problem: Problem,
    *,
    trained_stages: int = 0,
    cache: str | Path | None = None,
    epochs: int | None = None,
) -> Problem:
    """Freeze the backbone of a problem; nothing is computed yet.

    Args:
        problem: With a backbone.
        trained_stages: How many of its last stages learn.
        cache: Folder where features are kept; None for the folder of checkpoints.
        epochs: Passes over the features; None for those of the table above.

    Returns:
        The problem under another name, with its protocol changed.

    Raises:
        InputError: If it has a network of its own.
    """
    protocol = problem.protocol
    if protocol.backbone is None:
        raise InputError(
            f"{problem.name} trains a network of its own, so there is no backbone to freeze. Give a "
            "pretrained one, or leave freezing out.",
            field="freeze_backbone",
        )
    part = f"last{trained_stages}" if trained_stages else "frozen"
    changed = dict(LAST_STAGE if trained_stages else HEAD)
    if problem.train.labels is None:
        changed |= PLACES
    if epochs is not None:
        changed |= {"epochs": epochs, "online_epochs": epochs}
    wanted = problem.preprocessing
    if wanted is not None:
        wanted = replace(wanted, random_area=None, flip=False)
    return replace(
        problem,
        name=f"{problem.name}-{part}-{protocol.backbone}",
        protocol=replace(
            protocol,
            **changed,
            frozen=True,
            trained_stages=trained_stages,
            augment=False,
            ece_samples=ECE_SAMPLES,
            examples_per_class=protocol.examples_per_class or EXAMPLES_PER_CLASS,
        ),
        preprocessing=wanted,
        freezing=Freezing(trained_stages=trained_stages, cache=cache, head=changed["head"]),
    )


def with_features(problem: Problem, folder: Path, report: Report) -> Problem:
    """Compute the features of every part, once, if the problem's backbone is frozen.

    Args:
        problem: Stays as it is.
        folder: In which features are kept, under `FEATURES`, if the problem names no cache.
        report: Called after each batch, with the stage "features".

    Returns:
        The problem with features as inputs, and the images as its pictures.
    """
    if problem.freezing is None or isinstance(problem.train.inputs, FeatureViews):
        return problem
    learner = MetricLearner(
        problem.build(seeded(0, "encoder")),
        preprocessing=problem.preprocessing,
        freeze_backbone=problem.freezing,
    )

    def features(part: Dataset) -> Dataset:
        return learner.features(part, folder=folder, report=report)

    made: dict[str, Any] = {
        name: features(part) for name in PARTS if (part := getattr(problem, name)) is not None
    }
    more = {name: features(part) for name, part in problem.more_ood.items()}
    return replace(problem, **made, more_ood=more, pictures=problem.parts)
