"""An encoder's architecture as plain data, so that it can be rebuilt without code from a file.

Layers of torch.nn in an `nn.Sequential` are described by their constructor's arguments, towers of
`transformers` and ONNX files by their recipe. Anything else has no
description: whoever loads such an encoder brings the network, and gets its weights.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from surefind.errors import InputError
from surefind.models.encoder import Encoder
from surefind.models.initialization import untouched_rng
from surefind.models.onnx_encoder import OnnxNet
from surefind.models.pooling import FlattenPositions, GeM
from surefind.models.towers import Tower, tower_of
from surefind.models.vectors import UnitRows

LAYERS: tuple[type[nn.Module], ...] = (
    nn.Conv2d,
    nn.Linear,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.LayerNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Identity,
    GeM,
    FlattenPositions,
    UnitRows,
)
"""Layers that can be described: each keeps its constructor's arguments under their names."""


def describe(encoder: Encoder) -> dict[str, Any] | None:
    """Describe an encoder as `build` takes it and JSON can hold it; None if a layer is of another kind."""
    head, backbone = _layer(encoder.head), _layer(encoder.backbone)
    if head is None or backbone is None:
        return None
    # By strides: with a single input channel both formats are contiguous, and kernels still differ.
    kernels = (p for p in encoder.parameters() if p.ndim == 4 and p[0, 0].numel() > 1)
    channels_last = any(p.stride(1) == 1 for p in kernels)
    return {"backbone": backbone, "head": head, "channels_last": channels_last}


def build(description: Mapping[str, Any]) -> Encoder:
    """Build an encoder, in evaluation mode, from what `describe` returned; its weights are to be loaded."""
    with untouched_rng():
        encoder = Encoder(_built(description["backbone"]), _built(description["head"]))
    if description["channels_last"]:
        encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    encoder.eval()
    return encoder


_NOT_SHAPE = ("device", "dtype", "args", "kwargs")


def _layer(module: nn.Module) -> dict[str, Any] | None:
    if isinstance(module, Tower):
        return {"tower": module.recipe}
    if isinstance(module, OnnxNet):
        return {"onnx": module.recipe}
    if type(module) is nn.Sequential:
        parts = {name: _layer(layer) for name, layer in module.named_children()}
        return None if None in parts.values() else {"sequential": parts}
    if type(module) not in LAYERS:
        return None
    return {"layer": type(module).__name__, "arguments": _arguments(module)}


def _arguments(module: nn.Module) -> dict[str, Any]:
    """Read a layer's constructor arguments back from its attributes."""
    names = [p for p in inspect.signature(type(module)).parameters if p not in _NOT_SHAPE]
    arguments = {name: getattr(module, name) for name in names if hasattr(module, name)}
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"] is not None
    if isinstance(module, GeM):
        arguments["p"] = module.start
    return arguments


def _built(description: Mapping[str, Any]) -> nn.Module:
    if "tower" in description:
        return tower_of(description["tower"])
    if "onnx" in description:
        return OnnxNet(**description["onnx"])
    if "sequential" in description:
        block = nn.Sequential()
        for name, part in description["sequential"].items():
            block.add_module(name, _built(part))
        return block
    known = {kind.__name__: kind for kind in LAYERS}
    name = description["layer"]
    if name not in known:
        raise InputError(f"the architecture has a layer {name!r} that this version does not know.")
    arguments = {
        k: tuple(v) if isinstance(v, list) else v for k, v in description["arguments"].items()
    }
    return known[name](**arguments)
