"""A frozen backbone gives what the whole network gives that is trained with its lower part held still."""

import copy

import numpy as np
import oracles
import pytest
import small_learners
import torch
from torch import nn

import surefind as sf
from surefind.data.inputs import FeatureViews
from surefind.learning.closed_form import RIDGE, closed_form_head
from surefind.learning.feature_cache import FeaturePass
from surefind.learning.frozen import FrozenBackbone, cut_backbone
from surefind.learning.methods import METHODS
from surefind.learning.seeds import seeded
from surefind.models.backbones import tower_of, with_linear_head
from surefind.pairs.relations import as_relation

FIXED = {"scale": 1e3, "prior_precision": 10.0}
"""Tuning corrupts what a method takes as inputs, which here are features, and there images."""
QUICK = {
    "laplace-posthoc": METHODS["laplace-posthoc"](**FIXED),
    "laplace-online": METHODS["laplace-online"](**FIXED, tuning="trained"),
    "mc-dropout": METHODS["mc-dropout"](n_samples=10),
    "deep-ensemble": METHODS["deep-ensemble"](members=2, redraw="head"),
}
TINY = {
    "model_type": "resnet",
    "num_channels": 1,
    "embedding_size": 8,
    "hidden_sizes": [8, 12],
    "depths": [1, 1],
    "layer_type": "basic",
}


def tower(seed=0):
    net = tower_of({"config": TINY, "pooling": "gem"}, generator=seeded(seed, "tower"))
    return with_linear_head(net.eval(), 3, generator=seeded(seed, "encoder"))


ENCODERS = {"sequential": small_learners.encoder, "tower": tower}


@pytest.fixture(scope="module")
def digits():
    train, test = small_learners.digits(2)
    return train[:96], test[:40]


def learner(encoder, method="deterministic", freezing=True, **options):
    options = {"epochs": 2, "batch_size": 32, "optimizer": small_learners.sgd} | options
    options = {"embedding": "head"} | options
    return sf.MetricLearner(
        encoder, method=QUICK.get(method, method), freeze_backbone=freezing, **options
    )


