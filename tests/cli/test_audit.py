"""`surefind audit`, and its file as the corrections of `surefind items --relabel`."""

import json
from pathlib import Path

import pytest
from command_line import faces

from surefind.data.sources import read_table
from surefind.gallery.gallery import Gallery


@pytest.fixture
def gallery(surefind):
    """A gallery of 8 people, three of whose 200 pictures have a wrong name; one of these is a copy."""
    x, y = faces(200, 1, people=8)
    names = [f"[{n}]" for n in y]
    for row in (10, 51, 92):
        names[row] = f"[{(y[row] + 3) % 8}]"
    with Gallery("g") as made:
        made.add(x, ids=[f"p{i}" for i in range(200)], labels=names)
        made.add(x[:1], ids=["copy"], labels=[f"[{(y[0] + 1) % 8}]"])
    return "g"


def expected(gallery):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.audit()


def test_tables_and_sentences(surefind, gallery):
    code, out, err = surefind("audit", gallery)
    assert code == 0, err
    found = expected(gallery)
    assert {"p10", "p92"} <= {one.id for one in found.of("mislabelled")}
    assert found.summary in out
    assert "Mislabelled" in out
    assert "Duplicate" in out
    assert found.of("mislabelled")[0].label in out  # brackets are no markup
    assert out.endswith("Next: surefind audit g --out audit.csv")
    code, out, err = surefind("audit", gallery, "--json")
    assert code == 0, err
    read = json.loads(out)
    assert read["findings"] == found.to_rows()
    assert (read["summary"], read["wrong"], read["items"]) == (found.summary, found.wrong, 201)


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_the_file_mends_the_gallery(surefind, gallery, suffix):
    """Look at it, delete what is right, and give it back as it is."""
    file = f"audit.{suffix}"
    code, out, err = surefind("audit", gallery, "--out", file)
    assert code == 0, err
    assert out.endswith(f"rows whose label is right: surefind items g --relabel {file}")
    found = expected(gallery).of("mislabelled")
    table = read_table(Path(file))
    assert [*table.columns] == ["id", "label", "suggested", "probability"]
    assert table["id"] == [one.id for one in found]
    assert [float(cell) for cell in table["probability"]] == [one.score for one in found]
    code, out, err = surefind("items", gallery, "--relabel", file)
    assert code == 0, err
    assert f"Relabelled {len(found)} items of g." in out
    assert out.endswith("Next: surefind audit g")
    y = faces(200, 1, people=8)[1]
    with Gallery.open(gallery, mode="r") as opened:
        assert [opened.get(one.id).label for one in found] == [one.suggested for one in found]
        assert all(opened.get(f"p{row}").label == f"[{y[row]}]" for row in (10, 92))
    code, out, _ = surefind("items", gallery, "--relabel", file)
    assert f"Relabelled 0 items of g. {len(found)} had that label already." in out


def test_rows_that_are_deleted_or_suggest_nothing_change_nothing(surefind, gallery):
    """Of all findings, as Python writes them, only wrong labels are corrected."""
    found = expected(gallery)
    rows = found.to_rows()
    wrong = [row for row in rows if row["kind"] == "mislabelled"]
    assert len(wrong) < len(rows)
    wrong[0]["suggested"] = None
    kept = wrong[-1]["id"]
    rows.remove(wrong[-1])
    Path("all.json").write_text(json.dumps(rows))
    code, out, err = surefind("items", gallery, "--relabel", "all.json")
    assert code == 0, err
    assert f"{len(rows) - len(wrong) + 2} rows of all.json suggest no label" in out
    assert f"Relabelled {len(wrong) - 2} items of g." in out
    with Gallery.open(gallery, mode="r") as opened:
        labels = {one.id: opened.get(one.id).label for one in found.of("mislabelled")}
    moved = {row["id"]: row["suggested"] for row in wrong[1:-1]}
    assert {id_: labels[id_] for id_ in moved} == moved
    assert labels[kept] == wrong[-1]["label"]
    assert labels[wrong[0]["id"]] == wrong[0]["label"]


def test_nothing_wrong_is_nothing_to_do(surefind, gallery):
    Path("audit.csv").write_text("id,label,suggested,probability\n")
    code, out, err = surefind("items", gallery, "--relabel", "audit.csv")
    assert code == 0, err
    assert "Relabelled 0 items of g." in out
