"""The command line as a shell runs it, without waiting for a process."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from surefind.apps.cli import main


def command(*arguments):
    """Run a command in this process; return its exit code and what it wrote, in single spaces."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["surefind", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return end.value.code or 0, " ".join(out.getvalue().split()), " ".join(err.getvalue().split())
