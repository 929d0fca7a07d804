import oracles
import pytest
import torch

import surefind as sf
from surefind.curvature.head import dense_curvature, kronecker_curvature

SIX = [(d, a) for d in ("euclidean", "arccos") for a in ("fixed", "positive", "full")]


@pytest.fixture
def problem(normal):
    features, weights = normal(6, 4), normal(3, 4)
    outputs = features @ weights.T
    targets = sf.pair_targets(torch.arange(6) % 3, oracles.normalize(outputs), margin=1.5)
    return features, weights, outputs, targets


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_dense_equals_gauss_newton_by_definition(problem, distance, approximation):
    features, weights, outputs, targets = problem
    G = oracles.head_gauss_newton(weights, features, targets, distance, approximation)
    options = {"distance": distance, "approximation": approximation}
    dense = dense_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(dense, G, rtol=1e-9, atol=1e-12)
    diagonal = sf.head_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(dense.diagonal().view(3, 4), diagonal)


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_kronecker_holds_the_partial_traces(problem, distance, approximation):
    features, weights, outputs, targets = problem
    G = oracles.head_gauss_newton(weights, features, targets, distance, approximation)
    G = G.view(3, 4, 3, 4)
    k = kronecker_curvature(
        features, outputs, targets, distance=distance, approximation=approximation
    )
    torch.testing.assert_close(k.left, torch.einsum("kqlq->kl", G), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(k.right, torch.einsum("kqkr->qr", G), rtol=1e-9, atol=1e-12)


def test_kronecker_is_exact_where_the_curvature_is_a_product(normal):
    """All examples with the same features: every block meets the same h hᵀ."""
    features = normal(1, 4).expand(6, 4)
    outputs = normal(6, 3)
    targets = sf.pair_targets(torch.arange(6) % 3, oracles.normalize(outputs), margin=1.5)
    options = {"distance": "arccos", "approximation": "full"}
    k = kronecker_curvature(features, outputs, targets, **options)
    dense = dense_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(torch.kron(k.left, k.right) / k.left.trace(), dense)


def test_kronecker_parts_add_up(problem):
    features, _, outputs, targets = problem
    options = {"distance": "arccos", "approximation": "full"}
    parts = [
        kronecker_curvature(features, outputs, y, **options)
        for y in (targets.clamp(min=0), targets.clamp(max=0))
    ]
    whole = kronecker_curvature(features, outputs, targets, **options)
    torch.testing.assert_close((parts[0] + parts[1]).left, whole.left)
    torch.testing.assert_close((parts[0] + parts[1]).right, whole.right)
