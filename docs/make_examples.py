"""Run the scripts of ``examples`` and write what they print, beside them, to docs/examples.md.

python docs/make_examples.py
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "examples.md"
SCRIPTS = tuple(
    ROOT / "examples" / f"{name}.py"
    for name in (
        "decisions",
        "any_database",
        "questions",
        "day_two",
        "train_digits",
        "bayesian_head",
        "what_the_diagonal_costs",
    )
)
"""In the order of the page."""

HEAD = """# Examples

Scripts of the folder `examples`, whole, and what each prints. They need no data but scikit-learn's digits,
and seconds on a CPU. `python docs/make_examples.py` runs them and writes this page; a test runs them again
and compares. On another processor the last digits differ.

Vector databases (Qdrant, pgvector, LanceDB, Chroma, sqlite-vec, Elasticsearch) are in `examples/databases`:
[Decide on your own database](how-to/any-database.md).
"""

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run(script: Path) -> str:
    """Return what a script prints, in a folder of its own and on one thread."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, script],
            cwd=empty,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr}")
    return done.stdout


def section(script: Path, printed: str) -> str:
    """Return a script's part of the page: what it does, what it prints, and its code."""
    code = script.read_text()
    title = script.stem.replace("_", " ").capitalize()
    wide = "\n".join(textwrap.fill(line, 108) for line in printed.splitlines())
    # "py" and not "python": the tests run what is marked so, and these run already.
    return (
        f"\n## {title}\n\n{ast.get_docstring(ast.parse(code))}\n\n"
        f'```text\n{wide}\n```\n\n```py title="examples/{script.name}"\n{code}```\n'
    )


def parts(page: str) -> dict[str, tuple[str, str]]:
    """Return the output and the code that a page shows for each script."""
    found = re.findall(
        r"```text\n(.*?)\n```\n\n```py title=\"examples/(\S+)\"\n(.*?)```\n", page, re.S
    )
    return {name: (printed, code) for printed, name, code in found}


def alike(printed: str, shown: str, *, relative: float = 0.05, absolute: float = 0.05) -> bool:
    """Return whether two outputs have the same words, and numbers that differ only by rounding's way.

    Args:
        printed: What a script prints now.
        shown: What the page shows.
        relative: By how much of itself a number may differ.
        absolute: By how much a number may differ in any case.
    """
    words = [NUMBER.sub("#", " ".join(text.split())) for text in (printed, shown)]
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, shown)]
    return words[0] == words[1] and all(
        abs(a - b) <= max(absolute, relative * abs(b)) for a, b in zip(*numbers, strict=True)
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(HEAD + "".join(section(script, run(script)) for script in SCRIPTS))


if __name__ == "__main__":
    main()
