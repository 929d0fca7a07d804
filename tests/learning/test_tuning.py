from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from small_learners import digits, learner

import surefind as sf
from surefind.learning import tuning as width
from surefind.learning.tuning import (
    Sample,
    blurred,
    calibrate_scale,
    pseudo_ood,
    reduced_contrast,
    select_prior_precision,
    shuffled,
)


@pytest.fixture
def problem(generator):
    """Two blurred classes, some features that only strange inputs have, and a head."""
    labels = torch.arange(200) % 2
    features = torch.zeros(200, 12)
    features[:, :4] = torch.randn(200, 4, generator=generator) + 1.2 * (2 * labels[:, None] - 1)
    features[:, 4:] = 0.02 * torch.randn(200, 8, generator=generator)
    strange = torch.randn(200, 12, generator=generator), torch.rand(200, 12, generator=generator)
    mean = 0.1 * torch.randn(3, 12, generator=generator)
    mean[:, :4] += 0.5 * torch.randn(3, 4, generator=generator)
    curvature = sf.dataset_curvature(
        features, features @ mean.T, labels, distance="euclidean", margin=0.7
    )
    return mean, curvature, Sample(features, strange, labels)


def spread(posterior, factor, sample):
    """Variance over squared length of the example in the middle, from the definition."""
    ratios = [
        float((h**2 / (factor * posterior.precision)).sum() / (posterior.mean @ h).square().sum())
        for h in sample.features
    ]
    return sorted(ratios)[(len(ratios) - 1) // 2]


def test_the_shape_is_the_one_that_tells_most(problem):
    mean, curvature, sample = problem

    def worth(prior):
        posterior = sf.HeadPosterior(mean, 50 * curvature.clamp(min=0) + prior)
        known = posterior.predict(sample.features).uncertainty
        total = 0.0
        for features in sample.strange:
            strange = posterior.predict(features).uncertainty
            is_strange = np.repeat([0, 1], [len(known), len(strange)])
            total += max(0.5, roc_auc_score(is_strange, torch.cat([known, strange])))
        return total

    candidates = [50 * float(curvature.clamp(min=0).mean()) * shape for shape in width.SHAPES]
    found = select_prior_precision(mean, curvature, sample, scale=50.0)
    assert min(abs(found - c) / c for c in candidates) < 1e-6
    assert worth(found) == pytest.approx(max(map(worth, candidates)), abs=1e-6)


def test_a_way_that_cannot_be_told_has_no_say(problem):
    mean, curvature, sample = problem
    gain = (sample.features @ mean.T).norm(dim=1) / sample.features.norm(dim=1)
    typical = sample.features[gain.argsort(descending=True)[:20]]
    alone = replace(sample, strange=sample.strange[:1])
    beside = replace(sample, strange=(sample.strange[0], typical))
    chosen = select_prior_precision(mean, curvature, alone, scale=50.0)
    for factor in (0.01, 1, 100):
        posterior = sf.HeadPosterior(mean, 50 * curvature.clamp(min=0) + factor * chosen)
        known, sure = (posterior.predict(h).uncertainty for h in (sample.features, typical))
        assert sf.metrics.auroc(known, sure) < 0.4
    assert select_prior_precision(mean, curvature, beside, scale=50.0) == chosen


def test_faded_images_keep_a_third_of_their_contrast(generator):
    images = torch.rand(4, 3, 5, 6, generator=generator)
    pale = reduced_contrast(images)
    torch.testing.assert_close(pale.mean((2, 3)), images.mean((2, 3)))
    torch.testing.assert_close(pale.std((2, 3)), images.std((2, 3)) / 3)


def test_vectors_are_made_strange_in_one_way_and_images_in_three(generator):
    images, vectors = torch.rand(4, 3, 8, 8, generator=generator), torch.eye(4)
    assert [x.shape for x in pseudo_ood(images, generator)] == 3 * [images.shape]
    assert [x.shape for x in pseudo_ood(vectors, generator)] == [vectors.shape]


def test_the_width_is_the_one_that_is_calibrated(problem, generator):
    mean, curvature, sample = problem
    prior = select_prior_precision(mean, curvature, sample, scale=200.0)
    posterior = sf.HeadPosterior.from_curvature(mean, curvature, scale=200.0, prior_precision=prior)
    factor = calibrate_scale(posterior, sample, generator)
    assert any(spread(posterior, factor, sample) == pytest.approx(s) for s in width.SPREADS)

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
    prior = select_prior_precision(mean, curvature, sample, scale=200.0)
    strange = tuple(8 * features for features in sample.strange)
    scaled = Sample(sample.features * 8, strange, sample.labels)
    # Outputs grow by 8, so curvature per squared feature stays: C' = C in these units.
    again = sf.dataset_curvature(
        scaled.features, scaled.features @ mean.T, sample.labels, distance="euclidean", margin=0.7
    )
    torch.testing.assert_close(again, curvature, rtol=1e-4, atol=1e-7)
    assert select_prior_precision(mean, again, scaled, scale=200.0) == pytest.approx(
        prior, rel=1e-3
    )


def test_without_labels_the_width_stays(problem, generator):
    mean, curvature, sample = problem
    blind = Sample(sample.features, sample.strange, None)
    posterior = sf.HeadPosterior(mean, curvature.clamp(min=0) + 1)
    assert calibrate_scale(posterior, blind, generator) == 1


def test_where_no_answer_can_be_wrong_the_posterior_is_as_wide_as_it_gets(problem, generator):
    mean, curvature, sample = problem
    one = Sample(sample.features, sample.strange, torch.zeros(200, dtype=torch.int64))
    posterior = sf.HeadPosterior(mean, curvature.clamp(min=0) + 1)
    factor = calibrate_scale(posterior, one, generator)
    assert spread(posterior, factor, sample) == pytest.approx(max(width.SPREADS))


def test_the_width_does_not_depend_on_the_scale_it_starts_from(problem):
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


def test_disordered_images_keep_their_pixels(generator):
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


def test_what_is_given_is_kept():
    train, _ = digits()
    given = sf.methods.LaplacePosthoc(scale=10.0, prior_precision=3.0)
    posterior = learner(given).fit(train).embedder_.posterior
    assert float(posterior.precision.min()) == pytest.approx(3.0, rel=1e-5)
    trained = sf.methods.LaplaceOnline(prior_precision=7.0, width="trained")
    posterior = learner(trained).fit(train).embedder_.posterior
    assert float(posterior.precision.min()) == pytest.approx(7.0, rel=1e-5)


@pytest.mark.parametrize("method", ["laplace-posthoc", "laplace-online"])
def test_strange_digits_are_told_by_either_method(method, generator):
    train, test = digits()
    fitted = learner(method, epochs=5).fit(train)
    known = fitted.embed(test).uncertainty
    strange = fitted.embed(shuffled(test.read(), generator)).uncertainty
    assert sf.metrics.auroc(known, strange) > 0.8
