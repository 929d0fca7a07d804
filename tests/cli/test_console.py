"""Hints printed as "Next" work when they are copied; progress is shown to people and to logs."""

import math
import re
import shlex
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from surefind.cli import console as progress
from surefind.cli import main
from surefind.cli.console import spelled
from surefind.learning.train import Progress

WIDTH = ("--set", "scale=200.0", "--set", "prior_precision=1000.0")
"""Given, because choosing it takes longer than all the rest."""


def test_commands_are_spelled_for_a_shell():
    assert spelled("index", "a b", run=None, out="g", resume=True, data="") == (
        "surefind index 'a b' --out g --resume"
    )
    assert spelled("index", "x", on_bad="refuse") == "surefind index x"
    assert spelled("index", "x", on_bad="skip") == "surefind index x --on-bad skip"
    assert spelled("index", resume=False, embedding_dim=3) == "surefind index --embedding-dim 3"


def hinted(*arguments):
    """Run a command; give the commands of its "Next" lines."""
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", ["surefind", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code, f"{arguments}: {end.value.code}, {out.getvalue()}"
    lines = [line for line in out.getvalue().splitlines() if line.startswith("Next")]
    return [re.fullmatch(r"Next[^:]*: (surefind .+)", line)[1] for line in lines]


def follow(*arguments):
    """Run a command and, one after the other, what it and its followers hint at; give their names."""
    followed, waiting = [], [list(map(str, arguments))]
    while waiting:
        line = waiting.pop(0)
        followed.append(line[0])
        if "serve" in line:
            line.append("--check")
        waiting += [shlex.split(next_)[1:] for next_ in hinted(*line)]
    return followed


@pytest.fixture
def vectors(surefind):
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 5
    np.save("my vectors.npy", rng.normal(size=(5, 6))[labels] + 0.3 * rng.normal(size=(200, 6)))
    np.save("labels.npy", labels)
    return ("my vectors.npy", "--labels", "labels.npy")


def test_a_run_is_measured_and_gets_an_uncertainty(surefind, run):
    assert hinted("evaluate", "plain") == ["surefind fit plain --out plain-posthoc"]


def test_vectors_with_a_run_lead_to_a_gallery_that_answers(vectors):
    assert follow("fit", *vectors, "--out", "a run", *WIDTH) == ["fit", "index"]


def test_vectors_without_a_run_lead_there_too(vectors):
    assert follow("index", *vectors, "--out", "g") == ["index", "search", "serve"]
    np.save("others.npy", np.load("my vectors.npy") + 0.01)
    calibrate = ("calibrate", "g", "others.npy", *vectors[1:], "--max-wrong", 0.2)
    assert follow(*calibrate) == ["calibrate", "search", "serve"]


def test_bad_images_that_were_left_out_are_left_out_all_the_way(surefind, broken):
    small = ("--epochs", 1, "--batch-size", 4, "--method", "deterministic", "--on-bad", "skip")
    train = ("train", "pets", "--out", "run", *small)
    assert follow(*train) == ["train", "index"]
    assert follow("fit", "run", "--out", "sure", *WIDTH) == ["fit", "index"]


@pytest.fixture
def screen(monkeypatch):
    """A console on paper; a terminal if asked for."""

    def make(*, terminal):
        paper = StringIO()
        console = Console(file=paper, force_terminal=terminal, width=100)
        monkeypatch.setattr(progress, "errors", console)
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


def test_a_log_gets_a_line_now_and_then(screen, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    paper = screen(terminal=False)

    def lines(wanted):
        end, seen = time.monotonic() + 10, len(paper.getvalue())
        while not re.search(wanted, paper.getvalue()[seen:]) and time.monotonic() < end:
            time.sleep(0.01)
        return re.search(wanted, paper.getvalue()[seen:])

    with progress.stage_progress("fitting") as report:
        assert lines(r"^  fitting \(0 s\)\n")
        report("encoder", steps()[0])
        assert lines(r"  encoder: 1 of 6, loss 0.2500 \(\d+ s\)\n")
        report("encoder", steps()[-1])
        assert "  encoder: 6 of 6, loss 0.2500 (" in paper.getvalue()
        assert lines(r"  fitting \(\d+ s\)\n")  # which is not counted
    with progress.progress("embedding", 2000) as done:
        done(1000)
        assert lines(r"  embedding: 1,000 of 2,000 \(0 s\)\n")


def test_a_log_of_something_short_has_no_line(screen):
    paper = screen(terminal=False)
    with progress.progress("quick", 10) as done:
        done(5)
    assert paper.getvalue() == ""


def test_json_holds_paths_and_no_infinity():
    value = {"a": Path("x") / "y", "b": [math.inf, math.nan, 1.5], 3: np.float32(2), "d": ("ü",)}
    text = '{"a":"x/y","b":[null,null,1.5],"3":2.0,"d":["ü"]}\n'
    assert progress.json_text(value) == text
