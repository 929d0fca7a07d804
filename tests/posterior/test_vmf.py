import itertools
import math

import mpmath
import oracles
import pytest
import torch

import surefind as sf
from surefind.posterior.vmf import match_score

KAPPAS = [1e-6, 1e-3, 0.1, 1.0, 7.0, 50.0, 1e3, 1e4, 1e6]


@pytest.mark.parametrize("dim", [2, 3, 4, 5, 16, 33, 47, 128, 512, 2048, 4096])
def test_log_normalizer_and_its_gradient_equal_bessel_functions(dim):
    kappa = torch.tensor(KAPPAS, dtype=torch.float64, requires_grad=True)
    value = sf.vmf_log_normalizer(kappa, dim)
    value.sum().backward()
    expected = torch.tensor([oracles.vmf_log_normalizer(k, dim) for k in KAPPAS], dtype=value.dtype)
    torch.testing.assert_close(value, expected[:, 0], rtol=1e-10, atol=0)
    torch.testing.assert_close(kappa.grad, expected[:, 1], rtol=1e-10, atol=0)


def test_second_derivative_matches_finite_differences():
    kappa = torch.tensor([0.5, 3.0, 40.0], dtype=torch.float64, requires_grad=True)
    for dim in (2, 7, 100):
        assert torch.autograd.gradgradcheck(lambda k, d=dim: sf.vmf_log_normalizer(k, d), (kappa,))


@pytest.mark.parametrize("dim", [2, 16, 2048])
def test_concentration_is_near_the_maximum_likelihood_one(dim):
    """Sra's estimate against the exact root of R̄ = I_{ν+1}/I_ν (the gradient of log C)."""
    kappa = torch.tensor([0.1, 1.0, 10.0, 100.0, 1e4], dtype=torch.float64, requires_grad=True)
    sf.vmf_log_normalizer(kappa, dim).sum().backward()
    estimate = sf.vmf_concentration(-kappa.grad, dim)
    torch.testing.assert_close(estimate, kappa.detach(), rtol=0.1, atol=0)


def test_concentration_at_the_ends_and_between():
    length = torch.linspace(0, 1, 1001)
    kappa = sf.vmf_concentration(length, 16)
    assert kappa[0] == 0
    assert torch.isfinite(kappa).all()
    assert (kappa.diff() > 0).all()
    assert float(kappa[500]) == pytest.approx(0.5 * (16 - 0.25) / 0.75)


@pytest.mark.parametrize("cosine", [1.0, 0.3, -0.9])
def test_match_score_is_the_log_of_the_overlap(cosine):
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]], dtype=torch.float64)
    kappa_a, kappa_b = torch.tensor([3.0]).double(), torch.tensor([11.0]).double()
    score = sf.vmf_match_score(sf.Embeddings(a, kappa_a), sf.Embeddings(b, kappa_b))
    expected = oracles.von_mises_match(a[0], 3.0, b[0], 11.0)
    assert float(score) == pytest.approx(expected, abs=1e-9)


def exact_match(kappa_a, kappa_b, gap, dim):
    """log C(κa) + log C(κb) - log C(κab) with digits to spare for the cancellation."""
    with mpmath.workdps(80):
        ka, kb, g = mpmath.mpf(kappa_a), mpmath.mpf(kappa_b), mpmath.mpf(gap)
        joint = mpmath.sqrt((ka - kb) ** 2 + 2 * ka * kb * (2 - g))
        order = mpmath.mpf(dim) / 2 - 1

        def log_c(k):
            # Hankel's expansion where the definition's series would need 1e18 terms.
            if k < 1000:
                log_i = mpmath.log(mpmath.besseli(order, k))
            else:
                term, total = mpmath.mpf(1), mpmath.mpf(1)
                for n in range(1, 60):
                    term *= -(4 * order**2 - (2 * n - 1) ** 2) / (8 * n * k)
                    total += term
                log_i = k - mpmath.log(2 * mpmath.pi * k) / 2 + mpmath.log(total)
            return order * mpmath.log(k) - (order + 1) * mpmath.log(2 * mpmath.pi) - log_i

        return float(log_c(ka) + log_c(kb) - log_c(joint))


