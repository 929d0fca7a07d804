"""Interrupts: Ctrl-C ends training between two steps, with a checkpoint, and shows how to resume.

During training the first Ctrl-C waits for the end of the current step; the training loop then writes a
checkpoint, and nothing is lost (`surefind.learning.train`). At any other moment, and the second time, it
interrupts at once; files are written whole or not at all.
"""

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from surefind.cli.console import errors

if TYPE_CHECKING:
    from surefind.learning.session import Report


@contextmanager
def whole_steps(report: "Report") -> "Iterator[Report]":
    """Let Ctrl-C wait for the end of a step.

    Args:
        report: Called with each step's progress.

    Yields:
        What to report to instead; it raises `KeyboardInterrupt` at the end of an interrupted step.
    """
    from surefind.learning.distributed import world

    if world()[1] > 1 or threading.current_thread() is not threading.main_thread():
        # Several processes would end at different steps; they resume from the last checkpoint.
        yield report
        return
    asked = training = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not training:
            raise KeyboardInterrupt
        asked = True
        errors.print("Interrupting after this step; once more interrupts at once.")

    def watched(stage: str, at: Any) -> None:
        nonlocal training
        report(stage, at)
        training = (at.epoch + 1, at.step) != (at.epochs, at.steps)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield watched
    finally:
        signal.signal(signal.SIGINT, before)


def this_command(*more: str) -> str:
    """Return the running command as it can be typed again, with options added that are not there."""
    name, *arguments = sys.argv
    program = ["python", "-m", "surefind"] if Path(name).name == "__main__.py" else ["surefind"]
    return shlex.join([*program, *arguments, *(m for m in more if m not in arguments)])
