"""Small convolutional encoders: the paper's two, and one for tiny images.

    FashionMNIST  28 × 28 × 1   conv 32, conv 64, pool               → 9216 → 3
    CIFAR10       32 × 32 × 3   conv 32, pool, conv 64, pool, conv 64 → 1024 → 16
    small         any square    conv 16, conv 32, pool               → 32 ⌊side/2⌋² → any

Convolutions are 3 × 3 with a ReLU after each; pooling takes the maximum of 2 × 2. Only the small net pads.

What follows from the CPU's memory, and changes no value: weights are in `torch.channels_last`, which the
kernels prefer; features are listed position by position (`FlattenPositions`), so that gradients keep that
format too; and a ReLU comes after the pooling, with which it commutes, where there is a quarter to do.
"""

import torch
from torch import nn

from surefind.checks import check_int
from surefind.models.encoder import Encoder
from surefind.models.initialization import initialize, untouched_rng
from surefind.models.pooling import FlattenPositions

KEEP, POOL = False, True


def fashion_mnist_net(embedding_dim: int = 3, *, generator: torch.Generator) -> Encoder:
    """Build the paper's network for 28 × 28 grey images, in training mode."""
    return _encoder([(1, 32, KEEP), (32, 64, POOL)], 9216, embedding_dim, generator)


def cifar10_net(embedding_dim: int = 16, *, generator: torch.Generator) -> Encoder:
    """Build the paper's network for 32 × 32 colour images, in training mode."""
    blocks = [(3, 32, POOL), (32, 64, POOL), (64, 64, KEEP)]
    return _encoder(blocks, 1024, embedding_dim, generator)


def small_net(
    in_channels: int, side: int, embedding_dim: int, *, generator: torch.Generator
) -> Encoder:
    """Build a network, in training mode, for tiny square images, such as the digits of scikit-learn."""
    check_int("in_channels", in_channels, least=1)
    check_int("side", side, least=2)
    blocks, features = [(in_channels, 16, KEEP), (16, 32, POOL)], 32 * (side // 2) ** 2
    return _encoder(blocks, features, embedding_dim, generator, padding=1)


def _encoder(
    blocks: list[tuple[int, int, bool]],
    features: int,
    embedding_dim: int,
    generator: torch.Generator,
    *,
    padding: int = 0,
) -> Encoder:
    """Build convolutions, each from so many channels to so many, with pooling after it or without."""
    check_int("embedding_dim", embedding_dim, least=1)
    layers: list[nn.Module] = []
    with untouched_rng():
        for channels, out, pool in blocks:
            layers.append(nn.Conv2d(channels, out, 3, padding=padding))
            layers += [nn.MaxPool2d(2), nn.ReLU(inplace=True)] if pool else [nn.ReLU(inplace=True)]
        head = nn.Linear(features, embedding_dim)
    encoder = Encoder(nn.Sequential(*layers, FlattenPositions()), head)
    initialize(encoder, generator)
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder
