import math
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from sklearn.metrics import roc_auc_score

import surefind as sf
from surefind.curvature.head import dense_curvature, kronecker_curvature
from surefind.pairs.losses import mine_pairs
from surefind.posterior import tuning
from surefind.posterior.fit import fit_posterior
from surefind.posterior.head import DensePosterior, KroneckerPosterior
from surefind.posterior.tuning import (
    TuningSample,
    blurred,
    calibrate_scale,
    pair_loss,
    pseudo_ood,
    reduced_contrast,
    select_prior_precision,
    shuffled,
    tune_on_pairs,
)


@pytest.fixture
def problem(generator):
    """Two blurred classes, some features that only pseudo-OOD inputs have, and a head."""
    labels = torch.arange(200) % 2
    features = torch.zeros(200, 12)
    features[:, :4] = torch.randn(200, 4, generator=generator) + 1.2 * (2 * labels[:, None] - 1)
    features[:, 4:] = 0.02 * torch.randn(200, 8, generator=generator)
    ood = torch.randn(200, 12, generator=generator), torch.rand(200, 12, generator=generator)
    mean = 0.1 * torch.randn(3, 12, generator=generator)
    mean[:, :4] += 0.5 * torch.randn(3, 4, generator=generator)
    curvature = sf.dataset_curvature(
        features, features @ mean.T, labels, distance="euclidean", margin=0.7
    )
    return mean, curvature, TuningSample(features, ood, labels)


def selected(mean, curvature, sample, scale):
    def posterior_at(prior):
        return sf.HeadPosterior.from_curvature(mean, curvature, scale=scale, prior_precision=prior)

    unit = scale * float(curvature.double().clamp(min=0).mean())
    return select_prior_precision(posterior_at, sample, unit=unit)