class Still(nn.Module):
    """The oracle: the lower part of a network that never learns, under the upper one, which may."""

    def __init__(self, backbone, above):
        super().__init__()
        cut = cut_backbone(copy.deepcopy(backbone), above)
        self.below, self.above = cut.below.requires_grad_(False), cut.above

    def train(self, mode=True):
        super().train(mode)
        self.below.eval()
        return self

    def forward(self, images):
        features = self.below(images)
        return self.above(features.half().float() if features.ndim > 2 else features)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind", "stages"),
    [
        ("deterministic", "sequential", 1),
        ("deterministic", "tower", 0),
        *((method, *case) for method in METHODS for case in (("sequential", 0), ("tower", 1))),
    ],
)
def test_every_method_learns_what_it_learns_through_the_whole_network(
    digits, method, kind, stages, tmp_path
):
    train, test = digits
    encoder = ENCODERS[kind]()
    before = copy.deepcopy(encoder.state_dict())
    frozen = learner(encoder, method, sf.Freezing(trained_stages=stages)).fit(train)
    still = sf.Encoder(Still(encoder.backbone, stages), encoder.head)
    whole = learner(still, method, False, novelty=False).fit(train)
    live, oracle = frozen.embed(test), whole.embed(test)
    torch.testing.assert_close(live.mean, oracle.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(live.kappa, oracle.kappa, rtol=5e-3, atol=0)
    assert small_learners.tensors_equal(encoder.state_dict(), before)
    # And features that were computed before give what images give, also after saving.
    frozen.save(tmp_path)
    kept = frozen.features(test)
    assert isinstance(kept.inputs, FeatureViews)
    for one in (frozen, sf.load(tmp_path, encoder=None if stages else encoder)):
        for found in (one.embed(test), one.embed(kept), one.embed(one.features(test))):
            torch.testing.assert_close(found.mean, live.mean, atol=1e-5, rtol=0)
            torch.testing.assert_close(found.kappa, live.kappa, rtol=1e-3, atol=0)
            torch.testing.assert_close(found.novelty, live.novelty, rtol=0.02, atol=1e-3)
        draws = [one.sample(x, 4, generator=seeded(1, "draws")) for x in (test, kept)]
        torch.testing.assert_close(*draws, atol=1e-4, rtol=0)


@pytest.mark.parametrize("stages", [0, 1])
@pytest.mark.parametrize("kind", ENCODERS)
def test_novelty_is_that_of_the_whole_network(digits, kind, stages):
    """Nothing learns, so both are the same network; the pass over features sees what a second pass sees."""
    train, test = digits
    how = {"epochs": 0}
    encoder = ENCODERS[kind]()
    frozen = learner(encoder, freezing=sf.Freezing(trained_stages=stages), **how)
    plain = learner(encoder, freezing=False, **how)
    for one in (frozen, plain):
        one.fit(train[:60], held_out=train[60:])
    assert frozen.layers_.vector.layers == plain.layers_.vector.layers
    known = frozen.layers_.novelty.known, plain.layers_.novelty.known
    torch.testing.assert_close(*known, rtol=1e-2, atol=1e-2)
    p = [one.embed(test).novelty for one in (frozen, plain)]
    torch.testing.assert_close(*p, rtol=0, atol=0.05)
    assert (p[0] - p[1]).abs().median() < 1e-3


class Scaled(nn.Module):
    """A network without a module in it that could be watched."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, vectors):
        return vectors * self.scale


def test_a_network_without_stages_is_watched_by_its_output(generator, tmp_path):
    labels = torch.arange(80) % 4
    vectors = torch.randn(80, 6, generator=generator) + 2 * torch.eye(6)[labels]
    data = sf.Dataset(vectors, labels)
    encoder = sf.Encoder(Scaled(), nn.Linear(6, 3))
    frozen, plain = (learner(encoder, freezing=f, epochs=0).fit(data) for f in (True, False))
    far = vectors * 9
    assert torch.equal(frozen.embed(far).novelty, plain.embed(far).novelty)
    assert torch.equal(frozen.embed(frozen.features(data)).novelty, frozen.embed(data).novelty)
    frozen.save(tmp_path)
    assert torch.equal(
        sf.load(tmp_path, encoder=encoder).embed(far).novelty, frozen.embed(far).novelty
    )


def test_only_what_is_above_learns(digits):
    encoder = tower()
    fitted = learner(encoder, freezing=sf.Freezing(trained_stages=1)).fit(digits[0]).fitted
    whole = fitted.whole_encoder()
    last = "model.encoder.stages.1"
    for name, value in encoder.backbone.state_dict().items():
        learnt = not torch.equal(value, whole.backbone.state_dict()[name])
        if name.endswith(("weight", "running_mean")) and "gem" not in name:
            assert learnt == name.startswith(last), name
    images = digits[1].read()
    torch.testing.assert_close(whole(images), fitted.embed(images).mean, atol=2e-3, rtol=0)


def test_a_posterior_of_the_whole_encoder_is_that_of_the_features(digits):
    train, test = digits
    first = learner(small_learners.encoder(), freezing=True).fit(train)
    encoder = first.fitted.whole_encoder()
    options = {"method": "laplace-posthoc", "epochs": 0}
    ways = [learner(encoder, freezing=frozen, **options).fit(train) for frozen in (True, False)]
    mean, kappa = zip(*((e.mean, e.kappa) for e in (w.embed(test) for w in ways)), strict=True)
    torch.testing.assert_close(*mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(*kappa, rtol=1e-3, atol=0)


def test_features_of_another_network_are_refused(digits):
    train, test = digits
    one, other = (learner(small_learners.encoder(seed=s)).fit(train) for s in (0, 1))
    kept = one.features(test)
    assert one.features(kept) is kept
    for refused in (other.embed, other.fit, other.features):
        with pytest.raises(sf.InputError, match="another network"):
            refused(kept)
    with pytest.raises(sf.InputError, match="is not frozen"):
        learner(small_learners.encoder(), freezing=False).fit(train).embed(kept)
    with pytest.raises(sf.InputError) as refusal:
        learner(small_learners.encoder(), freezing=False).features(train)
    assert refusal.value.field == "freeze_backbone"


def test_a_resumed_training_must_start_its_head_alike(digits, tmp_path):
    train, _ = digits
    how = {"epochs": 1}
    learner(small_learners.encoder(), **how).fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match="whitened"):
        learner(small_learners.encoder(), freezing=sf.Freezing(head="whitened"), **how).fit(
            train, folder=tmp_path
        )


@pytest.mark.parametrize(
    ("freezing", "options", "field"),
    [
        (sf.Freezing(trained_stages=9), {}, "trained_stages"),
        (sf.Freezing(views=2), {}, "views"),
        (sf.Freezing(views=2), {"preprocessing": sf.Preprocessing()}, "views"),
        (True, {"stages": ("nowhere",)}, "stages"),
    ],
)
def test_mistakes_are_refused_before_anything_long(digits, freezing, options, field):
    with pytest.raises(sf.InputError) as refusal:
        learner(tower(), freezing=freezing, **options).fit(digits[0])
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("name", "value"), [("trained_stages", -1), ("views", -1), ("views", 1.5), ("head", "random")]
)
def test_a_freezing_is_checked(name, value):
    with pytest.raises((sf.InputError, TypeError)):
        sf.Freezing(**{name: value})


def test_views_need_images(digits):
    flip = sf.Preprocessing(flip=True)
    one = learner(small_learners.encoder(), freezing=sf.Freezing(views=2), preprocessing=flip)
    with pytest.raises(sf.InputError) as refusal:
        one.fit(one.features(digits[0]))
    assert refusal.value.field == "views"


def test_training_sees_augmented_views_and_evaluation_the_plain_one(digits):
    train, test = digits
    flip = sf.Preprocessing(flip=True)
    how = {"preprocessing": flip, "epochs": 1}
    heads = {
        views: learner(small_learners.encoder(), freezing=sf.Freezing(views=views), **how)
        .fit(train)
        .fitted.upper.encoder.head.weight
        for views in (0, 3)
    }
    assert not torch.equal(heads[0], heads[3])
    one = learner(small_learners.encoder(), freezing=sf.Freezing(views=3), **how).fit(train)
    torch.testing.assert_close(one.embed(one.features(test)).mean, one.embed(test).mean)


@pytest.mark.parametrize("outputs", [2, 5, 8])
def test_heads_start_as_the_identity_or_principal_components(outputs, generator):
    mix = torch.randn(8, 5, generator=generator)
    inputs = torch.randn(200, 8, generator=generator) + 1
    data = sf.Dataset(inputs, torch.arange(200) % 2)
    backbone = nn.Sequential(nn.Linear(8, 5, bias=False))
    backbone[0].weight.data = mix.T.contiguous()
    encoder = sf.Encoder(backbone, nn.Linear(5, outputs))
    one = learner(encoder, freezing=sf.Freezing(head="identity"), epochs=0, novelty=False)
    if outputs > 5:
        with pytest.raises(sf.InputError) as refusal:
            one.fit(data)
        assert refusal.value.field == "head"
        return
    found = one.fit(data).fitted.upper.encoder.head
    features = (inputs @ mix).double().numpy()
    ours = features @ found.weight.detach().double().numpy().T + found.bias.detach().numpy()
    if outputs == 5:
        np.testing.assert_allclose(ours, features, rtol=1e-4, atol=1e-4)
    else:  # the products of features are kept as well as so few numbers can
        _, _, directions = np.linalg.svd(features, full_matrices=False)
        best = features @ directions[:outputs].T
        np.testing.assert_allclose(ours @ ours.T, best @ best.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("known", ["labels", "positions"])
@pytest.mark.parametrize("outputs", [2, 6, 8])
def test_heads_start_in_closed_form(known, outputs, normal):
    places = torch.arange(40) // 4
    inputs = (normal(10, 6)[places] + normal(40, 6) @ normal(6, 6)).float()
    apart = 100.0 * places.double()
    data = (
        sf.Dataset(inputs, places)
        if known == "labels"
        else sf.Dataset(inputs, positions=torch.stack([apart, torch.zeros(40)], dim=1))
    )
    encoder = sf.Encoder(nn.Sequential(nn.Identity()), nn.Linear(6, outputs))
    one = learner(encoder, freezing=sf.Freezing(head="whitened-within"), epochs=0, novelty=False)
    if outputs > 6:
        with pytest.raises(sf.InputError) as refusal:
            one.fit(data)
        assert refusal.value.field == "head"
        return
    head = one.fit(data).fitted.upper.encoder.head
    h = inputs.double().numpy()
    ours = h @ head.weight.detach().double().numpy().T + head.bias.detach().numpy()
    relation = as_relation(data.relation())
    start = closed_form_head(torch.from_numpy(h), relation, rows=outputs, field="").numpy()
    np.testing.assert_allclose(ours, h @ start[:, :-1].T + start[:, -1], rtol=1e-3, atol=1e-3)


def test_places_are_whitened_within_the_learners_own_radius(normal):
    inputs, at = normal(30, 4).float(), torch.arange(30.0)[:, None] * torch.tensor([[1.0, 0.0]])
    data = sf.Dataset(inputs, positions=at)

    def head(near):
        encoder = sf.Encoder(nn.Sequential(nn.Identity()), nn.Linear(4, 4))
        freezing = sf.Freezing(head="whitened-within")
        options = {"freezing": freezing, "epochs": 0, "novelty": False, "radii": (near, 20.0)}
        return learner(encoder, **options).fit(data).fitted.upper.encoder.head.weight.double()

    h = inputs.double().numpy()
    for near in (1.0, 2.0):
        apart = [
            np.outer(h[i] - h[j], h[i] - h[j]) for i in range(30) for j in range(i) if i - j <= near
        ]
        expected = oracles.whitening(np.mean(apart, axis=0), RIDGE)
        np.testing.assert_allclose(head(near).detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("copies", [2, 3, 8])
@pytest.mark.parametrize("known", ["labels", "positions"])
def test_a_head_cannot_start_whitened_within_classes_of_equal_examples(copies, known, normal):
    inputs, own = normal(5, 64).float().repeat_interleave(copies, dim=0), torch.arange(5 * copies)
    own = own // copies
    data = (
        sf.Dataset(inputs, own)
        if known == "labels"
        else sf.Dataset(inputs, positions=100.0 * own[:, None] * torch.ones(1, 2))
    )
    with pytest.raises(sf.DegenerateError) as refusal:
        whitened_within(64).fit(data)
    assert refusal.value.field == "head"


def test_what_whitening_cannot_be_learnt_from_is_refused_before_features_are_computed(
    normal, monkeypatch
):
    monkeypatch.setattr(FeaturePass, "run", lambda *_: pytest.fail("computed features"))
    for labels in (None, torch.arange(10)):
        with pytest.raises(sf.InputError):
            whitened_within(4).fit(sf.Dataset(normal(10, 4).float(), labels))


def test_a_head_without_a_bias_is_whitened_and_not_centred(normal):
    data = sf.Dataset(normal(12, 4).float() + 1, torch.arange(12) // 3)
    heads = [whitened_within(4, bias=b).fit(data).fitted.upper.encoder.head for b in (True, False)]
    torch.testing.assert_close(heads[0].weight, heads[1].weight)
    assert heads[1].bias is None


def whitened_within(d, **options):
    encoder = sf.Encoder(nn.Sequential(nn.Identity()), nn.Linear(d, d, **options))
    return learner(encoder, freezing=sf.Freezing(head="whitened-within"), epochs=0, novelty=False)


def test_the_head_starts_from_the_features_of_the_last_stage_too(digits):
    freezing = sf.Freezing(trained_stages=1, head="whitened-within")
    one = learner(tower(), freezing=freezing, epochs=0).fit(digits[0])
    outputs = one.fitted.upper.encoder.outputs(one.features(digits[0]).read())
    torch.testing.assert_close(outputs.mean(0), torch.zeros(3), atol=1e-2, rtol=0)


def test_the_part_below_is_still_and_that_above_may_learn():
    made = FrozenBackbone.of(small_learners.encoder(), sf.Freezing(trained_stages=1))
    assert not any(p.requires_grad for p in made.cut.below.parameters())
    assert not made.cut.below.training
    assert all(p.requires_grad for p in made.cut.above.parameters())
