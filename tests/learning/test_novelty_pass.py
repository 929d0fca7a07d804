"""Novelty of every method: what the pass fits, keeps and resumes, and what embeddings then say."""

from concurrent.futures import ThreadPoolExecutor

import oracles
import pytest
import small_learners
import torch
from torch import nn

import surefind as sf
from surefind.learning import novelty_pass
from surefind.learning.methods import METHODS
from surefind.learning.novelty_pass import Novelty, watched
from surefind.models.vectors import UnitRows
from surefind.novelty.model import upper_rates

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
    model = learner.novelty_.model
    return torch.searchsorted(upper_rates(len(model.known), model.confidence).float(), p)


def test_known_images_are_known_and_noise_is_not(fitted, asked):
    p = p_of(fitted, asked)
    assert ((p > 0) & (p <= 1)).all()
    assert (p <= 0.05).float().mean() < 0.1
    assert p.median() > 0.2
    strange = p_of(fitted, noise(100, 1, 8, 8))
    assert (strange <= 0.05).all()
    assert strange.median() == pytest.approx(fitted.novelty_.model.least)


def test_the_embedding_is_what_it_is_without_novelty(fitted, asked):
    plain, guarded = fitted.fitted.embed(asked), fitted.embed(asked)
    assert torch.equal(plain.mean, guarded.mean)
    assert torch.equal(plain.kappa, guarded.kappa)


def test_a_saved_model_gives_the_same_bits(fitted, asked, tmp_path):
    fitted.save(tmp_path)
    again = sf.load(tmp_path)
    assert torch.equal(p_of(again, asked), p_of(fitted, asked))
    assert again.novelty_.stages == fitted.novelty_.stages
    model = fitted.novelty_.model
    assert small_learners.tensors_equal(again.novelty_.model.tensors(), model.tensors())


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
            assert float(p[1]) == pytest.approx(fitted.novelty_.model.least)


def test_stages_are_watched_without_anything_random(fitted, asked):
    """MC dropout's masks and an ensemble's other members have no part in them."""
    images, found = asked[:9], []
    network = fitted.fitted.network.backbone
    hooks = [
        network.get_submodule(stage).register_forward_hook(
            lambda _m, _x, y: found.append(y.clone())
        )
        for stage in fitted.novelty_.stages
    ]
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    _, statistics = watched(fitted.fitted, fitted.novelty_.stages, images)
    assert len(statistics) == len(found) == 2
    for ours, output in zip(statistics, found, strict=True):
        expected = oracles.stage_statistics_oracle(output)
        torch.testing.assert_close(ours.double(), expected, atol=1e-3, rtol=1e-3)
    assert not any(m._forward_hooks for m in network.modules())


def test_nothing_is_fitted_to_few_examples_or_if_not_asked(tmp_path):
    train = small_learners.digits()[0]
    none = [
        small_learners.learner(novelty=None, epochs=0).fit(train),
        small_learners.learner(epochs=0).fit(train[:19]),
        small_learners.learner(epochs=0).fit(train, held_out=train[:19]),
    ]
    for i, learner in enumerate(none):
        assert learner.novelty_ is None
        assert learner.embed(train).novelty is None
        learner.save(tmp_path / str(i))
        assert sf.load(tmp_path / str(i)).embed(train).novelty is None
    assert small_learners.learner(epochs=0).fit(train[:20]).embed(train).novelty is not None


def test_the_caller_may_name_the_stages():
    train = small_learners.digits()[0]
    learner = small_learners.learner(epochs=0, novelty=Novelty(stages=("0",))).fit(train)
    assert learner.novelty_.stages == ("0",)
    assert learner.novelty_.model.widths.tolist() == [32]
    with pytest.raises(sf.InputError) as refused:
        small_learners.learner(epochs=0, novelty=Novelty(stages=("layer4",))).fit(train)
    assert refused.value.field == "stages"


@pytest.mark.parametrize(
    ("field", "value"), [("sample", 19), ("confidence", 0.0), ("confidence", 1.0)]
)
def test_options_are_refused_before_anything_is_trained(field, value):
    with pytest.raises(sf.InputError) as refused:
        Novelty(**{field: value})
    assert refused.value.field == field


def test_at_most_the_sample_is_looked_at():
    train, test = small_learners.digits()
    seen = []
    learner = small_learners.learner(epochs=0, novelty=Novelty(sample=50))
    learner.fit(train, held_out=test, report=lambda stage, p: seen.append((stage, p.step, p.steps)))
    assert seen[-1] == ("novelty", 100, 100)
    assert len(learner.novelty_.model.known) == 50
    assert len(learner.novelty_.model.embeddings) == 50


def test_the_confidence_is_the_callers():
    train = small_learners.digits()[0]
    fits = [
        small_learners.learner(epochs=0, novelty=Novelty(confidence=c)).fit(train)
        for c in (0.5, 0.99)
    ]
    low, high = (p_of(learner, train) for learner in fits)
    assert (low <= high).all()
    assert [learner.novelty_.model.confidence for learner in fits] == [0.5, 0.99]


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
def test_of_vectors_direction_and_length_are_looked_at(backbone):
    generator = torch.Generator().manual_seed(5)
    centres = nn.functional.normalize(torch.randn(6, 8, generator=generator), dim=1)
    sets = [clusters(400, centres[:4], seed=i) for i in range(3)]
    encoder = sf.Encoder(backbone(), nn.Linear(8, 4))
    learner = sf.MetricLearner(encoder, method="deterministic", epochs=1)
    learner.fit(sets[0], held_out=sets[1])
    assert learner.novelty_.stages == ()
    assert learner.novelty_.model.names == ("shape", "magnitude", "density")
    vectors = sets[2].inputs
    assert (p_of(learner, vectors) <= 0.01).float().mean() <= 0.04
    assert (p_of(learner, 10 * vectors) <= 0.01).all()
    assert (p_of(learner, vectors / 10) <= 0.01).all()
    others = clusters(200, centres[4:], seed=9).inputs
    assert (p_of(learner, others) <= 0.01).float().mean() > 0.9


