import numpy as np
import oracles
import pytest
import scipy.linalg
import torch

import surefind as sf
from surefind.learning import closed_form as module
from surefind.learning.closed_form import RIDGE, chosen_rows, closed_form_head, pair_scatter
from surefind.pairs import relations as pairs_module

N = 14


def shifted(d=5):
    return torch.from_numpy(np.random.default_rng(0).standard_normal((N, d)) + 3)


def relations():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 4])
    at = torch.from_numpy(np.random.default_rng(1).uniform(0, 60, (N, 2)))
    left, right = torch.tensor([0, 3, 9, 2]), torch.tensor([5, 1, 4, 7])
    judged = torch.tensor([True, True, False, True])
    return {
        "classes": sf.Classes(labels),
        "positions": sf.Positions(at),
        "pairs": sf.PairList(left, right, judged, N),
    }


def brute_force(h, relation):
    """Add up the pairs that the relation's own mask calls positive, one by one."""
    positive = relation.block(slice(0, N), slice(0, N))[0]
    pairs = [(i, j) for i in range(N) for j in range(i) if positive[i, j]]
    return sum(np.outer(h[i] - h[j], h[i] - h[j]) for i, j in pairs)


@pytest.mark.parametrize("kind", ["classes", "positions", "pairs"])
@pytest.mark.parametrize("size", [4096, 3])
def test_the_scatter_is_the_sum_over_positive_pairs_of_any_relation(monkeypatch, kind, size):
    monkeypatch.setattr(pairs_module, "BLOCK_ROWS", size)
    monkeypatch.setattr(pairs_module, "BLOCK_COLUMNS", size)
    h, relation = shifted(), relations()[kind]
    found = pair_scatter(h, relation)
    np.testing.assert_allclose(found, brute_force(h.numpy(), relation), rtol=1e-10, atol=1e-10)
    assert torch.equal(found, found.T)
    far = pair_scatter(h + 1e6, relation)
    torch.testing.assert_close(found, far, rtol=1e-6, atol=1e-6)


