import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import surefind as sf
from surefind.cli.runs import open_run
from surefind.data.sources import load_digits
from surefind.learning.methods import LaplacePosthoc
from surefind.models.vectors import Vectors, vector_encoder

pytestmark = pytest.mark.slow

TUNED = ("--set", "scale=150.0", "--set", "prior_precision=1000.0")
"""Scale and prior, given because tuning them takes longer than all the rest."""


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
    digits = load_digits().test[:20]
    one, two = before.embed(digits), after.embed(digits)
    assert torch.isinf(one.kappa).all()
    assert torch.isfinite(two.kappa).all()
    cosine = (one.mean * two.mean).sum(1)
    assert (cosine > 0.9).all()


def test_a_run_is_fitted_as_the_library_does_it(trained, sure):
    encoder = sf.load(trained).fitted.encoder
    learner = sf.MetricLearner(encoder, method=LaplacePosthoc(), epochs=0)
    learner.fit(load_digits().train)
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
    code, _, err = surefind("fit", *arguments, "--out", "run", *TUNED)
    assert code == 0, err
    vectors, _ = flowers
    found = sf.load(tmp_path / "run").embed(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert ((found.mean * unit).sum(1) > 0.99).all()
    assert np.isfinite(found.kappa).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("dim", "structure"), [(None, "diagonal"), (3, "diagonal"), (3, "kronecker"), (None, "dense")]
)
def test_the_same_vectors_have_the_same_kappa_by_every_door(
    surefind, flowers, tmp_path, dtype, dim, structure
):
    """`LaplaceHead`, a learner on the vectors' encoder, and the command line; also when saved."""
    vectors, labels = flowers[0].astype(dtype), flowers[1]
    np.savez(tmp_path / "vectors.npz", features=vectors, labels=labels)
    options = () if dim is None else ("--set", f"embedding_dim={dim}")
    command = ("fit", "vectors.npz", "--out", "run", "--set", f"structure={structure}", *options)
    code, _, err = surefind(*command)
    assert code == 0, err
    head = sf.LaplaceHead(dim, structure=structure).fit(vectors, labels)
    head.save(tmp_path / "head")
    encoder = vector_encoder(Vectors(vectors), dim).float()
    method = LaplacePosthoc(structure=structure)
    learner = sf.MetricLearner(encoder, method=method, epochs=0)
    learner.fit(sf.Dataset(vectors, labels)).save(tmp_path / "model")
    expected = head.embed(vectors)
    doors = (
        sf.LaplaceHead.load(tmp_path / "head"),
        learner,
        sf.load(tmp_path / "model"),
        sf.load(tmp_path / "run"),
    )
    for door in doors:
        found = door.embed(vectors)
        np.testing.assert_allclose(found.kappa, expected.kappa, rtol=2e-5)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)


@pytest.mark.parametrize("metric", ["whitened", "auto"])
def test_vectors_are_whitened_alike_by_every_door(surefind, tmp_path, metric):
    g = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    apart = np.array([0.1, 0.1, 0.1, 2, 2]) * g.standard_normal((72, 5))
    vectors = (g.standard_normal((12, 5))[labels] + apart).astype(np.float32)
    hole, kinds = np.insert(vectors, 7, 0, axis=0), np.insert(labels, 7, 2)
    np.savez(tmp_path / "vectors.npz", features=hole, labels=kinds)
    options = ("--metric", metric, "--set", "embedding_dim=4", "--set", "seed=3", *TUNED)
    code, out, err = surefind("fit", "vectors.npz", "--out", "run", *options)
    assert code == 0, err
    head = sf.LaplaceHead(4, metric=metric, random_state=3, scale=150, prior_precision=1000)
    head.fit(vectors, labels)
    assert f"The metric is {head.metric_}: {head.metric_reason_}" in out
    assert head.metric_ == "whitened"
    expected, found = head.embed(hole), sf.load(tmp_path / "run").embed(hole)
    np.testing.assert_allclose(found.kappa, expected.kappa, rtol=2e-5)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
    assert open_run(tmp_path / "run").config["metric"] == metric


def test_zero_vectors_are_left_out_as_everywhere(surefind, flowers, tmp_path):
    vectors, labels = flowers
    hole, kinds = np.insert(vectors, 7, 0, axis=0), np.insert(labels, 7, 2)
    np.savez(tmp_path / "hole.npz", features=hole, labels=kinds)
    code, out, err = surefind("fit", "hole.npz", "--out", "run", *TUNED)
    assert code == 0, err
    assert "1 vectors are zero, the first at 7" in out + err
    expected = sf.LaplaceHead(scale=150, prior_precision=1000).fit(vectors, labels).embed(hole)
    found = sf.load(tmp_path / "run").embed(hole)
    np.testing.assert_allclose(found.kappa, expected.kappa, rtol=2e-5)
    assert found.kappa[7] == 0


def test_the_prior_of_largest_evidence_can_be_asked_for(surefind, flowers, tmp_path):
    code, _, err = surefind("fit", "both.npz", "--out", "run", "--set", "prior_precision=evidence")
    assert code == 0, err
    head = sf.LaplaceHead(prior_precision="evidence").fit(*flowers)
    found = sf.load(tmp_path / "run").fitted.posterior.precision
    torch.testing.assert_close(found, head.posterior_.precision)
    assert open_run(tmp_path / "run").config["set"] == {"prior_precision": "evidence"}


def test_a_layer_on_vectors_can_be_learnt(surefind, flowers, tmp_path):
    options = ("--set", "epochs=2", "--set", "embedding_dim=2", *TUNED)
    code, _, err = surefind("fit", "both.npz", "--out", "run", *options)
    assert code == 0, err
    assert sf.load(tmp_path / "run").encoder.embedding_dim == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("vectors.npy",), "vectors has no labels"),
        (("both.npz", "--set", "embedding_dim=5"), "embedding_dim"),
        (("both.npz", "--set", "prior_precision=best"), "prior_precision must be"),
        (("both.npz", "--on", "digits"), "leave --on out"),
        (("digits",), "digits holds images"),
        (("nowhere",), "nowhere does not exist"),
        (("both.npz", "--set", "prior_precision=-1"), "prior_precision must be"),
        (("vectors.npy", "--labels", "vectors.npy"), "--labels must have one entry per example"),
    ],
)
def test_what_cannot_be_fitted_is_refused(surefind, flowers, tmp_path, arguments, message):
    code, _, err = surefind("fit", *arguments, "--out", "run")
    assert code == 1
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", [("--set", "epochs=3"), ("--metric", "auto")])
def test_options_of_vectors_are_refused_for_a_run(surefind, trained, option):
    code, _, err = surefind("fit", trained, "--out", "run", *option)
    assert code == 1
    assert "are for vectors" in err or "sets nothing" in err


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
    code, _, err = surefind("fit", "bare", "--out", "run", "--on", "digits", *TUNED)
    assert code == 0, err
