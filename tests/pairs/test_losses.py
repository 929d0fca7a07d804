import oracles
import pytest
import torch

import surefind as sf
from surefind.pairs.losses import mine_pairs, mined_negative_weight

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


MINED = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])


def mine(u, generator, **options):
    options = {"kind": "all", "max_pairs": 1000, "margin": 1.0} | options
    return mine_pairs(MINED, u, generator=generator, **options)


def as_set(pairs):
    return {
        (*sorted((int(i), int(j))), bool(s))
        for i, j, s in zip(pairs.left, pairs.right, pairs.positive, strict=True)
    }


def by_loops(u, margin, kind):
    """Every pair that a kind of mining may choose."""
    d = torch.cdist(u, u)
    chosen = set()
    for i in range(len(u)):
        for j in range(i + 1, len(u)):
            if MINED[i] == MINED[j]:
                chosen.add((i, j, True))
                continue
            inside = float(d[i, j]) ** 2 <= margin
            nearest = [
                min((d[a, p] for p in range(len(u)) if p != a and MINED[p] == MINED[a]), default=9)
                for a in (i, j)
            ]
            semi = any(d[i, j] > x for x in nearest)
            if kind == "all" or (inside and (kind == "hard" or semi)):
                chosen.add((i, j, False))
    return chosen


@pytest.mark.parametrize("kind", ["all", "hard", "semi-hard"])
def test_unlimited_mining_finds_every_eligible_pair(directions, generator, kind):
    u = directions(9, 3)
    assert as_set(mine(u, generator, kind=kind)) == by_loops(u, 1.0, kind)


def test_hard_mining_takes_the_farthest_same_and_the_closest_different(directions, generator):
    u = directions(9, 3)
    pairs = mine(u, generator, kind="hard", max_pairs=4)
    d = torch.cdist(u, u)
    everything = by_loops(u, 1.0, "hard")
    same = sorted((p for p in everything if p[2]), key=lambda p: -d[p[0], p[1]])[:2]
    different = sorted((p for p in everything if not p[2]), key=lambda p: d[p[0], p[1]])[:2]
    assert as_set(pairs) == {*same, *different}


def test_a_limit_is_kept_and_filled_with_the_other_kind(directions, generator):
    u = directions(9, 3)
    pairs = mine(u, generator, max_pairs=20)
    assert len(pairs.left) == 20
    assert pairs.n_positive == 2 * 7  # all seven positive pairs, though half of 20 would be ten


def test_same_generator_same_pairs(directions):
    u = directions(9, 3)
    draws = [mine(u, torch.Generator().manual_seed(3), max_pairs=6) for _ in range(2)]
    assert as_set(draws[0]) == as_set(draws[1])


def test_corrected_weight_restores_the_balance_of_the_population(directions, generator):
    """Total attraction over total repulsion of mined targets equals that of all targets."""
    u, margin = directions(60, 3), 1.0
    labels = torch.arange(60) % 6
    pairs = mine_pairs(labels, u, kind="hard", max_pairs=100, margin=margin, generator=generator)
    weight = mined_negative_weight(pairs, labels, u, margin=margin)
    assert 0 < weight < 0.5
    ratios = []
    for relation, w in ((labels, 0.5), (pairs, weight)):
        targets = sf.pair_targets(relation, u, margin=margin, negative_weight=w)
        ratios.append(targets.clamp(max=0).sum() / targets.clamp(min=0).sum())
    torch.testing.assert_close(ratios[0], ratios[1])


def test_an_unbiased_choice_needs_no_correction(directions):
    u = directions(9, 3)
    pairs = mine(u, torch.Generator())
    assert mined_negative_weight(pairs, MINED, u, margin=1.0) == pytest.approx(0.5)


def test_no_mined_pair_inside_the_margin_leaves_the_weight_alone(directions):
    u = directions(9, 3)
    pairs = sf.PairList(torch.tensor([0]), torch.tensor([1]), torch.tensor([True]), n=9)
    assert mined_negative_weight(pairs, MINED, u, margin=1.0) == 0.5


def test_wrong_options_are_refused(directions, generator):
    with pytest.raises(
        sf.InputError, match="max_pairs must be a whole number of at least 1; got 0"
    ):
        mine(directions(9, 3), generator, max_pairs=0)
