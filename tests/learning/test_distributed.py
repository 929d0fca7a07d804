"""Two real processes give what one gives."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import small_learners
import torch
from command_line import two_processes

import surefind as sf

pytestmark = pytest.mark.nightly

SCRIPT = """
import sys
import torch, torch.distributed as dist
sys.path.insert(0, {tests!r})
import small_learners
from surefind.learning import novelty_pass
torch.set_num_threads(1)
dist.init_process_group("gloo")
train = small_learners.digits()[0]
for name, options in small_learners.SHARED.items():
    small_learners.learner(**options).fit(train, folder="kept " + name).save(name)
novelty_pass.SAVE_EVERY, novelty_pass.BATCH = -1.0, 64
for name in ("first", "again"):
    learner = small_learners.learner(epochs=0)
    learner.fit(train, held_out=small_learners.digits()[1], folder="kept novelty").save(name)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Everything that two processes learn, in a folder."""
    folder = tmp_path_factory.mktemp("two")
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    two_processes(script, folder=folder)
    return folder


def differences(two, name):
    """How far each tensor is from what one process learns, relative to the largest entry."""
    here = (
        small_learners
        .learner(**small_learners.SHARED[name])
        .fit(small_learners.digits()[0])
        .fitted.tensors()
    )
    there = sf.load(two / name).fitted.tensors()
    return {k: float((there[k] - v).abs().max() / v.abs().max()) for k, v in here.items()}


@pytest.mark.parametrize("name", ["deterministic", "online", "full", "frozen"])
def test_two_processes_learn_the_same_model_as_one(two, name):
    far = differences(two, name)
    assert max(v for k, v in far.items() if k != "posterior.clipped") < 1e-3, far


def test_batch_norm_sees_its_own_process_only(two):
    """So HIB's variances differ a little; its embedding, which has no batch norm, hardly does."""
    far = differences(two, "hib")
    assert max(v for k, v in far.items() if k.startswith("encoder.")) < 0.05, far


def test_two_processes_compute_the_same_curvature_as_one(two):
    train, _ = small_learners.digits()
    there = sf.load(two / "curvature").fitted.posterior.precision
    here = (
        small_learners
        .learner(**small_learners.SHARED["curvature"])
        .fit(train)
        .fitted.posterior.precision
    )
    torch.testing.assert_close(there, here, rtol=1e-5, atol=0)


def test_two_processes_keep_one_checkpoint(two):
    kept = two / "kept deterministic"
    assert [p.name for p in kept.iterdir()] == ["encoder.safetensors"]
    (features,) = (two / "kept frozen" / "features").iterdir()
    assert {p.stem for p in features.iterdir()} >= {"about", "done", "features"}
    assert np.load(features / "done.npy").all()


@pytest.mark.parametrize("name", ["first", "again"])
def test_two_processes_fit_the_same_novelty_as_one(two, name):
    train, test = small_learners.digits()
    here = small_learners.learner(epochs=0).fit(train, held_out=test)
    there = sf.load(two / name)
    assert there.novelty_.stages == here.novelty_.stages
    known = here.novelty_.model.known, there.novelty_.model.known
    torch.testing.assert_close(*known, rtol=1e-3, atol=1e-3)
    noise = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for inputs in (test, noise):
        torch.testing.assert_close(
            there.embed(inputs).novelty, here.embed(inputs).novelty, rtol=0, atol=0.01
        )


def test_each_process_keeps_its_own_rows_for_as_many_processes_only(two, tmp_path):
    kept = two / "kept novelty"
    names = [
        f"novelty-{part}-{rank}.safetensors" for part in ("held-out", "sample") for rank in (0, 1)
    ]
    assert sorted(p.name for p in kept.iterdir()) == names
    shutil.copytree(kept, tmp_path / "kept")
    train, test = small_learners.digits()
    fits = [
        small_learners.learner(epochs=0).fit(train, held_out=test, folder=folder)
        for folder in (None, tmp_path / "kept")
    ]
    assert torch.equal(*(learner.novelty_.model.known for learner in fits))


def test_the_command_line_joins_its_processes(tmp_path):
    line = ("train", "digits", "--out", "run", "--epochs", "1")
    printed = two_processes("-m", "surefind", *line, folder=tmp_path)
    assert printed.count("Saved the model") == 1
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 1
