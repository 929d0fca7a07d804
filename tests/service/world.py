"""A tiny world: a learner of the digits 0 to 7, a calibrated gallery of them, and pictures to ask with.

Everything is made once a process, in a folder that is removed at its end; tests work on copies.
"""

import atexit
import shutil
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from PIL import Image

import surefind as sf
from surefind.data.sources import load_digits
from surefind.gallery.gallery import Gallery
from surefind.learning.seeds import seeded
from surefind.models.networks import small_net
from surefind.service.images import Thumbnails, small_picture

ITEMS = 240
UNKNOWN = (8, 9)
TRAIN, HELD_OUT, EPOCHS = 480, 480, 12


@dataclass(frozen=True, eq=False)
class World:
    """What tests look at; the folder is copied before it is changed."""

    learner: Any
    folder: Path
    known: np.ndarray
    known_labels: np.ndarray
    unknown: np.ndarray


@cache
def world(dim: int = 3) -> World:
    """Divide all digits at random, so that what is asked is drawn like what calibrates."""
    loaded = load_digits(n_ood=50)
    order = np.random.default_rng(0).permutation(len(loaded.train) + len(loaded.test))
    every = [np.asarray(part.inputs) for part in (loaded.train, loaded.test)]
    images = np.concatenate(every)[order]
    labels = np.concatenate([np.asarray(p.labels) for p in (loaded.train, loaded.test)])[order]
    strange = np.isin(labels, UNKNOWN)
    ours, named, others = images[~strange], labels[~strange], images[strange]
    train, held, rest = slice(TRAIN), slice(TRAIN, TRAIN + HELD_OUT), slice(TRAIN + HELD_OUT, None)
    method = sf.methods.LaplaceOnline(tuning="trained")
    learner = sf.MetricLearner(
        small_net(1, 8, dim, generator=seeded(0, "encoder")),
        method=method,
        epochs=EPOCHS,
        embedding="head",
    ).fit(sf.Dataset(ours[train], named[train]), held_out=sf.Dataset(ours[held], named[held]))
    folder = Path(mkdtemp(prefix="surefind-world-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    gallery = Gallery(path=folder / "gallery", model="digits")
    shown = [int(x) for x in named[:ITEMS]]
    shown[-1] = (shown[-1] + 1) % 8  # a wrong label: whatever was learnt, one item confuses it
    ids = [f"digit-{i}" for i in range(ITEMS)]
    gallery.add(learner.embed(ours[:ITEMS]), ids=ids, labels=shown)
    new, new_labels = ours[rest], named[rest]
    gallery.calibrate(
        learner.embed(np.concatenate([new[::2], others[::2]])),
        [int(x) for x in new_labels[::2]] + [-1] * len(others[::2]),
        max_wrong=0.1,
    )
    gallery.close()
    small = Thumbnails(folder / "gallery.service" / "thumbnails", None, 10**6)
    for i in range(ITEMS):
        small.keep(f"digit-{i}", small_picture(png(ours[i]), 10**6))
    return World(learner, folder, new[1::2], new_labels[1::2], others[1::2])


def copy(made: World, place: Path) -> Path:
    """Copy the world's gallery and what is beside it; return the gallery's folder."""
    shutil.copytree(made.folder, place, dirs_exist_ok=True)
    return place / "gallery"


def outvoted() -> Gallery:
    """Make a gallery in which the item nearest to the first axis is a b, and all others there are a."""
    x = np.eye(4)[[0] * 30 + [1] * 30] + 0.05 * np.random.default_rng(0).normal(size=(60, 4))
    x[30] = np.eye(4)[0]
    gallery = Gallery(normalize=True)
    gallery.add(x, ids=[f"i{i}" for i in range(60)], labels=["a"] * 30 + ["b"] * 30)
    return gallery


def png(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def blurred(images: np.ndarray) -> np.ndarray:
    """Lose most of what can be seen."""
    soft = torch.from_numpy(images).float()[:, None]
    for _ in range(2):
        soft = torch.nn.functional.avg_pool2d(soft, 3, stride=1, padding=1)
    return soft[:, 0].numpy().astype(np.uint8)
