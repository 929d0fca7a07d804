import oracles
import pytest
import small_learners
import torch
from pytorch_metric_learning import distances, losses

import surefind as sf
from surefind.paper.protocols import UnsquaredContrastive


@pytest.mark.parametrize("margin", [0.3, 0.7, 1.5, 2.5])
def test_the_loss_and_its_gradient_equal_the_definition(directions, generator, margin):
    u, labels = directions(12, 3), torch.arange(12) % 4
    given = [u.clone().requires_grad_() for _ in range(2)]
    ours = UnsquaredContrastive(margin)(given[0], sf.Classes(labels), generator)
    expected = oracles.unsquared_loss(oracles.class_kind(labels), given[1], margin)
    torch.testing.assert_close(ours, expected)
    for loss in (ours, expected):
        loss.backward()
    torch.testing.assert_close(given[0].grad, given[1].grad)


def test_the_loss_is_that_of_pytorch_metric_learning(directions, generator):
    u, labels = directions(30, 3), torch.arange(30) % 4
    plain = distances.LpDistance(normalize_embeddings=False, power=1)
    expected = losses.ContrastiveLoss(neg_margin=0.7, distance=plain)(u, labels) / 2
    value = UnsquaredContrastive(0.7)(u, sf.Classes(labels), generator)
    torch.testing.assert_close(value, expected)


def test_embeddings_that_coincide_have_a_finite_gradient(generator):
    u = torch.tensor([[1.0, 0.0]] * 3, requires_grad=True)
    loss = UnsquaredContrastive(0.7)(u, sf.Classes(torch.tensor([0, 0, 1])), generator)
    assert float(loss.detach()) == pytest.approx(0.35)
    loss.backward()
    assert torch.equal(u.grad, torch.zeros(3, 2))
    apart = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert UnsquaredContrastive(0.7)(apart, sf.Classes(torch.tensor([0, 1])), generator) == 0


def test_it_trains_and_the_curvature_has_its_margin(monkeypatch):
    train, test = small_learners.digits()
    seen = []
    original = sf.methods.LaplacePosthoc.curvature

    def curvature(self, encoder, dataset, session):
        seen.append(session.margin)
        return original(self, encoder, dataset, session)

    monkeypatch.setattr(sf.methods.LaplacePosthoc, "curvature", curvature)
    options = {"objective": UnsquaredContrastive(0.7), "epochs": 4, "novelty": None}
    learner = small_learners.learner("laplace-posthoc", **options).fit(train)
    assert small_learners.recall_at_1(learner.embed(test), test.labels) > 0.9
    assert seen == [pytest.approx(0.49)]


def test_a_checkpoint_of_another_margin_is_not_resumed(tmp_path):
    train = small_learners.digits()[0]
    one, other = (
        small_learners.learner(objective=UnsquaredContrastive(m), epochs=1, novelty=False)
        for m in (0.7, 0.8)
    )
    one.fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match=r"UnsquaredContrastive\(margin=0.8\)"):
        other.fit(train, folder=tmp_path)
