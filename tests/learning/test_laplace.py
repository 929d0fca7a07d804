import oracles
import pytest
import small_learners
import torch

import surefind as sf
from surefind.learning.methods import laplace_posthoc
from surefind.learning.methods.laplace_online import LaplaceOnline, OnlineTask
from surefind.learning.methods.laplace_posthoc import LaplacePosthoc
from surefind.learning.train import TrainConfig, epoch_batches
from surefind.models.encoder import on_sphere
from surefind.pairs.losses import Contrastive
from surefind.posterior.fit import tune_prior_precision
from surefind.posterior.tuning import shuffled

pytestmark = pytest.mark.slow

SIX = [(d, a) for d in ("euclidean", "arccos") for a in ("fixed", "positive", "full")]


@pytest.mark.parametrize(("distance", "approximation"), SIX)
@pytest.mark.parametrize(
    ("method", "untuned"),
    [
        (LaplacePosthoc, {"scale": 10.0, "prior_precision": 1.0}),
        (LaplaceOnline, {"tuning": "trained"}),
    ],
)
def test_any_of_the_six_curvatures_trains_and_embeds(method, untuned, distance, approximation):
    train = small_learners.digits()[0][:200]
    learner = small_learners.learner(
        method(distance=distance, approximation=approximation, **untuned), epochs=1, novelty=False
    )
    e = learner.fit(train).embed(train)
    assert torch.isfinite(e.kappa).all()
    assert 0 <= learner.fitted.posterior.clipped < 1


def test_posthoc_is_the_exact_posterior_of_the_users_own_model():
    """Without epochs, the precision is scale · curvature over all pairs + prior, by the core."""
    train, encoder = small_learners.digits()[0], small_learners.encoder().eval()
    method = LaplacePosthoc(scale=7.0, prior_precision=0.5)
    fitted = sf.MetricLearner(encoder, method=method, embedding="head", epochs=0).fit(train).fitted
    with torch.no_grad():
        features = encoder.features(train.read())
    outputs = encoder.outputs_of(features).detach()
    targets = sf.pair_targets(train.labels, on_sphere(outputs), margin=0.7)
    curvature = sf.head_curvature(
        features, outputs, targets, distance="arccos", approximation="fixed"
    )
    expected = 7 * curvature.clamp(min=0) + 0.5
    torch.testing.assert_close(fitted.posterior.precision, expected, rtol=1e-3, atol=1e-4)
    assert small_learners.tensors_equal(fitted.encoder.state_dict(), encoder.state_dict())


def test_large_features_are_computed_twice_instead_of_kept(monkeypatch):
    train, encoder = small_learners.digits()[0], small_learners.encoder()
    options = {"method": small_learners.GIVEN, "epochs": 0, "novelty": None}
    fits = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(laplace_posthoc, "FEATURE_BYTES", limit)
        fits.append(sf.MetricLearner(encoder, embedding="head", **options).fit(train))
    one, two = (f.fitted.posterior.precision for f in fits)
    torch.testing.assert_close(one, two)


def test_on_a_linear_network_the_answer_is_the_exact_gaussian_one(normal, generator):
    """Curvature by autograd, pair by pair; κ from heads drawn from the dense Gaussian; nothing of ours."""
    labels = torch.arange(24) % 3
    features = (2 * normal(3, 4)[labels] + normal(24, 4)).float()
    encoder = sf.Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        encoder.head.weight.copy_(normal(3, 4))
    method = LaplacePosthoc("arccos", "fixed", scale=30.0, prior_precision=2.0)
    fitted = sf.MetricLearner(encoder, method=method, embedding="head", epochs=0).fit(
        sf.Dataset(features, labels)
    )
    weights, h = encoder.head_weights().double(), features.double()
    u = oracles.normalize(h @ weights.T)
    targets = oracles.pair_targets(oracles.class_kind(labels), u, 0.7)
    G = oracles.head_gauss_newton(weights, h, targets, "arccos", "fixed").diagonal()
    deviation = (30 * G.clamp(min=0) + 2).rsqrt().view(3, 4)
    noise = torch.randn(400_000, 3, 4, generator=generator, dtype=torch.float64)
    mean = oracles.normalize(h[:4] @ (weights + deviation * noise).mT).mean(0)
    length = mean.norm(dim=1)
    kappa = length * (3 - length**2) / (1 - length**2)
    e = fitted.embed(features[:4])
    torch.testing.assert_close(e.kappa.double(), kappa, rtol=2e-2, atol=0)
    torch.testing.assert_close(e.mean.double(), oracles.normalize(mean), rtol=0, atol=1e-2)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": 0.0, "temperature": 0.0}])
