import os
from collections import namedtuple

import pytest

import surefind as sf
from surefind.cli.console import check_file, check_place, size_text
from surefind.files import write_atomically


def test_a_place_that_cannot_be_written_is_noticed_first(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "file" / "run", 1)
    assert caught.value.field == "out"
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "run", 1, field="work")
    assert caught.value.field == "work"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def broken(*_):
        raise OSError("gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="gone"):
        write_atomically(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_space_is_looked_for_where_the_folder_will_be(tmp_path):
    check_place(tmp_path / "not" / "yet", 1)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path / "not" / "yet", 10**18)
    assert caught.value.field == "out"


def test_a_file_has_a_name_that_says_what_is_written(tmp_path):
    check_file(tmp_path / "not" / "a.CSV", (".json", ".csv"))
    (tmp_path / "a.csv").mkdir()
    for file in ("a.txt", "a.csv"):
        with pytest.raises(sf.InputError) as caught:
            check_file(tmp_path / file, (".json", ".csv"))
        assert caught.value.field == "out"


def test_a_disk_that_is_almost_full_enough_says_how_much_is_missing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9 - 1_190_000, 1_190_000)
    monkeypatch.setattr("surefind.cli.console.shutil.disk_usage", lambda _: usage)
    with pytest.raises(sf.InputError) as caught:
        check_place(tmp_path, 1_204_000)
    assert "needs about 1.2 MB, 14 kB more than the disk has left (1.2 MB)" in caught.value.message


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (10, "10 bytes"),
        (999.4, "999 bytes"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (14_000, "14 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (4.2e8, "420 MB"),
        (1.34e9, "1.3 GB"),
        (2.5e15, "2,500 TB"),
    ],
)
def test_sizes_are_said_as_people_do(size, text):
    assert size_text(size) == text
