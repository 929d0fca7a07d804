import numpy as np
import pytest
import torch

from surefind import metrics
from surefind.errors import DegenerateError, InputError
from surefind.paper import baselines as module
from surefind.paper.baselines import (
    NegativeNorm,
    fit_knn_density,
    fit_mahalanobis,
    fit_margin,
    fit_nearest_distance,
)


@pytest.fixture
def labels():
    return torch.tensor([3, 1, 3, 7, 1, 1, 7, 3, 3, 1] * 3)


def chords(queries, train):
    return torch.tensor([[float((q - t).norm()) for t in train] for q in queries]).double()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_density_is_the_mean_distance_to_the_nearest(directions, k, dtype):
    train, queries = directions(30, 3), directions(8, 3)
    fitted = fit_nearest_distance(train) if k == 1 else fit_knn_density(train, k=k)
    scores = fitted.score(queries.to(dtype))
    expected = chords(queries, train).sort(1).values[:, :k].mean(1)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)


def test_a_training_vector_is_at_no_distance_from_itself(directions):
    train = directions(30, 3)
    fitted = fit_nearest_distance(train)
    assert fitted.score(train).max() == 0
    loo = chords(train, train).fill_diagonal_(torch.inf).min(1).values
    torch.testing.assert_close(fitted.score(train, exclude_self=True), loo, atol=1e-6, rtol=0)


