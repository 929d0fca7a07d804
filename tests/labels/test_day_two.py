"""A label model whose vectors come and go, against one whose centres are counted anew."""

import subprocess
import sys

import numpy as np
import pytest

from surefind.errors import InputError
from surefind.labels.model import LabelModel

CLUSTERS = np.random.default_rng(7).normal(size=(8, 6))


def clusters(rng, count):
    """Two labels of four clusters each."""
    part = rng.integers(8, size=count)
    return CLUSTERS[part] + 0.2 * rng.normal(size=(count, 6)), (part % 2).tolist()


def test_a_label_of_several_centres_may_be_emptied_at_once():
    rng = np.random.default_rng(0)
    x, labels = clusters(rng, 400)
    model = LabelModel().fit(x, labels)
    assert model.settings.centres > 1
    more, others = clusters(rng, 200)
    model.add(more, others)
    own = [label == 1 for label in others]
    model.remove(more[own], [1] * sum(own))
    own = np.array(labels) == 1
    model.remove(x[own], [1] * int(own.sum()))
    assert model.labels == (0,)
    with pytest.raises(InputError):
        model.remove(x[own][:1], [1])
    model.add(x[own], [1] * int(own.sum()))
    assert model.counts == {0: 400 - int(own.sum()) + others.count(0), 1: int(own.sum())}


def test_a_label_of_copies_may_be_among_labels_of_several_centres():
    rng = np.random.default_rng(2)
    x, labels = clusters(rng, 400)
    x = np.concatenate([x, np.repeat(rng.normal(size=(2, 6)), 50, axis=0)])
    model = LabelModel().fit(x, [*labels, *[2] * 100])
    assert model.settings.centres > 1
    assert set(model.posterior(x[400:]).label) == {2}


def test_recounted_centres_are_those_of_the_vectors():
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(9, 12))
    who = rng.integers(8, size=300)
    x = centres[who] + 0.5 * rng.normal(size=(300, 12))
    model = LabelModel().fit(x, who)
    again = model.recounted(x, who)
    np.testing.assert_allclose(again.posterior(x).none, model.posterior(x).none, atol=1e-6)
    who[:50] = 8
    changed = model.recounted(x, who)
    assert changed.counts == {n: int((who == n).sum()) for n in range(9)}
    assert changed.settings == model.settings
    with pytest.raises(InputError):
        changed.left_out()


def test_folds_are_the_same_in_every_process():
    script = (
        "import numpy as np\n"
        "from surefind.labels.model import LabelModel\n"
        "rng = np.random.default_rng(0)\n"
        "x = rng.normal(size=(60, 4))\n"
        "print(LabelModel().fit(x, np.arange(60) % 3).left_out().known.none.sum())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
