from io import StringIO

import pytest
from rich.console import Console

from surefind.apps.cli import console as progress
from surefind.learning.train import Progress


@pytest.fixture
def screen(monkeypatch):
    """A console on paper; a terminal if asked for."""

    def make(*, terminal):
        paper = StringIO()
        console = Console(file=paper, force_terminal=terminal, width=100)
        monkeypatch.setattr(progress, "console", console)
        monkeypatch.setattr(progress, "say", console.print)
        return paper

    return make


def steps():
    return [Progress(epoch, 2, step, 3, 0.25) for epoch in range(2) for step in range(1, 4)]


def test_a_terminal_gets_a_bar(screen):
    paper = screen(terminal=True)
    with progress.stage_progress() as report:
        for at in steps():
            report("encoder", at)
    assert "loss 0.2500" in paper.getvalue()
    assert "\x1b" in paper.getvalue()


def test_a_log_gets_a_line_at_the_end_of_a_stage(screen):
    paper = screen(terminal=False)
    with progress.stage_progress() as report:
        for at in steps():
            report("encoder", at)
    assert paper.getvalue() == "  encoder: epoch 2 of 2, step 3 of 3, loss 0.2500\n"


def test_a_log_of_something_long_gets_lines_within_it(screen, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    paper = screen(terminal=False)
    with progress.stage_progress() as report:
        for at in steps():
            report("encoder", at)
    assert len(paper.getvalue().splitlines()) == 6


@pytest.mark.parametrize("terminal", [True, False])
def test_counting_shows_on_a_terminal_only(screen, terminal):
    paper = screen(terminal=terminal)
    with progress.count_progress("embedding", 10) as done:
        done(10)
    assert ("10 of 10" in paper.getvalue()) == terminal
    assert bool(paper.getvalue()) == terminal
