"""What a learner is given: modules of one's own, data of PyTorch; and what is refused before training."""

import numpy as np
import pytest
import torch
from PIL import Image
from small_learners import GIVEN, digits, encoder, learner
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import TensorDataset

import surefind as sf
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.errors import DegenerateError, InputError
from surefind.learning import layered


class Own(nn.Module):
    """A trained network as it comes: nothing of ours in it."""

    def __init__(self, z=4):
        super().__init__()
        self.projection = nn.Linear(12, z)
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())

    def forward(self, images):
        return normalize(self.projection(self.trunk(images)), dim=1)


def posthoc(network, **options):
    options = {"method": GIVEN, "epochs": 0} | options
    return sf.MetricLearner(network, **options)


def test_a_plain_module_is_split_fitted_saved_and_loaded(tmp_path):
    train, test = digits()
    module = Own()
    fitted = posthoc(module).fit(train)
    assert fitted.split_.layer == "projection"
    found = fitted.embed(test)
    with torch.no_grad():
        wanted = module(test.read())
    torch.testing.assert_close(fitted.fitted.embed(test.read()).mean, wanted)
    assert bool(torch.isfinite(found.kappa).all())
    fitted.save(tmp_path)
    with pytest.raises(InputError) as refusal:
        sf.load(tmp_path)
    assert refusal.value.field == "encoder"
    again = sf.load(tmp_path, encoder=Own())
    assert torch.equal(again.embed(test).kappa, found.kappa)
    assert torch.equal(again.embed(test).novelty, found.novelty)
    assert again.split_ == fitted.split_


def test_a_sequential_is_loaded_without_the_module(tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 4))
    fitted = posthoc(network, novelty=False).fit(digits()[0])
    fitted.save(tmp_path)
    again = sf.load(tmp_path)
    assert torch.equal(again.embed(digits()[1]).kappa, fitted.embed(digits()[1]).kappa)
    assert again.novelty is False


def test_training_beyond_a_folded_batch_norm_is_said():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
    network[2].running_mean.fill_(0.3)
    with pytest.warns(UserWarning, match="folded"):
        posthoc(network, method="deterministic", epochs=1, novelty=False).fit(digits()[0][:40])


@pytest.mark.parametrize("network", ["resnet50", nn.Flatten(), Own().trunk], ids=str)
def test_what_is_no_network_with_a_head_is_refused(network):
    model = posthoc(encoder())
    model.encoder = network
    with pytest.raises(InputError) as refusal:
        model.fit(digits()[0])
    assert refusal.value.field == "encoder"


def test_a_plain_module_cannot_replace_an_encoder_that_was_saved(tmp_path):
    fitted = learner("deterministic", epochs=0, novelty=False).fit(digits()[0])
    fitted.save(tmp_path)
    with pytest.raises(InputError) as refusal:
        sf.load(tmp_path, encoder=Own())
    assert refusal.value.field == "encoder"


def test_data_of_pytorch_give_what_ours_give():
    train, test = digits()
    theirs = TensorDataset(torch.as_tensor(train.inputs), train.labels)
    ours = learner(GIVEN, epochs=0).fit(train, held_out=test)
    other = learner(GIVEN, epochs=0).fit(theirs, held_out=TensorDataset(*tensors(test)))
    found, wanted = other.embed(TensorDataset(*tensors(test))), ours.embed(test)
    assert torch.equal(found.mean, wanted.mean)
    assert torch.equal(found.kappa, wanted.kappa)
    assert torch.equal(found.novelty, wanted.novelty)
    assert isinstance(other.fit_layers(theirs).embed(theirs).novelty, torch.Tensor)
    rng = torch.Generator().manual_seed(0)
    drawn = other.sample(theirs, 2, generator=rng)
    assert torch.equal(drawn, ours.sample(train, 2, generator=torch.Generator().manual_seed(0)))


def tensors(data):
    return torch.as_tensor(data.inputs), data.labels


def test_evaluation_takes_data_of_pytorch():
    train, test = digits()
    model = learner("deterministic", epochs=0, novelty=False).fit(train)
    how = {"ece_samples": 0}
    ours = sf.evaluate(
        model, test, test, train=train, generator=torch.Generator().manual_seed(0), **how
    )
    theirs = sf.evaluate(
        model,
        TensorDataset(*tensors(test)),
        TensorDataset(tensors(test)[0]),
        train=TensorDataset(*tensors(train)),
        generator=torch.Generator().manual_seed(0),
        **how,
    )
    assert theirs.values == ours.values
    with pytest.raises(InputError) as refusal:
        sf.evaluate(model, test, ood=[1], generator=torch.Generator())
    assert refusal.value.field == "ood"


