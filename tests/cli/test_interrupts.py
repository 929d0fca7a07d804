import signal
import sys
import threading

import pytest

from surefind.cli.console import this_command, whole_steps
from surefind.learning.train import Progress


def press():
    """Ctrl-C, as the system delivers it."""
    signal.raise_signal(signal.SIGINT)


def progress(epoch, step):
    return Progress(epoch, 2, step, 3, 0.5)


def test_the_first_ctrl_c_waits_for_the_step():
    seen = []
    with whole_steps(lambda stage, at: seen.append((at.epoch, at.step))) as report:
        report("encoder", progress(0, 1))
        press()  # in the middle of the second step
        with pytest.raises(KeyboardInterrupt):
            report("encoder", progress(0, 2))
    assert seen == [(0, 1), (0, 2)]


def test_the_second_ctrl_c_does_not_wait():
    with whole_steps(lambda *_: None) as report:
        report("encoder", progress(0, 1))
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


@pytest.mark.parametrize("steps", [[], [(0, 3), (1, 3)]], ids=["before", "after"])
def test_outside_of_training_nothing_is_waited_for(steps):
    with whole_steps(lambda *_: None) as report:
        for epoch, step in steps:
            report("encoder", progress(epoch, step))
        with pytest.raises(KeyboardInterrupt):
            press()


def test_the_usual_meaning_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="ours"), whole_steps(lambda *_: None):
        raise ValueError("ours")
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone():
    """Only the main thread may handle signals."""
    seen = []

    def work():
        with whole_steps(lambda *_: seen.append("reported")) as report:
            report("encoder", progress(0, 1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["reported"]


@pytest.mark.parametrize(
    ("argv", "more", "expected"),
    [
        (["/bin/surefind", "train", "my set"], ["--resume"], "surefind train 'my set' --resume"),
        (["surefind", "train", "x", "--resume"], ["--resume"], "surefind train x --resume"),
        (["/lib/surefind/__main__.py", "bench"], [], "python -m surefind bench"),
    ],
)
def test_the_command_can_be_typed_again(monkeypatch, argv, more, expected):
    monkeypatch.setattr(sys, "argv", argv)
    assert this_command(*more) == expected
