import pytest
import torch

import surefind as sf
from surefind.estimators.laplace_head import is_same, recall_among


def test_same_is_an_equal_label_or_a_near_place():
    classes = sf.Classes(torch.tensor([0, 0, 1, 1]))
    assert is_same(classes, torch.tensor([1, 2, 3, 0])).tolist() == [True, False, True, False]
    spots = torch.tensor([[0, 0], [0, 1], [0, 5], [0, 6.5]], dtype=torch.float64)
    places = sf.Positions(spots, 1.0, 2.0)
    assert is_same(places, torch.tensor([1, 0, 3, 2])).tolist() == [True, True, False, False]


@pytest.mark.parametrize("kind", ["labels", "positions"])
def test_recall_counts_rows_that_can_be_answered(directions, kind):
    x = directions(40, 3)
    labels = torch.tensor([0] * 15 + [1] * 10 + [2] * 14 + [3])
    relation = sf.Classes(labels)
    if kind == "positions":
        relation = sf.Positions(labels[:, None].double() * 100, 25.0, 50.0)
    right = []
    for i in range(39):  # the last one has no other of its kind
        others = [j for j in range(40) if j != i]
        found = max(others, key=lambda j: float(x[i] @ x[j]))
        right.append(bool(labels[found] == labels[i]))
    assert recall_among(x, relation) == pytest.approx(sum(right) / 39)


def test_what_cannot_be_judged_is_refused(directions):
    x = directions(4, 3)
    one = torch.tensor([0])
    pairs = sf.PairList(one, one + 1, torch.tensor([True]), 4)
    with pytest.raises(sf.InputError, match="a PairList does not judge every pair"):
        recall_among(x, pairs)
    with pytest.raises(sf.DegenerateError, match="no row has another of its own kind"):
        recall_among(x, sf.Classes(torch.arange(4)))
