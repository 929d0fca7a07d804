import numpy as np
import pytest
import torch

import surefind as sf
from surefind.estimators.laplace_head import relation_of_targets


def resolve(y, n=4):
    return relation_of_targets(y, n, same_within=1.0, different_beyond=2.0)


@pytest.mark.parametrize(
    "y",
    [
        [0, 0, 1, 1],
        ["a", "a", "b", "b"],
        np.array([3.0, 3.0, -1.0, -1.0]),
        np.array([True, True, False, False]),
        torch.tensor([7, 7, 9, 9]),
        np.array([[1], [1], [2], [2]]),
    ],
    ids=str,
)
def test_labels_of_any_kind(y):
    relation = resolve(y)
    assert isinstance(relation, sf.Classes)
    assert (relation.n_positive, relation.n_negative) == (4, 8)


def test_positions_are_metres():
    relation = resolve(np.array([[0, 0], [0, 1], [0, 5], [0, 6.5]], dtype=np.float32))
    assert isinstance(relation, sf.Positions)
    assert (relation.positive_radius, relation.negative_radius) == (1.0, 2.0)


def test_a_relation_is_taken_as_it_is():
    pairs = sf.PairList(torch.tensor([0]), torch.tensor([1]), torch.tensor([True]), 4)
    assert resolve(pairs) is pairs


def test_what_cannot_be_labels_is_refused():
    with pytest.raises(sf.InputError, match="requires y to be passed, but the target y is None"):
        resolve(None)
    with pytest.raises(sf.InputError, match="X has 4 rows and y 3"):
        resolve([0, 1, 1])
    with pytest.raises(sf.InputError, match=r"positions \(n, 2\); got \(4, 3\)"):
        resolve(np.zeros((4, 3)))
    with pytest.raises(sf.InputError, match="fractions, NaN or infinity"):
        resolve([0.5, 1.0, 1.0, 2.0])
    with pytest.raises(sf.InputError, match="fractions, NaN or infinity"):
        resolve([np.nan, 1.0, 1.0, 2.0])
