import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

import surefind as sf
from surefind.data.sources import load_digits
from surefind.learning.methods import LaplacePosthoc
from surefind.models.vectors import Vectors, vector_encoder

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


def test_a_run_is_fitted_as_the_library_does_it(trained, sure):
    encoder = sf.load(trained).fitted.encoder
    method = LaplacePosthoc(scale=1200.0, prior_precision=2800.0)
    learner = sf.MetricLearner(encoder, method=method, epochs=0, novelty=False)
    learner.fit(load_digits().train)
    ours = sf.load(sure).layers_.posterior
    torch.testing.assert_close(ours.precision, learner.layers_.posterior.precision)


@pytest.mark.parametrize(
    "arguments",
    [
        ("both.npz",),
        ("vectors.npy", "--labels", "labels.npy"),
        ("vectors.npy", "--labels", "labels.csv"),
    ],
)
def test_vectors_gain_a_head_and_a_kappa(surefind, flowers, tmp_path, arguments):
    code, _, err = surefind("fit", *arguments, "--out", "run", *TUNED)
    assert code == 0, err
    vectors, labels = flowers
    found = sf.load(tmp_path / "run").embed(vectors)
    cosine = found.mean @ found.mean.T - 2 * np.eye(150)
    assert (labels[cosine.argmax(1)] == labels).mean() > 0.9
    assert np.isfinite(found.kappa).all()


@pytest.mark.parametrize(
    ("dim", "structure", "dtype", "given"),
    [
        (None, "diagonal", np.float64, {}),
        (3, "kronecker", np.float32, {"scale": 150.0, "prior_precision": 1000.0}),
        (None, "dense", np.float32, {"scale": 150.0, "prior_precision": 1000.0}),
    ],
)
def test_the_same_vectors_have_the_same_kappa_by_every_door(
    surefind, flowers, tmp_path, dim, structure, dtype, given
):
    """`LaplaceHead`, a learner on the vectors' encoder, and the command line; also when saved."""
    vectors, labels = flowers[0].astype(dtype), flowers[1]
    np.savez(tmp_path / "vectors.npz", features=vectors, labels=labels)
    own = {"structure": structure} | given | ({} if dim is None else {"embedding_dim": dim})
    options = [part for name, value in own.items() for part in ("--set", f"{name}={value}")]
    code, _, err = surefind("fit", "vectors.npz", "--out", "run", *options)
    assert code == 0, err
    head = sf.LaplaceHead(dim, structure=structure, **given).fit(vectors, labels)
    head.save(tmp_path / "head")
    encoder = vector_encoder(Vectors(vectors)).float()
    method = LaplacePosthoc(structure=structure, **given)
    learner = sf.MetricLearner(encoder, method=method, embedding_dim=dim, epochs=0)
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


def test_zero_vectors_are_left_out_by_every_door(surefind, tmp_path):
    g = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    apart = np.array([0.1, 0.1, 0.1, 2, 2]) * g.standard_normal((72, 5))
    vectors = (g.standard_normal((12, 5))[labels] + apart).astype(np.float32)
    hole, kinds = np.insert(vectors, 7, 0, axis=0), np.insert(labels, 7, 2)
    np.savez(tmp_path / "vectors.npz", features=hole, labels=kinds)
    options = ("--set", "embedding_dim=4", "--set", "seed=3", *TUNED)
    code, _, err = surefind("fit", "vectors.npz", "--out", "run", *options)
    assert code == 0, err
    head = sf.LaplaceHead(4, random_state=3, scale=150, prior_precision=1000)
    head.fit(vectors, labels)
    expected, found = head.embed(hole), sf.load(tmp_path / "run").embed(hole)
    np.testing.assert_allclose(found.kappa, expected.kappa, rtol=2e-5)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-5)
