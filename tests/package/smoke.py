"""Use the installed package as somebody would who knows nothing of the repository.

    ENV/bin/python tests/package/smoke.py core      # after: pip install surefind
    ENV/bin/python tests/package/smoke.py torch     # after: pip install 'surefind[torch]'
    ENV/bin/python tests/package/smoke.py serve     # after: pip install 'surefind[client,serve]'

Imports nothing but the package and what it brought: a dependency that was forgotten fails here.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from runpy import run_path

BIN = Path(sys.executable).parent


def surefind(*arguments: str, code: int = 0) -> str:
    """Run the command line in this folder, and return what it wrote."""
    done = subprocess.run(
        [BIN / "surefind", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def core() -> None:
    """Galleries, deciders and metrics work; the command line says what it needs."""
    run_path(str(Path(__file__).with_name("core.py")), run_name="__main__")
    assert "pip install" in surefind("--help", code=1)


def torch() -> None:
    """Every public name but the client's is there, and learns."""
    import numpy as np
    from sklearn.datasets import load_digits

    import surefind as sf

    assert all(hasattr(sf, name) for name in sf.__all__)
    digits = load_digits()
    head = sf.LaplaceHead().fit(digits.data[:300], digits.target[:300])
    assert np.isfinite(head.embed(digits.data[300:400]).kappa).all()


def serve() -> None:
    """From the digits to decisions, by the command line; then a service's settings and a client."""
    import numpy as np
    from sklearn.datasets import load_digits

    import surefind as sf

    assert version("surefind") in surefind("--version")
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for name, rows in {"fit": order[:300], "items": order[300:600], "asked": order[600:]}.items():
        np.savez(f"{name}.npz", vectors=digits.data[rows], labels=digits.target[rows])
    surefind("fit", "fit.npz", "--out", "run")
    surefind("index", "items.npz", "--run", "run", "--out", "gallery")
    surefind("calibrate", "gallery", "asked.npz", "--run", "run", "--max-wrong", "0.1")
    surefind("search", "gallery", "asked.npz", "--run", "run", "--out", "answers.json")
    answers = json.loads(Path("answers.json").read_text())
    decisions = {answer["decision"] for answer in answers}
    assert len(answers) == len(order[600:])
    assert "match" in decisions
    assert decisions <= {"match", "review", "no_match"}
    assert "max_bytes" in surefind("serve", "gallery", "--check")
    assert sf.Client("http://127.0.0.1:1")
    assert "nowhere" in surefind("search", "nowhere", "asked.npz", code=1)


if __name__ == "__main__":
    import surefind as installed

    assert Path(installed.__file__).is_relative_to(sys.prefix), installed.__file__
    assert (Path(installed.__file__).parent / "py.typed").is_file()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        {"core": core, "torch": torch, "serve": serve}[sys.argv[1]]()
    print(f"surefind {installed.__version__} works as installed ({sys.argv[1]}).")