@pytest.fixture(scope="module")
def ten():
    """All ten digits: a model, and what it has never seen of them."""
    train, test = small_learners.digits(10)
    encoder = small_learners.encoder(seed=1)
    learner = sf.MetricLearner(encoder, method="deterministic", epochs=3, batch_size=32)
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
    learner = small_learners.learner(epochs=3).fit(train, held_out=test[:450])
    images = test[450:].read()
    silent = torch.cat([x.amax(0) for x in watched(learner.fitted, ("4",), train.read())[1]]) == 0
    assert silent.any()
    for kind in ("black", "white", "grey", "inverted"):
        assert (p_of(learner, STRANGE[kind](images)) <= 0.01).float().mean() > 0.95


def test_new_digits_are_flagged_no_more_often_than_promised(ten):
    learner, images = ten
    p = p_of(learner, images)
    for alpha in (0.01, 0.05, 0.2):
        sampling = 3 * (alpha * (1 - alpha) / len(images)) ** 0.5
        assert (p <= alpha).float().mean() <= alpha + sampling


class CutOffError(Exception):
    """The power fails."""


@pytest.fixture
def kept_at_once(monkeypatch):
    monkeypatch.setattr(novelty_pass, "SAVE_EVERY", -1.0)
    monkeypatch.setattr(novelty_pass, "BATCH", 50)


def pass_of(learner, folder, dataset, held_out, *, cut_at=None):
    """Fit novelty; return how many examples had passed after each batch."""
    seen = []

    def report(stage, progress):
        assert stage == "novelty"
        seen.append(progress.step)
        if len(seen) == cut_at:
            raise CutOffError

    learner.fit_novelty(dataset, held_out=held_out, folder=folder, report=report)
    return seen


@pytest.mark.parametrize("cut_at", [1, 4, 9])
def test_a_pass_that_was_cut_off_resumes(kept_at_once, tmp_path, cut_at):
    train, test = small_learners.digits()
    learner = small_learners.learner(epochs=0).fit(train)
    whole = pass_of(learner, None, train, test[:130])
    assert whole == [50, 100, 150, 200, 250, 300, 350, 360, 410, 460, 490]
    undisturbed = learner.novelty_.model.tensors()
    with pytest.raises(CutOffError):
        pass_of(learner, tmp_path, train, test[:130], cut_at=cut_at)
    assert learner.novelty_ is None
    rest = pass_of(learner, tmp_path, train, test[:130])
    assert rest == whole[cut_at - 1 :]
    resumed = learner.novelty_.model.tensors()
    assert small_learners.tensors_equal(resumed, undisturbed)
    assert pass_of(learner, tmp_path, train, test[:130]) == []
    assert small_learners.tensors_equal(learner.novelty_.model.tensors(), undisturbed)


def changed(train, test):
    """Other passes than that of `kept_of`, each in one thing."""
    labels = train.labels
    return {
        "weights": (small_learners.learner(epochs=1), train, test),
        "method": (small_learners.learner(QUICK["mc-dropout"], epochs=0), train, test),
        "preprocessing": (
            small_learners.learner(
                epochs=0, preprocessing=sf.Preprocessing(mean=(0.5,), std=(0.5,))
            ),
            train,
            test,
        ),
        "stages": (small_learners.learner(epochs=0, novelty=Novelty(stages=("0",))), train, test),
        "held out": (small_learners.learner(epochs=0), train, train[:60]),
        "examples": (
            small_learners.learner(epochs=0),
            sf.Dataset(255 - train.inputs, labels),
            test,
        ),
        "order": (small_learners.learner(epochs=0), train[torch.arange(len(train)).flip(0)], test),
        "sample": (small_learners.learner(epochs=0, novelty=Novelty(sample=50)), train, test),
    }


@pytest.mark.parametrize(
    "change",
    ["weights", "method", "preprocessing", "stages", "held out", "examples", "order", "sample"],
)
def test_what_another_pass_kept_is_not_mixed_in(kept_at_once, tmp_path, change):
    train, test = (data[:60] for data in small_learners.digits())
    small_learners.learner(epochs=0).fit(train).fit_novelty(train, held_out=test, folder=tmp_path)
    learner, dataset, held_out = changed(train, test)[change]
    learner.fit(dataset)
    pass_of(learner, None, dataset, held_out)
    expected = learner.novelty_.model.tensors()
    pass_of(learner, tmp_path, dataset, held_out)
    assert small_learners.tensors_equal(learner.novelty_.model.tensors(), expected)


def test_a_damaged_file_is_refused_by_its_name(kept_at_once, tmp_path):
    train = small_learners.digits()[0]
    learner = small_learners.learner(epochs=0).fit(train, folder=tmp_path)
    file = tmp_path / "novelty-sample-0.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(sf.InputError, match="novelty-sample-0"):
        learner.fit_novelty(train, folder=tmp_path)
