"""Time, CPU time and peak memory of one call, each case in a process of its own.

Peak memory is what the call needs beyond its inputs: the process's high-water mark is reset after
the inputs are made (Linux). Times are the best of several calls, as many as fit in three seconds.
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

Prepared = Callable[[], object]
Case = Callable[[], Prepared]


def run_cases(script: str, cases: dict[str, Case], results: Path, argv: list[str]) -> None:
    """Run a benchmark script: all cases that have no result yet, or the one named by ``--case``."""
    if len(argv) == 2 and argv[0] == "--case":
        print(json.dumps(measure(cases[argv[1]])))
        return
    table = json.loads(results.read_text()) if results.exists() and "--again" not in argv else {}
    table["environment"] = environment()
    for name in cases:
        if name in table.get("cases", {}):
            continue
        print(f"{name} …", end=" ", flush=True)
        run = subprocess.run(
            [sys.executable, script, "--case", name], capture_output=True, text=True, check=False
        )
        last = run.stdout.strip().splitlines()[-1] if run.returncode == 0 else None
        error = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        table.setdefault("cases", {})[name] = json.loads(last) if last else {"error": error}
        print(table["cases"][name])
        results.write_text(json.dumps(table, indent=1) + "\n")


def measure(case: Case, *, seconds: float = 3.0, most: int = 20) -> dict[str, float]:
    call = case()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    wall, cpu = timed(call)
    peak = status("VmHWM") - before
    repeats = 1
    while repeats <= most and repeats * wall < seconds:
        wall, cpu = (min(pair) for pair in zip((wall, cpu), timed(call), strict=True))
        repeats += 1
    return {"seconds": wall, "cpu_seconds": cpu, "peak_mb": peak / 1024, "repeats": repeats}


def timed(call: Prepared) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def status(field: str) -> int:
    """Read a memory figure of this process in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise KeyError(field)


def environment() -> dict[str, str]:
    names = ("surefind", "torch", "numpy")
    model = [
        x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")
    ]
    return {name: version(name) for name in names} | {
        "python": platform.python_version(),
        "processor": model[0].split(":")[1].strip() if model else platform.machine(),
        "cores": str(len(model)),
    }
