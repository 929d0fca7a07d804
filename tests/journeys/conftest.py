"""An empty folder and the command line, as a newcomer has them."""

import pytest
from command_line import command


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREFIND_DATA", raising=False)
    return tmp_path


@pytest.fixture
def does(home):
    """Run a command that must succeed; give what it printed."""

    def run(*arguments):
        code, out, err = command(*arguments)
        assert code == 0, f"{arguments}: {err}"
        return out

    return run


@pytest.fixture
def refuses(home):
    """Run a command that must be refused: a sentence, no traceback, nothing new in the folder."""

    def run(*arguments, code=1):
        before = listing(home)
        found, out, err = command(*arguments)
        assert found == code, f"{arguments}: exit code {found}; {out} {err}"
        assert len(err) > 20
        assert "Traceback" not in err
        assert listing(home) == before, "what is refused leaves nothing behind"
        return err

    return run


def listing(folder):
    """Return what is in a folder, without SQLite's log: whoever reads a gallery opens one."""
    return sorted(p for p in folder.rglob("*") if not p.name.endswith(("-shm", "-wal")))
