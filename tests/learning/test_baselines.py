import pytest
import small_learners
import torch
from torch.distributions import Normal, kl_divergence

import surefind as sf
from surefind.learning.methods.ensemble import DeepEnsemble, procrustes
from surefind.learning.methods.gaussian import (
    HIB,
    HedgedTask,
    MatchScale,
    VarianceNet,
    mutual_likelihood_loss,
    soft_contrastive_loss,
)


def test_procrustes_undoes_a_rotation_and_a_reflection(normal, directions):
    target = directions(50, 4)
    rotation = torch.linalg.qr(normal(4, 4))[0]
    for turn in (rotation, rotation * torch.tensor([1.0, 1, 1, -1])):
        source = target @ turn
        torch.testing.assert_close(source @ procrustes(source, target).T, target)


def test_aligned_members_agree_where_raw_ones_do_not():
    train, test = small_learners.digits()
    fitted = small_learners.learner(DeepEnsemble(members=3), epochs=5).fit(train).fitted
    x = test.read()
    aligned = fitted._members(x)
    raw = torch.stack([e(x) for e in fitted.encoders])
    assert aligned.mean(0).norm(dim=1).mean() > 0.85
    assert raw.mean(0).norm(dim=1).mean() < aligned.mean(0).norm(dim=1).mean() - 0.1


def test_members_start_differently_and_pretrained_backbones_can_stay():
    train, encoder = small_learners.digits()[0][:100], small_learners.encoder()
    options = {"epochs": 0, "batch_size": 32}
    everything, heads = (
        sf.MetricLearner(encoder, method=DeepEnsemble(2, redraw=r), **options).fit(train).fitted
        for r in ("all", "head")
    )
    first, second = everything.encoders
    assert small_learners.tensors_equal(first.state_dict(), encoder.state_dict())
    assert not torch.equal(first.backbone[0].weight, second.backbone[0].weight)
    first, second = heads.encoders
    assert torch.equal(first.backbone[0].weight, second.backbone[0].weight)
    assert not torch.equal(first.head.weight, second.head.weight)


def test_one_member_is_no_ensemble():
    with pytest.raises(sf.InputError, match="members must be a whole number of at least 2; got 1"):
        small_learners.learner(DeepEnsemble(members=1)).fit(small_learners.digits()[0])
    with pytest.raises(sf.InputError, match="redraw must be one of 'auto', 'all', 'head'"):
        small_learners.learner(DeepEnsemble(redraw="tail")).fit(small_learners.digits()[0])


def test_mutual_likelihood_is_that_of_the_difference_of_two_gaussians(normal):
    """The score is the log density at zero of the difference, up to a constant (Shi and Jain, eq. 3)."""
    mean, variance = normal(5, 3), normal(5, 3).exp()
    pairs = torch.zeros(5, 5, dtype=torch.bool)
    pairs[0, 3] = pairs[2, 4] = True
    expected = 0.0
    for i, j in ((0, 3), (2, 4)):
        difference = Normal(mean[i] - mean[j], (variance[i] + variance[j]).sqrt())
        expected -= difference.log_prob(torch.zeros(3, dtype=mean.dtype)).sum() / 2
    constant = 1.5 * torch.log(torch.tensor(2 * torch.pi, dtype=mean.dtype))
    loss = mutual_likelihood_loss(mean, variance, pairs)
    torch.testing.assert_close(loss, expected - constant)


def test_no_genuine_pair_is_no_loss_but_can_be_differentiated(normal):
    variance = normal(3, 2).exp().requires_grad_()
    loss = mutual_likelihood_loss(normal(3, 2), variance, torch.zeros(3, 3, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0
    assert not variance.grad.any()


def test_soft_contrastive_loss_by_loops(directions):
    samples = torch.stack([directions(4, 3) for _ in range(5)]).float()
    same = torch.zeros(4, 4, dtype=torch.bool)
    same[0, 1] = same[1, 0] = True
    different = torch.zeros(4, 4, dtype=torch.bool)
    different[0, 2] = different[2, 0] = different[1, 3] = different[3, 1] = True
    match = MatchScale()
    a = torch.nn.functional.softplus(match.slope.detach())

    def probability(i, j):
        values = [
            torch.sigmoid(match.offset - a * (samples[k, i] - samples[m, j]).norm())
            for k in range(5)
            for m in range(5)
        ]
        return torch.stack(values).mean()

    expected = -probability(0, 1).log() / 2
    expected -= ((1 - probability(0, 2)).log() + (1 - probability(1, 3)).log()) / 2 / 2
    loss = soft_contrastive_loss(samples, same, different, match)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_bottleneck_is_added_and_is_the_divergence_from_a_standard_normal(generator):
    train, encoder = small_learners.digits()[0], small_learners.encoder()
    net = VarianceNet(encoder.head_weights().shape[1], 3, generator=generator)
    x, relation = train.read(slice(0, 16)), sf.Classes(train.labels[:16])

    def loss(bottleneck):
        task = HedgedTask(encoder, net, MatchScale(), HIB(bottleneck=bottleneck))
        return task.loss(x, relation, torch.Generator().manual_seed(0))

    features = encoder.features(x)
    deviation = (net(features) / 2).exp()
    gaussian = Normal(encoder.outputs_of(features), deviation)
    divergence = kl_divergence(gaussian, Normal(torch.zeros(3), torch.ones(3))).sum(1).mean()
    torch.testing.assert_close(loss(0.5) - loss(0.0), 0.5 * divergence, rtol=1e-3, atol=1e-4)


def test_variance_net_starts_small_and_shares_its_last_scale(generator):
    net = VarianceNet(6, 4, generator=generator)
    log_variance = net(torch.randn(20, 6, generator=generator))
    assert ((log_variance + 7).abs() < 0.01).all()
    assert net.scale.shape == net.shift.shape == ()
