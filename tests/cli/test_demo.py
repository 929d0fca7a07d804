import re

import pytest

import surefind as sf
from surefind.cli.demo import EIGHT, KNOWN, MAX_WRONG, NINE, clear_place, material


def share(out, kind, decision):
    """What the demo said of a kind of query, in percent."""
    return int(re.search(rf"{kind}: [^.]*?(\d+)% {decision}", out[out.index("A gallery") :])[1])


def test_the_demo_reports_what_it_found_and_leaves_a_page(demo):
    folder, out = demo
    assert "median κ" in out
    assert "A query (known digits): the nearest neighbour is a" in out
    assert out.endswith(str(folder / "report.html"))
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert page.count("nearest neighbour: “") == 6
    assert page.count('class="bar"') == 7 + 6
    assert "unlike anything seen" in page[: page.index("<h2>")]
    assert not re.search(r"(src|href)=.http", page)
    assert (folder / "kappa.svg").is_file()


def test_the_demo_knows_digits_and_takes_no_photograph_for_one(demo):
    _, out = demo
    assert share(out, "known digits", "match") >= 88
    assert share(out, "photographs", "match") <= 1
    assert share(out, "blank and noise", "match") <= 1
    promised = re.search(r"which the guarantee is about, ([\d.]+)% of the matches", out)
    assert float(promised[1]) <= 100 * MAX_WRONG


def test_no_part_of_the_demos_digits_is_in_another():
    parts = material()
    asked = [parts.queries[kind] for kind in (KNOWN, EIGHT, NINE)]
    data = [parts.train.read(), parts.held_out.read(), parts.calibration.read(), *asked]
    assert sum(map(len, data)) == 1797
    seen = [{x.numpy().tobytes() for x in part} for part in data]
    assert len(set.union(*seen)) == sum(map(len, seen))


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
