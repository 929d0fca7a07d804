"""`surefind doctor`: libraries and machine, and what is missing."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.filesize import decimal

import surefind as sf
from surefind.checks import IMPORTED_AS, install_command
from surefind.cli.console import say

CORE = ("torch", "numpy", "safetensors", "jaxtyping")
EXTRAS = {
    "torch": "pillow pyarrow safetensors scikit-learn torch",
    "backbones": "transformers",
    "onnx": "onnx onnxruntime onnxscript",
    "cli": "jinja2 matplotlib rich tomli-w typer",
    "serve": "fastapi httptools prometheus-client pydantic-settings python-multipart threadpoolctl uvicorn"
    + ("" if sys.platform == "win32" else " uvloop"),
    "client": "httpx",
    "milvus": "milvus-lite pymilvus",
}
"""What each extra brings of its own. It stands here and is not read from the installed
package, whose own list may be missing or older than the code; a test compares it with pyproject.toml."""


def doctor() -> Any:
    """List what is installed, what this machine has, and what is missing.

    Example: `surefind doctor`
    """
    found = {name: _version(name) for name in CORE}
    missing = {extra: lacking(extra) for extra in EXTRAS}
    system = f"Python {platform.python_version()} on {platform.platform()}"
    extras = [
        f"{extra}: {', '.join(gone)} missing: {install_command(*gone)}"
        if gone
        else f"{extra}: all there"
        for extra, gone in missing.items()
    ]
    versions = [f"surefind {sf.__version__}, {system}"]
    versions.append(", ".join(f"{name} {number}" for name, number in found.items()))
    for title, lines in {"Versions": versions, "Machine": machine(), "Extras": extras}.items():
        say("\n  ".join([title, *lines]))
    return {
        "surefind": sf.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "libraries": found,
        "processors": os.cpu_count(),
        "missing": missing,
    }


def machine() -> list[str]:
    """Describe processors, devices and disk."""
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices += ["Apple GPU"] if torch.backends.mps.is_available() else []
    return [
        f"{os.cpu_count()} processors, {torch.get_num_threads()} threads of PyTorch",
        f"GPU: {', '.join(devices) or 'none; everything runs on the processor'}",
        f"disk: {decimal(shutil.disk_usage(Path()).free)} free in {Path().resolve()}",
    ]


def lacking(*names: str) -> list[str]:
    """Return the libraries of some extras that cannot be imported."""
    brought = dict.fromkeys(library for extra in names for library in EXTRAS[extra].split())
    modules = {name: IMPORTED_AS.get(name, name.replace("-", "_")) for name in brought}
    return [name for name, module in modules.items() if find_spec(module) is None]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"
