"""The command line as a shell runs it: without waiting for a process, or in two at once."""

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pytest

from surefind.cli import main


def command(*arguments):
    """Run a command in this process; return its exit code and what it wrote, in single spaces."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["surefind", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())


def two_processes(*program, folder):
    """Run a script, or a module after ``-m``, in two processes; return what they printed together."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, *map(str, program)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def faces(n, seed, people=20):
    """Return unit vectors near so many directions, and the number of each."""
    centres = np.random.default_rng(0).normal(size=(people, 8))
    rng = np.random.default_rng(seed)
    labels = rng.integers(people, size=n)
    return unit(centres[labels] + 0.3 * rng.normal(size=(n, 8))), labels


def outsiders(n, seed):
    """Return unit vectors near none of them."""
    return unit(np.random.default_rng(seed).normal(size=(n, 8)))


def unit(rows):
    """Return rows of length 1 in float32."""
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
