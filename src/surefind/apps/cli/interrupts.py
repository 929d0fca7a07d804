"""Ctrl-C: stop between two steps of training, keep that state, and say how to go on.

While steps follow one another, the first Ctrl-C waits for the end of the step that is running; the training
loop then keeps the state, and nothing is lost (`surefind.learning.train`). At any other moment, and
the second time, it stops at once; files are written whole or not at all.
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

from surefind.apps.cli.console import errors

if TYPE_CHECKING:
    from surefind.learning.session import Report


@contextmanager
def whole_steps(report: "Report") -> "Iterator[Report]":
    """Let Ctrl-C wait for the end of a step.

    Args:
        report: Called with each step's progress.

    Yields:
        What to report to instead; it raises `KeyboardInterrupt` after the step that was waited for.
    """
    from surefind.learning.distributed import world

    if world()[1] > 1 or threading.current_thread() is not threading.main_thread():
        # Several processes would stop at different steps; what was kept last is theirs.
        yield report
        return
    asked = training = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not training:
            raise KeyboardInterrupt
        asked = True
        errors.print("Stopping after this step; once more stops at once.")

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
    """Give the command that is running, as it can be typed again.

    Args:
        *more: Options to add if they are not there.

    Returns:
        The command.
    """
    name, *arguments = sys.argv
    program = ["python", "-m", "surefind"] if Path(name).name == "__main__.py" else ["surefind"]
    return shlex.join([*program, *arguments, *(m for m in more if m not in arguments)])
