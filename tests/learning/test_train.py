import os
import signal
import time
from contextlib import suppress

import numpy as np
import pytest
import small_learners
import torch
from PIL import Image

import surefind as sf
from surefind.data.batches import random_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.sources import load_folder
from surefind.learning import train as module
from surefind.learning.distributed import gather_rows, part, sum_ranks, world
from surefind.learning.methods import deterministic
from surefind.learning.train import TrainConfig, epoch_batches, relation_of
from surefind.models.saving import load_tensors

pytestmark = pytest.mark.slow


def online():
    """Two epochs of twelve steps each; what is learnt after them has tests of its own."""
    return small_learners.learner(small_learners.ONLINE, novelty=False)


@pytest.fixture(scope="module")
def undisturbed():
    return online().fit(small_learners.digits()[0])


def check_ends_alike(resumed, undisturbed):
    tensors = resumed.fitted.tensors(), undisturbed.fitted.tensors()
    assert small_learners.tensors_equal(*tensors)
    histories = resumed.history_["encoder"], undisturbed.history_["encoder"]
    for a, b in zip(*histories, strict=True):
        assert a.loss == pytest.approx(b.loss)


@pytest.mark.parametrize("kills", [2, pytest.param(9, marks=pytest.mark.nightly)])
def test_killed_at_any_moment_a_run_ends_bit_identical(tmp_path, undisturbed, kills):
    """kill -9 in the middle of training, then once to the end."""
    train = small_learners.digits()[0]
    for i in range(kills):
        child = os.fork()
        if not child:
            with suppress(BaseException):
                online().fit(train, folder=tmp_path, report=lambda *_: time.sleep(0.02))
            os._exit(0)
        while not (tmp_path / "encoder.safetensors").exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended without a checkpoint"
            time.sleep(0.01)
        time.sleep(0.03 + 0.02 * i)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    check_ends_alike(online().fit(train, folder=tmp_path), undisturbed)


def test_a_run_kept_within_an_epoch_goes_on_within_it(tmp_path, monkeypatch, undisturbed):
    """Keep after every step, stop in the middle of the second epoch, and go on."""
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    train = small_learners.digits()[0]

    class StopError(Exception):
        pass

    def stop(stage, progress):
        if (progress.epoch, progress.step) == (1, 5):
            raise StopError

    with pytest.raises(StopError):
        online().fit(train, folder=tmp_path, report=stop)
    seen = []
    resumed = online().fit(
        train, folder=tmp_path, report=lambda _, p: seen.append((p.epoch, p.step))
    )
    assert seen[0] == (1, 5)
    check_ends_alike(resumed, undisturbed)


@pytest.mark.parametrize("at", [(0, 1), (1, 5), (0, 12)], ids=["first", "within", "last of epoch"])
def test_an_interrupt_between_steps_keeps_the_last_one(tmp_path, at, undisturbed):
    """Nothing is repeated: the run goes on with the step after, and ends as if undisturbed."""
    train = small_learners.digits()[0]
    done = []

    def stop(stage, progress):
        done.append((progress.epoch, progress.step))
        if done[-1] == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        online().fit(train, folder=tmp_path, report=stop)
    resumed = online().fit(
        train, folder=tmp_path, report=lambda _, p: done.append((p.epoch, p.step))
    )
    assert done == [(epoch, step) for epoch in range(2) for step in range(1, 13)]
    check_ends_alike(resumed, undisturbed)


def test_an_interrupt_keeps_no_weights_that_blew_up(tmp_path):
    train = small_learners.digits()[0][:64]

    def stop(stage, progress):
        raise KeyboardInterrupt

    with pytest.raises(sf.NumericalError, match="weights are not finite"):
        small_learners.learner(epochs=1, batch_size=64, learning_rate=1e38).fit(
            train, folder=tmp_path, report=stop
        )
    assert not (tmp_path / "encoder.safetensors").exists()


def test_a_finished_stage_is_read_back(tmp_path):
    train = small_learners.digits()[0]
    first = small_learners.learner("pfe").fit(train, folder=tmp_path)
    steps = []
    again = small_learners.learner("pfe").fit(
        train, folder=tmp_path, report=lambda *p: steps.append(p)
    )
    assert {stage for stage, _ in steps} == {"layers"}
    assert small_learners.tensors_equal(first.fitted.tensors(), again.fitted.tensors())


def test_more_epochs_go_on_from_what_is_there(tmp_path):
    train = small_learners.digits()[0]
    small_learners.learner(epochs=1).fit(train, folder=tmp_path)
    longer = small_learners.learner(epochs=3).fit(train, folder=tmp_path)
    whole = small_learners.learner(epochs=3).fit(train)
    assert small_learners.tensors_equal(longer.fitted.tensors(), whole.fitted.tensors())