ALIKE = Dataset(np.zeros((6, 8, 8), np.uint8), np.zeros(6, np.int64))
SINGLE = Dataset(np.zeros((2, 8, 8), np.uint8), np.arange(2))


@pytest.mark.parametrize("data", [ALIKE, SINGLE], ids=["one class", "singletons"])
@pytest.mark.parametrize("method", ["deterministic", "laplace-online", "laplace-posthoc"])
def test_data_that_teach_nothing_are_refused_before_training(data, method, tmp_path):
    with pytest.raises(DegenerateError) as refusal:
        learner(method, epochs=1).fit(data, folder=tmp_path / "stages")
    assert refusal.value.field == "dataset"
    assert not (tmp_path / "stages").exists()


def test_a_point_estimate_that_learns_nothing_needs_no_pairs():
    assert learner("deterministic", epochs=0).fit(ALIKE).embed(ALIKE).kappa.isinf().all()


def test_stages_are_checked_before_training(tmp_path):
    options = {"stages": ("nowhere",), "epochs": 1}
    with pytest.raises(InputError) as refusal:
        learner("deterministic", **options).fit(digits()[0], folder=tmp_path / "stages")
    assert refusal.value.field == "stages"
    assert not (tmp_path / "stages").exists()


def test_inputs_that_the_network_does_not_take_are_refused_before_training():
    colour = Dataset(np.zeros((40, 3, 8, 8), np.uint8), np.arange(40) % 2)
    network = encoder().train()
    with pytest.raises(InputError) as refusal:
        sf.MetricLearner(network, epochs=1).fit(colour)
    assert refusal.value.field == "encoder"
    assert network.training


@pytest.mark.parametrize("shape", [(4, 8, 8, 3), (4, 8, 9, 1)], ids=str)
def test_channels_that_come_last_are_refused(shape):
    with pytest.raises(InputError) as refusal:
        Dataset(np.zeros(shape, np.uint8))
    assert refusal.value.field == "inputs"
    Dataset(np.zeros((4, 3, 8, 8), np.uint8))
    Dataset(np.zeros((4, 64, 4, 4), np.float32))  # maps of a network


@pytest.mark.parametrize("turned", [np.s_[::-1], np.s_[:, ::-1], np.s_[:, :, ::-1]], ids=str)
def test_arrays_that_run_backwards_are_taken(turned):
    train = digits()[0]
    images = train.inputs[turned]
    labels = train.labels.flip(0) if turned == np.s_[::-1] else train.labels
    model = posthoc(encoder(), freeze_backbone=True, novelty=False).fit(Dataset(images, labels))
    wanted = model.embed(images.copy())
    assert np.array_equal(model.embed(images).mean, wanted.mean)


def test_a_process_without_examples_says_of_which_shape_it_has_none(monkeypatch):
    train = digits()[0][:40]
    model = learner("deterministic", epochs=0).fit(train)
    shapes = []
    monkeypatch.setattr(layered, "part", lambda n: slice(n, n))

    def gathered(rows, n):
        shapes.append(rows.shape)
        return rows.new_zeros(n, rows.shape[1])

    monkeypatch.setattr(layered, "gather_rows", gathered)
    model.fit_layers(train)
    assert shapes == [(0, 2 + 48 * 18 + 3), (0, 3)]


def test_it_knows_what_it_was_fitted_to(tmp_path):
    """By content: of arrays the numbers, of image files the files, wherever they are."""
    train, test = digits()
    model = posthoc(encoder()).fit(train)
    model.save(tmp_path / "run")
    for one in (model, sf.load(tmp_path / "run")):
        assert one.trained_on(train[:20]).all()
        assert one.trained_on(train.inputs[5:9]).tolist() == [True] * 4
        assert not one.trained_on(test).any()
    more = model.fit_layers(test[:30])
    assert more.trained_on(test).sum() == 30
    assert more.trained_on(train).all()


def test_image_files_are_known_by_their_content(tmp_path):
    rng = np.random.default_rng(0)
    paths = []
    for i in range(24):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(paths[-1])
    files = sf.Dataset(ImageFiles(paths, mode="L"), np.arange(24) % 3)
    model = posthoc(encoder()).fit(files[:20])
    moved = tmp_path / "moved.png"
    moved.write_bytes(paths[3].read_bytes())
    asked = sf.Dataset(ImageFiles([*paths, moved], mode="L"))
    assert model.trained_on(asked).tolist() == [True] * 20 + [False] * 4 + [True]