def test_tight_places_far_apart_keep_their_scatter():
    g = np.random.default_rng(2)
    h = 10 * g.standard_normal((N // 2, 3))[np.arange(N) // 2] + 1e-4 * g.standard_normal((N, 3))
    relation = sf.Classes(torch.arange(N) // 2)
    found = pair_scatter(torch.from_numpy(h), relation)
    np.testing.assert_allclose(found, brute_force(h, relation), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 2, 3, 8])
@pytest.mark.parametrize("d", [4, 64, 512])
def test_what_rounding_leaves_of_equal_features_is_nothing(copies, d):
    own = torch.arange(7 * copies) // copies
    h = torch.from_numpy(np.random.default_rng(d).standard_normal((7, d)))[own]
    at = 100 * own[:, None] * torch.ones(1, 2, dtype=torch.float64)
    for relation in (sf.Classes(own), sf.Positions(at)):
        with pytest.raises(sf.DegenerateError) as refusal:
            closed_form_head(h, relation, field="head")
        assert refusal.value.field == "head"


@pytest.mark.parametrize("kind", ["positions", "pairs"])
def test_without_labels_it_is_the_inverse_root_of_the_shrunk_scatter(kind):
    h, relation = shifted(), relations()[kind]
    W = oracles.whitening(brute_force(h.numpy(), relation), RIDGE)
    expected = np.c_[W, -W @ h.numpy().mean(axis=0)]
    np.testing.assert_allclose(closed_form_head(h, relation, field=""), expected, rtol=1e-9)


SPREAD = np.array([16.0, 4.0, 1.0, 0.25])


def stretched(n=9000, classes=900):
    g = np.random.default_rng(0)
    labels = np.arange(n) % classes
    mix = np.linalg.qr(g.standard_normal((4, 4)))[0]
    centres = g.standard_normal((classes, 4)) * np.sqrt(SPREAD)
    return (centres[labels] + g.standard_normal((n, 4))) @ mix, labels, mix


def test_of_many_classes_it_undoes_what_mixed_them():
    """Directions of noise 1 and of spread b come back, each times √(b/(b+1)), b less uneven by 0.3."""
    X, labels, mix = stretched()
    head = closed_form_head(torch.from_numpy(X), sf.Classes(torch.from_numpy(labels)), field="")
    W, bias = head[:, :-1].numpy(), head[:, -1].numpy()
    b = 0.7 * SPREAD + 0.3 * SPREAD.mean()
    expected = np.sqrt(b / (b + 1))
    expected *= 2 / np.linalg.norm(expected)
    np.testing.assert_allclose(np.abs(W @ mix.T), np.diag(expected), atol=0.05)
    np.testing.assert_allclose((X @ W.T + bias).mean(axis=0), 0, atol=1e-9)


def test_neither_offset_nor_scale_of_the_features_matters():
    X, labels, _ = stretched(300, 30)
    relation = sf.Classes(torch.from_numpy(labels))

    def embedded(h):
        head = closed_form_head(h, relation, field="")
        return oracles.normalize(h @ head[:, :-1].T + head[:, -1])

    h = torch.from_numpy(X)
    for moved in (1e-4 * h, 1e4 * h, h + 1e4):
        torch.testing.assert_close(embedded(moved), embedded(h), rtol=1e-5, atol=1e-5)


def test_rows_of_a_head_are_the_first_of_a_taller_one_and_depend_on_no_basis():
    """With fewer classes than features, most directions tell classes apart alike."""
    g = np.random.default_rng(0)
    labels = np.arange(90) % 3
    X = g.standard_normal((3, 12))[labels] + g.standard_normal((90, 12))
    relation = sf.Classes(torch.from_numpy(labels))
    tall, low = (closed_form_head(torch.from_numpy(X), relation, rows=r, field="") for r in (9, 5))
    ratio = torch.linalg.matrix_norm(tall[:5, :-1]) / torch.linalg.matrix_norm(low[:, :-1])
    torch.testing.assert_close(tall[:5], ratio * low)
    mix = np.linalg.qr(g.standard_normal((12, 12)))[0]
    moved = closed_form_head(torch.from_numpy(X + 1e-9 * (X @ mix)), relation, rows=9, field="")
    torch.testing.assert_close(moved, tall, rtol=1e-5, atol=1e-5)


def test_it_solves_the_generalised_eigenproblem():
    """Of between- and within-class covariance as the label model estimates them."""
    g = np.random.default_rng(1)
    labels = g.integers(12, size=400)
    X = 2 * g.standard_normal((12, 5))[labels] + g.standard_normal((400, 5)) @ g.standard_normal((
        5,
        5,
    ))
    head = closed_form_head(torch.from_numpy(X), sf.Classes(torch.from_numpy(labels)), field="")
    centred = X - X.mean(axis=0)
    _, B, W = oracles.covariances(centred / np.sqrt(np.square(centred).sum(axis=1).mean()), labels)
    spread, directions = scipy.linalg.eigh(B, W)
    spread, directions = spread[::-1], directions[:, ::-1]
    expected = (np.sqrt(spread / (spread + 1)) * directions).T
    expected *= np.sqrt(5) / np.linalg.norm(expected)
    found = head[:, :-1].numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(head[:, -1], -found @ X.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("classes", [6, 80])
def test_rows_are_chosen_by_examples_left_out(monkeypatch, classes):
    """Four directions of twelve tell classes apart, and no more are taken than are needed."""
    monkeypatch.setattr(module, "ROWS", (1, 4, 8))
    g = np.random.default_rng(2)
    labels = np.arange(12 * classes) % classes
    X = 0.3 * g.standard_normal((12 * classes, 12))
    X[:, :4] += 5 * g.standard_normal((classes, 4))[labels]
    relation = sf.Classes(torch.from_numpy(labels))
    generator = torch.Generator().manual_seed(0)
    assert chosen_rows(torch.from_numpy(X), relation, generator) == 4
    lonely = sf.Classes(torch.arange(len(X)))
    assert chosen_rows(torch.from_numpy(X), lonely, generator) == 1


def test_the_features_as_they_are_win_where_the_head_does_not_help_unseen_classes(monkeypatch):
    """Classes that were seen differ in some directions, those left out in all."""
    monkeypatch.setattr(module, "ROWS", (2,))
    g = np.random.default_rng(3)
    labels = np.arange(600) % 60
    X = g.standard_normal((60, 40))[labels] + 0.3 * g.standard_normal((600, 40))
    relation = sf.Classes(torch.from_numpy(labels))
    chosen = chosen_rows(torch.from_numpy(X), relation, torch.Generator().manual_seed(0))
    assert chosen in (40, None)
