import numpy as np

from surefind.gallery.engine import Records, find
from surefind.gallery.gallery import Gallery


def unit(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_candidates_come_by_falling_cosine():
    rng = np.random.default_rng(3)
    engine = Gallery()._engine
    x = unit(rng, 300, 6).astype(np.float32)
    novelty, kappa = np.full(300, np.nan), rng.uniform(1, 90, 300)
    engine.put(Records(list(range(300)), x, kappa, novelty, *[[None] * 300] * 3))
    q = unit(rng, 4, 6).astype(np.float32)
    found = find(engine, q, 100)
    expected = np.argsort(-(q.astype(float) @ x.T.astype(float)), axis=1)[:, :100]
    assert (found.ids[:, :100] == expected).all()
    gaps = 1 - np.take_along_axis(q @ x.T, expected, 1)
    np.testing.assert_allclose(found.gaps[:, :100], gaps, atol=1e-6)
    np.testing.assert_array_equal(found.kappa[:, :100], kappa[expected])