def test_a_folder_of_another_run_is_refused(tmp_path):
    train = small_learners.digits()[0]
    small_learners.learner(epochs=1).fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match="written with other settings"):
        small_learners.learner(epochs=1, seed=5).fit(train, folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "mc-dropout"}, "kind"),
        ({"margin": 0.1}, "objective"),
        ({"learning_rate": 1e-2}, "learning_rate"),
        ({"batch_size": 16}, "batch_size"),
    ],
)
def test_a_folder_trained_otherwise_is_refused(tmp_path, options, word):
    train = small_learners.digits()[0][:100]
    small_learners.learner(epochs=1).fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match=word):
        small_learners.learner(**{"epochs": 1} | options).fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match="labels"):
        small_learners.learner(epochs=1).fit(small_learners.digits()[0][100:200], folder=tmp_path)


def test_a_longer_run_is_not_passed_off_as_a_shorter_one(tmp_path):
    train = small_learners.digits()[0][:100]
    small_learners.learner(epochs=2).fit(train, folder=tmp_path)
    with pytest.raises(sf.InputError, match="trained for 2 epochs, more than the 1"):
        small_learners.learner(epochs=1).fit(train, folder=tmp_path)


def test_later_stages_are_learnt_anew_when_the_first_goes_on(tmp_path):
    train = small_learners.digits()[0][:200]
    small_learners.learner("pfe", epochs=1).fit(train, folder=tmp_path)
    longer = small_learners.learner("pfe", epochs=2).fit(train, folder=tmp_path)
    whole = small_learners.learner("pfe", epochs=2).fit(train)
    assert small_learners.tensors_equal(longer.fitted.tensors(), whole.fitted.tensors())


def test_weights_that_blow_up_are_never_kept(tmp_path):
    train = small_learners.digits()[0][:64]
    with pytest.raises(sf.NumericalError, match=r"weights are not finite|the loss is"):
        small_learners.learner(epochs=3, batch_size=64, learning_rate=1e38).fit(
            train, folder=tmp_path
        )
    kept = tmp_path / "encoder.safetensors"
    if kept.exists():
        assert all(torch.isfinite(v).all() for v in load_tensors(kept)[0].values())


def test_layers_that_draw_from_the_process_are_repeatable_and_leave_it_alone():
    encoder = small_learners.encoder()
    encoder.backbone.append(torch.nn.Dropout(0.5))
    train, state = small_learners.digits()[0][:100], torch.get_rng_state()
    options = {"method": "deterministic", "epochs": 1, "batch_size": 32}
    fits = [sf.MetricLearner(encoder, **options).fit(train) for _ in range(2)]
    assert small_learners.tensors_equal(*(f.fitted.tensors() for f in fits))
    assert torch.equal(torch.get_rng_state(), state)


def test_half_a_checkpoint_is_refused_by_name(tmp_path):
    train = small_learners.digits()[0]
    small_learners.learner(epochs=1).fit(train, folder=tmp_path)
    file = tmp_path / "encoder.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(sf.InputError, match=r"encoder.safetensors is not a whole safetensors file"):
        small_learners.learner(epochs=2).fit(train, folder=tmp_path)


def test_a_loss_that_is_not_finite_stops_by_name_and_keeps_the_last_good_state(tmp_path):
    train, factor = small_learners.digits()[0], [1.0]

    def fragile(embeddings, relation, generator):
        return embeddings.sum() * factor[0]

    small_learners.learner(epochs=1, objective=fragile).fit(train, folder=tmp_path)
    before = (tmp_path / "encoder.safetensors").read_bytes()
    factor[0] = torch.nan
    with pytest.raises(sf.NumericalError, match="the loss is nan at step 0 of epoch 1"):
        small_learners.learner(epochs=2, objective=fragile).fit(train, folder=tmp_path)
    assert (tmp_path / "encoder.safetensors").read_bytes() == before


def test_huge_weights_are_blamed_and_not_the_batch():
    train = small_learners.digits()[0]
    with pytest.raises(
        sf.NumericalError, match=r"the training diverged: .* Lower the learning rate"
    ):
        small_learners.learner("laplace-online", epochs=1, learning_rate=1e6).fit(train)


def test_a_batch_that_is_refused_by_sound_weights_is_no_divergence():
    def refusing(embeddings, relation, generator):
        raise sf.InputError("this batch is wrong")

    with pytest.raises(sf.InputError, match="this batch is wrong"):
        small_learners.learner(epochs=1, objective=refusing).fit(small_learners.digits()[0])


def test_learning_rate_decays_from_epoch_to_epoch():
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    train = small_learners.digits()[0][:64]
    small_learners.learner(
        epochs=3, batch_size=64, optimizer=lambda p: Watched(p, lr=0.5), decay=0.1
    ).fit(train)
    assert rates == pytest.approx([0.5, 0.05, 0.005])


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_any_optimiser_can_be_resumed(tmp_path, kind):
    train = small_learners.digits()[0][:128]
    options = {"optimizer": lambda p: kind(p, lr=1e-2)}
    small_learners.learner(epochs=1, **options).fit(train, folder=tmp_path)
    resumed = small_learners.learner(epochs=2, **options).fit(train, folder=tmp_path)
    whole = small_learners.learner(epochs=2, **options).fit(train)
    assert small_learners.tensors_equal(resumed.fitted.tensors(), whole.fitted.tensors())


