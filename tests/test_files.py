import os
import stat

import pytest
import torch

from surefind.files import write_atomically
from surefind.models.saving import save_tensors


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("κ", "κ".encode()),
        (b"\0\xff", b"\0\xff"),
        (lambda path: path.write_bytes(b"written"), b"written"),
    ],
    ids=["text", "bytes", "function"],
)
@pytest.mark.parametrize("durable", [False, True])
def test_text_bytes_and_functions_are_written(tmp_path, content, expected, durable):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    write_atomically(file, content, durable=durable)
    assert file.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [file]


def test_a_function_that_fails_half_way_leaves_the_old_file(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"old")

    def fail(path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(file, fail)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture
def umask():
    """Change the umask for a test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_every_file_has_the_mode_of_the_umask(tmp_path, umask, mask):
    """Also what safetensors writes, which makes a private file and moves it."""
    umask(mask)
    write_atomically(tmp_path / "text", "x")
    save_tensors(tmp_path / "model.safetensors", {"x": torch.ones(1)}, {})
    assert {mode(file) for file in tmp_path.iterdir()} == {0o666 & ~mask}


def test_a_private_file_is_its_owners_alone(tmp_path, umask):
    file = tmp_path / "file"
    file.write_text("old")
    (tmp_path / ".file.tmp").write_text("left by a process that was killed")
    write_atomically(file, lambda path: path.write_text("new"), private=True)
    assert mode(file) == 0o600
    assert file.read_text() == "new"
