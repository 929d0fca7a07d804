import numpy as np
import pytest

from surefind.gallery import rows as module
from surefind.gallery.rows import near_rows, nearest_rows


def slow(queries, x, count):
    """Order all rows by their cosine in float64, then by row."""
    cosines = (queries.double()[:, None] * x.double()).sum(-1)
    return cosines.sort(dim=1, descending=True, stable=True).indices[:, :count]


# One row; fewer rows than groups; rows beyond the last full group; as many as there are rows.
@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (40, 5), (64, 1), (1000, 9), (6463, 16), (300, 300)]
)
@pytest.mark.parametrize("q", [1, 7])
def test_rows_of_arrays_are_found_nearest_first(directions, n, count, q):
    x, queries = directions(n, 16).float(), directions(q, 16).float()
    array = x.numpy()
    array.flags.writeable = False
    found = nearest_rows(array, queries.numpy(), count)
    assert found.tolist() == slow(queries, x, count).tolist()


@pytest.mark.parametrize("count", [1, 10, 150])
def test_many_blocks_give_what_one_gives(directions, monkeypatch, count):
    x, queries = directions(5000, 8).float().numpy(), directions(3, 8).float().numpy()
    whole = nearest_rows(x, queries, count).tolist()
    for cells in (1000, 3 * 1000, 3 * 4999):
        monkeypatch.setattr(module, "CELLS", cells)
        assert nearest_rows(x, queries, count).tolist() == whole


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_in_the_order_of_their_nearness_are_found(sign):
    """All of the best share a few groups, or a few places in them."""
    angle = sign * np.linspace(0, 3, 10_000)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    assert nearest_rows(x, x[:1], 20)[0].tolist() == list(range(20))
    backwards = np.ascontiguousarray(x[::-1])
    assert nearest_rows(backwards, x[:1], 20)[0].tolist() == list(range(9999, 9979, -1))


def test_equal_rows_are_found_in_their_order():
    rows = np.tile(np.eye(2, dtype=np.float32), (500, 1))
    (found,) = nearest_rows(rows, rows[:1], 300)
    assert found.tolist() == list(range(0, 600, 2))


@pytest.mark.parametrize("near", [0.0, 1e-9, 1e-7, 1e-6])
def test_what_float32_cannot_tell_apart_is_decided_in_float64(near):
    """300 rows almost equally near, of which 100 are wanted: their float32 cosines are noise."""
    rng = np.random.default_rng(0)
    x = np.eye(64)[np.zeros(300, dtype=int)] + near * rng.normal(size=(300, 64))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    queries = rng.normal(size=(5, 64))
    queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    cosines = np.einsum("nz,qz->qn", x.astype(np.float64), queries.astype(np.float64))
    right = np.argsort(-cosines, axis=1, kind="stable")[:, :100]
    for some in (queries, queries[:1]):
        assert nearest_rows(x, some, 100).tolist() == right[: len(some)].tolist()
        for found, wanted in zip(near_rows(x, some, 100), right, strict=False):
            assert len(set(found.tolist())) == len(found)
            assert set(wanted.tolist()) <= set(found.tolist())
