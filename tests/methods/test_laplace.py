import learning
import pytest
import torch

import surefind as sf
from surefind.methods import laplace_posthoc
from surefind.methods.laplace_online import LaplaceOnline
from surefind.methods.laplace_posthoc import LaplacePosthoc
from surefind.models.encoder import on_sphere
from surefind.train import Plan, epoch_batches

SIX = [(d, a) for d in ("euclidean", "arccos") for a in ("fixed", "positive", "full")]


@pytest.mark.parametrize(("distance", "approximation"), SIX)
@pytest.mark.parametrize("method", [LaplacePosthoc, LaplaceOnline])
def test_any_of_the_six_curvatures_trains_and_embeds(method, distance, approximation):
    train = learning.digits()[0][:200]
    learner = learning.learner(method(distance=distance, approximation=approximation), epochs=1)
    e = learner.fit(train).embed(train)
    assert torch.isfinite(e.kappa).all()
    assert 0 <= learner.fitted.posterior.clipped < 1


def test_posthoc_is_the_exact_posterior_of_the_users_own_model():
    """Without epochs, the precision is scale · curvature over all pairs + prior, by the core."""
    train, encoder = learning.digits()[0], learning.encoder().eval()
    method = LaplacePosthoc(scale=7.0, prior_precision=0.5)
    fitted = sf.MetricLearner(encoder, method=method, epochs=0).fit(train).fitted
    with torch.no_grad():
        features = encoder.features(train.read())
    outputs = encoder.outputs_of(features).detach()
    targets = sf.pair_targets(train.labels, on_sphere(outputs), margin=0.7)
    curvature = sf.head_curvature(
        features, outputs, targets, distance="arccos", approximation="fixed"
    )
    expected = 7 * curvature.clamp(min=0) + 0.5
    torch.testing.assert_close(fitted.posterior.precision, expected, rtol=1e-3, atol=1e-4)
    assert learning.tensors_equal(fitted.encoder.state_dict(), encoder.state_dict())


def test_large_features_are_computed_twice_instead_of_kept(monkeypatch):
    train, encoder = learning.digits()[0], learning.encoder()
    fits = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(laplace_posthoc, "FEATURE_BYTES", limit)
        fits.append(sf.MetricLearner(encoder, method="laplace-posthoc", epochs=0).fit(train))
    one, two = (f.fitted.posterior.precision for f in fits)
    torch.testing.assert_close(one, two)


def test_prior_by_evidence_when_none_is_given():
    train = learning.digits()[0]
    fitted = learning.learner("laplace-posthoc", epochs=1).fit(train).fitted
    lowest = float(fitted.posterior.precision.min())
    assert lowest > 0


def test_online_without_noise_curvature_and_memory_is_deterministic_training():
    """The posterior on the side changes nothing, and is the prior."""
    train = learning.digits()[0]
    plain = learning.learner("deterministic").fit(train).fitted
    method = LaplaceOnline(memory=1.0, scale=0.0, prior_precision=3.0, temperature=0.0)
    online = learning.learner(method).fit(train).fitted
    assert learning.tensors_equal(online.encoder.state_dict(), plain.encoder.state_dict())
    assert (online.posterior.precision == 3).all()


def test_online_curvature_is_the_discounted_sum_of_the_batches():
    """With no noise and no learning, every step's curvature can be computed afterwards."""
    train, encoder = learning.digits()[0][:96], learning.encoder()
    method = LaplaceOnline(memory=0.1, scale=2.0, prior_precision=3.0, temperature=0.0)
    learner = sf.MetricLearner(
        encoder,
        method=method,
        epochs=1,
        batch_size=32,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
    )
    precision = learner.fit(train).fitted.posterior.precision
    plan = Plan(1, 32, lambda p: torch.optim.SGD(p, lr=0.0))
    expected = torch.zeros_like(precision)
    for rows in epoch_batches(train, plan, 0):
        features = encoder.features(train.read(rows)).detach()
        outputs = encoder.outputs_of(features).detach()
        targets = sf.pair_targets(train.labels[rows], on_sphere(outputs), margin=0.7)
        curvature = sf.head_curvature(
            features, outputs, targets, distance="arccos", approximation="fixed"
        )
        expected = 0.9 * expected + 2 * curvature.clamp(min=0)
    torch.testing.assert_close(precision, expected + 3)


def test_gradient_is_taken_at_the_sample():
    """A huge prior variance makes the sampled head, and so the loss, unlike the mean's."""
    train = learning.digits()[0]
    losses = [
        learning.learner(LaplaceOnline(prior_precision=p), epochs=1).fit(train).history_["encoder"]
        for p in (1e-3, 1e9)
    ]
    assert losses[0][0].loss > 1.2 * losses[1][0].loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 1.5}, "memory must lie between 0 and 1"),
        ({"prior_precision": -1.0}, "prior_precision must be a finite number above 0"),
    ],
)
def test_online_options_out_of_range_are_refused(options, message):
    with pytest.raises(sf.InputError, match=message):
        learning.learner(LaplaceOnline(**options)).fit(learning.digits()[0])
