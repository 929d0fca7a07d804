import pytest
import torch
from torch import nn

import surefind as sf
from surefind.models.networks import (
    FlattenPositions,
    GeM,
    cifar10_net,
    fashion_mnist_net,
    generalized_mean,
    initialize,
    small_net,
    untouched_rng,
)

NETS = {
    "fashion": (fashion_mnist_net, (1, 28, 28), 9216, 3),
    "cifar10": (cifar10_net, (3, 32, 32), 1024, 16),
    "digits": (lambda **k: small_net(1, 8, 5, **k), (1, 8, 8), 512, 5),
    "smallest": (lambda **k: small_net(2, 2, 1, **k), (2, 2, 2), 32, 1),
    "odd": (lambda **k: small_net(3, 7, 4, **k), (3, 7, 7), 288, 4),
}


@pytest.fixture(params=NETS)
def net(request):
    return NETS[request.param]


def test_shapes(net, generator):
    build, shape, d, z = net
    encoder = build(generator=generator)
    x = torch.rand(3, *shape, generator=generator)
    assert encoder.training
    assert encoder.features(x).shape == (3, d + 1)
    u = encoder(x)
    assert u.shape == (3, z)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(3))


def test_one_seed_one_network_and_no_global_randomness(net):
    build = net[0]
    before = torch.get_rng_state()
    first, second = (build(generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    a, b = first.state_dict(), second.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_paper_sizes(generator):
    fashion, cifar = fashion_mnist_net(generator=generator), cifar10_net(generator=generator)
    sizes = [sum(p.numel() for p in net.parameters()) for net in (fashion, cifar)]
    assert sizes == [320 + 18496 + 27651, 896 + 18496 + 36928 + 16400]


def test_images_of_another_size_are_refused(generator):
    encoder = fashion_mnist_net(generator=generator)
    with pytest.raises(sf.InputError, match=r"got \(2, 12544\)\. .*resize the images"):
        encoder(torch.zeros(2, 1, 32, 32))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: fashion_mnist_net(0, generator=g), "embedding_dim must be .* at least 1; got 0"),
        (lambda g: cifar10_net(-1, generator=g), "embedding_dim must be .* at least 1; got -1"),
        (lambda g: small_net(1, 1, 2, generator=g), "side must be .* at least 2; got 1"),
        (lambda g: small_net(0, 8, 2, generator=g), "in_channels must be .* at least 1; got 0"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(build, message, generator):
    with pytest.raises(sf.InputError, match=message):
        build(generator)


def network():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2),
        nn.Conv1d(4, 4, 3, bias=False),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(3),
        GeM(),
        nn.Linear(4, 5),
        nn.BatchNorm1d(5, affine=False),
    )


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_weights_are_those_that_pytorch_draws_from_the_seed():
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(5)
        expected = network()
    module = network()
    initialize(module, seeded(5))
    assert same(module, expected)


def test_norm_layers_and_pooling_are_reset():
    module = network()
    with torch.no_grad():
        module[1].running_mean.fill_(3)
        module[8].running_var.fill_(3)
        module[5].weight.fill_(3)
        module[6].p.fill_(9)
    initialize(module, seeded(1))
    assert not module[1].running_mean.any()
    assert (module[8].running_var == 1).all()
    assert (module[5].weight == 1).all()
    assert module[6].p == 3


def test_the_global_generator_is_not_consumed():
    module, before = network(), torch.get_rng_state()
    initialize(module, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)
    with untouched_rng():
        network()
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_of_another_kind_are_refused_before_anything_changes():
    module = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2), nn.PReLU())
    before = module[0].weight.clone()
    with pytest.raises(sf.InputError, match="has parameters in Embedding, PReLU"):
        initialize(module, seeded(1))
    assert torch.equal(module[0].weight, before)


@pytest.fixture
def maps(normal):
    return normal(4, 5, 3, 2).abs() + 0.1


def test_the_definition(maps):
    expected = (maps**3).mean(dim=(2, 3)) ** (1 / 3)
    torch.testing.assert_close(GeM().double()(maps), expected)


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
