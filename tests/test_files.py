import pytest

from surefind.files import write_atomically


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
