import re

import pytest

import surefind as sf
from surefind.apps.cli.demo import clear_place

pytestmark = pytest.mark.slow


def test_the_demo_reports_what_it_found_and_leaves_a_page(surefind, tmp_path):
    code, out, err = surefind("demo", "--out", "shown")
    assert code == 0, err
    assert "median κ" in out
    assert "A query (known digits): the most probable label is" in out
    assert out.endswith(str(tmp_path / "shown" / "report.html"))
    page = (tmp_path / "shown" / "report.html").read_text()
    assert "<svg" in page
    assert page.count("The most probable label is") == 3
    assert not re.search(r"(src|href)=.http", page)
    assert (tmp_path / "shown" / "kappa.svg").is_file()


def test_a_place_that_cannot_be_written_is_noticed_first(refused, tmp_path):
    (tmp_path / "file").touch()
    assert refused("demo", "--out", "file/shown").field == "out"


def test_a_demo_may_write_its_own_folder_anew_and_no_other(tmp_path):
    clear_place(tmp_path / "shown")
    (tmp_path / "shown" / "gallery").mkdir()
    (tmp_path / "shown" / "mine.txt").touch()
    clear_place(tmp_path / "shown")
    assert {p.name for p in (tmp_path / "shown").iterdir()} == {".surefind-demo", "mine.txt"}
    (tmp_path / "other" / "run").mkdir(parents=True)
    with pytest.raises(sf.InputError) as caught:
        clear_place(tmp_path / "other")
    assert caught.value.field == "out"
    assert (tmp_path / "other" / "run").exists()