def test_online_without_memory_and_curvature_is_deterministic_training(options):
    """The posterior on the side changes nothing, and is the prior."""
    train = small_learners.digits()[0]
    plain = small_learners.learner("deterministic").fit(train).fitted
    method = LaplaceOnline(memory=1.0, prior_precision=3.0, **options)
    online = small_learners.learner(method).fit(train).fitted
    assert small_learners.tensors_equal(online.encoder.state_dict(), plain.encoder.state_dict())
    assert (online.posterior.precision == 3).all()


def test_online_curvature_is_the_discounted_sum_of_the_batches():
    """With no noise and no learning, every step's curvature can be computed afterwards."""
    train, encoder = small_learners.digits()[0][:96], small_learners.encoder()
    method = LaplaceOnline(
        memory=0.1, scale=2.0, prior_precision=3.0, temperature=0.0, tuning="trained"
    )
    learner = sf.MetricLearner(
        encoder,
        method=method,
        embedding="head",
        epochs=1,
        batch_size=32,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
    )
    precision = learner.fit(train).fitted.posterior.precision
    config = TrainConfig(1, 32, lambda p: torch.optim.SGD(p, lr=0.0))
    expected = torch.zeros_like(precision)
    for rows in epoch_batches(train, config, 0):
        features = encoder.features(train.read(rows)).detach()
        outputs = encoder.outputs_of(features).detach()
        targets = sf.pair_targets(train.labels[rows], on_sphere(outputs), margin=0.7)
        curvature = sf.head_curvature(
            features, outputs, targets, distance="arccos", approximation="fixed"
        )
        expected = 0.9 * expected + 2 * curvature.clamp(min=0)
    torch.testing.assert_close(precision, expected + 3)


def test_the_mean_curvature_is_that_of_the_steps_that_are_remembered():
    """Whatever the scale; a step counts 0.9 times as much as the next."""
    train, encoder = small_learners.digits()[0], small_learners.encoder()
    zero = torch.zeros_like(encoder.head_weights())
    options = LaplaceOnline(memory=0.1, scale=40.0, temperature=0.0)
    task = OnlineTask(encoder, Contrastive(), 0.7, options, 10.0, zero)
    seen = []
    for start in (0, 32, 64):
        rows = slice(start, start + 32)
        x, labels = train.read(rows), train.labels[rows]
        task.loss(x, sf.Classes(labels), torch.Generator().manual_seed(4))
        task.after_step()
        h = encoder.features(x).detach()
        z = encoder.outputs_of(h).detach()
        targets = sf.pair_targets(labels, on_sphere(z), margin=0.7)
        step = sf.head_curvature(h, z, targets, distance="arccos", approximation="fixed")
        seen.append(step.clamp(min=0))
    mean = (0.81 * seen[0] + 0.9 * seen[1] + seen[2]) / (0.81 + 0.9 + 1)
    torch.testing.assert_close(task.mean_curvature, mean)


