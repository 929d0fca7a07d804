"""The core needs neither PyTorch nor what other extras bring."""

import subprocess
import sys
from pathlib import Path

BLOCKED = {
    "torch",
    "safetensors",
    "sklearn",
    "PIL",
    "pyarrow",
    "rich",
    "typer",
    "fastapi",
    "jinja2",
}
START = """
import runpy, sys

class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
runpy.run_path({!r}, None, "__main__")
"""


def test_the_core_works_without_the_libraries_of_extras():
    script = START.format(BLOCKED, str(Path(__file__).parent / "package" / "core.py"))
    run = subprocess.run([sys.executable, "-c", script], stderr=-1, text=True, check=False)
    assert run.returncode == 0, run.stderr
