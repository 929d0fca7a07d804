"""Weights drawn from a generator that the caller holds.

PyTorch draws weights from the process's generator when a layer is built. Here a network is built with that
generator set aside (`untouched_rng`) and its weights are drawn again (`initialize`), by PyTorch's own
scheme: with fan-in f, weights and biases of linear and convolutional layers are uniform on ±1/√f (Kaiming
uniform with a = √5). Norm layers start as the identity, with fresh running statistics.

The same generator state gives the same weights in any memory format. For a module whose layers are
registered in the order they were built, they are the ones PyTorch would have drawn from that seed.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from surefind.errors import InputError
from surefind.models.pooling import GeM

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
