import pytest
import torch

import surefind as sf
from surefind.models.networks import cifar10_net, fashion_mnist_net, small_net

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


def test_memory_format_changes_speed_not_values(generator):
    encoder = fashion_mnist_net(generator=generator)
    x = torch.rand(2, 1, 28, 28, generator=generator)
    fast = encoder(x)
    assert encoder.backbone[2].weight.is_contiguous(memory_format=torch.channels_last)
    plain = encoder.to(memory_format=torch.contiguous_format)(x)
    torch.testing.assert_close(fast, plain)


def test_the_paper_sizes(generator):
    fashion, cifar = fashion_mnist_net(generator=generator), cifar10_net(generator=generator)
    sizes = [sum(p.numel() for p in net.parameters()) for net in (fashion, cifar)]
    assert sizes == [320 + 18496 + 27651, 896 + 18496 + 36928 + 16400]


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
