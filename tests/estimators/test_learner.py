import json

import pytest
import small_learners
import torch
from torch import nn

import surefind as sf
from surefind.estimators.learner import FILE
from surefind.learning.seeds import seeded
from surefind.models.saving import load_tensors, save_tensors
from surefind.pairs.losses import Contrastive


class Odd(nn.Module):
    """A backbone of a kind that no file describes."""

    def forward(self, x):
        return x.flatten(1)


def test_defaults_learn_from_an_array_of_features():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    features = torch.randn(4, 10, generator=generator)[labels] * 3
    features += torch.randn(120, 10, generator=generator)
    encoder = sf.Encoder(nn.Identity(), nn.Linear(10, 4))
    learner = sf.MetricLearner(encoder, epochs=3).fit(sf.Dataset(features.numpy(), labels.numpy()))
    e = learner.embed(features)
    assert small_learners.recall_at_1(e, labels) > 0.9
    assert torch.isfinite(e.kappa).all()


def test_networks_that_no_file_describes_come_back_with_the_caller(tmp_path):
    train = small_learners.digits()[0][:100]
    encoder = sf.Encoder(Odd(), nn.Linear(64, 3))
    learner = sf.MetricLearner(encoder, epochs=1).fit(train)
    learner.save(tmp_path)
    with pytest.raises(sf.InputError, match=r"load\(path, encoder=...\)"):
        sf.load(tmp_path)
    again = sf.load(tmp_path, encoder=sf.Encoder(Odd(), nn.Linear(64, 3)))
    assert torch.equal(again.embed(train).kappa, learner.embed(train).kappa)
    with pytest.raises(sf.InputError, match="do not fit the network"):
        sf.load(tmp_path, encoder=sf.Encoder(Odd(), nn.Linear(64, 4)))


def test_preprocessing_and_options_are_saved_with_the_model(tmp_path):
    train = small_learners.digits()[0][:100]
    preprocessing = sf.Preprocessing(mean=(0.3,), std=(0.5,))
    method = sf.methods.LaplaceOnline(memory=0.01, distance="euclidean")
    learner = small_learners.learner(method, preprocessing=preprocessing, epochs=1).fit(train)
    learner.save(tmp_path)
    again = sf.load(tmp_path)
    assert again.method == method
    assert again.preprocessing == preprocessing
    assert again.history_ == learner.history_
    assert torch.equal(again.embed(train).mean, learner.embed(train).mean)


def test_a_saved_model_is_replaced_whole(tmp_path):
    train = small_learners.digits()[0][:100]
    small_learners.learner(epochs=1).fit(train).save(tmp_path)
    small_learners.learner("laplace-posthoc", epochs=1).fit(train).save(tmp_path)
    assert sf.load(tmp_path).embed(train).kappa.isfinite().all()
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_another_format_is_refused_with_what_to_use(tmp_path):
    train = small_learners.digits()[0][:100]
    small_learners.learner(epochs=1).fit(train).save(tmp_path)
    tensors, metadata = load_tensors(tmp_path / FILE)
    save_tensors(tmp_path / FILE, tensors, metadata | {"format": 99, "surefind": "7.1"})
    with pytest.raises(sf.InputError, match=r"is of format 99; .* the version that wrote it: 7.1"):
        sf.load(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(sf.InputError, match="is missing"):
        sf.load(tmp_path)


def test_metadata_is_plain_json(tmp_path):
    train = small_learners.digits()[0][:100]
    small_learners.learner("hib", epochs=1).fit(train).save(tmp_path)
    metadata = load_tensors(tmp_path / FILE)[1]
    assert metadata == json.loads(json.dumps(metadata))
    assert metadata["method"] == "hib"


def test_a_method_of_ones_own_works_but_cannot_be_saved_by_name(tmp_path):
    class Own(sf.methods.Deterministic):
        pass

    learner = small_learners.learner(Own(), epochs=1).fit(small_learners.digits()[0][:100])
    with pytest.raises(sf.InputError, match="Own is not known by name"):
        learner.save(tmp_path)


def test_the_curvature_is_of_the_loss_that_is_trained_on():
    train = small_learners.digits()[0][:100]
    fits = [
        small_learners
        .learner("laplace-posthoc", epochs=0, **options)
        .fit(train)
        .fitted.posterior.precision
        for options in ({"margin": 0.1}, {"objective": Contrastive(0.1)})
    ]
    assert torch.equal(*fits)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", -1),
        ("learning_rate", -1.0),
        ("margin", 0.0),
        ("decay", float("nan")),
        ("method", "lam"),
        ("method", None),
    ],
)
def test_options_are_refused_at_construction(option, value):
    with pytest.raises(sf.InputError) as refusal:
        sf.MetricLearner(small_learners.encoder(), **{option: value})
    assert refusal.value.field == option


def test_a_method_that_is_spelled_otherwise_is_named():
    with pytest.raises(sf.InputError, match="Did you mean 'laplace-posthoc'"):
        sf.MetricLearner(small_learners.encoder(), method="laplace_posthoc")


def test_misuse_is_answered_with_what_to_do():
    train = small_learners.digits()[0][:100]
    fitted = small_learners.learner(epochs=1).fit(train)
    for use in ("embed", "save", "fit_layers"):
        with pytest.raises(sf.InputError, match="not fitted yet; call fit"):
            getattr(small_learners.learner(), use)(train)
    for use, field in (
        (lambda: fitted.embed(train, batch_size=0), "batch_size"),
        (lambda: fitted.embed(train[:0]), "inputs"),
        (lambda: fitted.sample(train, 0, generator=seeded(0)), "n_samples"),
        (lambda: small_learners.learner(examples_per_class=0).fit(train), "examples_per_class"),
    ):
        with pytest.raises(sf.InputError) as refusal:
            use()
        assert refusal.value.field == field


def test_layers_are_fitted_to_a_model_that_was_trained_before(tmp_path):
    train, test = small_learners.digits()
    learner = small_learners.learner(epochs=1).fit(train, held_out=test[:100])
    learner.save(tmp_path)
    again = sf.load(tmp_path)
    known = learner.layers_.novelty.known
    assert torch.equal(again.fit_layers(train, held_out=test[:100]).layers_.novelty.known, known)
    assert not torch.equal(again.fit_layers(train).layers_.novelty.known, known)
    assert (learner.layers_.novelty.held_out, again.layers_.novelty.held_out) == (True, False)
    again.novelty = False
    assert again.fit_layers(train).embed(test).novelty is None


def test_held_out_examples_are_checked_before_the_training():
    train = small_learners.digits()[0][:100]

    def never(*_):
        raise AssertionError

    with pytest.raises(sf.InputError, match=r"trained on images .* of shape \(1, 8, 8\)"):
        small_learners.learner().fit(train, held_out=sf.Dataset(train.inputs[:, :4]), report=never)
