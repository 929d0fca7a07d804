import os

import pytest

import surefind as sf
from surefind.apps.cli.preflight import check_file, check_place
from surefind.files import write_atomically


def test_a_place_that_cannot_be_written_is_noticed_first(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(sf.InputError, match=r"cannot write to .*file/run: .*file is a file"):
        check_place(tmp_path / "file" / "run", 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(sf.InputError, match="is read-only"):
        check_place(tmp_path / "run", 1)


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
    with pytest.raises(sf.InputError, match=r"needs about 1000000000\.0 GB and the disk has"):
        check_place(tmp_path / "not" / "yet", 10**18)


def test_a_file_has_a_name_that_says_what_is_written(tmp_path):
    check_file(tmp_path / "not" / "a.CSV", (".json", ".csv"))
    with pytest.raises(sf.InputError, match=r"a\.txt must end in \.json or \.csv"):
        check_file(tmp_path / "a.txt", (".json", ".csv"))
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(sf.InputError, match=r"a\.csv is a folder; give the name of a file"):
        check_file(tmp_path / "a.csv", (".csv",))
