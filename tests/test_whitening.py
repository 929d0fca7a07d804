import itertools

import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind import whitening as module
from surefind.models import vectors as blocks
from surefind.models.vectors import Vectors, vector_encoder
from surefind.pairs import relations as pairs_module
from surefind.whitening import (
    RIDGE,
    RIDGES,
    ROUNDS,
    SHARES,
    LeftOut,
    check_difference,
    choose_metric,
    class_moments,
    leave_classes_out,
    listed_moments,
    pair_scatter,
    whitening,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noisy(classes=12, members=6, d=5, seed=0, noise=(0.1, 0.1, 0.1, 2, 2)):
    """Classes that differ in all columns alike, and their members mostly in the last two."""
    g = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), members)
    X = g.standard_normal((classes, d))[labels] + np.array(noise) * g.standard_normal((
        len(labels),
        d,
    ))
    return X, labels


def plain(classes=12, members=6, seed=1):
    """The same, but members differ in all columns alike: there is nothing to gain."""
    return noisy(classes, members, seed=seed, noise=(0.5,) * 5)


def choose(X, labels, metric="whitened", seed=0):
    relation = labels if isinstance(labels, sf.PairList | sf.Positions) else classes(labels)
    return choose_metric(Vectors(X), relation, metric, generator=generator(seed))


def classes(labels):
    return sf.Classes(torch.as_tensor(labels))


def uneven(seed=3):
    g = np.random.default_rng(seed)
    labels = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4])
    order = g.permutation(len(labels))
    return g.standard_normal((len(labels), 4)), labels[order]


@pytest.mark.parametrize("size", [1 << 20, 12])
def test_scatter_is_the_sum_over_all_positive_pairs(monkeypatch, size):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", size)  # all rows at once, or three
    X, labels = uneven()
    every = [torch.arange(5)]
    moments = class_moments(Vectors(X), classes(labels), every)
    expected = oracles.positive_scatter(X, oracles.class_kind(labels))
    assert moments.pairs.tolist() == [15 + 1 + 0 + 6 + 1]
    np.testing.assert_allclose(moments.scatters[0] / 23, expected, rtol=1e-12, atol=1e-15)


def test_scatters_of_shares_add_up_and_a_single_example_adds_nothing():
    X, labels = uneven()
    vectors, relation = Vectors(X), classes(labels)
    shares = [torch.tensor([0, 3]), torch.tensor([4, 1]), torch.tensor([2])]
    parts = class_moments(vectors, relation, shares)
    whole = class_moments(vectors, relation, [torch.arange(5)])
    torch.testing.assert_close(parts.scatters.sum(0), whole.scatters[0])
    assert parts.pairs.tolist() == [21, 2, 0]
    assert not parts.scatters[2].any()