def test_gradient_is_taken_at_the_sample():
    """The mean's gradient is that of the loss at W + noise, as autograd gives it."""
    train, encoder = small_learners.digits()[0], small_learners.encoder()
    zero = torch.zeros_like(encoder.head_weights())
    task = OnlineTask(encoder, Contrastive(), 0.7, LaplaceOnline(), 10.0, zero)
    x, relation = train.read(slice(0, 16)), sf.Classes(train.labels[:16])
    task.loss(x, relation, torch.Generator().manual_seed(4)).backward()
    noise = torch.randn(encoder.head_weights().shape, generator=torch.Generator().manual_seed(4))
    sampled = (encoder.head_weights() + noise / 10**0.5).requires_grad_()
    u = on_sphere(encoder.features(x).detach() @ sampled.T)
    sf.contrastive_loss(u, train.labels[:16], margin=0.7).backward()
    torch.testing.assert_close(encoder.head.weight.grad, sampled.grad[:, :-1])
    torch.testing.assert_close(encoder.head.bias.grad, sampled.grad[:, -1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 1.5}, "memory must lie between 0 and 1"),
        ({"prior_precision": -1.0}, "prior_precision must be a finite number above 0"),
        ({"scale": -1.0}, "scale and temperature must not be negative"),
        ({"temperature": -1.0}, "scale and temperature must not be negative"),
    ],
)
def test_online_options_out_of_range_are_refused(options, message):
    with pytest.raises(sf.InputError, match=message):
        small_learners.learner(LaplaceOnline(**options)).fit(small_learners.digits()[0])


def test_what_is_given_is_kept():
    train, _ = small_learners.digits()
    given = sf.methods.LaplacePosthoc(scale=10.0, prior_precision=3.0)
    posterior = small_learners.learner(given).fit(train).embedder_.posterior
    assert float(posterior.precision.min()) == pytest.approx(3.0, rel=1e-5)
    trained = sf.methods.LaplaceOnline(prior_precision=7.0, tuning="trained")
    posterior = small_learners.learner(trained).fit(train).embedder_.posterior
    assert float(posterior.precision.min()) == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize("method", ["laplace-posthoc", "laplace-online"])
def test_shuffled_digits_are_detected_by_either_method(method, generator):
    train, test = small_learners.digits()
    fitted = small_learners.learner(method, epochs=5).fit(train)
    known = fitted.embed(test).uncertainty
    shuffled_digits = fitted.embed(shuffled(test.read(), generator)).uncertainty
    assert sf.metrics.auroc(known, shuffled_digits) > 0.8


@pytest.mark.parametrize(
    ("structure", "approximation"), [("kronecker", "fixed"), ("dense", "full")]
)
def test_every_structure_is_fitted_saved_and_sampled(structure, approximation, tmp_path):
    train, test = small_learners.digits()
    method = LaplacePosthoc(approximation=approximation, structure=structure)
    fitted = small_learners.learner(method, epochs=1, novelty=False).fit(train[:200])
    assert fitted.fitted.posterior.structure == structure
    fitted.save(tmp_path / "model")
    again = sf.load(tmp_path / "model")
    assert again.method.structure == structure
    e = fitted.embed(test)
    assert torch.isfinite(e.kappa).all()
    assert torch.equal(again.embed(test).kappa, e.kappa)
    draws = fitted.sample(test[:9], 300, joint=True, generator=torch.Generator().manual_seed(2))
    kappa = sf.vmf_concentration(draws.double().mean(0).norm(dim=1), 3)
    torch.testing.assert_close(kappa.float(), e.kappa[:9], rtol=0.5, atol=0)


def test_the_prior_of_largest_evidence_can_be_asked_for():
    train = small_learners.digits()[0]
    method = LaplacePosthoc(prior_precision="evidence")
    fitted = small_learners.learner(method, epochs=0).fit(train).fitted
    weights = fitted.encoder.head_weights()
    n, least = len(train), float(fitted.posterior.precision.min())
    curvature = (fitted.posterior.precision - least) / n
    assert least == pytest.approx(
        tune_prior_precision(weights, curvature, scale=float(n)), rel=1e-2
    )
