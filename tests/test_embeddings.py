import json

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.embeddings import kappa_from_json, kappa_to_json, novelty_from_json, novelty_to_json


@pytest.fixture
def embeddings(directions):
    return sf.Embeddings(directions(4, 3), torch.tensor([0.0, 2.0, 4.0, torch.inf]).double())


def test_uncertainty_is_one_over_kappa(embeddings):
    assert embeddings.uncertainty.tolist() == [torch.inf, 0.5, 0.25, 0]
    np.testing.assert_array_equal(embeddings.numpy().uncertainty, [np.inf, 0.5, 0.25, 0])


def test_indexing_keeps_the_axes(embeddings):
    assert embeddings[1].mean.shape == (1, 3)
    assert embeddings[-1].kappa.tolist() == [torch.inf]
    assert embeddings[1:3].kappa.tolist() == [2, 4]
    assert embeddings[torch.tensor([2, 0])].kappa.tolist() == [4, 0]
    assert embeddings[embeddings.kappa > 1].mean.shape == (3, 3)
    assert [len(e) for e in embeddings] == [1, 1, 1, 1]
    with pytest.raises(IndexError):
        embeddings[4]


@pytest.mark.parametrize(
    "index", [2, -2, np.int64(2), np.array(2), torch.tensor(2), torch.tensor(-2, dtype=torch.int32)]
)
def test_any_whole_number_gives_a_batch_of_one(embeddings, index):
    for e in (embeddings, embeddings.numpy()):
        assert e[index].mean.shape == (1, 3)
        assert e[index].kappa.tolist() == [4]


def test_read_only_arrays_are_taken_without_a_warning(embeddings, tmp_path):
    np.save(tmp_path / "mean.npy", embeddings.numpy().mean)
    mean = np.load(tmp_path / "mean.npy", mmap_mode="r")
    kappa = embeddings.numpy().kappa.copy()
    kappa.flags.writeable = False
    stored = sf.Embeddings(mean, kappa)
    assert stored.mean is mean
    assert torch.equal(stored.tensors().mean, embeddings.mean)
    assert stored[1].kappa.tolist() == [2]


def test_arrays_and_tensors_go_round(embeddings):
    array = embeddings.numpy()
    assert isinstance(array.mean, np.ndarray)
    assert array.numpy() is array
    assert torch.equal(array.tensors().mean, embeddings.mean)


def test_empty_is_a_value_too():
    assert len(sf.Embeddings(torch.empty(0, 3), torch.empty(0))) == 0


def test_half_precision_directions_are_accepted(directions):
    sf.Embeddings(directions(4, 64).half(), torch.ones(4))


@pytest.mark.parametrize(
    ("mean", "kappa", "message"),
    [
        (torch.eye(3), torch.ones(2), "one value per row of mean"),
        (torch.eye(3), -torch.ones(3), "must not be negative or NaN"),
        (torch.eye(3), torch.full((3,), torch.nan), "must not be negative or NaN"),
        (torch.eye(3) * 3, torch.ones(3), "rows of length 1"),
        (torch.ones(3), torch.ones(3), "mean must be \\(n, z\\)"),
        (np.eye(3), torch.ones(3), "both NumPy arrays; got ndarray and Tensor. Convert one"),
        (torch.eye(3), np.ones(3), "both NumPy arrays; got Tensor and ndarray. Convert one"),
        (torch.eye(1), [1.0], "kappa must be a tensor or a NumPy array; got list"),
        ([[1.0, 0.0]], torch.ones(1), "must be a tensor or a NumPy array; got list"),
    ],
)
def test_values_that_do_not_fit_are_refused(mean, kappa, message):
    with pytest.raises(sf.InputError, match=message):
        sf.Embeddings(mean, kappa)


@pytest.fixture
def novel(embeddings):
    p = torch.tensor([0.5, 0.0, 1.0, 1e-4], dtype=torch.float64)
    return sf.Embeddings(embeddings.mean, embeddings.kappa, p)


def test_novelty_goes_with_the_rows(embeddings, novel):
    assert embeddings.novelty is embeddings[1].novelty is embeddings.numpy().novelty is None
    assert novel[2].novelty.tolist() == [1]
    assert novel[1:3].novelty.tolist() == [0, 1]
    assert novel[torch.tensor([3, 0])].novelty.tolist() == [1e-4, 0.5]
    assert [one.novelty.item() for one in novel] == [0.5, 0, 1, 1e-4]
    array = novel.numpy()
    assert isinstance(array.novelty, np.ndarray)
    assert array[novel.novelty.numpy() < 0.1].novelty.tolist() == [0, 1e-4]
    assert torch.equal(array.tensors().novelty, novel.novelty)


def test_concatenating_keeps_novelty_only_if_all_have_it(embeddings, novel):
    for a, b in ((novel, embeddings), (novel.numpy(), embeddings.numpy())):
        both = sf.Embeddings.concatenate([a, a[:1]])
        assert type(both.mean) is type(a.mean)
        assert both.kappa.tolist() == [*a.kappa.tolist(), 0]
        assert both.novelty.tolist() == [0.5, 0, 1, 1e-4, 0.5]
        mixed = sf.Embeddings.concatenate([a, b])
        assert len(mixed) == 8
        assert mixed.novelty is None


@pytest.mark.parametrize(
    "novelty",
    [
        torch.ones(2),
        torch.ones(3, 1),
        torch.full((3,), torch.nan),
        torch.full((3,), -0.1),
        torch.full((3,), 1.1),
        np.ones(3),
        [1.0, 1.0, 1.0],
    ],
)
def test_what_is_no_novelty_is_refused(novelty):
    with pytest.raises(sf.InputError, match="novelty"):
        sf.Embeddings(torch.eye(3), torch.ones(3), novelty)


@pytest.mark.parametrize("novelty", [0.0, 1e-12, 0.25, 1.0])
def test_novelty_survives_json(novelty):
    text = json.dumps(novelty_to_json(novelty), allow_nan=False)
    assert novelty_from_json(json.loads(text)) == novelty
    assert novelty_to_json(novelty_from_json(None)) is None


@pytest.mark.parametrize("kappa", [0.0, 2.5, np.inf])
def test_kappa_survives_json(kappa):
    text = json.dumps(kappa_to_json(kappa), allow_nan=False)
    assert kappa_from_json(json.loads(text)) == kappa


def test_novelty_goes_where_its_rows_go():
    novelty = torch.tensor([0.1, 0.2, 0.3])
    e = sf.Embeddings(torch.eye(3), torch.ones(3), novelty)
    assert e[1].novelty.tolist() == pytest.approx([0.2])
    assert e.numpy().novelty.dtype == np.float32
    assert torch.equal(e.numpy().tensors().novelty, novelty)
    assert sf.Embeddings(torch.eye(3), torch.ones(3))[:2].numpy().novelty is None
