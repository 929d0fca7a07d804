import numpy as np
import pytest
import torch

import surefind as sf
from surefind.curvature.rows import Source
from surefind.estimators.laplace_head import initial_head, trained_head
from surefind.learning.train import TrainConfig


@pytest.fixture
def source():
    g = np.random.default_rng(1)
    return Source(g.standard_normal((40, 5)) * [3, 1, 2, 0.1, 0.5])


def config(**changes):
    options = {
        "epochs": 3,
        "batch_size": 16,
        "optimizer": lambda p: torch.optim.Adam(p, lr=0.01),
    }
    return TrainConfig(**options | changes)


def test_starts_as_the_identity(source):
    assert initial_head(source, None).tolist() == [[*row, 0.0] for row in np.eye(5).tolist()]


def test_fewer_outputs_are_the_leading_principal_directions(source):
    head = initial_head(source, 2)
    h = source.features(slice(None))[:, :5]
    leading = torch.linalg.svd(h).Vh[:2]
    assert head[:, 5].tolist() == [0, 0]
    torch.testing.assert_close((head[:, :5] * leading).sum(1).abs(), torch.ones(2).double())
    assert (head.gather(1, head.abs().argmax(1, keepdim=True)) > 0).all()


def test_more_outputs_than_columns_are_refused(source):
    with pytest.raises(sf.InputError, match="embedding_dim is 6, but X has 5 columns"):
        initial_head(source, 6)


@pytest.mark.parametrize("kind", ["labels", "positions"])
def test_training_lowers_the_loss(source, kind):
    g = np.random.default_rng(2)
    relation = sf.Classes(torch.arange(40) % 4)
    if kind == "positions":
        relation = sf.Positions(torch.from_numpy(g.uniform(0, 100, (40, 2))), 25.0, 50.0)
    start = initial_head(source, 3)
    head = trained_head(start, source, relation, margin=0.7, config=config())
    assert head.dtype == start.dtype

    def loss(weights):
        u = torch.nn.functional.normalize(source.features(slice(None)) @ weights.T, dim=1)
        return sf.contrastive_loss(u, relation, margin=0.7)

    assert loss(head) < loss(start)
    again = trained_head(start, source, relation, margin=0.7, config=config())
    assert torch.equal(again, head)


def test_listed_pairs_cannot_be_trained_on(source):
    pairs = sf.PairList(torch.tensor([0]), torch.tensor([1]), torch.tensor([True]), 40)
    with pytest.raises(sf.InputError, match="not on a list of pairs"):
        trained_head(initial_head(source, 3), source, pairs, margin=0.7, config=config())
