"""Weights drawn from a generator that the caller holds.

PyTorch draws weights from the process's generator when a layer is built. Here a network is built with that
generator set aside (`untouched_rng`) and its weights are drawn again (`initialize`), by PyTorch's own
scheme: with fan-in f, weights and biases of linear and convolutional layers are uniform on ±1/√f (Kaiming
uniform with a = √5). Norm layers start as the identity, with fresh running statistics.

The same generator state gives the same weights in any memory format. For a module whose layers are
registered in the order they were built, they are the ones PyTorch would have drawn from that seed.

From a map to a vector: generalised-mean pooling, between the average and the maximum; or all of it.

    GeM(x)_c = ( mean over positions of max(x_c, ε)^p )^(1/p)

p = 1 is the average of the clamped values and p → ∞ their maximum; p = 3 is usual for retrieval, and
learnt. Values are divided by their largest first, which cancels in exact arithmetic and lets p be large
without overflow. The clamp sends negative activations to ε: it loses nothing after a ReLU, but does
elsewhere.

Axes: ``n`` examples, ``c`` channels, ``h`` and ``w`` positions of a map, ``t`` tokens.

Small convolutional encoders: the paper's two, and one for tiny images.

    FashionMNIST  28 × 28 × 1   conv 32, conv 64, pool               → 9216 → 3
    CIFAR10       32 × 32 × 3   conv 32, pool, conv 64, pool, conv 64 → 1024 → 16
    small         any square    conv 16, conv 32, pool               → 32 ⌊side/2⌋² → any

Convolutions are 3 × 3 with a ReLU after each; pooling takes the maximum of 2 × 2. Only the small net pads.

What follows from the CPU's memory, and changes no value: weights are in `torch.channels_last`, which the
kernels prefer; features are listed position by position (`FlattenPositions`), so that gradients keep that
format too; and a ReLU comes after the pooling, with which it commutes, where there is a quarter to do.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from surefind.checks import check_int, check_positive
from surefind.errors import InputError
from surefind.models.encoder import Encoder

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Leave PyTorch's global generators as they were on entering."""
    # Forking a CUDA device would start it; one that has not been started has nothing to protect.
    devices = range(torch.cuda.device_count()) if _cuda_started() else ()
    with torch.random.fork_rng(devices=list(devices)):
        yield


@contextmanager
def borrowed_rng(generator: torch.Generator) -> Iterator[None]:
    """Let PyTorch's global generators follow from one of ours inside, and be as they were outside.

    Args:
        generator: Advanced by one draw.

    Yields:
        Nothing.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    with untouched_rng():
        torch.default_generator.manual_seed(seed)
        if _cuda_started():
            torch.cuda.manual_seed_all(seed)
        yield


def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw a network's weights anew, in place.

    Args:
        module: Made of linear, convolutional and norm layers, GeM, and layers without parameters.
        generator: The source of randomness.

    Raises:
        InputError: If a layer of another kind has parameters; nothing has been changed then.
    """
    layers = [m for m in module.modules() if [*m.parameters(recurse=False)]]
    known = (nn.Linear, _ConvNd, GeM, *NORMS)
    others = sorted({type(m).__name__ for m in layers if not isinstance(m, known)})
    if others:
        raise InputError(
            f"initialize draws linear, convolutional and norm layers; the module also has parameters "
            f"in {', '.join(others)}. Initialise those layers yourself and pass the others."
        )
    # Norm layers without weights still hold running statistics.
    for layer in module.modules():
        if isinstance(layer, (GeM, *NORMS)):
            layer.reset_parameters()
        elif isinstance(layer, (nn.Linear, _ConvNd)):
            _draw(layer, generator)


def _cuda_started() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _draw(layer: nn.Linear | _ConvNd, generator: torch.Generator) -> None:
    # Drawn contiguous on the generator's device: filling in place would follow the memory format.
    weight = _blank(layer.weight, generator)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            fan_in = weight[0].numel()
            bias = _blank(layer.bias, generator)
            bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            layer.bias.copy_(bias.uniform_(-bound, bound, generator=generator))


def _blank(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=generator.device)


def generalized_mean(values: Tensor, p: Tensor | float, eps: float) -> Tensor:
    """Compute the generalised mean over the last axis, values below ``eps`` raised to it."""
    values = values.clamp(min=eps)
    largest = values.detach().amax(dim=-1, keepdim=True)
    return (values / largest).pow(p).mean(dim=-1).pow(1 / p) * largest.squeeze(-1)


class GeM(nn.Module):
    """Generalised-mean pooling with one learnable exponent.

    Args:
        p: The exponent to start from.
        eps: Values below are raised to it.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        check_positive("p", p)
        check_positive("eps", eps)
        self.start: float = float(p)
        self.eps = eps
        self.p: nn.Parameter = nn.Parameter(torch.tensor(self.start, dtype=torch.float32))

    def reset_parameters(self) -> None:
        """Set the exponent back to where it started."""
        with torch.no_grad():
            self.p.fill_(self.start)

    def forward(self, values: Tensor) -> Tensor:
        """Pool maps (n, c, h, w), or sequences of tokens (n, t, c), to one vector each (n, c)."""
        if values.ndim not in (3, 4) or 0 in values.shape[1:]:
            raise InputError(
                f"GeM pools maps (n, c, h, w) or tokens (n, t, c); got shape {tuple(values.shape)}."
            )
        positions_last = values.flatten(2) if values.ndim == 4 else values.mT
        return generalized_mean(positions_last, self.p, self.eps)

    def extra_repr(self) -> str:
        """Show the exponent as it is now."""
        return f"p={float(self.p.detach()):.3g}, eps={self.eps:g}"


class FlattenPositions(nn.Module):
    """Lists the channels of the first position, then of the next.

    A map in `torch.channels_last` lies in memory like that: nothing is copied, neither here nor in the
    gradient, which `nn.Flatten` would hand back in the other format for every layer below to convert.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Flatten maps (n, c, h, w) to vectors (n, h·w·c)."""
        return maps.movedim(1, -1).flatten(1)


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