@pytest.mark.parametrize("dim", [2, 3, 16])
def test_match_score_keeps_its_digits_at_any_concentration(dim):
    kappas, ratios, angles = [1.0, 1e3, 1e8, 1e12, 1e15, 1e18], [1.0, 0.25, 1e-3], [0.0, 1e-9, 0.5]
    cases = [
        (2 * math.sin(angle / 2) ** 2, kappa, kappa * ratio)
        for kappa, ratio, angle in itertools.product(kappas, ratios, angles)
    ]
    score = match_score(*torch.tensor(cases, dtype=torch.float64).T, dim)
    expected = [exact_match(kappa, other, gap, dim) for gap, kappa, other in cases]
    assert score.tolist() == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(("kappa", "expected"), [(1e15, 32.008), (1e18, 38.916)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_sure_directions_match(directions, kappa, expected, dtype):
    """Rounded to float32, a direction is not of unit length; that must not count as a distance."""
    e = sf.Embeddings(directions(5, 3).to(dtype), torch.full((5,), kappa, dtype=dtype))
    score = sf.vmf_match_score(e, e)
    assert score.diagonal().tolist() == pytest.approx([expected] * 5, abs=1e-3)
    assert score.dtype == dtype


def test_match_score_without_any_concentration_is_the_uniform_one_with_zero_slope():
    kappa = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    score = match_score(torch.tensor(0.3).double(), kappa[0], kappa[1], 3)
    score.backward()
    assert score.item() == pytest.approx(-math.log(4 * math.pi))
    torch.testing.assert_close(kappa.grad, torch.zeros(2).double())


def test_gradient_of_the_match_score_matches_finite_differences():
    gap, ka, kb = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([0.4, 1.9, 2.0], [3.0, 20.0, 5.0], [3.0, 1.0, 5.0])
    )
    assert torch.autograd.gradcheck(lambda a, b: match_score(gap.detach(), a, b, 5), (ka, kb))
    inside = gap.detach()[:2].requires_grad_()
    assert torch.autograd.gradcheck(
        lambda g: match_score(g, ka.detach()[:2], kb.detach()[:2], 5), (inside,)
    )


def test_match_score_is_symmetric_and_prefers_the_sure_neighbour(directions):
    one, many = sf.Embeddings(directions(1, 8), torch.tensor([50.0])), directions(5, 8)
    many = sf.Embeddings(many, torch.tensor([1.0, 5.0, 50.0, 500.0, 0.0]))
    score = sf.vmf_match_score(one, many)
    assert score.shape == (1, 5)
    torch.testing.assert_close(score, sf.vmf_match_score(many, one).T)
    twice = sf.Embeddings(one.mean.expand(2, 8), torch.tensor([5.0, 500.0]))
    same = sf.vmf_match_score(one, twice)[0]
    assert same[1] > same[0]  # two sure embeddings at one place match better than an unsure one


@pytest.mark.parametrize(
    ("function", "value", "dim", "field"),
    [
        (sf.vmf_log_normalizer, torch.inf, 3, "kappa"),
        (sf.vmf_log_normalizer, -1.0, 3, "kappa"),
        (sf.vmf_log_normalizer, 3, 3, "kappa"),
        (sf.vmf_log_normalizer, 1.0, 1, "dim"),
        *((sf.vmf_concentration, v, 3, "resultant_length") for v in (1, 1.5, -0.1, torch.nan)),
    ],
)
def test_values_that_are_no_distribution_are_refused(function, value, dim, field):
    with pytest.raises(sf.InputError) as refusal:
        function(torch.tensor([value]), dim)
    assert refusal.value.field == field


def test_embeddings_that_cannot_match_are_refused(directions):
    endless = sf.Embeddings(directions(2, 3), torch.tensor([1.0, torch.inf]))
    with pytest.raises(sf.InputError, match="kappa must be finite"):
        sf.vmf_match_score(endless, endless)
    a, b = (sf.Embeddings(directions(2, z), torch.ones(2)) for z in (3, 4))
    with pytest.raises(sf.InputError, match="different dimensions cannot match: 3 and 4"):
        sf.vmf_match_score(a, b)
