import oracles
import pytest
import small_learners
import torch
from pytorch_metric_learning import distances, losses, miners

import surefind as sf
from surefind.models.checkpoint import load_tensors
from surefind.pairs.objectives import Contrastive, External, UnsquaredContrastive


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner()])
@pytest.mark.parametrize("loss", [losses.ContrastiveLoss(), losses.TripletMarginLoss()])
def test_losses_and_miners_of_pytorch_metric_learning_work_as_they_are(loss, miner):
    train, test = small_learners.digits()
    learner = small_learners.learner("laplace-posthoc", objective=External(loss, miner), epochs=4)
    assert small_learners.recall_at_1(learner.fit(train).embed(test), test.labels) > 0.9


def test_losses_with_weights_of_their_own_are_trained_and_kept(tmp_path):
    train = small_learners.digits()[0]
    loss = losses.ProxyAnchorLoss(4, 3)
    before = loss.proxies.detach().clone()
    options = {"objective": External(loss), "epochs": 2}
    history = small_learners.learner(**options).fit(train, folder=tmp_path).history_["encoder"]
    assert history[-1].loss < history[0].loss
    kept = load_tensors(tmp_path / "encoder.safetensors")[0]
    assert not torch.equal(kept["task.objective.proxies"], before)
    assert torch.equal(loss.proxies, before)  # the caller's own stays as it is


@pytest.mark.parametrize("mining", ["all", "hard", "semi-hard"])
def test_mined_pairs_train_too(mining):
    train, test = small_learners.digits()
    objective = Contrastive(0.7, mining=mining, max_pairs=200)
    learner = small_learners.learner(objective=objective, epochs=4).fit(train)
    assert small_learners.recall_at_1(learner.embed(test), test.labels) > 0.9


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


@pytest.mark.parametrize("margin", [0.3, 0.7, 1.5, 2.5])
def test_the_unsquared_loss_and_its_gradient_equal_the_definition(directions, generator, margin):
    u, labels = directions(12, 3), torch.arange(12) % 4
    given = [u.clone().requires_grad_() for _ in range(2)]
    ours = UnsquaredContrastive(margin)(given[0], sf.Classes(labels), generator)
    expected = oracles.unsquared_loss(oracles.class_kind(labels), given[1], margin)
    torch.testing.assert_close(ours, expected)
    for loss in (ours, expected):
        loss.backward()
    torch.testing.assert_close(given[0].grad, given[1].grad)


def test_the_unsquared_loss_is_that_of_pytorch_metric_learning(directions, generator):
    u, labels = directions(30, 3), torch.arange(30) % 4
    plain = distances.LpDistance(normalize_embeddings=False, power=1)
    expected = losses.ContrastiveLoss(neg_margin=0.7, distance=plain)(u, labels) / 2
    value = UnsquaredContrastive(0.7)(u, sf.Classes(labels), generator)
    torch.testing.assert_close(value, expected)


def test_embeddings_that_coincide_have_an_unsquared_loss_and_a_finite_gradient(generator):
    u = torch.tensor([[1.0, 0.0]] * 3, requires_grad=True)
    loss = UnsquaredContrastive(0.7)(u, sf.Classes(torch.tensor([0, 0, 1])), generator)
    assert float(loss.detach()) == pytest.approx(0.35)
    loss.backward()
    assert torch.equal(u.grad, torch.zeros(3, 2))
    apart = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert UnsquaredContrastive(0.7)(apart, sf.Classes(torch.tensor([0, 1])), generator) == 0


def test_unsquared_distances_train_and_the_curvature_has_their_margin(monkeypatch):
    train, test = small_learners.digits()
    seen = []
    original = sf.methods.LaplacePosthoc.curvature

    def curvature(self, encoder, dataset, session):
        seen.append(session.margin)
        return original(self, encoder, dataset, session)

    monkeypatch.setattr(sf.methods.LaplacePosthoc, "curvature", curvature)
    objective = UnsquaredContrastive(0.7)
    learner = small_learners.learner("laplace-posthoc", objective=objective, epochs=4).fit(train)
    assert small_learners.recall_at_1(learner.embed(test), test.labels) > 0.9
    assert seen == [pytest.approx(0.49)]


def test_a_checkpoint_of_another_margin_is_not_resumed(tmp_path):
    train = small_learners.digits()[0]
    options = {"epochs": 1, "novelty": None}
    one, other = (
        small_learners.learner(objective=UnsquaredContrastive(m), **options) for m in (0.7, 0.8)
    )
    one.fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match=r"UnsquaredContrastive\(margin=0.8\)"):
        other.fit(train, folder=tmp_path)


def test_options_out_of_range_are_refused():
    with pytest.raises(sf.InputError, match="margin must be"):
        UnsquaredContrastive(margin=-1.0)
    with pytest.raises(sf.InputError, match="margin must be"):
        Contrastive(margin=0.0)
    with pytest.raises(sf.InputError, match="negative_weight must lie"):
        Contrastive(negative_weight=2.0)


def test_an_external_loss_needs_labels(directions, generator):
    places = sf.Positions(torch.rand(4, 2), 1.0, 2.0)
    with pytest.raises(sf.InputError, match="needs class labels"):
        External(losses.ContrastiveLoss())(directions(4, 3), places, generator)
