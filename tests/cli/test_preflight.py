import builtins
import os
import sys
import time
from collections import namedtuple

import pytest
import small_learners
import torch

import surefind as sf
from surefind.cli.preflight import (
    Estimate,
    check_file,
    check_place,
    duration_text,
    frozen_trial,
    peak_memory,
    posterior_estimate,
    size_text,
    training_estimate,
    tuning_seconds,
)
from surefind.files import write_atomically


def test_a_place_that_cannot_be_written_is_noticed_first(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "file" / "run", 1)
    assert caught.value.field == "out"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "run", 1, field="work")
    assert caught.value.field == "work"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def broken(*_):
        raise OSError("gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="gone"):
        write_atomically(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_space_is_looked_for_where_the_folder_will_be(tmp_path):
    check_place(tmp_path / "not" / "yet", 1)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "not" / "yet", 10**18)
    assert caught.value.field == "out"


def test_a_file_has_a_name_that_says_what_is_written(tmp_path):
    check_file(tmp_path / "not" / "a.CSV", (".json", ".csv"))
    (tmp_path / "a.csv").mkdir()
    for file in ("a.txt", "a.csv"):
        with pytest.raises(sf.InputError) as caught:
            check_file(tmp_path / file, (".json", ".csv"))
        assert caught.value.field == "out"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.01, "1 s"), (59.6, "60 s"), (720, "12 min"), (7200, "2.0 h")]
)
def test_durations_are_said_as_people_do(seconds, text):
    assert duration_text(seconds) == text


def test_a_disk_that_is_almost_full_enough_says_how_much_is_missing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 1_190_000, 1_190_000)
    monkeypatch.setattr("surefind.cli.preflight.shutil.disk_usage", lambda _: usage)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path, 1_204_000)
    assert "needs about 1.2 MB, 14 kB more than the disk has left (1.2 MB)" in caught.value.message


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (10, "10 bytes"),
        (999.4, "999 bytes"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (14_000, "14 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (4.2e8, "420 MB"),
        (1.34e9, "1.3 GB"),
        (2.5e15, "2,500 TB"),
    ],
)
def test_sizes_are_said_as_people_do(size, text):
    assert size_text(size) == text


def test_an_estimate_reads_as_a_sentence():
    assert str(Estimate(720.0, 1_300_000_000)) == "about 12 min, 1.3 GB of memory"
    assert str(Estimate(720.0, None)) == "about 12 min"


