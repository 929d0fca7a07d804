"""What every method must do. A new one is tested by being in METHODS."""

import subprocess
import sys

import numpy as np
import pytest
import small_learners
import torch
from stored import npz

import surefind as sf
from surefind.learning import METHOD_NAMES
from surefind.learning.methods import METHODS

pytestmark = pytest.mark.slow

BAYESIAN = ["laplace-posthoc", "laplace-online", "mc-dropout", "deep-ensemble", "hib"]
"""Not the point estimate, which has no uncertainty, nor PFE, whose variances a network extrapolates."""
NETWORKS = ["laplace-posthoc", "laplace-online", "mc-dropout", "deep-ensemble", "deterministic"]
"""Whose joint samples are networks; PFE's and HIB's inputs are independent given the model."""
RANDOM = ["laplace-posthoc", "laplace-online", "mc-dropout", "pfe", "hib"]
"""Not a point, nor an ensemble's members in turn."""


@pytest.fixture(scope="module", params=METHODS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(name):
    return small_learners.trained(name)


def test_retrieves_better_than_the_untrained_encoder(fitted):
    _, test = small_learners.digits()
    e = fitted.embed(test)
    assert small_learners.recall_at_1(e, test.labels) > 0.9
    torch.testing.assert_close(e.mean.norm(dim=1), torch.ones(len(test)))
    assert (e.kappa > 0).all()


@pytest.mark.parametrize("name", BAYESIAN, indirect=True, scope="module")
def test_uncertainty_rises_from_clean_to_blurred_to_noise(fitted, name):
    """The teaser figure's claim, on real digits; only online LAM must hold it for blur."""
    _, test = small_learners.digits()
    clean = test.read()
    blurred = torch.nn.functional.avg_pool2d(clean, 3, stride=1, padding=1)
    noise = torch.rand(clean.shape, generator=torch.Generator().manual_seed(0))
    doubt = [fitted.embed(x).uncertainty.median() for x in (clean, blurred, noise)]
    assert doubt[0] < doubt[2]
    if name == "laplace-online":
        assert doubt[0] < doubt[1] < doubt[2]


def test_embedding_does_not_depend_on_company_or_repetition(fitted):
    _, test = small_learners.digits()
    together, alone = fitted.embed(test), fitted.embed(test[3:5])
    torch.testing.assert_close(together[3:5].mean, alone.mean)
    torch.testing.assert_close(together[3:5].kappa, alone.kappa, rtol=1e-3, atol=0)
    again = fitted.embed(test)
    assert torch.equal(together.mean, again.mean)
    assert torch.equal(together.kappa, again.kappa)


def test_arrays_in_arrays_out(fitted):
    images = small_learners.digits()[1].inputs[:4]
    e = fitted.embed(images)
    assert isinstance(e.mean, np.ndarray)
    assert isinstance(e.kappa, np.ndarray)


@pytest.mark.parametrize("joint", [True, False])
def test_samples_are_unit_vectors_from_the_generator_alone(fitted, joint):
    test = small_learners.digits()[1][:10]
    state = torch.get_rng_state()
    draws = [
        fitted.sample(test, 6, joint=joint, generator=torch.Generator().manual_seed(2))
        for _ in range(2)
    ]
    assert draws[0].shape == (6, 10, 3)
    torch.testing.assert_close(draws[0].norm(dim=2), torch.ones(6, 10))
    assert torch.equal(*draws)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", NETWORKS, indirect=True, scope="module")
def test_joint_samples_are_the_same_networks_in_every_batch(fitted):
    test = small_learners.digits()[1][:10]
    whole, parts = (
        fitted.sample(
            test, 4, joint=True, generator=torch.Generator().manual_seed(2), batch_size=size
        )
        for size in (10, 3)
    )
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", RANDOM, indirect=True, scope="module")
def test_a_generator_gives_new_samples_each_time(fitted):
    test, generator = small_learners.digits()[1][:4], torch.Generator().manual_seed(2)
    one, two = (fitted.sample(test, 3, joint=True, generator=generator) for _ in range(2))
    assert not torch.equal(one, two)


def test_samples_agree_with_the_embedding(fitted, name):
    count = 3 if name == "deep-ensemble" else 400  # an ensemble's samples are its members
    test = small_learners.digits()[1][:20]
    draws = fitted.sample(test, count, joint=True, generator=torch.Generator().manual_seed(2))
    mean = torch.nn.functional.normalize(draws.mean(0), dim=1)
    assert ((mean * fitted.embed(test).mean).sum(1) > 0.95).all()


def test_saved_loaded_and_embedded_in_a_new_process_is_bit_identical(tmp_path):
    inputs = small_learners.digits()[1].inputs[:16]
    np.save(tmp_path / "x.npy", inputs)
    for name in METHODS:
        small_learners.trained(name).save(tmp_path / name)
    script = (
        "import sys, numpy as np, surefind as sf, torch; torch.set_num_threads(1)\n"
        "for name in sys.argv[1:]:\n"
        "    e = sf.load(name).embed(np.load('x.npy'))\n"
        "    np.savez(name + '.npz', m=e.mean, k=e.kappa)"
    )
    subprocess.run([sys.executable, "-c", script, *METHODS], cwd=tmp_path, check=True)
    for name in METHODS:
        there, here = npz(tmp_path / f"{name}.npz"), small_learners.trained(name).embed(inputs)
        np.testing.assert_array_equal(there["m"], here.mean)
        np.testing.assert_array_equal(there["k"], here.kappa)


def test_the_seed_decides_and_the_callers_encoder_is_left_alone(name):
    train, encoder = small_learners.digits()[0][:100], small_learners.encoder()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    quick = {"deep-ensemble": METHODS["deep-ensemble"](members=2)}
    method = (quick | {"laplace-online": small_learners.ONLINE}).get(name, name)

    def tensors(seed):
        options = {"method": method, "epochs": 1, "batch_size": 32, "novelty": None}
        return sf.MetricLearner(encoder, seed=seed, **options).fit(train).fitted.tensors()

    one, two, other = tensors(1), tensors(1), tensors(2)
    assert small_learners.tensors_equal(one, two)
    assert not small_learners.tensors_equal(one, other)
    assert small_learners.tensors_equal(encoder.state_dict(), before)
    assert encoder.training
    assert all(p.requires_grad and p.grad is None for p in encoder.parameters())


def test_the_names_of_methods_are_listed_once_and_need_no_pytorch():
    assert tuple(METHODS) == METHOD_NAMES
    code = (
        "import sys, surefind.learning as l; assert l.METHOD_NAMES and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