def test_margin_compares_with_the_second(directions):
    train, queries = directions(30, 3), directions(8, 3)
    d = chords(queries, train).sort(1).values
    scores = fit_margin(train).score(queries)
    torch.testing.assert_close(scores, d[:, 0] - d[:, 1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("named", [False, True])
def test_labelled_margin_compares_with_another_label(directions, labels, named):
    train, queries = directions(30, 3), directions(20, 3)
    d = chords(queries, train)
    expected = []
    for row in d:
        first = int(row.argmin())
        expected.append(float(row[first] - row[labels != labels[first]].min()))
    given = np.array([f"class {y}" for y in labels.tolist()]) if named else labels
    scores = fit_margin(train, given).score(queries)
    torch.testing.assert_close(scores, torch.tensor(expected).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("labelled", [False, True])
def test_margin_among_the_training_vectors_leaves_each_out(directions, labels, labelled):
    train = directions(30, 3)
    train[4] = train[3]  # a duplicate of another label
    d = chords(train, train).fill_diagonal_(torch.inf)
    expected = []
    for row in d:
        first = int(row.argmin())
        others = row[labels != labels[first]] if labelled else row.sort().values[1:]
        expected.append(float(row[first] - others.min()))
    fitted = fit_margin(train, labels if labelled else None)
    scores = fitted.score(train, exclude_self=True)
    torch.testing.assert_close(scores, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_a_runner_up_that_is_not_there_is_as_far_as_can_be(directions):
    train = directions(5, 3)
    lone = torch.tensor([0, 0, 1, 0, 0])  # whatever the third finds, no other has another label
    d = float(chords(train, train).fill_diagonal_(torch.inf)[2].min())
    score = fit_margin(train, lone).score(train, exclude_self=True)[2]
    assert float(score) == pytest.approx(d - 2)


def test_short_outputs_are_unsure(normal):
    z = normal(5, 4)
    scores = NegativeNorm().score(z)
    torch.testing.assert_close(scores, -(z**2).sum(1).sqrt())


def slow_mahalanobis(x, y, queries, shrinkage):
    """By the definition, with an explicit inverse."""
    x, y, queries = x.numpy(), y.numpy(), queries.numpy()
    means = {c: x[y == c].mean(0) for c in np.unique(y)}
    residual = np.stack([row - means[c] for row, c in zip(x, y, strict=True)])
    S = residual.T @ residual / len(x)
    d = len(S)
    inverse = np.linalg.inv((1 - shrinkage) * S + shrinkage * np.trace(S) / d * np.eye(d))
    return np.array([
        min(((q - m) @ inverse @ (q - m)) ** 0.5 for m in means.values()) for q in queries
    ])


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_mahalanobis_equals_the_definition(normal, labels, shrinkage, offset):
    x = offset + normal(30, 5) @ normal(5, 5) + labels[:, None]
    queries = offset + 3 * normal(9, 5)
    scores = fit_mahalanobis(x, labels, shrinkage=shrinkage).score(queries)
    np.testing.assert_allclose(scores, slow_mahalanobis(x, labels, queries, shrinkage), rtol=1e-8)


def test_wide_features_keep_the_principal_directions(normal, labels, monkeypatch):
    """Six strong directions and a little of everything else: the low-rank form is nearly exact."""
    d = 60
    labels = labels.repeat(20)
    axes = torch.linalg.qr(normal(d, d)).Q
    spread = torch.cat([
        torch.tensor([9.0, 8, 7, 6, 5, 4]).double(),
        0.1 * torch.ones(d - 6).double(),
    ])
    x = normal(600, d) * spread @ axes.T + labels[:, None]
    queries = 5 * normal(20, d)
    exact = fit_mahalanobis(x, labels).score(queries)
    monkeypatch.setattr(module, "EXACT_DIM", 10)
    monkeypatch.setattr(module, "ROWS", 128)
    fitted = fit_mahalanobis(x, labels, rank=6)
    assert fitted.directions.shape == (d, 6)
    torch.testing.assert_close(fitted.score(queries), exact, rtol=0.01, atol=0)
    single = fit_mahalanobis(x.float(), labels, rank=6).score(queries.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=0.01, atol=0)


def test_fewer_examples_than_directions_are_exact(normal, labels, monkeypatch):
    x, queries = normal(30, 50), normal(7, 50)
    exact = slow_mahalanobis(x, labels, queries, 0.1)
    monkeypatch.setattr(module, "EXACT_DIM", 10)
    np.testing.assert_allclose(fit_mahalanobis(x, labels, rank=40).score(queries), exact, rtol=1e-6)


def test_features_as_wide_as_a_convolution_are_no_trouble(generator):
    x = torch.randn(150, 9216, generator=generator)
    y = torch.arange(150) % 3
    fitted = fit_mahalanobis(x, y)
    assert fitted.directions.shape == (9216, 128)
    far = fitted.score(3 * torch.randn(20, 9216, generator=generator))
    assert metrics.auroc(fitted.score(x), far) == 1


def test_each_baseline_is_less_sure_of_what_lies_elsewhere(normal):
    y = torch.arange(200) % 2
    centre = torch.eye(4).double()[y]
    unit = lambda v: torch.nn.functional.normalize(v, dim=1)
    train, known = unit(centre + 0.1 * normal(200, 4)), unit(centre + 0.1 * normal(200, 4))
    unknown = unit(torch.tensor([0.0, 0, 1, 1]).double() + 0.1 * normal(50, 4))
    for fitted in (
        fit_nearest_distance(train),
        fit_knn_density(train),
        fit_margin(train, y),
        fit_mahalanobis(train, y),
    ):
        assert metrics.auroc(fitted.score(known), fitted.score(unknown)) > 0.95


def test_training_sets_that_cannot_be_used_are_refused(directions, labels):
    x = directions(30, 3)
    for call, error, field in (
        (lambda: fit_knn_density(x, k=31), InputError, "k"),
        (lambda: fit_knn_density(x, k=0), InputError, "k"),
        (lambda: fit_margin(x[:1]), DegenerateError, "embeddings"),
        (lambda: fit_margin(x, torch.zeros(30)), DegenerateError, "labels"),
        (lambda: fit_margin(x, labels[:5]), InputError, "labels"),
        (lambda: fit_nearest_distance(2 * x), InputError, "embeddings"),
        (lambda: fit_nearest_distance(x[:0]), DegenerateError, "embeddings"),
    ):
        with pytest.raises(error) as refused:
            call()
        assert refused.value.field == field


def test_features_without_a_covariance_are_refused(normal, labels):
    x = normal(30, 4)
    flat = torch.cat([x, torch.zeros(30, 1).double()], dim=1)
    for features, classes, options, error, field in (
        (x, torch.arange(30), {}, DegenerateError, "features"),
        (flat, labels, {"shrinkage": 0.0}, DegenerateError, "shrinkage"),
        (x, labels, {"shrinkage": 1.5}, InputError, "shrinkage"),
        (x, labels, {"rank": 0}, InputError, "rank"),
    ):
        with pytest.raises(error) as refused:
            fit_mahalanobis(features, classes, **options)
        assert refused.value.field == field


def test_queries_that_do_not_fit_are_refused(directions, normal, labels):
    x = directions(30, 3)
    for fitted, queries in (
        (fit_nearest_distance(x), directions(2, 4)),
        (fit_margin(x, labels), directions(2, 4)),
        (fit_mahalanobis(x, labels), normal(2, 4)),
        (NegativeNorm(), normal(1, 4) * torch.nan),
    ):
        with pytest.raises(InputError) as refused:
            fitted.score(queries)
        assert refused.value.field == "queries"
    for fitted in (fit_nearest_distance(x), fit_margin(x, labels)):
        with pytest.raises(InputError) as refused:
            fitted.score(x[:9], exclude_self=True)
        assert refused.value.field == "exclude_self"