def spread(posterior, factor, sample):
    """Variance over squared length of the example in the middle, from the definition."""
    ratios = [
        float((h**2 / (factor * posterior.precision)).sum() / (posterior.mean @ h).square().sum())
        for h in sample.features
    ]
    return sorted(ratios)[(len(ratios) - 1) // 2]


def test_the_prior_is_the_one_that_detects_most(problem):
    mean, curvature, sample = problem

    def score(prior):
        posterior = sf.HeadPosterior(mean, 50 * curvature.clamp(min=0) + prior)
        known = posterior.predict(sample.features).uncertainty
        total = 0.0
        for features in sample.pseudo_ood:
            ood = posterior.predict(features).uncertainty
            is_ood = np.repeat([0, 1], [len(known), len(ood)])
            total += max(0.5, roc_auc_score(is_ood, torch.cat([known, ood])))
        return total

    candidates = [50 * float(curvature.clamp(min=0).mean()) * shape for shape in tuning.SHAPES]
    found = selected(mean, curvature, sample, scale=50.0)
    assert min(abs(found - c) / c for c in candidates) < 1e-6
    assert score(found) == pytest.approx(max(map(score, candidates)), abs=1e-6)


def test_a_corruption_that_cannot_be_detected_has_no_say(problem):
    mean, curvature, sample = problem
    gain = (sample.features @ mean.T).norm(dim=1) / sample.features.norm(dim=1)
    typical = sample.features[gain.argsort(descending=True)[:20]]
    alone = replace(sample, pseudo_ood=sample.pseudo_ood[:1])
    beside = replace(sample, pseudo_ood=(sample.pseudo_ood[0], typical))
    chosen = selected(mean, curvature, alone, scale=50.0)
    for factor in (0.01, 1, 100):
        posterior = sf.HeadPosterior(mean, 50 * curvature.clamp(min=0) + factor * chosen)
        known, sure = (posterior.predict(h).uncertainty for h in (sample.features, typical))
        assert sf.metrics.auroc(known, sure) < 0.4
    assert selected(mean, curvature, beside, scale=50.0) == chosen


def test_reduced_contrast_is_a_third_of_the_contrast(generator):
    images = torch.rand(4, 3, 5, 6, generator=generator)
    pale = reduced_contrast(images)
    torch.testing.assert_close(pale.mean((2, 3)), images.mean((2, 3)))
    torch.testing.assert_close(pale.std((2, 3)), images.std((2, 3)) / 3)


def test_vectors_have_one_corruption_and_images_three(generator):
    images, vectors = torch.rand(4, 3, 8, 8, generator=generator), torch.eye(4)
    assert [x.shape for x in pseudo_ood(images, generator)] == 3 * [images.shape]
    assert [x.shape for x in pseudo_ood(vectors, generator)] == [vectors.shape]


def test_the_scale_is_the_one_that_is_calibrated(problem, generator):
    mean, curvature, sample = problem
    prior = selected(mean, curvature, sample, scale=200.0)
    posterior = sf.HeadPosterior.from_curvature(mean, curvature, scale=200.0, prior_precision=prior)
    factor = calibrate_scale(posterior, sample, generator)
    assert any(spread(posterior, factor, sample) == pytest.approx(s) for s in tuning.SPREADS)

    def miscalibration(f):
        """Mean confidence against mean accuracy, by drawing heads in a loop."""
        deviation = (f * posterior.precision) ** -0.5
        votes = torch.zeros(200, 2)
        for _ in range(200):
            head = mean + deviation * torch.randn(mean.shape, generator=generator)
            unit = torch.nn.functional.normalize(sample.features @ head.T, dim=1)
            cosine = (unit @ unit.T).fill_diagonal_(-2)
            votes[torch.arange(200), sample.labels[cosine.argmax(1)]] += 1 / 200
        share, guess = votes.max(1)
        return abs(float(share.mean() - (guess == sample.labels).float().mean()))

    assert miscalibration(factor) < 0.1
    assert miscalibration(factor) < miscalibration(1e4) + 0.02


def test_the_choice_does_not_depend_on_the_units_of_the_features(problem, generator):
    mean, curvature, sample = problem
    prior = selected(mean, curvature, sample, scale=200.0)
    ood = tuple(8 * features for features in sample.pseudo_ood)
    scaled = TuningSample(sample.features * 8, ood, sample.labels)
    # Outputs grow by 8, so curvature per squared feature stays: C' = C in these units.
    again = sf.dataset_curvature(
        scaled.features, scaled.features @ mean.T, sample.labels, distance="euclidean", margin=0.7
    )
    torch.testing.assert_close(again, curvature, rtol=1e-4, atol=1e-7)
    assert selected(mean, again, scaled, scale=200.0) == pytest.approx(prior, rel=1e-3)


def test_without_labels_the_scale_stays(problem, generator):
    mean, curvature, sample = problem
    blind = TuningSample(sample.features, sample.pseudo_ood, None)
    posterior = sf.HeadPosterior(mean, curvature.clamp(min=0) + 1)
    assert calibrate_scale(posterior, blind, generator) == 1


def test_where_no_answer_can_be_wrong_the_posterior_is_as_wide_as_it_gets(problem, generator):
    mean, curvature, sample = problem
    one = TuningSample(sample.features, sample.pseudo_ood, torch.zeros(200, dtype=torch.int64))
    posterior = sf.HeadPosterior(mean, curvature.clamp(min=0) + 1)
    factor = calibrate_scale(posterior, one, generator)
    assert spread(posterior, factor, sample) == pytest.approx(max(tuning.SPREADS))


def test_the_scale_does_not_depend_on_the_one_it_starts_from(problem):
    mean, curvature, sample = problem
    posterior = sf.HeadPosterior(mean, curvature.clamp(min=0) + 1e-3)
    narrow = sf.HeadPosterior(mean, 1e9 * posterior.precision)
    wide, again = (
        calibrate_scale(p, sample, torch.Generator().manual_seed(2)) for p in (posterior, narrow)
    )
    assert again == pytest.approx(1e-9 * wide, rel=1e-3)


def test_blurred_images_are_means_of_squares():
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 3, 3] = 25.0
    assert blurred(image)[0, 0, 4, 4] == 1
    assert blurred(image)[0, 0, 7, 7] == 0
    torch.testing.assert_close(
        blurred(torch.full((1, 2, 9, 8), 0.3)), torch.full((1, 2, 9, 8), 0.3)
    )


