import pytest
import small_learners
import torch
from pytorch_metric_learning import distances, losses, miners

import surefind as sf
from surefind.models.saving import load_tensors
from surefind.pairs.losses import Contrastive, External


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective",
    [
        External(losses.ContrastiveLoss()),
        External(losses.TripletMarginLoss(), miners.MultiSimilarityMiner()),
        Contrastive(0.7, mining="hard", max_pairs=200),
        Contrastive(0.7, mining="semi-hard", max_pairs=200),
    ],
)
def test_other_losses_and_mined_pairs_train(objective):
    train, test = small_learners.digits()
    learner = small_learners.learner(objective=objective, epochs=4, novelty=False).fit(train)
    assert small_learners.recall_at_1(learner.embed(test), test.labels) > 0.9


def test_losses_with_weights_of_their_own_are_trained_and_kept(tmp_path):
    train = small_learners.digits()[0]
    loss = losses.ProxyAnchorLoss(4, 3)
    before = loss.proxies.detach().clone()
    options = {"objective": External(loss), "epochs": 2, "novelty": None}
    history = small_learners.learner(**options).fit(train, folder=tmp_path).history_["encoder"]
    assert history[-1].loss < history[0].loss
    kept = load_tensors(tmp_path / "encoder.safetensors")[0]
    assert not torch.equal(kept["task.objective.proxies"], before)
    assert torch.equal(loss.proxies, before)  # the caller's own stays as it is


def test_contrastive_is_the_loss_over_all_pairs(directions, generator):
    u, labels = directions(8, 3), torch.arange(8) % 3
    objective = Contrastive(1.1, negative_weight=0.3, negatives="all")
    value = objective(u, sf.Classes(labels), generator)
    expected = sf.contrastive_loss(u, labels, margin=1.1, negative_weight=0.3)
    torch.testing.assert_close(value, expected)


def test_the_mean_over_pairs_inside_the_margin_is_that_of_pytorch_metric_learning(
    directions, generator
):
    u, labels = directions(30, 3).requires_grad_(), torch.arange(30) % 4
    value = Contrastive(0.7)(u, sf.Classes(labels), generator)
    squared = distances.LpDistance(normalize_embeddings=False, power=2)
    expected = losses.ContrastiveLoss(neg_margin=0.7, distance=squared)(u, labels) / 2
    torch.testing.assert_close(value, expected)
    ours, theirs = (torch.autograd.grad(loss, u)[0] for loss in (value, expected))
    along = u.detach()  # on the sphere, a gradient's part along the radius does nothing
    flat = [g - (g * along).sum(1, keepdim=True) * along for g in (ours, theirs)]
    torch.testing.assert_close(*flat)


def test_without_different_pairs_inside_the_margin_nothing_repels(generator):
    u = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert Contrastive(0.7)(u, sf.Classes(torch.tensor([0, 0, 1])), generator) == 0


def test_an_external_loss_needs_labels(directions, generator):
    places = sf.Positions(torch.rand(4, 2), 1.0, 2.0)
    with pytest.raises(sf.InputError, match="needs class labels"):
        External(losses.ContrastiveLoss())(directions(4, 3), places, generator)
