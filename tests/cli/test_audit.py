"""`surefind audit`, and its file as the corrections of `surefind items --relabel`."""

import csv
import json

import pytest
from command_line import faces

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


def expected(gallery, **options):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.audit(**options)


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


def test_json_has_everything(surefind, gallery):
    code, out, err = surefind("audit", gallery, "--json", "--duplicate", 0.97, "--items", 150)
    assert code == 0, err
    read, found = json.loads(out), expected(gallery, duplicate=0.97, items=150)
    assert read["findings"] == found.to_rows()
    assert (read["summary"], read["wrong"]) == (found.summary, found.wrong)
    assert (read["items"], read["judged"]) == (201, 150)


def test_the_file_mends_the_gallery(surefind, gallery):
    """Look at it, delete what is right, and give it back as it is."""
    code, out, err = surefind("audit", gallery, "--out", "audit.csv")
    assert code == 0, err
    assert out.endswith("Next: surefind items g --relabel audit.csv")
    with open("audit.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = expected(gallery).of("mislabelled")
    assert [*rows[0]] == ["id", "label", "suggested", "probability"]
    assert [row["id"] for row in rows] == [one.id for one in found]
    assert [float(row["probability"]) for row in rows] == [one.score for one in found]
    code, out, err = surefind("items", gallery, "--relabel", "audit.csv")
    assert code == 0, err
    assert f"Relabelled {len(rows)} items of g." in out
    y = faces(200, 1, people=8)[1]
    with Gallery.open(gallery, mode="r") as opened:
        assert [opened.get(row["id"]).label for row in rows] == [row["suggested"] for row in rows]
        assert all(opened.get(f"p{row}").label == f"[{y[row]}]" for row in (10, 92))
