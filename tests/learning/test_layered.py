"""All layers as one vector: what is fitted to it, and what embeddings then say, of every method."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oracles
import pytest
import small_learners
import torch
from torch import nn

import surefind as sf
from surefind.learning import layered
from surefind.learning.layered import QUIET, raw_vector, watched, weights_of
from surefind.learning.methods import METHODS
from surefind.models.layers import HEAD, OUTPUT, Layers
from surefind.models.vectors import UnitRows
from surefind.novelty import CONFIDENCE, upper_rates

QUICK = {
    "laplace-posthoc": small_learners.GIVEN,
    "laplace-online": small_learners.ONLINE,
    "mc-dropout": METHODS["mc-dropout"](n_samples=10),
    "deep-ensemble": METHODS["deep-ensemble"](members=2),
}
"""Smaller versions of what would take long; everything else as it is by default."""


def noise(n, *shape):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(0))


QUICKLY_TESTED = ("deterministic", "mc-dropout")
"""One that runs its network once, and one that runs it many times; the others are slow tests."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[] if name in QUICKLY_TESTED else pytest.mark.slow)
        for name in METHODS
    ],
)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(name):
    train, test = small_learners.digits()
    return small_learners.learner(QUICK.get(name, name)).fit(train, held_out=test[:180])


@pytest.fixture(scope="module")
def asked():
    return small_learners.digits()[1][180:].read()


def p_of(learner, inputs, **options):
    return learner.embed(inputs, **options).novelty


def steps(learner, p):
    """How many of the known examples a p-value stands for."""
    known = learner.layers_.novelty.known
    return torch.searchsorted(upper_rates(len(known), CONFIDENCE).float(), p)


def test_known_images_are_known_and_noise_is_not(fitted, asked):
    p = p_of(fitted, asked)
    assert ((p > 0) & (p <= 1)).all()
    assert (p <= 0.05).float().mean() < 0.1
    assert p.median() > 0.2
    strange = p_of(fitted, noise(100, 1, 8, 8))
    assert (strange <= 0.1).float().mean() > 0.9
    assert strange.median() <= 0.06


def test_the_embedding_is_what_it_is_without_novelty(fitted, asked):
    plain, guarded = fitted.fitted.embed(asked), fitted.embed(asked)
    assert torch.equal(plain.mean, guarded.mean)
    assert torch.equal(plain.kappa, guarded.kappa)


def test_a_saved_model_gives_the_same_bits(fitted, asked, tmp_path):
    fitted.save(tmp_path)
    again = sf.load(tmp_path)
    assert torch.equal(p_of(again, asked), p_of(fitted, asked))
    assert again.layers_.plan() == fitted.layers_.plan()
    assert small_learners.tensors_equal(again.layers_.tensors(), fitted.layers_.tensors())


def test_p_values_depend_neither_on_company_nor_on_order(fitted, asked):
    whole = steps(fitted, p_of(fitted, asked))
    for size in (1, 7):
        some = steps(fitted, p_of(fitted, asked[:20], batch_size=size))
        assert (some - whole[:20]).abs().max() <= 1
    order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(1))
    assert (steps(fitted, p_of(fitted, asked[order])) - whole[order]).abs().max() <= 1
    assert torch.equal(p_of(fitted, asked), p_of(fitted, asked))


def test_what_is_hardly_a_number_is_refused_or_novel(fitted, asked):
    for value in (torch.nan, torch.inf, -torch.inf, 1e30, 3e38):
        images = asked[:3].clone()
        images[1, 0, 4, 4] = value
        for embed in (fitted.embed, fitted.embed_batch):
            try:
                p = embed(images).novelty
            except sf.SurefindError:
                continue
            assert float(p[1]) == pytest.approx(fitted.layers_.novelty.least)


