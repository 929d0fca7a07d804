"""People with faces around a centre each, for tests of decisions."""

import numpy as np

from surefind.gallery.gallery import Gallery

DIM = 16


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def names(who):
    return [f"p{w}" for w in who]


class People:
    def __init__(self, count=40, spread=0.12, seed=0):
        self.rng = np.random.default_rng(seed)
        self.centres = unit(self.rng.normal(size=(count, DIM)))
        self.spread = spread

    def faces(self, who):
        who = np.asarray(who)
        return unit(self.centres[who] + self.spread * self.rng.normal(size=(len(who), DIM)))

    def enrol(self, gallery, who, **options):
        return gallery.add(self.faces(who), labels=names(who), **options)

    def gallery(self, *, each=5, enrolled=20, **options):
        made, who = Gallery(**options), np.repeat(np.arange(enrolled), each)
        self.enrol(made, who, ids=[f"{w}-{n}" for n, w in enumerate(who)])
        return made

    def asked(self, count=600):
        """Queries of everybody, enrolled or not, with the truth."""
        who = self.rng.integers(len(self.centres), size=count)
        return self.faces(who), names(who)
