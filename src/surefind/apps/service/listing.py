"""The gallery as a list: from the surest item to the least sure, and the items that confuse others.

An item is surer the higher its κ. It *confuses* another item if it is that one's nearest neighbour and has
another label; how many it confuses is counted over a sample of the gallery. The list is made when it is
first asked for and again after the gallery has changed.
"""

import threading
from dataclasses import dataclass

import numpy as np

from surefind.embeddings import Embeddings
from surefind.gallery.engine import Id, Label
from surefind.gallery.gallery import Gallery

SAMPLE = 1000
"""Items whose nearest neighbour is looked up."""
BLOCK = 32
"""Searched at a time, so that other requests get their turn."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """What the gallery held at one moment.

    Attributes:
        content: The gallery's fingerprint then.
        surest: Ids, the highest κ first.
        labels: In use.
    """

    content: str
    surest: tuple[Id, ...]
    labels: frozenset[Label]


class Catalogues:
    """Makes catalogues, one at a time."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._lock = threading.Lock()
        self._latest = Catalogue("", (), frozenset())
        self._confusing: tuple[str, dict[Id, int]] = ("", {})

    def now(self) -> Catalogue:
        """Give the catalogue of the gallery as it is."""
        with self._lock:
            content = self._gallery.fingerprint
            if content != self._latest.content:
                self._latest = _read(self._gallery, content)
            return self._latest

    def confusing(self) -> dict[Id, int]:
        """Count, for each item that confuses others, how many of the sample; the most first."""
        catalogue = self.now()
        with self._lock:
            if self._confusing[0] != catalogue.content:
                counts = _confusions(self._gallery, catalogue.surest)
                self._confusing = (catalogue.content, counts)
            return self._confusing[1]


def _read(gallery: Gallery, content: str) -> Catalogue:
    kappa: dict[Id, float] = {}
    labels: set[Label] = set()
    for block in gallery.records():
        kappa |= {item.id: item.kappa for item in block}
        labels |= {item.label for item in block}
    order = sorted(kappa, key=lambda i: (-kappa[i], isinstance(i, str), i))
    return Catalogue(content, tuple(order), frozenset(labels - {None}))


def _confusions(gallery: Gallery, ids: tuple[Id, ...]) -> dict[Id, int]:
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(ids))[:SAMPLE]
    counts: dict[Id, int] = {}
    for start in range(0, len(chosen), BLOCK):
        items = [gallery.get(ids[i]) for i in chosen[start : start + BLOCK] if ids[i] in gallery]
        if not items:
            continue
        queries = Embeddings(
            np.stack([item.vector for item in items]), np.array([item.kappa for item in items])
        )
        found = gallery.search(queries, k=2, decide=False)
        for item, near, labels in zip(items, found.ids, found.labels, strict=True):
            others = [n for n, id_ in enumerate(near) if id_ != item.id]
            if others and labels[others[0]] != item.label:
                id_ = near[others[0]]
                counts[id_] = counts.get(id_, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0]))))
