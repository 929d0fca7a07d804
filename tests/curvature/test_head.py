import oracles
import pytest
import torch

import surefind as sf
from surefind.curvature import head as module
from surefind.curvature.head import dense_curvature, kronecker_curvature

DISTANCES = ("euclidean", "arccos")
APPROXIMATIONS = ("fixed", "positive", "full")
SIX = [(d, a) for d in DISTANCES for a in APPROXIMATIONS]


def problem(normal, n, d, z, *, bias):
    """Features, head weights and outputs with all axes different; lengths far from one."""
    features = normal(n, d)
    if bias:
        features = torch.cat([features, torch.ones(n, 1, dtype=features.dtype)], dim=1)
    weights = normal(z, features.shape[1])
    return features, weights, features @ weights.T


def relation_of(kind, n, normal):
    if kind == "labels":
        return torch.arange(n) % 3
    if kind == "positions":
        return sf.Positions(20 * normal(n, 2), 20.0, 30.0)
    every = [(i, j) for i in range(n) for j in range(i)][::2]
    left, right = (torch.tensor(side) for side in zip(*every, strict=True))
    return sf.PairList(left, right, torch.arange(len(every)) % 2 == 0, n=n)


@pytest.mark.parametrize("relation", ["labels", "positions", "list"])
@pytest.mark.parametrize(("distance", "approximation"), SIX)
@pytest.mark.parametrize(("n", "d", "z", "bias"), [(6, 5, 3, True), (7, 2, 4, False)])
def test_equals_gauss_newton_by_definition(
    normal, n, d, z, bias, distance, approximation, relation
):
    features, weights, outputs = problem(normal, n, d, z, bias=bias)
    labels = relation_of(relation, n, normal)
    targets = sf.pair_targets(labels, oracles.normalize(outputs), margin=1.5)
    assert (targets > 0).any()
    assert (targets < 0).any()
    expected = oracles.head_gauss_newton(weights, features, targets, distance, approximation)
    curvature = sf.head_curvature(
        features, outputs, targets, distance=distance, approximation=approximation
    )
    torch.testing.assert_close(
        curvature, expected.diagonal().view_as(weights), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("approximation", ["positive", "full"])
def test_both_orders_of_summation_agree(normal, monkeypatch, approximation):
    """Pair by pair equals output by output; also with pairs in chunks of one."""
    features, _, outputs = problem(normal, 9, 6, 5, bias=True)
    targets = sf.pair_targets(torch.arange(9) % 3, oracles.normalize(outputs), margin=1.5)
    if approximation == "positive":
        targets = targets.clamp(min=0)
    u = oracles.normalize(outputs)
    N = targets * (u @ u.T)
    over_outputs = module._quadratic_over_outputs(features, u, N)
    for elements in (1 << 20, 1):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", elements)
        pairs = N.triu().nonzero()
        over_pairs = module._quadratic_over_pairs(features, u, N, pairs)
        torch.testing.assert_close(over_pairs, over_outputs)


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_split_pair_sets_add_up(normal, distance, approximation):
    features, _, outputs = problem(normal, 8, 5, 3, bias=True)
    targets = sf.pair_targets(torch.arange(8) % 3, oracles.normalize(outputs), margin=1.5)
    chosen = torch.rand(8, 8, generator=torch.Generator().manual_seed(1)) < 0.5
    chosen = chosen.triu() | chosen.triu().T
    options = {"distance": distance, "approximation": approximation}
    parts = [
        sf.head_curvature(features, outputs, targets * c, **options) for c in (chosen, ~chosen)
    ]
    whole = sf.head_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(parts[0] + parts[1], whole)


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_order_of_examples_does_not_matter(normal, distance, approximation):
    features, _, outputs = problem(normal, 8, 5, 3, bias=True)
    labels, order = torch.arange(8) % 3, torch.tensor([4, 1, 7, 0, 2, 6, 5, 3])
    options = {"distance": distance, "approximation": approximation}
    results = []
    for at in (torch.arange(8), order):
        targets = sf.pair_targets(labels[at], oracles.normalize(outputs[at]), margin=1.5)
        results.append(sf.head_curvature(features[at], outputs[at], targets, **options))
    torch.testing.assert_close(*results)


class TestPropositions:
    """The paper's propositions on positive definiteness, and where they end."""

    LABELS = torch.arange(12) % 4  # balanced

    @pytest.mark.parametrize("margin", [0.2, 1.0, 2.5, 4.0])
    @pytest.mark.parametrize("approximation", ["fixed", "positive"])
    def test_euclidean_fixed_and_positive_are_not_negative(self, normal, margin, approximation):
        features, _, outputs = problem(normal, 12, 5, 3, bias=True)
        targets = sf.pair_targets(self.LABELS, oracles.normalize(outputs), margin=margin)
        curvature = sf.head_curvature(
            features, outputs, targets, distance="euclidean", approximation=approximation
        )
        assert (curvature >= -1e-15).all()

    def test_all_negatives_inside_the_margin_give_zero_for_fixed(self, normal):
        features, _, outputs = problem(normal, 12, 5, 3, bias=True)
        targets = sf.pair_targets(self.LABELS, oracles.normalize(outputs), margin=4.0)
        curvature = sf.head_curvature(
            features, outputs, targets, distance="euclidean", approximation="fixed"
        )
        assert (curvature.abs() < 1e-15).all()

    def test_unequal_classes_break_the_proposition_of_fixed(self, normal):
        """The proof counts pairs per anchor, the loss over the set; a small class tells them apart."""
        features, _, outputs = problem(normal, 12, 5, 3, bias=True)
        labels = torch.tensor([0] * 10 + [1] * 2)
        features = features * torch.where(labels == 1, 3.0, 1.0)[:, None]
        targets = sf.pair_targets(labels, oracles.normalize(outputs), margin=4.0)
        curvature = sf.head_curvature(
            features, outputs, targets, distance="euclidean", approximation="fixed"
        )
        assert (curvature < 0).any()

    def test_full_and_arccos_can_be_negative(self, normal):
        features, _, outputs = problem(normal, 12, 5, 3, bias=True)
        targets = sf.pair_targets(self.LABELS, oracles.normalize(outputs), margin=4.0)
        for distance, approximation in (("euclidean", "full"), ("arccos", "fixed")):
            curvature = sf.head_curvature(
                features, outputs, targets, distance=distance, approximation=approximation
            )
            assert (curvature < 0).any()


def test_float32_stays_float32_and_close(normal):
    features, _, outputs = problem(normal, 20, 30, 4, bias=True)
    targets = sf.pair_targets(torch.arange(20) % 4, oracles.normalize(outputs), margin=1.0)
    for distance, approximation in SIX:
        options = {"distance": distance, "approximation": approximation}
        exact = sf.head_curvature(features, outputs, targets, **options)
        single = sf.head_curvature(features.float(), outputs.float(), targets.float(), **options)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4 * exact.abs().max())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda h, z, y: (h[:0], z[:0], y[:0, :0]), "outputs"),
        (lambda h, z, y: (h, z * 0, y), "outputs"),
        (lambda h, z, y: (h, z[0], y), "outputs"),
        (lambda h, z, y: (h[:4], z, y), "features"),
        (lambda h, z, y: (h.long(), z, y), "features"),
        (lambda h, z, y: (h / 0, z, y), "features"),
        (lambda h, z, y: (h.float(), z, y), None),
        (lambda h, z, y: (h, z, y.float()), None),
        (lambda h, z, y: (h, z, y[:4]), "targets"),
        (lambda h, z, y: (h, z, y.triu()), "targets"),
        (lambda h, z, y: (h, z, y.long()), "targets"),
        (lambda h, z, y: (h, z, y * torch.inf), "targets"),
    ],
)
def test_unusable_input_is_refused(normal, change, field):
    features, outputs = normal(5, 4), normal(5, 3)
    targets = sf.pair_targets(torch.arange(5) % 2, oracles.normalize(outputs), margin=1.0)
    for function in (sf.head_curvature, kronecker_curvature, dense_curvature):
        with pytest.raises(sf.InputError) as refusal:
            function(*change(features, outputs, targets), distance="arccos", approximation="full")
        assert refusal.value.field == field