def test_shuffled_images_keep_their_pixels(generator):
    images = torch.rand(5, 3, 4, 6, generator=generator)
    other = shuffled(images, generator)
    assert other.shape == images.shape
    assert not torch.equal(other, images)
    for before, after in zip(images, other, strict=True):
        pixels = {tuple(p.tolist()) for p in before.flatten(1).T}
        assert {tuple(p.tolist()) for p in after.flatten(1).T} == pixels
    vectors = torch.rand(5, 7, generator=generator)
    moved = shuffled(vectors, generator)
    torch.testing.assert_close(moved.sort(1).values, vectors.sort(1).values)
    assert not torch.equal(moved[0].argsort(), moved[1].argsort())


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
def test_a_fit_joins_both_rules_for_every_structure(problem, generator, structure):
    mean, _, sample = problem
    h, labels = sample.features, sample.labels
    curvature = {
        "diagonal": sf.head_curvature,
        "kronecker": kronecker_curvature,
        "dense": dense_curvature,
    }[structure](
        h,
        h @ mean.T,
        sf.pair_targets(labels, oracles.normalize(h @ mean.T), margin=0.7),
        distance="euclidean",
        approximation="fixed",
    )
    kind = {"diagonal": sf.HeadPosterior, "kronecker": KroneckerPosterior}
    kind = kind.get(structure, DensePosterior)

    def fit(**options):
        return fit_posterior(
            mean,
            curvature,
            lambda: sample,
            examples=200,
            generator=torch.Generator().manual_seed(3),
            structure=structure,
            **options,
        )

    tuned, shaped = fit(), fit(scale=200.0)
    assert (shaped.scale, tuned.posterior.structure) == (200.0, structure)
    start = kind.from_curvature(
        mean, curvature, scale=200.0, prior_precision=shaped.prior_precision
    )
    torch.testing.assert_close(shaped.posterior.precision, start.precision)
    factor = calibrate_scale(start, sample, torch.Generator().manual_seed(3))
    torch.testing.assert_close(tuned.posterior.precision, factor * start.precision)
    assert tuned.scale == pytest.approx(200 * factor)
    assert tuned.prior_precision == pytest.approx(shaped.prior_precision * factor)
    given = fit(prior_precision=3.0)
    assert (given.scale, given.prior_precision) == (200.0, 3.0)
    best = fit(prior_precision="evidence").prior_precision

    def evidence(delta):
        at = kind.from_curvature(mean, curvature, scale=200.0, prior_precision=delta, loss=0.0)
        return at.log_evidence()

    assert evidence(best) > max(evidence(0.8 * best), evidence(1.25 * best))


@pytest.mark.slow
def test_the_choice_does_not_depend_on_the_dtype(problem):
    mean, curvature, sample = problem
    single, double = (
        fit_posterior(
            mean.to(dtype),
            curvature.to(dtype),
            lambda dtype=dtype: replace(sample, features=sample.features.to(dtype)),
            examples=200,
            generator=torch.Generator().manual_seed(3),
        )
        for dtype in (torch.float32, torch.float64)
    )
    assert double.posterior.precision.dtype == torch.float64
    assert double.scale == pytest.approx(single.scale, rel=1e-5)
    assert double.prior_precision == pytest.approx(single.prior_precision, rel=1e-5)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"prior_precision": -1.0}])
def test_options_out_of_range_are_refused(problem, options):
    mean, curvature, sample = problem
    settings = {"examples": 200, "generator": torch.Generator()}
    with pytest.raises(sf.InputError, match=next(iter(options))):
        fit_posterior(mean, curvature, lambda: sample, **settings | options)


@pytest.fixture
def classes(normal, generator):
    """Four noisy classes on a sphere, an identity head, and pairs of held-out examples."""
    centres = 3 * normal(4, 5)
    labels = torch.arange(80) % 4
    features = centres[labels] + normal(80, 5)
    pairs = mine_pairs(
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
    assert pair_loss(e, pairs) == pytest.approx(expected)


def test_no_information_costs_a_bit(classes):
    features, _, pairs = classes
    e = sf.Embeddings(oracles.normalize(features), torch.zeros(80).double())
    assert pair_loss(e, pairs) == pytest.approx(math.log(2))


def test_tuning_on_pairs_finds_a_width_between_the_extremes(classes):
    features, _, pairs = classes
    mean = torch.eye(5, dtype=torch.float64)

    def posterior_at(delta):
        return sf.HeadPosterior(mean, torch.full_like(mean, delta))

    best = tune_on_pairs(posterior_at, features, pairs)
    losses = {d: pair_loss(posterior_at(d).predict(features), pairs) for d in (1e-6, best, 1e6)}
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
    with pytest.raises(sf.DegenerateError, match="positive and negative pairs, both kinds"):
        pair_loss(e, same)
