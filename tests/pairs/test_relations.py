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


@pytest.mark.parametrize("labels", [np.array(["cat", "dog", "cat", "emu"]), [7, 8, 7, 9]])
def test_labels_may_be_names_or_a_list(directions, labels):
    u = directions(4, 3)
    numbered = sf.pair_targets(torch.tensor([0, 1, 0, 2]), u, margin=1.0)
    assert torch.equal(sf.pair_targets(labels, u, margin=1.0), numbered)


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


LABELS = torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    ("labels", "change", "options", "field"),
    [
        (LABELS.double(), None, {}, "labels"),
        (LABELS[None], None, {}, "labels"),
        (LABELS[:1], None, {}, "labels"),
        (LABELS[:0], None, {}, "labels"),
        (LABELS[:2], None, {}, "embeddings"),
        (LABELS, lambda u: u * 2, {}, "embeddings"),
        (LABELS, lambda u: u.half(), {}, "embeddings"),
        (LABELS, lambda u: u.long(), {}, "embeddings"),
        (LABELS, lambda u: u[:, 0], {}, "embeddings"),
        (LABELS, lambda u: u * torch.nan, {}, "embeddings"),
        (LABELS, lambda u: u[:, :0], {}, "embeddings"),
        *((LABELS, None, {"margin": m}, "margin") for m in (0.0, -1.0, float("nan"))),
        *((LABELS, None, {"negative_weight": w}, "negative_weight") for w in (1.1, -0.1)),
    ],
)
def test_what_has_no_targets_is_refused(directions, labels, change, options, field):
    u = directions(3, 4)
    with pytest.raises(sf.InputError) as refusal:
        sf.pair_targets(labels, change(u) if change else u, **{"margin": 1.0} | options)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("radii", "field"), [((25.0, 10.0), "negative_radius"), ((0.0, 10.0), "positive_radius")]
)
def test_positions_want_two_radii_in_order(normal, radii, field):
    with pytest.raises(sf.InputError) as refusal:
        sf.Positions(normal(3, 2), *radii)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([0, 1], [1, 3]),  # beyond the examples
        ([0, 1], [1, 1]),  # with itself
        ([0, 1], [1, 0]),  # twice
        ([0], [1, 2]),
        ([0.0, 1.0], [1, 2]),
    ],
)
def test_pair_lists_that_are_no_sets_are_refused(left, right):
    with pytest.raises(sf.InputError):
        sf.PairList(torch.tensor(left), torch.tensor(right), torch.tensor([True, False]), n=3)


def test_a_finite_value_whose_sum_overflows_is_no_error(normal):
    places = torch.full((3, 2), 1e308, dtype=torch.float64)
    assert len(sf.Positions(places, 1.0, 2.0)) == 3
