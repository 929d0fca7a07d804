import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import surefind as sf
from surefind.apps.cli.run_folder import open_run
from surefind.learning.methods import LaplacePosthoc

WIDTH = ("--scale", 150.0, "--prior-precision", 1000.0)
"""Given, because choosing it takes longer than all the rest."""


@pytest.fixture
def flowers(tmp_path):
    """Four measurements of 150 flowers, of three kinds, as vectors."""
    iris = load_iris()
    vectors = iris.data.astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    np.save(tmp_path / "labels.npy", iris.target)
    np.savez(tmp_path / "both.npz", features=vectors, labels=iris.target)
    lines = ["label", *(f"kind {t}" for t in iris.target)]
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return vectors, iris.target


def test_a_run_gains_an_uncertainty_and_keeps_its_embeddings(trained, sure):
    before, after = sf.load(trained), sf.load(sure)
    digits = sf.data.catalogue.load("digits").test[:20]
    one, two = before.embed(digits), after.embed(digits)
    assert torch.isinf(one.kappa).all()
    assert torch.isfinite(two.kappa).all()
    cosine = (one.mean * two.mean).sum(1)
    assert (cosine > 0.9).all()


def test_a_run_is_fitted_as_the_library_does_it(trained, sure):
    encoder = sf.load(trained).fitted.encoder
    learner = sf.MetricLearner(encoder, method=LaplacePosthoc(), epochs=0)
    learner.fit(sf.data.catalogue.load("digits").train)
    ours = sf.load(sure).fitted.posterior
    torch.testing.assert_close(ours.precision, learner.fitted.posterior.precision)


@pytest.mark.parametrize(
    "arguments",
    [
        ("both.npz",),
        ("vectors.npy", "--labels", "labels.npy"),
        ("vectors.npy", "--labels", "labels.csv"),
    ],
)
def test_vectors_keep_their_directions_and_gain_a_kappa(surefind, flowers, tmp_path, arguments):
    code, _, err = surefind("fit", *arguments, "--out", "run", *WIDTH)
    assert code == 0, err
    vectors, _ = flowers
    found = sf.load(tmp_path / "run").embed(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert ((found.mean * unit).sum(1) > 0.99).all()
    assert np.isfinite(found.kappa).all()


def test_a_fitted_run_remembers_where_the_data_of_its_model_are(surefind, run, tmp_path):
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('data = ""', 'data = "sets"'))
    code, _, err = surefind("fit", "plain", "--out", "new", *WIDTH)
    assert code == 0, err
    found = open_run(tmp_path / "new")
    assert str(found.data) == "sets"
    assert found.config["source"] == "digits"
    assert found.learner().input_spec_.shape == (1, 8, 8)


def test_a_layer_on_vectors_can_be_learnt(surefind, flowers, tmp_path):
    options = ("--epochs", 2, "--embedding-dim", 2, *WIDTH)
    code, _, err = surefind("fit", "both.npz", "--out", "run", *options)
    assert code == 0, err
    assert sf.load(tmp_path / "run").encoder.embedding_dim == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vectors.npy",), "vectors has no labels"),
        (("both.npz", "--embedding-dim", 2), "a layer from 4 to 2 dimensions must be learnt"),
        (("both.npz", "--on", "digits"), "leave --on out"),
        (("digits", "--labels", "labels.npy"), "--labels goes with vectors"),
        (("digits",), "digits holds images"),
        (("nowhere",), "neither a known set"),
        (("both.npz", "--prior-precision", -1), "--prior-precision must be"),
        (("vectors.npy", "--labels", "vectors.npy"), "labels must have one entry per example"),
    ],
)
def test_what_cannot_be_fitted_is_refused(surefind, flowers, tmp_path, arguments, message):
    code, _, err = surefind("fit", *arguments, "--out", "run")
    assert code == 1
    assert message in err
    assert not (tmp_path / "run").exists()


def test_options_of_vectors_are_refused_for_a_run(surefind, trained):
    code, _, err = surefind("fit", trained, "--out", "run", "--epochs", 3)
    assert code == 1
    assert "--embedding-dim are for vectors" in err


def test_a_method_without_one_network_is_refused(surefind):
    train = ("train", "digits", "--out", "hib", "--method", "hib", "--epochs", 1)
    assert surefind(*train)[0] == 0
    code, _, err = surefind("fit", "hib", "--out", "run")
    assert code == 1
    assert "this run's method is HIB" in err


def test_a_model_saved_from_python_needs_data_to_be_named(surefind, tmp_path, trained):
    sf.load(trained).save(tmp_path / "bare")
    code, _, err = surefind("fit", "bare", "--out", "run")
    assert code == 1
    assert "name it with --on" in err
    code, _, err = surefind("fit", "bare", "--out", "run", "--on", "digits", *WIDTH)
    assert code == 0, err
