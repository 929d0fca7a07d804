import json

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.embeddings import kappa_from_json, kappa_to_json, novelty_from_json, novelty_to_json


@pytest.fixture
def embeddings(directions):
    return sf.Embeddings(directions(4, 3), torch.tensor([0.0, 2.0, 4.0, torch.inf]).double())


@pytest.fixture
def novel(embeddings):
    p = torch.tensor([0.5, 0.0, 1.0, 1e-4], dtype=torch.float64)
    return sf.Embeddings(embeddings.mean, embeddings.kappa, p)


def test_uncertainty_is_one_over_kappa(embeddings):
    assert embeddings.uncertainty.tolist() == [torch.inf, 0.5, 0.25, 0]
    np.testing.assert_array_equal(embeddings.numpy().uncertainty, [np.inf, 0.5, 0.25, 0])


def test_indexing_keeps_the_axes(embeddings):
    assert embeddings[-1].kappa.tolist() == [torch.inf]
    assert embeddings[1:3].kappa.tolist() == [2, 4]
    assert embeddings[torch.tensor([2, 0])].kappa.tolist() == [4, 0]
    assert embeddings[[2, 0]].kappa.tolist() == [4, 0]
    assert embeddings[embeddings.kappa > 1].mean.shape == (3, 3)
    assert [len(e) for e in embeddings] == [1, 1, 1, 1]
    assert len(embeddings[torch.tensor([False] * 4)]) == 0
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
    stored = sf.Embeddings(mean, embeddings.numpy().kappa)
    assert stored.mean is mean
    assert torch.equal(stored.tensors().mean, embeddings.mean)


def test_arrays_and_tensors_go_round(novel):
    array = novel.numpy()
    assert {type(x) for x in (array.mean, array.kappa, array.novelty)} == {np.ndarray}
    assert array.numpy() is array
    assert torch.equal(array.tensors().mean, novel.mean)
    assert torch.equal(array.tensors().novelty, novel.novelty)


def test_novelty_goes_with_the_rows(embeddings, novel):
    assert embeddings.novelty is embeddings[1].novelty is embeddings.numpy().novelty is None
    assert novel[1:3].novelty.tolist() == [0, 1]
    assert [one.novelty.item() for one in novel] == [0.5, 0, 1, 1e-4]
    assert novel.numpy()[novel.novelty.numpy() < 0.1].novelty.tolist() == [0, 1e-4]


def test_concatenating_keeps_novelty_only_if_all_have_it(embeddings, novel):
    for a, b in ((novel, embeddings), (novel.numpy(), embeddings.numpy())):
        both = sf.Embeddings.concatenate([a, a[:1]])
        assert type(both.mean) is type(a.mean)
        assert both.kappa.tolist() == [*a.kappa.tolist(), 0]
        assert both.novelty.tolist() == [0.5, 0, 1, 1e-4, 0.5]
        assert sf.Embeddings.concatenate([a, b]).novelty is None


def test_empty_and_half_precision_embeddings_are_values_too(directions):
    assert len(sf.Embeddings(torch.empty(0, 3), torch.empty(0))) == 0
    assert len(sf.Embeddings(directions(4, 64).half(), torch.ones(4))) == 4


EYE, ONES, NAN = torch.eye(3), torch.ones(3), torch.full((3,), torch.nan)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((EYE, torch.ones(2)), "kappa"),
        ((EYE, -ONES), "kappa"),
        ((EYE, NAN), "kappa"),
        ((EYE * 3, ONES), "mean"),
        ((EYE / 0, ONES), "mean"),
        ((EYE.long(), ONES), "mean"),
        ((ONES, ONES), "mean"),
        ((np.eye(3), ONES), None),
        ((EYE, np.ones(3)), None),
        ((torch.eye(1), [1.0]), None),
        (([[1.0, 0.0]], torch.ones(1)), None),
        ((EYE, ONES, torch.ones(2)), "novelty"),
        ((EYE, ONES, torch.ones(3, 1)), "novelty"),
        ((EYE, ONES, NAN), "novelty"),
        ((EYE, ONES, -ONES), "novelty"),
        ((EYE, ONES, 1.1 * ONES), "novelty"),
        ((EYE, ONES, np.ones(3)), None),
    ],
)
def test_values_that_do_not_fit_are_refused(values, field):
    with pytest.raises(sf.InputError) as refused:
        sf.Embeddings(*values)
    assert refused.value.field == field


@pytest.mark.parametrize("value", [0.0, 1e-12, 0.25, 1.0])
def test_concentrations_and_novelty_survive_json(value):
    for there, back, missing in (
        (kappa_to_json, kappa_from_json, np.inf),
        (novelty_to_json, novelty_from_json, np.nan),
    ):
        assert back(json.loads(json.dumps(there(value), allow_nan=False))) == value
        assert there(missing) is there(back(None)) is None