def test_batches_by_place_hold_neighbours(generator):
    positions = 5000 * torch.rand(4000, 2, dtype=torch.float64, generator=generator)
    data = Dataset(torch.rand(4000, 3, generator=generator), positions=positions)
    config = TrainConfig(1, 32, torch.optim.SGD, examples_per_class=2)
    batches = epoch_batches(data, config, 0)
    for rows in batches:
        distance = torch.cdist(positions[rows], positions[rows]).fill_diagonal_(torch.inf)
        assert bool((distance.amin(1) <= 25).all())
    shares = [
        relation_of(data, config, rows).n_positive for rows in random_batches(4000, 32, generator)
    ]
    assert sum(shares) < len(batches) * 4  # at random, there are hardly any


def test_batches_by_class_train_too():
    train = small_learners.digits()[0]
    fitted = small_learners.learner(examples_per_class=8).fit(train)
    assert fitted.history_["encoder"][-1].loss < fitted.history_["encoder"][0].loss


def test_positions_train_like_labels():
    """Places instead of classes: the digits' classes as points on a line; the width needs classes."""
    train = small_learners.digits()[0]
    places = torch.stack([100.0 * train.labels, torch.zeros(len(train))], dim=1)
    placed = Dataset(train.inputs, positions=places)
    for method in (small_learners.ONLINE, small_learners.GIVEN):
        one = small_learners.learner(method, novelty=False).fit(placed).fitted.tensors()
        two = small_learners.learner(method, novelty=False).fit(train).fitted.tensors()
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


def test_a_frozen_network_has_nothing_to_train_but_can_be_taken_as_it_is():
    train, encoder = (
        small_learners.digits()[0][:100],
        small_learners.encoder().requires_grad_(False),
    )
    with pytest.raises(sf.InputError, match="all parameters are frozen"):
        sf.MetricLearner(encoder, method="deterministic", epochs=1).fit(train)
    sf.MetricLearner(encoder, method=small_learners.GIVEN, epochs=0, novelty=False).fit(train)


def test_one_process_is_everybody():
    rows = torch.arange(6.0).view(3, 2)
    assert world() == (0, 1)
    assert part(7) == slice(0, 7)
    assert gather_rows(rows, 3) is rows
    assert sum_ranks(rows) is rows
    np.testing.assert_array_equal(rows[part(3)], rows)


def judged(*values):
    left = iter(values)
    return lambda: next(left)


@pytest.mark.parametrize(
    ("losses", "epochs"),
    [([1.0, 0.5, 0.5, 0.5, 0.5, 0.1], 5), ([1.0, 0.8, 0.6, 0.4, 0.2, 0.1], 6)],
    ids=["settled", "rising"],
)
def test_a_judged_training_ends_when_nothing_is_gained(tmp_path, monkeypatch, losses, epochs):
    """Also where it is resumed: a training that has settled is not begun again."""
    train = small_learners.digits()[0][:64]
    for _ in range(2):
        monkeypatch.setattr(deterministic, "judge_of", lambda *_: judged(*losses))
        fitted = small_learners.learner(epochs=6, novelty=None).fit(train, folder=tmp_path)
        assert [epoch.judged for epoch in fitted.history_["encoder"]] == losses[:epochs]


def test_a_network_is_judged_by_labels_that_are_held_out():
    train, held_out = small_learners.digits()
    fitted = small_learners.learner(stop_early=True, epochs=5, novelty=None)
    found = fitted.fit(train, held_out=held_out).history_["encoder"]
    assert found[-1].judged < found[0].judged < np.log(4)
    plain = small_learners.learner(novelty=None).fit(train, held_out=held_out)
    assert plain.history_["encoder"][0].judged is None


def test_small_files_are_decoded_once(tmp_path, monkeypatch):
    images, labels = small_learners.digits()[0].inputs, small_learners.digits()[0].labels
    for i, (image, label) in enumerate(zip(images[:32], labels[:32].tolist(), strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / str(label) / f"{i}.png")
    files = load_folder(tmp_path, mode="L")["all"]
    seen = []
    whole = Dataset.read
    monkeypatch.setattr(
        Dataset,
        "read",
        lambda self, *a, **k: seen.append(type(self.inputs)) or whole(self, *a, **k),
    )
    kept = small_learners.learner(epochs=4, novelty=None).fit(files)
    assert seen.count(ImageFiles) < 8
    memory = Dataset(np.stack([*files.read().numpy()]), files.labels)
    both = (
        one.fitted.tensors()
        for one in (kept, small_learners.learner(epochs=4, novelty=None).fit(memory))
    )
    assert small_learners.tensors_equal(*both)
