"""Tensors in a file that is either the old one or the new one, whatever happens meanwhile.

A checkpoint is a safetensors file with a JSON text in its header: no pickle, so opening a file that
somebody sent runs nothing. It is written by `surefind.files`, durably: a process killed at any moment
leaves the old file whole. A digest of the tensors and of the text stands in the header beside it and is
compared whenever the file is read: of a flipped bit no embedding is ever made.

Values, dtypes and shapes come back bit for bit, on the CPU and contiguous.

An encoder's architecture as plain data, so that it can be rebuilt without code from a file.

Layers of torch.nn in an `nn.Sequential` are described by their constructor's arguments, towers of
`transformers` and ONNX files by their recipe. Anything else has no
description: whoever loads such an encoder brings the network, and gets its weights.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from surefind.errors import InputError
from surefind.files import write_atomically
from surefind.models.backbones import Tower, tower_of
from surefind.models.encoder import Encoder
from surefind.models.networks import FlattenPositions, GeM, untouched_rng
from surefind.models.onnx_encoder import OnnxNet
from surefind.models.vectors import UnitRows

HEADER = "surefind"
"""The key of the digest and, in the next line, the text: two entries would come in a random order. A
safetensors file without it was written by something else."""


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors and a description of them, atomically.

    Args:
        path: The file; its folder must exist.
        tensors: By name; for a network, its ``state_dict()``.
        metadata: Anything that JSON can hold.

    Raises:
        InputError: If the folder is missing, or the metadata or a dtype cannot be written.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot save {path.name}: there is no folder {path.parent}. Create it.")
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    copies = {
        name: t.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"metadata must be what JSON can hold: {error}. Turn it into numbers, texts, lists, dicts."
        ) from error
    try:
        header = {HEADER: f"{_digest(copies, text)}\n{text}"}
        write_atomically(path, lambda p: save_file(copies, p, metadata=header), durable=True)
    except (SafetensorError, KeyError, ValueError) as error:
        dtypes = sorted({str(t.dtype) for t in copies.values()})
        raise InputError(
            f"cannot save {path.name}: {error}. Its dtypes are {', '.join(dtypes)}; "
            "convert those that safetensors does not know."
        ) from error


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote.

    Args:
        path: The file.

    Returns:
        The tensors by name, and the metadata.

    Raises:
        InputError: If there is no such file, it is damaged, or something else wrote it.
    """
    path = Path(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copies, because the originals are windows into the file, which may change.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}): it is missing, cut short, damaged, or of "
            "another kind. Check the path, take an earlier checkpoint or copy it again."
        ) from error
    digest, line, text = header.get(HEADER, "").partition("\n")
    if not line:
        raise InputError(
            f"{path} is a safetensors file that this version of surefind did not write: its header lacks "
            f"{HEADER!r}. Load it with safetensors.torch.load_file."
        )
    if digest != _digest(tensors, text):
        raise InputError(
            f"{path} is damaged: its content has another digest than when it was written. Take it from a "
            "backup, or make it again."
        )
    metadata: dict[str, Any] = json.loads(text)
    return tensors, metadata


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the digest of tensors, by name, kind and value, and of the text beside them."""
    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        total.update(f"\n{name} {_kind(tensors[name])}\n".encode())
        total.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def load_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put saved tensors into a network, all of them or none.

    Args:
        module: Changed in place; keeps its device and memory format.
        tensors: What its ``state_dict()`` was when it was saved.

    Raises:
        InputError: If a name, a shape or a dtype differs; the network is unchanged then.
    """
    own = module.state_dict()
    wrong = [
        *(f"{name} is missing" for name in own.keys() - tensors.keys()),
        *(f"{name} is not in the network" for name in tensors.keys() - own.keys()),
        *(
            f"{name} is {_kind(tensors[name])} where the network has {_kind(own[name])}"
            for name in own.keys() & tensors.keys()
            if _kind(tensors[name]) != _kind(own[name])
        ),
    ]
    if wrong:
        shown = "; ".join(sorted(wrong)[:5]) + ("; …" if len(wrong) > 5 else "")
        raise InputError(
            f"the tensors do not fit the network, {len(wrong)} differences: {shown}. "
            "Build the network that they were saved from."
        )
    module.load_state_dict(dict(tensors))


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


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
