import oracles
import pytest
import torch

import surefind as sf

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])


@pytest.mark.parametrize("weight", [0.5, 0.2, 0.0, 1.0])
@pytest.mark.parametrize("margin", [0.5, 1.2, 4.0])
def test_loss_equals_its_definition(directions, weight, margin):
    u = directions(6, 3)
    loss = sf.contrastive_loss(u, LABELS, margin=margin, negative_weight=weight)
    expected = oracles.contrastive_loss(oracles.class_kind(LABELS), u, margin, weight)
    torch.testing.assert_close(loss, expected)


def test_loss_is_the_sum_over_targets_up_to_a_constant(directions):
    u, margin = directions(6, 3), 1.2
    targets = sf.pair_targets(LABELS, u, margin=margin)
    squared = torch.cdist(u, u) ** 2
    inside = int((targets < 0).sum())
    constant = 0.5 * margin * inside / int((oracles.class_kind(LABELS) == -1).sum())
    torch.testing.assert_close(
        sf.contrastive_loss(u, LABELS, margin=margin), (targets * squared / 2).sum() + constant
    )


def test_gradient_matches_finite_differences(directions):
    u = directions(6, 3).requires_grad_()

    def loss(x):
        return sf.contrastive_loss(torch.nn.functional.normalize(x, dim=1), LABELS, margin=1.2)

    assert torch.autograd.gradcheck(loss, (u,))


@pytest.mark.parametrize("labels", [[0, 1, 2], [4, 4, 4]])
def test_a_missing_kind_of_pair_adds_nothing(directions, labels):
    u = directions(3, 4)
    kind = oracles.class_kind(labels)
    loss = sf.contrastive_loss(u, torch.tensor(labels), margin=4.0)
    torch.testing.assert_close(loss, oracles.contrastive_loss(kind, u, 4.0))


def test_no_judged_pair_is_no_loss(directions):
    none = torch.zeros(0, dtype=torch.int64)
    pairs = sf.PairList(none, none, none.bool(), n=3)
    assert float(sf.contrastive_loss(directions(3, 4), pairs, margin=1.0)) == 0.0


def test_loss_refuses_vectors_that_are_not_unit(normal):
    with pytest.raises(sf.InputError, match="rows of length 1"):
        sf.contrastive_loss(normal(6, 3) * 5, LABELS, margin=1.0)
