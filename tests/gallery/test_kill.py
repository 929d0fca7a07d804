import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "rounds",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(60, marks=pytest.mark.nightly)],
)
def test_killed_at_any_moment_nothing_acknowledged_is_lost(rounds):
    script = Path(__file__).with_name("kill_rounds.py")
    # A kill leaves what was written in the system's memory, so a disk of memory tests the same.
    shared = [Path("/dev/shm")] if Path("/dev/shm").is_dir() else []
    run = subprocess.run(
        [sys.executable, script, str(rounds), "11", *shared],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["rounds"] == rounds
    assert summary["acknowledged"] > rounds
    assert summary["compacted"] > 0
