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

from surefind.models.encoder import Encoder
from surefind.models.initialization import initialize, untouched_rng
from surefind.models.pooling import FlattenPositions
from surefind.validation import check_int


def fashion_mnist_net(embedding_dim: int = 3, *, generator: torch.Generator) -> Encoder:
    """Build the paper's network for 28 × 28 grey images, in training mode."""
    check_int("embedding_dim", embedding_dim, least=1)
    with untouched_rng():
        layers = [
            *(nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True)),
            *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
        ]
        return _encoder(layers, nn.Linear(9216, embedding_dim), generator)


def cifar10_net(embedding_dim: int = 16, *, generator: torch.Generator) -> Encoder:
    """Build the paper's network for 32 × 32 colour images, in training mode."""
    check_int("embedding_dim", embedding_dim, least=1)
    with untouched_rng():
        layers = [
            *(nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
            *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(inplace=True)),
        ]
        return _encoder(layers, nn.Linear(1024, embedding_dim), generator)


def small_net(
    in_channels: int, side: int, embedding_dim: int, *, generator: torch.Generator
) -> Encoder:
    """Build a network, in training mode, for tiny square images, such as the digits of scikit-learn."""
    check_int("in_channels", in_channels, least=1)
    check_int("side", side, least=2)
    check_int("embedding_dim", embedding_dim, least=1)
    with untouched_rng():
        layers = [
            *(nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(inplace=True)),
        ]
        return _encoder(layers, nn.Linear(32 * (side // 2) ** 2, embedding_dim), generator)


def _encoder(layers: list[nn.Module], head: nn.Linear, generator: torch.Generator) -> Encoder:
    encoder = Encoder(nn.Sequential(*layers, FlattenPositions()), head)
    initialize(encoder, generator)
    encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return encoder