def test_stages_are_watched_without_anything_random(fitted, asked):
    """MC dropout's masks and an ensemble's other members have no part in them."""
    images, found = asked[:9], []
    layers = fitted.layers_.vector.layers
    network = fitted.fitted.network.backbone
    hooks = [
        network.get_submodule(stage).register_forward_hook(
            lambda _m, _x, y: found.append(y.clone())
        )
        for stage in layers.names[:-1]
    ]
    with torch.no_grad():
        network_outputs = fitted.fitted.network.outputs(images)
    for hook in hooks:
        hook.remove()
    _, (*statistics, output) = watched(fitted.fitted, layers, images)
    torch.testing.assert_close(output, network_outputs)
    assert len(statistics) == len(found) == 2
    for ours, output in zip(statistics, found, strict=True):
        expected = oracles.stage_statistics_oracle(output, parts=layers.parts)
        torch.testing.assert_close(ours.double(), expected, atol=1e-3, rtol=1e-3)
    assert not any(m._forward_hooks for m in network.modules())


def test_the_vector_is_logarithms_and_the_output_standardised(normal):
    """A number of a grid counts less, one of the output more."""
    layers = Layers(("a", "b", HEAD), parts=2, of_parts=(0, 2))
    said = [normal(50, 4).float(), normal(50, 3).float(), normal(50, 2).float()]
    plain = [x.double().numpy() for x in said]
    lengths = [np.log(np.sqrt((x**2).mean(axis=1))) for x in (plain[0], plain[1][:, :1])]
    logs = [np.log(np.abs(x) + QUIET) for x in plain[:2]]
    by_hand = np.concatenate([np.stack(lengths, axis=1), *logs, plain[2]], axis=1)
    raw = raw_vector(layers, said)
    np.testing.assert_allclose(raw, by_hand, rtol=1e-4, atol=1e-5)
    vector = layered.LayerVector.of(layers, raw, weights_of(layers, said))
    spread = by_hand.std(axis=0, ddof=1)
    spread = spread + 0.01 * np.sqrt(np.mean(spread**2)) + 1e-9
    expected = (by_hand - by_hand.mean(axis=0)) / spread * [*[1] * 7, 0.5, 0.5, 3, 3]
    np.testing.assert_allclose(vector(said), expected, rtol=1e-3, atol=1e-4)


def test_without_stages_the_vector_is_the_direction_of_the_output(normal):
    layers, output = Layers((OUTPUT,)), normal(9, 5).float()
    raw = raw_vector(layers, [output])
    torch.testing.assert_close(raw, nn.functional.normalize(output, dim=1))
    vector = layered.LayerVector.of(layers, raw, weights_of(layers, [output]))
    assert torch.equal(vector([2 * output]), raw)


def test_nothing_is_fitted_to_few_examples_or_if_not_asked(tmp_path):
    train = small_learners.digits()[0]
    none = [
        small_learners.learner(novelty=False, epochs=0).fit(train),
        small_learners.learner(epochs=0).fit(train[:19]),
        small_learners.learner(epochs=0).fit(train, held_out=train[:19]),
    ]
    for i, learner in enumerate(none):
        assert learner.embed(train).novelty is None
        learner.save(tmp_path / str(i))
        assert sf.load(tmp_path / str(i)).embed(train).novelty is None
    assert small_learners.learner(epochs=0).fit(train[:20]).embed(train).novelty is not None


def test_the_caller_may_name_the_stages():
    train = small_learners.digits()[0]
    learner = small_learners.learner(epochs=0, stages=("0",)).fit(train)
    assert learner.layers_.vector.layers.names == ("0", HEAD)
    assert len(learner.layers_.vector.centre) == 1 + 16 * 18 + 3
    with pytest.raises(sf.InputError) as refused:
        small_learners.learner(epochs=0, stages=("layer4",)).fit(train)
    assert refused.value.field == "stages"


def test_at_most_the_sample_is_looked_at(monkeypatch):
    monkeypatch.setattr(layered, "SAMPLE", 50)
    train, test = small_learners.digits()
    seen = []
    learner = small_learners.learner(epochs=0)
    learner.fit(train, held_out=test, report=lambda stage, p: seen.append((stage, p.step, p.steps)))
    assert seen[-1] == ("layers", 100, 100)
    assert len(learner.layers_.novelty.known) == 50
    assert len(learner.layers_.novelty.references) == 50


def test_several_threads_embed_with_one_model():
    """Each has its own inputs, while the network is the same."""
    train, test = small_learners.digits()
    learner = small_learners.learner(epochs=0).fit(train)
    batches = [test[i : i + 20 + i % 7].read() for i in range(0, 300, 10)]
    expected = [p_of(learner, x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: p_of(learner, x), batches * 2))
    for i, p in enumerate(found):
        assert torch.equal(p, expected[i % len(batches)])


def clusters(n, centres, *, spread=0.05, lengths=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % len(centres)
    vectors = centres[labels] + spread * torch.randn(n, centres.shape[1], generator=generator)
    vectors *= 1 + lengths * torch.randn(n, 1, generator=generator)
    return sf.Dataset(vectors, labels)


@pytest.mark.parametrize("backbone", [nn.Identity, UnitRows])
@pytest.mark.parametrize("method", ["deterministic", "laplace-posthoc"])
def test_of_vectors_their_direction_is_looked_at(backbone, method):
    generator = torch.Generator().manual_seed(5)
    centres = nn.functional.normalize(torch.randn(6, 8, generator=generator), dim=1)
    sets = [clusters(400, centres[:4], seed=i) for i in range(3)]
    encoder = sf.Encoder(backbone(), nn.Linear(8, 4))
    learner = sf.MetricLearner(encoder, method=method, epochs=1)
    learner.fit(sets[0], held_out=sets[1])
    assert learner.layers_.vector.layers.names == (OUTPUT,)
    vectors = sets[2].inputs
    assert (p_of(learner, vectors) <= 0.01).float().mean() <= 0.04
    if backbone is UnitRows or method == "laplace-posthoc":  # a bias sees the length
        torch.testing.assert_close(
            p_of(learner, 10 * vectors), p_of(learner, vectors), atol=0.01, rtol=0
        )
    others = clusters(200, centres[4:], seed=9).inputs
    assert (p_of(learner, others) <= 0.01).float().mean() > 0.9


def test_vectors_get_what_a_laplace_head_gives_them():
    """The same object on different features: the same directions, κ and p-values."""
    generator = torch.Generator().manual_seed(5)
    data = clusters(300, torch.randn(6, 8, generator=generator))
    encoder = sf.Encoder(UnitRows(), nn.Linear(8, 4))
    given = sf.methods.LaplacePosthoc(scale=300.0, prior_precision=1.0)
    learner = sf.MetricLearner(encoder, method=given, embedding_dim=5).fit(data)
    head = sf.LaplaceHead(5, scale=300.0, prior_precision=1.0).fit(data.inputs, data.labels)
    one, other = learner.embed(data.inputs), head.embed(data.inputs)
    for name, atol in (("mean", 1e-4), ("kappa", 1e-4), ("novelty", 0.02)):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-3, atol=atol)


NARROW = sf.methods.LaplacePosthoc(scale=1000.0, prior_precision=100.0)


@pytest.fixture(scope="module")
def of_layers():
    train, test = small_learners.digits(10)
    learner = sf.MetricLearner(small_learners.encoder(), method=NARROW, epochs=2, batch_size=32)
    return learner.fit(train, held_out=test[:450]), test[450:]


def test_layers_find_what_the_last_one_does_not(of_layers):
    learner, test = of_layers
    assert learner.embedding == "layers"
    found = learner.embed(test)
    own = learner.fitted.embed(test.read())
    assert small_learners.recall_at_1(found, test.labels) > 0.95
    assert small_learners.recall_at_1(own, test.labels) < 0.9
    assert found.mean.shape[1] == learner.outputs
    strange = learner.embed(noise(200, 1, 8, 8))
    assert sf.metrics.auroc(-found.novelty.numpy(), -strange.novelty.numpy()) > 0.95


@pytest.mark.slow
def test_kappa_of_the_head_tells_what_is_no_digit():
    train, test = small_learners.digits(10)
    learner = sf.MetricLearner(small_learners.encoder(), epochs=2, batch_size=32).fit(train)
    known, strange = learner.embed(test), learner.embed(noise(200, 1, 8, 8))
    assert sf.metrics.auroc(known.uncertainty.numpy(), strange.uncertainty.numpy()) > 0.95


