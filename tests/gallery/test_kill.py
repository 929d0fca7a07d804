import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROUNDS = 30


def test_killed_at_any_moment_nothing_acknowledged_is_lost():
    script = Path(__file__).with_name("kill_rounds.py")
    # A kill leaves what was written in the system's memory, so a disk of memory tests the same.
    shared = [Path("/dev/shm")] if Path("/dev/shm").is_dir() else []
    run = subprocess.run(
        [sys.executable, script, str(ROUNDS), "11", *shared],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["rounds"] == ROUNDS
    assert summary["acknowledged"] > ROUNDS
    assert summary["compacted"] > 2
