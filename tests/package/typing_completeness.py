"""Measure with pyright how much of the installed package's surface has a known type.

python tests/package/typing_completeness.py ENV/bin
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST = 0.95


def main(environment: Path) -> None:
    """Fail below `LEAST`, and name what is not known.

    Args:
        environment: The folder of programs of an environment that has the package, not as an editable
            installation.
    """
    # With --verifytypes, pyright asks the first `python` of the path, whatever --pythonpath says.
    path = f"{environment.absolute()}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "pyright", "--verifytypes", "surefind", "--ignoreexternal"]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [*command, "--outputjson"],
            capture_output=True,
            text=True,
            cwd=empty,
            env=os.environ | {"PATH": path},
            check=False,
        )
    found = json.loads(done.stdout)["typeCompleteness"]
    score = found["completenessScore"]
    print(f"The types of {score:.1%} of the symbols are known; at least {LEAST:.0%} are required.")
    if score < LEAST:
        sys.exit("\n".join(unknown(found["symbols"])))


def unknown(symbols: list[dict[str, Any]]) -> list[str]:
    """Name the symbols whose type is not known, with the reasons."""
    return [
        f"{s['name']}: {'; '.join(' '.join(d['message'].split()) for d in s['diagnostics'])}"
        for s in symbols
        if s["isExported"] and not s["isTypeKnown"]
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
