import math

import oracles
import pytest
import torch

import surefind as sf


def evidence_at(mean, curvature, scale, delta):
    posterior = sf.HeadPosterior.from_curvature(
        mean, curvature, scale=scale, prior_precision=delta, loss=0.0
    )
    return posterior.log_evidence()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("weights", [1e-3, 1.0, 1e3])
def test_tuned_prior_has_the_largest_evidence(normal, size, weights):
    mean, curvature = weights * normal(4, 6), size * normal(4, 6)
    best = sf.tune_prior_precision(mean, curvature, scale=3.0)
    top = evidence_at(mean, curvature, 3.0, best)
    for factor in (0.5, 0.99, 1.01, 2.0, 1e-3, 1e3):
        assert evidence_at(mean, curvature, 3.0, best * factor) < top


def test_tuned_prior_satisfies_mackays_fixed_point(normal):
    mean, curvature = normal(4, 6), normal(4, 6).abs()
    best = sf.tune_prior_precision(mean, curvature, scale=20.0)
    determined = float((20 * curvature / (20 * curvature + best)).sum())
    assert best == pytest.approx(determined / float((mean**2).sum()))


def test_zero_weights_have_no_best_prior():
    with pytest.raises(sf.DegenerateError, match="weights are all zero"):
        sf.tune_prior_precision(torch.zeros(2, 3), torch.ones(2, 3), scale=1.0)


@pytest.mark.parametrize(
    ("mean", "curvature", "message"),
    [
        (torch.full((2, 3), torch.nan), torch.ones(2, 3), "mean holds 6 NaN"),
        (torch.ones(2, 3), torch.full((2, 3), torch.nan), "curvature holds 6 NaN"),
        (
            torch.ones(2, 3),
            torch.ones(2, 4),
            r"each of the 6 weights \(2, 3\).* got shape \(2, 4\)",
        ),
        (torch.ones(2, 3), torch.ones(2), r"or all eigenvalues; got shape \(2,\)"),
        (torch.ones(2, 3), torch.ones(2, 3).long(), "curvature must be float32 or float64"),
    ],
)
def test_what_has_no_evidence_is_refused(mean, curvature, message):
    with pytest.raises(sf.InputError, match=message):
        sf.tune_prior_precision(mean, curvature, scale=1.0)


def test_eigenvalues_may_come_in_any_shape(normal):
    mean, curvature = normal(4, 6), normal(4, 6).abs()
    expected = sf.tune_prior_precision(mean, curvature, scale=3.0)
    assert sf.tune_prior_precision(mean, curvature.flatten(), scale=3.0) == pytest.approx(expected)


@pytest.fixture
def classes(normal, generator):
    """Four noisy classes on a sphere, an identity head, and pairs of held-out examples."""
    centres = 3 * normal(4, 5)
    labels = torch.arange(80) % 4
    features = centres[labels] + normal(80, 5)
    pairs = sf.mine_pairs(
        labels,
        oracles.normalize(features),
        kind="all",
        max_pairs=1000,
        margin=1.0,
        generator=generator,
    )
    return features, labels, pairs


def test_pair_loss_by_loops(classes):
    features, _, pairs = classes
    e = sf.Embeddings(oracles.normalize(features), torch.linspace(1, 60, 80).double())
    score = sf.vmf_match_score(e, e)
    area = -sf.vmf_log_normalizer(torch.zeros(1).double(), 5)
    same, different = [], []
    for i, j, s in zip(pairs.left, pairs.right, pairs.positive, strict=True):
        ratio = float(score[i, j] + area)
        (same if s else different).append(math.log1p(math.exp(-ratio if s else ratio)))
    expected = (sum(same) / len(same) + sum(different) / len(different)) / 2
    assert sf.pair_loss(e, pairs) == pytest.approx(expected)


def test_no_information_costs_a_bit(classes):
    features, _, pairs = classes
    e = sf.Embeddings(oracles.normalize(features), torch.zeros(80).double())
    assert sf.pair_loss(e, pairs) == pytest.approx(math.log(2))


def test_tuning_on_pairs_finds_a_width_between_the_extremes(classes):
    features, _, pairs = classes
    mean = torch.eye(5, dtype=torch.float64)

    def posterior_at(delta):
        return sf.HeadPosterior(mean, torch.full_like(mean, delta))

    best = sf.tune_on_pairs(posterior_at, features, pairs)
    losses = {d: sf.pair_loss(posterior_at(d).predict(features), pairs) for d in (1e-6, best, 1e6)}
    assert losses[best] < min(losses[1e-6], losses[1e6])
    assert 1e-3 < best < 1e3


def test_pairs_of_one_kind_cannot_tune(classes):
    features, _, pairs = classes
    same = sf.PairList(
        pairs.left[pairs.positive],
        pairs.right[pairs.positive],
        pairs.positive[pairs.positive],
        n=80,
    )
    e = sf.Embeddings(oracles.normalize(features), torch.ones(80).double())
    with pytest.raises(sf.DegenerateError, match="same and negative pairs, both kinds"):
        sf.pair_loss(e, same)


def test_nothing_to_try_is_refused(classes):
    features, _, pairs = classes
    with pytest.raises(sf.InputError, match="candidates is empty; give at least one"):
        sf.tune_on_pairs(lambda delta: None, features, pairs, candidates=[])