def test_the_posterior_over_the_head_is_exact_over_every_pair(of_layers):
    learner, _ = of_layers
    train = small_learners.digits(10)[0]
    _, said = watched(learner.fitted, learner.layers_.vector.layers, train.read())
    h = torch.nn.functional.pad(learner.layers_.vector(said), (0, 1), value=1.0)
    posterior = learner.layers_.posterior
    curvature = sf.dataset_curvature(
        h, h @ posterior.mean.T, train.labels, distance="arccos", margin=learner.margin
    )
    expected = 1000 * curvature.clamp(min=0) + 100
    torch.testing.assert_close(posterior.precision, expected, rtol=1e-3, atol=1)
    embedded = posterior.predict(h)
    torch.testing.assert_close(learner.embed(train).kappa, embedded.kappa, rtol=1e-3, atol=1e-3)


def test_layers_are_saved_and_sampled(of_layers, tmp_path):
    learner, test = of_layers
    learner.save(tmp_path)
    again = sf.load(tmp_path)
    one, other = learner.embed(test), again.embed(test)
    assert all(torch.equal(getattr(one, x), getattr(other, x)) for x in ("mean", "kappa"))
    draw = lambda n: learner.sample(
        test[:n], 400, joint=False, generator=torch.Generator().manual_seed(0)
    )
    assert draw(20).shape == (400, 20, learner.outputs)
    mean = nn.functional.normalize(draw(20).mean(0), dim=1)
    assert (mean * one.mean[:20]).sum(1).median() > 0.9
    joint = [
        learner.sample(test[:9], 3, generator=torch.Generator().manual_seed(1), batch_size=size)
        for size in (4, 9)
    ]
    torch.testing.assert_close(*joint, rtol=1e-4, atol=1e-5)


def test_a_frozen_backbone_learns_nothing_and_gives_its_output():
    train, test = small_learners.digits(10)
    encoder = small_learners.encoder()
    learner = sf.MetricLearner(encoder, method=small_learners.GIVEN, freeze_backbone=True).fit(
        train
    )
    assert learner.history_ == {}
    assert learner.layers_.vector.layers.names == ("1", "4", OUTPUT)
    features = learner.features(test)
    one, other = learner.embed(test), learner.embed(features)
    torch.testing.assert_close(one.mean, other.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.kappa, other.kappa, rtol=1e-3, atol=1e-3)
    assert small_learners.recall_at_1(one, test.labels) > 0.95


@pytest.fixture(scope="module")
def ten():
    """All ten digits: a model, and what it has never seen of them."""
    train, test = small_learners.digits(10)
    encoder = small_learners.encoder(seed=1)
    learner = sf.MetricLearner(encoder, method=small_learners.GIVEN, epochs=3, batch_size=32)
    return learner.fit(train, held_out=test[:450]), test[450:].read()


STRANGE = {
    "noise": lambda x: noise(*x.shape),
    "bits": lambda x: (noise(*x.shape) > 0.5).float(),
    "black": torch.zeros_like,
    "white": torch.ones_like,
    "grey": lambda x: torch.full_like(x, 0.5),
    "dark grey": lambda x: torch.full_like(x, 0.1),
    "inverted": lambda x: 1 - x,
    "half a pixel": lambda x: torch.nn.functional.pad(x[..., :1, :1] * 0 + 0.5, (0, 7, 0, 7)),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_what_is_no_digit_is_novel(ten, kind):
    learner, images = ten
    assert (p_of(learner, STRANGE[kind](images)) <= 0.01).float().mean() > 0.95


def test_a_silent_channel_that_speaks_once_does_not_hide_the_rest():
    """This network has a channel that all training digits leave at zero, and a held-out digit does not."""
    train, test = small_learners.digits(10)
    learner = small_learners.learner(small_learners.GIVEN, epochs=3, embedding="layers")
    learner.fit(train, held_out=test[:450])
    images = test[450:].read()
    silent = (
        torch.cat([
            x.amax(0) for x in watched(learner.fitted, Layers(("4",), 0, False), train.read())[1]
        ])
        == 0
    )
    assert silent.any()
    for kind in ("black", "white", "grey", "inverted"):
        assert (p_of(learner, STRANGE[kind](images)) <= 0.01).float().mean() > 0.95


def test_new_digits_are_flagged_no_more_often_than_promised(ten):
    learner, images = ten
    p = p_of(learner, images)
    for alpha in (0.01, 0.05, 0.2):
        sampling = 3 * (alpha * (1 - alpha) / len(images)) ** 0.5
        assert (p <= alpha).float().mean() <= alpha + sampling
