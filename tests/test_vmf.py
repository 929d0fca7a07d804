import oracles
import pytest
import torch

import surefind as sf

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


def test_density_integrates_to_one_on_the_circle_and_the_sphere():
    angle = torch.linspace(0, torch.pi, 100_001, dtype=torch.float64)
    for kappa in (0.0, 0.3, 12.0):
        constant = sf.vmf_log_normalizer(torch.tensor(kappa, dtype=torch.float64), 3).exp()
        ring = 2 * torch.pi * angle.sin() * (kappa * angle.cos()).exp()
        assert float(constant * torch.trapezoid(ring, angle)) == pytest.approx(1, abs=1e-8)
        constant = sf.vmf_log_normalizer(torch.tensor(kappa, dtype=torch.float64), 2).exp()
        arc = 2 * (kappa * angle.cos()).exp()
        assert float(constant * torch.trapezoid(arc, angle)) == pytest.approx(1, abs=1e-8)


def test_log_normalizer_keeps_float32_and_shape():
    value = sf.vmf_log_normalizer(torch.ones(2, 3), 5)
    assert value.dtype == torch.float32
    assert value.shape == (2, 3)


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


def test_match_score_is_symmetric_and_prefers_the_sure_neighbour(directions):
    one, many = sf.Embeddings(directions(1, 8), torch.tensor([50.0])), directions(5, 8)
    many = sf.Embeddings(many, torch.tensor([1.0, 5.0, 50.0, 500.0, 0.0]))
    score = sf.vmf_match_score(one, many)
    assert score.shape == (1, 5)
    torch.testing.assert_close(score, sf.vmf_match_score(many, one).T)
    twice = sf.Embeddings(one.mean.expand(2, 8), torch.tensor([5.0, 500.0]))
    same = sf.vmf_match_score(one, twice)[0]
    assert same[1] > same[0]  # two sure embeddings at one place match better than an unsure one


def test_match_score_takes_arrays(directions):
    e = sf.Embeddings(directions(3, 4), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(sf.vmf_match_score(e.numpy(), e), sf.vmf_match_score(e, e))


def test_values_that_are_no_distribution_are_refused(directions):
    with pytest.raises(sf.InputError, match="kappa must be finite"):
        sf.vmf_log_normalizer(torch.tensor([torch.inf]), 3)
    with pytest.raises(sf.InputError, match="kappa must be finite and not negative"):
        sf.vmf_log_normalizer(torch.tensor([-1.0]), 3)
    with pytest.raises(sf.InputError, match="dim must be a whole number of at least 2; got 1"):
        sf.vmf_log_normalizer(torch.tensor([1.0]), 1)
    for wrong in (1.5, -0.1, torch.nan):
        with pytest.raises(sf.InputError, match="resultant_length must lie between 0 and 1"):
            sf.vmf_concentration(torch.tensor([wrong]), 3)
    a, b = (sf.Embeddings(directions(2, z), torch.ones(2)) for z in (3, 4))
    with pytest.raises(sf.InputError, match="different dimensions cannot match: 3 and 4"):
        sf.vmf_match_score(a, b)
