import oracles
import pytest
import torch

import surefind as sf
from surefind.posterior import sphere
from surefind.posterior.sphere import resultant


def gaussian(normal, z, scale, *, anisotropic):
    """A mean of length about sqrt(z), and variances of ``scale`` times its mean square."""
    mean = normal(1, z)
    spread = (normal(1, z) * 1.5).exp() if anisotropic else torch.ones(1, z, dtype=mean.dtype)
    return mean, scale * spread * (mean**2).mean()


@pytest.mark.parametrize(
    ("z", "scale", "anisotropic"),
    [
        *((2, scale, False) for scale in (1e-10, 1e-3, 1e2)),
        *((3, scale, True) for scale in (1e-10, 1e-8, 1e-6, 1e-3, 3e-2, 1.0, 1e2)),
        *((5, scale, True) for scale in (1e-8, 1e2)),  # their oracle takes long
    ],
)
def test_first_moment_and_shortfall_equal_high_precision_quadrature(normal, z, scale, anisotropic):
    mean, variance = gaussian(normal, z, scale, anisotropic=anisotropic)
    first, shortfall = oracles.spherical_first_moment(mean[0], variance[0])
    moments = resultant(mean, variance)
    torch.testing.assert_close(
        moments.mean[0], torch.tensor(first, dtype=torch.float64), rtol=1e-12, atol=1e-14
    )
    assert float(moments.shortfall[0]) == pytest.approx(shortfall, rel=1e-10)


