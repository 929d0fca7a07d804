import pytest
import torch

import surefind as sf
from surefind.models.networks import FlattenPositions, GeM, generalized_mean


@pytest.fixture
def maps(normal):
    return normal(4, 5, 3, 2).abs() + 0.1


@pytest.mark.parametrize("p", [1.0, 3.0])
def test_the_definition(maps, p):
    expected = (maps**p).mean(dim=(2, 3)) ** (1 / p)
    torch.testing.assert_close(GeM(p=p).double()(maps), expected)


def test_a_large_exponent_tends_to_the_maximum(maps):
    top = maps.amax(dim=(2, 3))
    errors = [(GeM(p=p).double()(maps) - top).abs().max() for p in (10.0, 100.0, 1000.0)]
    assert errors[0] > errors[1] > errors[2]
    torch.testing.assert_close(GeM(p=1000.0).double()(maps), top, rtol=2e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e30])
def test_large_values_and_exponents_do_not_overflow(scale):
    values = torch.tensor([[0.5, 1.0]]) * scale
    pooled = generalized_mean(values, 60.0, 1e-6)
    assert pooled.item() == pytest.approx(scale * 2 ** (-1 / 60), rel=1e-4)


def test_tokens_are_pooled_as_maps_are(maps):
    pool = GeM().double()
    tokens = maps.flatten(2).mT
    torch.testing.assert_close(pool(tokens), pool(maps))


def test_negative_values_count_as_nothing():
    values = torch.tensor([[[[-5.0, 2.0]]]])
    assert GeM(p=1.0)(values).item() == pytest.approx(1.0, rel=1e-5)
    assert GeM()(-torch.ones(1, 2, 3, 3)).tolist() == [[pytest.approx(1e-6)] * 2]


def test_gradients_of_values_and_exponent(maps):
    pool = GeM().double()
    run = lambda x, p: generalized_mean(x.flatten(2), p, 1e-6)
    assert torch.autograd.gradcheck(run, (maps.requires_grad_(), pool.p))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5, 6), (2, 3, 0, 4), (2, 0, 3)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(sf.InputError, match="GeM pools maps"):
        GeM()(torch.zeros(shape))


def test_no_example_gives_no_vector():
    assert GeM()(torch.zeros(0, 3, 2, 2)).shape == (0, 3)


def test_exponent_and_clamp_must_be_positive():
    with pytest.raises(sf.InputError, match="p must be a finite number above 0"):
        GeM(p=0.0)
    with pytest.raises(sf.InputError, match="eps must be a finite number above 0"):
        GeM(eps=0.0)


def test_flattening_lists_positions_and_keeps_the_gradients_format(generator):
    maps = torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last)
    maps.requires_grad_()
    seen = []
    maps.register_hook(lambda g: seen.append(g.is_contiguous(memory_format=torch.channels_last)))
    flat = FlattenPositions()(maps)
    assert flat.data_ptr() == maps.data_ptr()
    assert flat[1, 5] == maps[1, 2, 0, 1]
    flat.square().sum().backward()
    assert seen == [True]
