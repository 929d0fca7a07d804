import numpy as np
import pytest
import torch

from surefind.curvature import rows as module
from surefind.curvature.rows import Source


def rows(n, d, dtype=np.float64):
    return np.random.default_rng(0).standard_normal((n, d)).astype(dtype)


def test_rows_become_directions_with_a_one():
    X = rows(5, 3)
    features = Source(X).features(slice(1, 4)).numpy()
    for row, x in zip(features, X[1:4], strict=True):
        np.testing.assert_allclose(row, [*(x / np.sqrt((x**2).sum())), 1], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_does_not_matter_even_where_squares_leave_the_range(size):
    X = rows(5, 3, np.float32)
    scaled = Source(X * np.float32(size)).features(slice(None))
    torch.testing.assert_close(scaled, Source(X).features(slice(None)))


def test_half_precision_is_read_as_single():
    X = rows(4, 3, np.float16)
    assert Source(X).dtype == torch.float32
    assert Source(X).features(np.array([2, 0])).dtype == torch.float32


def test_blocks_cover_all_rows_in_order(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 7)
    source = Source(rows(11, 3))
    whole = source.features(slice(None))
    assert len(source.slices) == 6
    torch.testing.assert_close(torch.cat(list(source.batches())), whole)
    weights = torch.from_numpy(rows(2, 4))
    torch.testing.assert_close(source.outputs(weights), whole @ weights.T)


def test_zero_rows_are_found_and_stay_zero(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 6)
    X = rows(9, 3)
    X[[1, 7]] = 0
    source = Source(X)
    assert source.zero_rows().tolist() == [1, 7]
    assert source.features(slice(1, 2)).tolist() == [[0, 0, 0, 1]]


def test_a_mapped_file_is_read_and_not_written(tmp_path):
    X = rows(6, 3)
    np.save(tmp_path / "x.npy", X)
    mapped = Source(np.load(tmp_path / "x.npy", mmap_mode="r"))
    torch.testing.assert_close(mapped.features(slice(None)), Source(X).features(slice(None)))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)