@pytest.mark.parametrize(
    ("z", "scales", "dtype", "n"),
    [
        (2, (1e-8, 1e-2, 1.0, 1e2), torch.float64, 1_000_000),
        (16, (1e-8, 1e-2, 1.0, 1e2), torch.float64, 400_000),
        (128, (1e-8, 1e2), torch.float64, 40_000),
        (2048, (1e-8, 1e2), torch.float32, 20_000),
        pytest.param(
            128, (1e-8, 1e-2, 1.0, 1e2), torch.float64, 1_000_000, marks=pytest.mark.nightly
        ),
        pytest.param(2048, (1e-8, 1e2), torch.float32, 1_000_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_moments_equal_samples(normal, generator, z, scales, dtype, n):
    size = max(4_000, 500_000 // z)
    cases = [gaussian(normal, z, scale, anisotropic=True) for scale in scales]
    # What is sampled is what is analysed: a mean that the samples' dtype can hold.
    cases = [(mean.to(dtype).double(), variance) for mean, variance in cases]
    # Sums of differences from a reference, so that narrow samples keep the digits of their spread.
    references = [oracles.normalize(mean[0]).to(dtype) for mean, _ in cases]
    sums = [[torch.zeros(z, dtype=torch.float64) for _ in range(4)] for _ in cases]
    for start in range(0, n, size):
        noise = torch.randn(min(size, n - start), z, generator=generator, dtype=dtype)
        for (mean, variance), at, total in zip(cases, references, sums, strict=True):
            u = torch.addcmul(mean[0].to(dtype), noise, variance[0].sqrt().to(dtype))
            u /= u.norm(dim=1, keepdim=True)
            change = u - at
            square = change * (u + at)
            for t, x in zip(total, (change, change**2, square, square**2), strict=True):
                t.add_(x.sum(0))
    for (mean, variance), at, total in zip(cases, references, sums, strict=True):
        d1, dd1, d2, dd2 = (t / n for t in total)
        spread = [(dd - d**2).clamp(min=0).sqrt() for d, dd in ((d1, dd1), (d2, dd2))]
        check_against_samples(mean, variance, at.double() + d1, at.double() ** 2 + d2, *spread, n)


def check_against_samples(mean, variance, first, second, first_std, second_std, n):
    """Within five standard errors of n samples, entry by entry, plus float32 rounding."""
    expected_first, expected_second = sf.spherical_moments(mean, variance)
    error = 1e-7 * first.abs() + 5 * first_std / n**0.5
    assert ((expected_first[0] - first).abs() <= error).all()
    error = 1e-7 * second + 5 * second_std / n**0.5
    assert ((expected_second[0] - second).abs() <= error).all()
    # R̄ as the samples see it; their mean is longer by the noise in it.
    noise = float((first_std**2).sum()) / n
    length = float(resultant(mean, variance).mean.norm())
    assert length == pytest.approx(max(0.0, float((first**2).sum()) - noise) ** 0.5, abs=1e-2)


@pytest.mark.slow
def test_prediction_equals_a_million_sampled_heads(normal, generator):
    """The whole way, from weights and their precision to direction and κ, within five errors."""
    n, size, z, d = 1_000_000, 50_000, 3, 4
    mean, features = normal(z, d), normal(3, d)
    # Columns from well to hardly determined, so that the three inputs differ in how sure they are.
    precision = normal(z, d).exp() * torch.tensor([1e4, 1e2, 1e1, 1.0], dtype=torch.float64)
    features[0, 1:] = 0
    predicted = sf.HeadPosterior(mean, precision).predict(features)
    first = second = torch.zeros(3, z, dtype=torch.float64)
    along = along_square = torch.zeros(3, dtype=torch.float64)
    for _ in range(n // size):
        noise = torch.randn(size, z, d, generator=generator, dtype=torch.float64)
        u = oracles.normalize(features @ (mean + noise / precision.sqrt()).mT)
        cosine = (u * predicted.mean).sum(2)
        first, second = first + u.sum(0) / n, second + (u**2).sum(0) / n
        along, along_square = along + cosine.sum(0) / n, along_square + (cosine**2).sum(0) / n
    error = 5 * (second - first**2).sqrt() / n**0.5
    assert ((along[:, None] * predicted.mean - first).abs() <= error + 1e-12).all()
    error = 5 * (along_square - along**2).sqrt() / n**0.5
    low, high = (sf.vmf_concentration(along + e, z) for e in (-error, error))
    assert (low <= predicted.kappa).all()
    assert (predicted.kappa <= high).all()
    assert predicted.kappa[0] > 100 * predicted.kappa[1:].min()


@pytest.mark.parametrize("z", [2, 5, 300, 2048])
def test_second_moments_sum_to_one_and_length_never_exceeds_it(normal, z):
    scale = torch.logspace(-12, 4, 33, dtype=torch.float64)[:, None]
    mean = normal(1, z).expand(33, z)
    first, second = sf.spherical_moments(mean, scale * (normal(1, z) * 1.5).exp())
    torch.testing.assert_close(
        second.sum(1), torch.ones(33, dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert (first.norm(dim=1) <= 1 + 1e-15).all()
    assert (second >= first**2 - 1e-15).all()


@pytest.mark.parametrize("z", [2, 16, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shortfall_grows_with_the_scale_of_the_variance(normal, z, dtype):
    """Also across the border between the series and the direct evaluation."""
    scale = torch.logspace(-10, 4, 200, dtype=torch.float64)[:, None]
    mean = normal(1, z).expand(200, z)
    variance = scale * (normal(1, z)).exp()
    shortfall = resultant(mean.to(dtype), variance.to(dtype)).shortfall
    assert (shortfall.diff() > 0).all()
    assert (shortfall > 0).all()
    assert (shortfall <= 1).all()


@pytest.mark.parametrize("z", [3, 64, 300])
def test_series_and_direct_evaluation_agree(normal, z):
    mean = normal(40, z)
    variance = (normal(40, z)).exp() * torch.logspace(-9, 0, 40, dtype=torch.float64)[:, None]
    _, rho, beta = sphere._units(mean, variance)
    narrow = rho.amax(1) <= sphere.SERIES_LIMIT
    assert narrow.sum() > 10
    rho, beta = rho[narrow], beta[narrow]
    both = sphere._series_excess(rho, beta), sphere._direct_excess(rho, beta, 1e6)
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-15)
    both = sphere._series_second(rho, beta), sphere._direct_second(rho, beta, 1e6)
    torch.testing.assert_close(*both, rtol=1e-11, atol=1e-15)


def test_rotation_by_signs_and_order_of_axes(normal):
    mean, variance = normal(4, 6), normal(4, 6).exp()
    first, second = sf.spherical_moments(mean, variance)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    moved, moved_second = sf.spherical_moments(-mean[:, order], variance[:, order])
    torch.testing.assert_close(moved, -first[:, order])
    torch.testing.assert_close(moved_second, second[:, order])


def test_without_variance_the_direction_is_exact(normal):
    mean = normal(3, 5)
    first, second = sf.spherical_moments(mean, torch.zeros_like(mean))
    torch.testing.assert_close(first, oracles.normalize(mean))
    torch.testing.assert_close(second, oracles.normalize(mean) ** 2)


def test_without_a_mean_nothing_is_known():
    mean = torch.zeros(2, 4, dtype=torch.float64)
    variance = torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.float64)
    first, second = sf.spherical_moments(mean, variance)
    assert not first.any()
    torch.testing.assert_close(second, torch.full_like(mean, 0.25))
    assert resultant(mean, variance).shortfall.tolist() == [1, 1]


def test_one_dominant_variance_among_many(normal):
    """The worst case for the grid: the integrand decays algebraically over many decades."""
    mean = normal(1, 50)
    variance = torch.full((1, 50), 1e-9, dtype=torch.float64)
    variance[0, 7] = 1e6
    second = sf.spherical_moments(mean, variance)[1]
    assert float(second.sum()) == pytest.approx(1, abs=1e-10)
    assert float(second[0, 7]) > 0.99


@pytest.mark.parametrize(
    ("mean", "variance", "field"),
    [
        (torch.ones(2, 3), -torch.ones(2, 3), "variance"),
        (torch.ones(2, 3), torch.ones(2, 4), "variance"),
        (torch.ones(2, 3), torch.ones(3, 3), "variance"),
        (torch.ones(2, 3), torch.full((2, 3), torch.inf), "variance"),
        (torch.ones(0, 3), torch.ones(0, 3), "mean"),
        (torch.ones(3), torch.ones(3), "mean"),
    ],
)
def test_unusable_gaussians_are_refused(mean, variance, field):
    with pytest.raises(sf.InputError) as refusal:
        sf.spherical_moments(mean, variance)
    assert refusal.value.field == field
