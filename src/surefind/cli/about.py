"""`surefind doctor`: libraries and machine, and what is missing."""

import os
import platform
import re
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
    libraries = {name: _version(name) for name in CORE}
    core = ", ".join(f"{name} {found}" for name, found in libraries.items())
    system = f"Python {platform.python_version()} on {platform.platform()}"
    sections = {
        "Versions": [f"surefind {sf.__version__}, {system}", core],
        "Machine": machine(),
        "Extras": extras(),
    }
    for title, lines in sections.items():
        say(title, style="bold")
        for line in lines:
            say(f"  {line}")
    return {
        "surefind": sf.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "libraries": libraries,
        "processors": os.cpu_count(),
        "memory": dict(zip(("total", "free"), memory(), strict=True)),
        "missing": {extra: lacking(extra) for extra in EXTRAS},
    }


def machine() -> list[str]:
    """Describe processors, devices, memory and disk."""
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("Apple GPU")
    lines = [
        f"{os.cpu_count()} processors, {torch.get_num_threads()} threads of PyTorch",
        f"GPU: {', '.join(devices) or 'none; everything runs on the processor'}",
    ]
    total, free = memory()
    if total is not None:
        left = "" if free is None else f", {decimal(free)} free"
        lines.append(f"memory: {decimal(total)}{left}")
    lines.append(f"disk: {decimal(shutil.disk_usage(Path()).free)} free in {Path().resolve()}")
    return lines


def memory() -> tuple[int | None, int | None]:
    """Return the machine's memory and what is free of it, in bytes; None where that is not reported."""
    listed = Path("/proc/meminfo")
    if not listed.is_file():
        return None, None
    text = listed.read_text()
    total, free = (re.search(rf"{name}:\s+(\d+) kB", text) for name in ("MemTotal", "MemAvailable"))
    return total and int(total[1]) * 1024, free and int(free[1]) * 1024


def extras() -> list[str]:
    """List what each optional part of surefind lacks, because it cannot be imported, and the remedy."""
    lines = []
    for extra in EXTRAS:
        missing = lacking(extra)
        remedy = f"{', '.join(missing)} missing: {install_command(*missing)}"
        lines.append(f"{extra}: {remedy if missing else 'all there'}")
    return lines


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
