"""Tensors in a file that is either the old one or the new one, whatever happens meanwhile.

A checkpoint is a safetensors file with a JSON text in its header: no pickle, so opening a file that
somebody sent runs nothing. It is written by `surefind.files`, durably: a process killed at any moment
leaves the old file whole.

Values, dtypes and shapes come back bit for bit, on the CPU and contiguous.
"""

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

HEADER = "surefind"
"""The header's key; a safetensors file without it was written by something else."""


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
        header = {HEADER: json.dumps(dict(metadata), allow_nan=False)}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"metadata must be what JSON can hold: {error}. Turn it into numbers, texts, lists, dicts."
        ) from error
    try:
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
    if not path.is_file():
        raise InputError(f"there is no checkpoint {path}. Check the path.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER)
            # Copies, because the originals are windows into the file, which may change.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a whole safetensors file ({error}): it was cut short, damaged, or is of "
            "another kind. Take an earlier checkpoint or copy it again."
        ) from error
    if header is None:
        raise InputError(
            f"{path} is a safetensors file that surefind did not write: its header has no "
            f"{HEADER!r} entry. Load it with safetensors.torch.load_file."
        )
    metadata: dict[str, Any] = json.loads(header)
    return tensors, metadata


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