@pytest.mark.parametrize("size", [1 << 20, 12])
def test_what_is_left_out_is_in_neither_scatter_nor_mean(monkeypatch, size):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", size)
    X, labels = uneven()
    shares = [
        torch.tensor([0]),
        torch.tensor([4, 1]),
        torch.tensor([3]),
    ]  # 2 is in none, but in the mean
    moments = class_moments(Vectors(X), classes(labels), shares)
    for out, kept in (((), [0, 1, 2, 3, 4]), ((1,), [0, 2, 3]), ((2, 0), [1, 2, 4])):
        scatter, mean = moments.without(*out)
        rows = np.isin(labels, kept)
        kind = oracles.class_kind(labels[rows])
        expected = int((kind == 1).sum()) / 2 * oracles.positive_scatter(X[rows], kind)
        np.testing.assert_allclose(scatter, expected, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(mean, oracles.unit_mean(X[rows]), rtol=1e-12, atol=1e-15)


def test_scatter_of_tight_classes_does_not_cancel():
    g = np.random.default_rng(0)
    labels = np.repeat([0, 1], 5)
    X = g.standard_normal((2, 3))[labels] + 1e-7 * g.standard_normal((10, 3))
    moments = class_moments(Vectors(X), classes(labels), [torch.arange(2)])
    expected = 20 * oracles.positive_scatter(X, oracles.class_kind(labels))
    np.testing.assert_allclose(moments.scatters[0], expected, rtol=1e-7)


@pytest.mark.parametrize("size", [1 << 20, 8])
def test_scatter_of_listed_pairs_is_the_sum_over_the_positive_ones(monkeypatch, size):
    monkeypatch.setattr(module, "PAIR_ELEMENTS", size)
    X, _ = uneven()
    listed = [(0, 1, True), (4, 2, True), (1, 9, False), (9, 14, True), (0, 14, True), (3, 1, True)]
    left, right, same = (torch.tensor(side) for side in zip(*listed, strict=True))
    moments = listed_moments(Vectors(X), sf.PairList(left, right, same, 15))
    scatter, mean = moments.without()
    expected = oracles.positive_scatter(X, oracles.listed_kind(listed, 15))
    assert moments.pairs.tolist() == [5]
    np.testing.assert_allclose(scatter / 5, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(mean, oracles.unit_mean(X), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("ridge", [0.01, 0.1, 10.0])
def test_whitening_is_the_inverse_root(ridge):
    X, labels = noisy()
    scatter = oracles.positive_scatter(X, oracles.class_kind(labels))
    found = whitening(torch.from_numpy(scatter), ridge)
    np.testing.assert_allclose(found, oracles.whitening(scatter, ridge), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(whitening(torch.from_numpy(7 * scatter), ridge), found)
    torch.testing.assert_close(found, found.T)


def test_whitening_tends_to_the_identity_and_makes_differences_isotropic():
    X, labels = noisy()
    scatter = torch.from_numpy(oracles.positive_scatter(X, oracles.class_kind(labels)))
    torch.testing.assert_close(whitening(scatter, 1e9), torch.eye(5).double(), atol=1e-7, rtol=0)
    full = whitening(scatter, 1e-12)
    alike = full @ scatter @ full
    torch.testing.assert_close(alike / alike.trace() * 5, torch.eye(5).double())


def test_the_metric_is_learnt_from_all_classes_with_the_chosen_ridge():
    X, labels = noisy()
    metric = choose(X, labels)
    assert metric.name == "whitened"
    assert metric.ridge in RIDGES
    scatter = oracles.positive_scatter(X, oracles.class_kind(labels))
    expected = oracles.centred_whitening(scatter, oracles.unit_mean(X), metric.ridge)
    np.testing.assert_allclose(metric.weights, expected, rtol=1e-9, atol=1e-12)


def test_the_whitened_vectors_of_the_fit_have_mean_zero():
    X, labels = noisy()
    z = Vectors(X).features(slice(None)) @ choose(X + 2, labels).weights.T
    assert z.mean(0).abs().max() > 0.1  # of other vectors
    z = Vectors(X + 2).features(slice(None)) @ choose(X + 2, labels).weights.T
    torch.testing.assert_close(z.mean(0), torch.zeros(5).double())


def test_every_two_shares_are_left_out_together_once_and_every_share_in_every_round():
    assert all(sorted(sum(pairs, ())) == list(range(SHARES)) for pairs in ROUNDS)
    together = sorted(tuple(sorted(pair)) for pairs in ROUNDS for pair in pairs)
    assert together == list(itertools.combinations(range(SHARES), 2))


def test_classes_left_out_are_judged_by_scatter_and_mean_of_the_others():
    X, labels = noisy(8, 4)
    X, labels = np.vstack([X, X[:1] + 1]), np.r_[labels, 8]  # has no pair: only part of the mean
    vectors, relation = Vectors(X), classes(labels)
    shares = [torch.tensor(own) for own in ([6, 0], [3, 7], [1], [5], [4], [2])]
    moments = class_moments(vectors, relation, shares)
    found = leave_classes_out(vectors, relation, shares, moments, generator())
    h = X / np.linalg.norm(X, axis=1, keepdims=True)
    start = 0
    for pair in itertools.chain(*ROUNDS):
        out = np.isin(labels, torch.cat([shares[s] for s in pair]).numpy())
        rows = slice(start, start + out.sum())
        start = rows.stop
        np.testing.assert_array_equal(found.classes[rows], labels[out])
        right = oracles.nearest_is_alike(h[out], labels[out])
        np.testing.assert_array_equal(found.right[rows], right)
        scatter = oracles.positive_scatter(X[~out], oracles.class_kind(labels[~out]))
        for k, ridge in enumerate(RIDGES):
            u = (h[out] - h[~out].mean(0)) @ oracles.whitening(scatter, ridge)
            right = oracles.nearest_is_alike(u, labels[out])
            np.testing.assert_array_equal(found.whitened[k, rows], right)
    assert start == 5 * 32  # every class with a pair in every round


def test_the_gain_has_a_standard_error_clustered_by_class():
    right = torch.tensor([True, False, False, True, False, True])
    whitened = torch.tensor([[True, True, True, True, False, False], [True] * 6])
    found = LeftOut(right, whitened, torch.tensor([4, 4, 4, 9, 9, 9]))
    gain, error = found.gain(0)
    assert gain == pytest.approx(1 / 6)  # 0, 1, 1 | 0, 0, -1
    clusters = np.array([2 - 3 / 6, -1 - 3 / 6])
    assert error == pytest.approx(np.sqrt(2 * (clusters**2).sum()) / 6)


def test_the_largest_ridge_within_a_standard_error_of_the_best_is_taken():
    labels = torch.arange(4).repeat_interleave(5)
    rows = {"best": [12], "near": [0, 6], "worse": [0, 5, 10, 12, 15]}  # that are wrong
    best, near, worse = (~torch.isin(torch.arange(20), torch.tensor(own)) for own in rows.values())

    def taken(*whitened):
        return LeftOut(~best, torch.stack(whitened), labels).best()

    assert taken(worse, near, best) == 1  # 0.20 ± 0 and 0.05 ± 0.10 below the best
    assert taken(worse, best, near) == 1
    assert taken(best, best) == 0


def test_auto_whitens_where_classes_left_out_gain():
    gaining = choose(*noisy(30, 8), metric="auto")
    assert gaining.name == "whitened"
    assert "a gain of +" in gaining.reason
    same = choose(*noisy(30, 8))
    assert (same.ridge, same.reason) == (gaining.ridge, gaining.reason)


@pytest.mark.parametrize("seeds", [10, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_auto_seldom_whitens_where_there_is_nothing_to_gain(seeds):
    found = [choose(*plain(30, 8, seed=seed), metric="auto", seed=seed) for seed in range(seeds)]
    assert sum(metric.name == "whitened" for metric in found) <= seeds // 10
    staying = next(metric for metric in found if metric.name == "identity")
    assert (staying.ridge, staying.weights) == (None, None)
    assert "standard error" in staying.reason


def test_order_blocks_and_mapped_files_do_not_matter(monkeypatch, tmp_path):
    X, labels = noisy()
    expected = choose(X, labels)
    order = np.random.default_rng(0).permutation(len(X))
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 35)
    for rows, own in (
        (X[order], labels[order]),
        (X, labels),
        (mapped, labels),
        (X, labels * 9 - 4),
    ):
        found = choose(rows, own)
        assert (found.ridge, found.reason) == (expected.ridge, expected.reason)
        torch.testing.assert_close(found.weights, expected.weights)
    single = choose(X.astype(np.float32), labels)
    assert single.weights.dtype == torch.float64
    torch.testing.assert_close(single.weights, expected.weights, rtol=1e-4, atol=1e-5)


def test_large_classes_and_sets_are_judged_by_some_of_their_rows(monkeypatch):
    monkeypatch.setattr(module, "MEMBERS", 4)
    monkeypatch.setattr(module, "JUDGED", 13)
    X, labels = noisy(12, 9)
    vectors, relation = Vectors(X), classes(labels)
    shares = [torch.arange(12)[s::6] for s in range(6)]
    moments = class_moments(vectors, relation, shares)
    found = leave_classes_out(vectors, relation, shares, moments, generator())
    judged = torch.unique(found.classes, return_counts=True)[1]  # of 4 classes 3, each time others
    assert (judged % 4 == 0).all()
    assert (len(judged), judged.sum()) == (12, 15 * 3 * 4)
    assert choose(X, labels).name == "whitened"


@pytest.mark.parametrize(("count", "chosen"), [(5, False), (6, True)])
def test_too_few_classes_to_leave_out(count, chosen):
    X, labels = noisy(count)
    alone, kinds = np.vstack([X, X[:9] + 1]), np.r_[labels, 100 + np.arange(9)]  # have no pair
    for rows, own in ((X, labels), (alone, kinds)):
        whitened, auto = choose(rows, own), choose(rows, own, "auto")
        assert ("recall@1" in whitened.reason) == chosen
        assert ("recall@1" in auto.reason) == chosen
        if not chosen:
            assert whitened.ridge == RIDGE
            assert auto.name == "identity"
            assert "too few to leave some out" in auto.reason


def test_fewer_differences_than_columns_still_have_a_finite_metric():
    g = np.random.default_rng(0)
    X, labels = g.standard_normal((12, 40)), np.repeat(np.arange(6), 2)
    metric = choose(X, labels)
    assert torch.isfinite(metric.weights).all()
    moments = class_moments(Vectors(X), classes(labels), [torch.arange(6)])
    few = whitening(moments.scatters[0], 0.01)
    assert torch.linalg.cond(few) <= np.sqrt(1 + 40 / 0.01) * 1.001


def test_positive_pairs_that_do_not_differ_are_nothing_to_learn_from():
    X, labels = np.random.default_rng(0).standard_normal((8, 5)), np.arange(8)
    far = sf.Positions(100 * torch.arange(8, dtype=torch.float64)[:, None].expand(8, 2))
    for rows, own in ((np.repeat(X, 3, 0), np.repeat(labels, 3)), (X, labels), (X, far)):
        with pytest.raises(sf.DegenerateError) as refused:
            choose(rows, own)
        assert refused.value.field == "metric"
        assert choose(rows, own, "auto").name == "identity"


def test_pairs_and_positions_have_no_classes_to_leave_out():
    X, _ = uneven()
    at = torch.arange(15, dtype=torch.float64)[:, None] * 20  # neighbours are 20 m apart
    left, right, same = torch.tensor([[0, 1, 1], [2, 3, 1], [4, 5, 0]]).T
    for relation, listed in (
        (sf.PairList(left, right, same.bool(), 15), [(0, 1, True), (2, 3, True)]),
        (sf.Positions(torch.cat([at, 0 * at], dim=1)), [(i, i + 1, True) for i in range(14)]),
    ):
        metric = choose(X, relation)
        assert metric.ridge == RIDGE
        scatter = oracles.positive_scatter(X, oracles.listed_kind(listed, 15))
        expected = oracles.centred_whitening(scatter, oracles.unit_mean(X), RIDGE)
        np.testing.assert_allclose(metric.weights, expected, rtol=1e-9, atol=1e-12)
        auto = choose(X, relation, "auto")
        assert (auto.name, auto.weights, auto.ridge) == ("identity", None, None)


def test_a_vector_at_the_mean_of_the_others_finds_nothing_and_breaks_nothing():
    g = np.random.default_rng(0)
    half = g.standard_normal((18, 4))
    half[:, 0] = 0
    X = np.vstack([half, -half])  # their mean is zero along every column but the first …
    X[:, 0] = 1
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    X[[0, 18]] = [1, 0, 0, 0]  # … and these two are where it points
    assert torch.isfinite(choose(X, np.arange(36) % 6).weights).all()


def test_fewer_outputs_are_the_leading_principal_directions_of_whitened_vectors():
    X, labels = noisy()
    weights = choose(X, labels).weights
    assert torch.equal(vector_encoder(Vectors(X), None, weights).head_weights(), weights)
    head = vector_encoder(Vectors(X), 2, weights).head_weights()
    z = torch.nn.functional.normalize(Vectors(X).features(slice(None)) @ weights.T)
    leading = torch.linalg.svd(z).Vh[:2]
    signs = (head * (leading @ weights)).sum(1, keepdim=True).sign()  # which are arbitrary
    torch.testing.assert_close(head, signs * (leading @ weights))


N = 14


def shifted(seed=0, d=5):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((N, d)) + 3)


def relations():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 4])
    at = torch.from_numpy(np.random.default_rng(1).uniform(0, 60, (N, 2)))
    left, right = torch.tensor([0, 3, 9, 2]), torch.tensor([5, 1, 4, 7])
    judged = torch.tensor([True, True, False, True])
    return {
        "classes": sf.Classes(labels),
        "positions": sf.Positions(at),
        "pairs": sf.PairList(left, right, judged, N),
    }


def brute_force(h, relation):
    """Add up the pairs that the relation's own mask calls positive, one by one."""
    positive = relation.block(slice(0, N), slice(0, N))[0]
    total, count = np.zeros((h.shape[1], h.shape[1])), 0
    for i in range(N):
        for j in range(i):
            if positive[i, j]:
                total += np.outer(h[i] - h[j], h[i] - h[j])
                count += 1
    return total, count


@pytest.mark.parametrize("kind", ["classes", "positions", "pairs"])
@pytest.mark.parametrize("size", [4096, 3])
def test_the_scatter_is_the_sum_over_positive_pairs_of_any_relation(monkeypatch, kind, size):
    monkeypatch.setattr(pairs_module, "BLOCK_ROWS", size)
    monkeypatch.setattr(pairs_module, "BLOCK_COLUMNS", size)
    h, relation = shifted(), relations()[kind]
    found, pairs = pair_scatter(h, relation)
    expected, count = brute_force(h.numpy(), relation)
    assert pairs == count > 0
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(found, found.T)


def test_the_scatter_does_not_care_where_zero_is():
    relation = relations()["positions"]
    near, far = pair_scatter(shifted(), relation)[0], pair_scatter(shifted() + 1e6, relation)[0]
    torch.testing.assert_close(near, far, rtol=1e-6, atol=1e-6)


def test_tight_places_far_apart_keep_their_scatter():
    g = np.random.default_rng(2)
    offsets = 1e-4 * g.standard_normal((N, 3))
    h = 10 * g.standard_normal((N // 2, 3))[np.arange(N) // 2] + offsets
    relation = sf.Classes(torch.arange(N) // 2)
    expected, _ = brute_force(h, relation)
    np.testing.assert_allclose(
        pair_scatter(torch.from_numpy(h), relation)[0], expected, rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("copies", [2, 3, 5, 8])
@pytest.mark.parametrize("d", [4, 64, 512])
def test_what_rounding_leaves_of_equal_features_is_nothing(copies, d):
    own = torch.arange(7 * copies) // copies
    h = torch.from_numpy(np.random.default_rng(d).standard_normal((7, d)))[own]
    at = 100 * own[:, None] * torch.ones(1, 2, dtype=torch.float64)
    for relation in (sf.Classes(own), sf.Positions(at)):
        scatter, pairs = pair_scatter(h, relation)
        assert pairs == 7 * copies * (copies - 1) // 2
        assert not scatter.any()
        with pytest.raises(sf.DegenerateError) as refusal:
            check_difference(scatter, "head")
        assert refusal.value.field == "head"


def test_no_positive_pair_has_no_scatter():
    found, pairs = pair_scatter(shifted(), sf.Classes(torch.arange(N)))
    assert pairs == 0
    np.testing.assert_allclose(found, 0, atol=1e-12)