@pytest.fixture
def small(normal):
    features, weights = normal(6, 4), normal(3, 4)
    outputs = features @ weights.T
    targets = sf.pair_targets(torch.arange(6) % 3, oracles.normalize(outputs), margin=1.5)
    return features, weights, outputs, targets


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_dense_equals_gauss_newton_by_definition(small, distance, approximation):
    features, weights, outputs, targets = small
    G = oracles.head_gauss_newton(weights, features, targets, distance, approximation)
    options = {"distance": distance, "approximation": approximation}
    dense = dense_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(dense, G, rtol=1e-9, atol=1e-12)
    diagonal = sf.head_curvature(features, outputs, targets, **options)
    torch.testing.assert_close(dense.diagonal().view(3, 4), diagonal)


@pytest.mark.parametrize(("distance", "approximation"), SIX)
def test_kronecker_holds_the_partial_traces(small, distance, approximation):
    features, weights, outputs, targets = small
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


def test_kronecker_parts_add_up(small):
    features, _, outputs, targets = small
    options = {"distance": "arccos", "approximation": "full"}
    parts = [
        kronecker_curvature(features, outputs, y, **options)
        for y in (targets.clamp(min=0), targets.clamp(max=0))
    ]
    whole = kronecker_curvature(features, outputs, targets, **options)
    torch.testing.assert_close((parts[0] + parts[1]).left, whole.left)
    torch.testing.assert_close((parts[0] + parts[1]).right, whole.right)
