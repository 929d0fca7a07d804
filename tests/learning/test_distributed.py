"""Two real processes give what one gives."""

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
from surefind.learning import layered
torch.set_num_threads(1)
dist.init_process_group("gloo")
train = small_learners.digits()[0]
for name, options in small_learners.SHARED.items():
    small_learners.learner(**options).fit(train, folder="kept " + name).save(name)
layered.BATCH = 64
for name in ("head", "layers"):
    how = {{"epochs": 0, "embedding": "layers" if name == "layers" else "head"}}
    learner = small_learners.learner(small_learners.GIVEN, **how)
    learner.fit(train, held_out=small_learners.digits()[1]).save(name)
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


@pytest.mark.parametrize("name", ["head", "layers"])
def test_two_processes_fit_the_same_layers_as_one(two, name):
    train, test = small_learners.digits()
    here = small_learners.learner(small_learners.GIVEN, epochs=0, embedding=name)
    here.fit(train, held_out=test)
    there = sf.load(two / name)
    assert there.layers_.vector.layers == here.layers_.vector.layers
    known = here.layers_.novelty.known, there.layers_.novelty.known
    torch.testing.assert_close(*known, rtol=1e-3, atol=1e-3)
    noise = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for inputs in (test, noise):
        one, other = there.embed(inputs), here.embed(inputs)
        torch.testing.assert_close(one.novelty, other.novelty, rtol=0, atol=0.01)
        torch.testing.assert_close(one.kappa, other.kappa, rtol=1e-2, atol=0)


def test_the_command_line_joins_its_processes(tmp_path):
    line = ("train", "digits", "--out", "run", "--epochs", "1")
    printed = two_processes("-m", "surefind", *line, folder=tmp_path)
    assert printed.count("Saved the model") == 1
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 1
