import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.pairs import relations as module
from surefind.pairs.relations import as_relation

LISTED = [(0, 1, True), (3, 2, True), (0, 4, False), (1, 6, False), (5, 2, False), (6, 5, True)]


def pair_list():
    i, j, same = zip(*LISTED, strict=True)
    return sf.PairList(torch.tensor(i), torch.tensor(j), torch.tensor(same), n=7)


@pytest.fixture
def relations(normal):
    """Each kind of relation over seven examples, with the oracle's matrix of kinds."""
    labels = torch.tensor([2, 0, 2, 5, 0, 2, 9])
    places = 1e6 + 30 * normal(7, 2)
    return {
        "classes": (labels, oracles.class_kind(labels)),
        "positions": (sf.Positions(places, 25.0, 50.0), oracles.position_kind(places, 25, 50)),
        "list": (pair_list(), oracles.listed_kind(LISTED, 7)),
    }


@pytest.fixture(params=["classes", "positions", "list"])
def relation(request, relations):
    labels, kind = relations[request.param]
    assert (kind == 1).any()
    assert (kind == -1).any()
    return labels, kind


@pytest.mark.parametrize("weight", [0.5, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("margin", [0.3, 1.5, 4.0])
def test_targets_equal_their_definition(relation, directions, weight, margin):
    labels, kind = relation
    u = directions(7, 3)
    targets = sf.pair_targets(labels, u, margin=margin, negative_weight=weight)
    torch.testing.assert_close(targets, oracles.pair_targets(kind, u, margin, weight))
    assert torch.equal(targets, targets.T)
    assert not targets.diagonal().any()


def test_counts_and_blocks_agree(relation):
    labels, kind = relation
    r = as_relation(labels)
    assert (r.n_positive, r.n_negative) == (int((kind == 1).sum()), int((kind == -1).sum()))
    positive, negative = r.block(slice(1, 5), slice(2, 7))
    assert torch.equal(positive, kind[1:5, 2:7] == 1)
    assert torch.equal(negative, kind[1:5, 2:7] == -1)


@pytest.mark.parametrize("blocks", [(512, 4096), (3, 2)])
def test_sums_over_partners_equal_masked_products(relation, directions, monkeypatch, blocks):
    monkeypatch.setattr(module, "BLOCK_ROWS", blocks[0])
    monkeypatch.setattr(module, "BLOCK_COLUMNS", blocks[1])
    labels, kind = relation
    u, r = directions(7, 3), as_relation(labels)
    inside = torch.cdist(u, u) ** 2 <= 1.7
    rows = slice(2, 6)
    torch.testing.assert_close(r.positive_sums(u, rows), ((kind == 1).double() @ u)[rows])
    expected = (((kind == -1) & inside).double() @ u)[rows]
    torch.testing.assert_close(r.negative_sums(u, u, 1.7, rows), expected)


def test_labels_may_be_an_array_of_names(directions):
    u = directions(4, 3)
    named = sf.pair_targets(np.array(["cat", "dog", "cat", "emu"]), u, margin=1.0)
    numbered = sf.pair_targets(torch.tensor([0, 1, 0, 2]), u, margin=1.0)
    assert torch.equal(named, numbered)


def test_labels_may_be_a_list(directions):
    u = directions(4, 3)
    assert torch.equal(
        sf.pair_targets([7, 8, 7, 9], u, margin=1.0),
        sf.pair_targets(torch.tensor([7, 8, 7, 9]), u, margin=1.0),
    )


def test_relations_stay_where_they_are(relation):
    r = as_relation(relation[0])
    assert r.to(torch.device("cpu")) is r


def test_without_a_kind_of_pair_that_term_is_absent(directions):
    u = directions(3, 4)
    apart = sf.pair_targets(torch.tensor([0, 1, 2]), u, margin=4.0)
    assert (apart <= 0).all()
    assert torch.isfinite(apart).all()
    together = sf.pair_targets(torch.tensor([1, 1, 1]), u, margin=4.0)
    assert (together >= 0).all()
    assert torch.isclose(together.sum(), torch.ones((), dtype=u.dtype))


def test_two_examples_are_one_pair(directions):
    targets = sf.pair_targets(torch.tensor([0, 0]), directions(2, 3), margin=1.0)
    assert targets.tolist() == [[0, 0.5], [0.5, 0]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0.0, 1.0, 0.0]), "labels must be one integer per example"),
        (torch.tensor([[0, 1, 0]]), "labels must be one integer per example"),
        (torch.tensor([0, 1]), "embeddings has 3 rows where the other arguments have 2"),
        (torch.tensor([0]), "a pair needs two examples; got 1"),
        (torch.tensor([], dtype=torch.int64), "a pair needs two examples; got 0"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(directions, labels, message):
    with pytest.raises(sf.InputError, match=message):
        sf.pair_targets(labels, directions(3, 4), margin=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0.0}, "margin must be a finite number above 0; got 0.0"),
        ({"margin": -1.0}, "margin must be a finite number above 0; got -1.0"),
        ({"margin": float("nan")}, "margin must be a finite number above 0; got nan"),
        ({"margin": 1.0, "negative_weight": 1.1}, "negative_weight must lie between 0 and 1"),
        ({"margin": 1.0, "negative_weight": -0.1}, "negative_weight must lie between 0 and 1"),
    ],
)
def test_options_out_of_range_are_refused(directions, options, message):
    with pytest.raises(sf.InputError, match=message):
        sf.pair_targets(torch.tensor([0, 1, 0]), directions(3, 4), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u: u * 2, "rows of length 1; row 0 has length 2"),
        (lambda u: u.to(torch.float16), "must be float32 or float64; got torch.float16"),
        (lambda u: u.long(), "must be float32 or float64; got torch.int64"),
        (lambda u: u[:, 0], "must be a matrix, one row per example"),
        (
            lambda u: u.index_fill(0, torch.tensor([1]), torch.nan),
            "holds NaN in row 1",
        ),
        (lambda u: u[:, :0], "embeddings is empty"),
    ],
)
def test_embeddings_that_cannot_be_used_are_refused(directions, change, message):
    with pytest.raises(sf.InputError, match=message):
        sf.pair_targets(torch.tensor([0, 1, 0]), change(directions(3, 4)), margin=1.0)


def test_positions_want_two_radii_in_order(normal):
    with pytest.raises(sf.InputError, match="negative_radius"):
        sf.Positions(normal(3, 2), 25.0, 10.0)
    with pytest.raises(sf.InputError, match="positive_radius"):
        sf.Positions(normal(3, 2), 0.0, 10.0)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ([0, 1], [1, 3], "must lie in 0 … 2; got 0 … 3"),
        ([0, 1], [1, 1], "cannot be paired with itself"),
        ([0, 1], [1, 0], "listed twice"),
        ([0], [1, 2], "one entry per pair; got 1, 2 and 2"),
        ([0.0, 1.0], [1, 2], "left and right must be int64 tensors and positive a boolean one"),
    ],
)
def test_pair_lists_that_are_no_sets_are_refused(left, right, message):
    with pytest.raises(sf.InputError, match=message):
        sf.PairList(torch.tensor(left), torch.tensor(right), torch.tensor([True, False]), n=3)


def test_a_finite_value_whose_sum_overflows_is_no_error(normal):
    places = torch.full((3, 2), 1e308, dtype=torch.float64)
    assert len(sf.Positions(places, 1.0, 2.0)) == 3
