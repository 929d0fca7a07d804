import numpy as np
import pytest
import torch

import surefind as sf
from surefind.models import vectors as module
from surefind.models.saving import build, describe
from surefind.models.vectors import UnitRows, Vectors, vector_encoder, warn_of_unit_features


def rows(n, d, dtype=np.float64):
    return np.random.default_rng(0).standard_normal((n, d)).astype(dtype)


def test_rows_become_directions_with_a_one():
    X = rows(5, 3)
    features = Vectors(X).features(slice(1, 4)).numpy()
    for row, x in zip(features, X[1:4], strict=True):
        np.testing.assert_allclose(row, [*(x / np.sqrt((x**2).sum())), 1], rtol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_does_not_matter_even_where_squares_leave_the_range(size):
    X = rows(5, 3, np.float32)
    scaled = Vectors(X * np.float32(size)).features(slice(None))
    torch.testing.assert_close(scaled, Vectors(X).features(slice(None)))


def test_half_precision_is_read_as_single():
    X = rows(4, 3, np.float16)
    assert Vectors(X).dtype == torch.float32
    assert Vectors(X).features(np.array([2, 0])).dtype == torch.float32


def test_blocks_cover_all_rows_in_order(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 7)
    vectors = Vectors(rows(11, 3))
    whole = vectors.features(slice(None))
    assert len(vectors.slices) == 6
    torch.testing.assert_close(torch.cat(list(vectors.batches())), whole)
    weights = torch.from_numpy(rows(2, 4))
    torch.testing.assert_close(vectors.outputs(weights), whole @ weights.T)


def test_zero_rows_are_found_and_stay_zero(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 6)
    X = rows(9, 3)
    X[[1, 7]] = 0
    vectors = Vectors(X)
    assert vectors.zero_rows().tolist() == [1, 7]
    assert vectors.features(slice(1, 2)).tolist() == [[0, 0, 0, 1]]


def test_a_mapped_file_is_read_and_not_written(tmp_path):
    X = rows(6, 3)
    np.save(tmp_path / "x.npy", X)
    mapped = Vectors(np.load(tmp_path / "x.npy", mmap_mode="r"))
    torch.testing.assert_close(mapped.features(slice(None)), Vectors(X).features(slice(None)))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)


def test_the_backbone_prepares_vectors_as_they_are_read():
    X = rows(5, 3, np.float32) * np.float32([[1e30], [1e-30], [1], [0], [5]])
    features = Vectors(X).features(slice(None))
    assert torch.equal(UnitRows()(torch.from_numpy(X)), features[:, :3])
    assert torch.equal(vector_encoder(Vectors(X)).features(torch.from_numpy(X)), features)


def test_the_head_starts_as_the_identity():
    encoder = vector_encoder(Vectors(rows(40, 5)))
    assert encoder.head_weights().tolist() == [[*row, 0.0] for row in np.eye(5).tolist()]
    assert encoder.head_weights().dtype == torch.float64


def test_a_file_can_describe_the_encoder():
    again = build(describe(vector_encoder(Vectors(rows(9, 4, np.float32)))))
    assert isinstance(again.backbone, UnitRows)
    assert again.head_weights().shape == (4, 5)


class Normalised(torch.nn.Module):
    def forward(self, inputs):
        return torch.nn.functional.normalize(inputs, dim=1)


def with_identity(backbone, d=4):
    head = torch.nn.Linear(d, d)
    torch.nn.init.eye_(head.weight)
    return sf.Encoder(backbone, head)


def test_a_network_that_normalises_before_its_head_is_warned_of():
    inputs = torch.as_tensor(rows(20, 4, np.float32))
    inner = torch.nn.Linear(4, 4)
    with pytest.warns(UserWarning, match="true last linear layer as the head"):
        warn_of_unit_features(with_identity(torch.nn.Sequential(inner, Normalised())), inputs)
    # Warnings are errors here: none of these gives one.
    warn_of_unit_features(sf.Encoder(torch.nn.Identity(), inner), inputs)
    warn_of_unit_features(with_identity(torch.nn.LayerNorm(4)), inputs)
    warn_of_unit_features(with_identity(UnitRows()), inputs)
    warn_of_unit_features(with_identity(torch.nn.Sequential(UnitRows())), inputs)
    warn_of_unit_features(with_identity(Normalised()), inputs[:1])


@pytest.mark.parametrize("method", ["laplace-posthoc", "laplace-online"])
def test_fitting_a_posterior_behind_a_normalisation_warns(method):
    data = sf.Dataset(torch.as_tensor(rows(40, 4, np.float32)), torch.arange(40) % 4)
    epochs = 0 if method == "laplace-posthoc" else 1
    how = {"method": method, "embedding": "head", "epochs": epochs}
    learner = sf.MetricLearner(with_identity(Normalised()), **how)
    with pytest.warns(UserWarning, match="length 1 for every input"):
        learner.fit(data)
    sf.MetricLearner(with_identity(torch.nn.Identity()), method=method, epochs=epochs).fit(data)
