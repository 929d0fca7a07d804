import numpy as np
import pytest

from surefind.gallery import exact
from surefind.gallery.exact import nearest_rows


def unit(rng, n, z):
    x = rng.normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def oracle(x, queries, count):
    return [sorted(range(len(x)), key=lambda n, v=v: -float(x[n] @ v))[:count] for v in queries]


# One row; fewer rows than strips; rows beyond the last full column; as many as there are rows.
@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (40, 5), (64, 1), (1000, 9), (6400, 16), (6463, 16), (300, 300)]
)
@pytest.mark.parametrize("q", [1, 7])
def test_the_nearest_are_found_nearest_first(n, count, q):
    rng = np.random.default_rng(n + q)
    x, queries = unit(rng, n, 16), unit(rng, q, 16)
    assert nearest_rows(x, queries, count).tolist() == oracle(x, queries, count)


@pytest.mark.parametrize("count", [1, 10, 150])
def test_many_blocks_give_what_one_gives(monkeypatch, count):
    rng = np.random.default_rng(3)
    x, queries = unit(rng, 5000, 8), unit(rng, 3, 8)
    whole = nearest_rows(x, queries, count).tolist()
    for cells in (1, 3 * 1000, 3 * 4999):
        monkeypatch.setattr(exact, "CELLS", cells)
        assert nearest_rows(x, queries, count).tolist() == whole


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_in_the_order_of_their_nearness_are_found(sign):
    """All of the best share a few columns of the grid, or a strip."""
    angle = sign * np.linspace(0, 3, 10_000)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    for rows in (x, np.ascontiguousarray(x[::-1])):
        assert nearest_rows(rows, x[:1], 1).tolist() == oracle(rows, x[:1], 1)
        found = rows[nearest_rows(rows, x[:1], 20)[0]] @ x[0]
        assert np.array_equal(found, np.sort(rows @ x[0])[::-1][:20])


def test_equal_rows_are_found_once_each():
    rows = np.tile(np.eye(2, dtype=np.float32), (500, 1))
    (found,) = nearest_rows(rows, rows[:1], 300)
    assert len(set(found.tolist())) == 300
    assert (found % 2 == 0).all()
