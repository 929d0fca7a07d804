"""A tiny problem on real images that ships with scikit-learn: four digits of 8 × 8 pixels."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits

import surefind as sf
from surefind.learning.seeds import seeded
from surefind.models.networks import small_net


@cache
def digits(classes=4):
    """Training and test digits of the first classes, as uint8 images."""
    bunch = load_digits(n_class=classes)
    images = (bunch.images * 255 / 16).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    return sf.Dataset(images[train], bunch.target[train]), sf.Dataset(
        images[test], bunch.target[test]
    )


def encoder(z=3, seed=0):
    return small_net(1, 8, z, generator=seeded(seed, "encoder"))


def learner(method="deterministic", **options):
    """A small learner of the network's own embedding, as in the paper, unless another is asked for."""
    options = {"epochs": 2, "batch_size": 32, "embedding": "head"} | options
    return sf.MetricLearner(encoder(), method=method, **options)


GIVEN = sf.methods.LaplacePosthoc(scale=10.0, prior_precision=1.0)
ONLINE = sf.methods.LaplaceOnline(tuning="trained")
"""Without tuning, which takes longer than all the rest."""
QUICK = {
    "mc-dropout": sf.methods.MCDropout(n_samples=20),
    "deep-ensemble": sf.methods.DeepEnsemble(members=3),
}
"""Smaller versions of what would take long; everything else as it is by default."""


@cache
def trained(name):
    """A learner of a method, trained once for all tests of a process; not to be changed."""
    return learner(QUICK.get(name, name), epochs=6, seed=1).fit(digits()[0])


def recall_at_1(embeddings, labels):
    cosine = embeddings.mean @ embeddings.mean.T
    nearest = cosine.fill_diagonal_(-2).argmax(1)
    return float((labels[nearest] == labels).float().mean())


def tensors_equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def sgd(parameters):
    """Small steps, without the normalisation of RMSprop: rounding must not grow to a difference."""
    return torch.optim.SGD(parameters, lr=0.002)


SHARED = {
    "deterministic": {"method": "deterministic", "batch_size": 33, "epochs": 1, "optimizer": sgd},
    "online": {"method": "laplace-online", "batch_size": 33, "epochs": 1, "optimizer": sgd},
    "full": {
        "method": sf.methods.LaplaceOnline(approximation="full"),
        "batch_size": 33,
        "epochs": 1,
        "optimizer": sgd,
    },
    "hib": {"method": "hib", "batch_size": 33, "optimizer": sgd, "epochs": 1},
    "curvature": {"method": "laplace-posthoc", "epochs": 0},
    "frozen": {
        "method": "deterministic",
        "batch_size": 33,
        "epochs": 1,
        "optimizer": sgd,
        "freeze_backbone": sf.Freezing(trained_stages=1),
    },
}
"""What two processes learn, to be compared with what one learns."""