def test_training_is_extrapolated_from_a_few_steps():
    """A step that takes 20 ms, 2 epochs of 12 steps: about half a second."""
    train = small_learners.digits()[0]

    def slow(embeddings, relation, generator):
        time.sleep(0.02)
        return embeddings.sum()

    learner = small_learners.learner(objective=slow)
    steps = 2 * -(-len(train) // 32)
    found = training_estimate(learner, train)
    assert (
        0.02 * steps <= found.seconds < 0.2 * steps
    )  # upwards there is no limit on a busy machine
    assert not hasattr(learner, "embedder_")


def test_an_ensemble_takes_as_many_times_longer(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr("surefind.cli.preflight.time.perf_counter", lambda: float(next(ticks)))
    train = small_learners.digits()[0][:64]
    one = training_estimate(small_learners.learner("deterministic", epochs=1), train)
    five = training_estimate(small_learners.learner("deep-ensemble", epochs=1), train)
    assert five.seconds == pytest.approx(5 * one.seconds, rel=1.0)
    assert five.seconds > 2 * one.seconds


def test_a_single_step_is_enough():
    assert (
        training_estimate(small_learners.learner(epochs=1), small_learners.digits()[0][:20]).seconds
        > 0
    )


def test_a_frozen_backbone_is_timed_on_two_batches(monkeypatch, tmp_path):
    """An image takes 1 ms, and there are 3 × 183 to pass; 64 are tried, and nothing is written."""
    train = small_learners.digits()[0][:183]
    encoder, passed = small_learners.encoder(), []

    def slow(_module, inputs):
        passed.append(len(inputs[0]))
        time.sleep(0.001 * len(inputs[0]))

    encoder.backbone.register_forward_pre_hook(slow)
    freezing = sf.Freezing(views=2, cache=tmp_path / "cache", head="whitened")
    flip = sf.Preprocessing(flip=True)
    learner = sf.MetricLearner(encoder, epochs=2, freeze_backbone=freezing, preprocessing=flip)
    found, tried, features = frozen_trial(learner, train)
    assert 0.001 * 3 * 183 <= found.seconds < 0.01 * 3 * 183
    assert sum(passed) <= 64 + 2 + 1 + 2  # and a few that tell shapes and stages
    assert len(features) == 183
    assert torch.equal(features.labels, train.labels)
    passed.clear()
    assert training_estimate(tried, features).seconds > 0
    assert passed == []
    assert not (tmp_path / "cache").exists()
    assert not hasattr(learner, "embedder_")
    few, _, _ = frozen_trial(learner, train[:20])
    assert few.seconds > 0


def test_without_steps_there_is_no_estimate():
    learner = small_learners.learner("laplace-posthoc", epochs=0)
    assert training_estimate(learner, small_learners.digits()[0][:50]) is None


def test_a_fit_without_steps_is_extrapolated_with_its_square(monkeypatch):
    """Of 8192 vectors: parts of 512, 512 and 1024 take 0.1 s, then 5 + 1 and 10 + 4 seconds."""
    data = sf.Dataset(torch.rand(8192, 2))
    clock = iter([0.0, 0.1, 10.0, 16.0, 20.0, 34.0])
    monkeypatch.setattr("surefind.cli.preflight.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("surefind.cli.preflight.tuning_seconds", lambda *_: 7.0)
    sizes = []
    monkeypatch.setattr(sf.MetricLearner, "fit", lambda self, part: sizes.append(len(part)))
    found = posterior_estimate(small_learners.learner(epochs=0, novelty=None), data)
    assert sizes == [512, 512, 1024]
    assert found.seconds == pytest.approx(5 * 16 + 1 * 16**2 + 7)


def test_novelty_grows_no_further_than_its_sample(monkeypatch):
    """Fits take 0 s; parts of 512 and 1024 take 1 and 2 s, and 2048 of 8192 are looked at."""
    data = sf.Dataset(torch.rand(8192, 2))
    clock = iter([0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 2.0])
    monkeypatch.setattr("surefind.cli.preflight.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("surefind.cli.preflight.tuning_seconds", lambda *_: 0.0)
    for name in ("fit", "fit_novelty"):
        monkeypatch.setattr(sf.MetricLearner, name, lambda self, part: None)
    learner = small_learners.learner(epochs=0, novelty=sf.Novelty(sample=2048))
    assert posterior_estimate(learner, data).seconds == pytest.approx(4.0)


def test_an_estimate_without_steps_is_not_the_whole_fit(monkeypatch):
    """It was: the trial had no step to stop at, and every fit was made twice."""
    monkeypatch.setattr(sf.MetricLearner, "fit", lambda *_, **__: pytest.fail("fitted"))
    learner = small_learners.learner("laplace-posthoc", epochs=0)
    assert training_estimate(learner, small_learners.digits()[0]) is None


def test_tuning_is_timed_by_two_candidates(monkeypatch):
    """14 candidates, of which the first took 2 s, the second 1 s more; what is given is not tuned."""
    tried = []

    def one(posterior, sample, generator, spreads):
        tried.append((len(sample.features), len(spreads)))

    monkeypatch.setattr("surefind.posterior.tuning.calibrate_scale", one)
    labels = torch.arange(2048) % 3
    data = sf.Dataset(torch.eye(3)[labels] + 0.3 * torch.randn(2048, 3), labels)
    network = sf.Encoder(torch.nn.Identity(), torch.nn.Linear(3, 3))
    how = {"epochs": 0, "novelty": None}
    given = sf.methods.LaplacePosthoc(scale=1.0, prior_precision=1.0)
    fitted = sf.MetricLearner(network, method=given, **how).fit(data)
    ticks = iter([10.0, 12.0, 20.0, 23.0])
    monkeypatch.setattr("surefind.cli.preflight.time.perf_counter", lambda: next(ticks))
    learner = sf.MetricLearner(network, method=sf.methods.LaplacePosthoc(), **how)
    assert tuning_seconds(learner, fitted, data, torch.arange(2048)) == 2 + 13 * 1
    assert tried == [(1000, 1), (1000, 2)]
    assert tuning_seconds(fitted, fitted, data, torch.arange(2048)) == 0


def test_a_real_fit_without_steps_is_left_unfitted():
    labels = torch.arange(2048) % 3
    vectors = torch.eye(3)[labels] + 0.3 * torch.randn(2048, 3)
    data = sf.Dataset(vectors, labels)
    network = sf.Encoder(torch.nn.Identity(), torch.nn.Linear(3, 3))
    learner = sf.MetricLearner(network, method=sf.methods.LaplacePosthoc(), epochs=0)
    assert posterior_estimate(learner, data).seconds > 0
    assert not hasattr(learner, "embedder_")
    assert posterior_estimate(learner, data[:2000]) is None  # too few
    alone = sf.Dataset(vectors, torch.arange(2048))
    assert posterior_estimate(learner, alone) is None  # no two belong together


def test_memory_is_at_least_what_is_held():
    held = torch.ones(10_000_000)
    assert peak_memory() > held.numel() * 4


def test_memory_is_not_known_everywhere(monkeypatch):
    plain = builtins.__import__

    def without(name, *rest):
        if name == "resource":
            raise ImportError(name)
        return plain(name, *rest)

    monkeypatch.delitem(sys.modules, "resource", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert peak_memory() is None
