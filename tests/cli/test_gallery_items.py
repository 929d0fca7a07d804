"""`surefind items`: choose, list, delete, relabel; all or nothing, and calibrations are renewed."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli.conftest import unit

import surefind as sf
from surefind.cli.galleries import COLUMNS
from surefind.gallery.gallery import Gallery


@pytest.fixture
def gallery(surefind):
    """Five items: texts and a number as ids, with and without label, κ, payload."""
    with Gallery(path="g") as made:
        embeddings = sf.Embeddings(unit(4), np.array([1.5, 2, 3, 4], dtype=np.float32))
        payload = [{"path": "a.png"}, None, None, None]
        ids, labels = ["a", "b", "c", "d"], ["cat", "cat", "dog", None]
        made.add(embeddings, ids=ids, labels=labels, payload=payload, groups=["x", None, None, "x"])
        made.add(unit(1, 1), ids=[7], labels=["dog"])
    return "g"


def labels(path="g"):
    with Gallery.open(path, mode="r") as found:
        return {i: found.get(i).label for i in found}


def test_all_items_are_listed_with_everything_that_is_known(surefind, gallery):
    code, out, err = surefind("items", "g")
    assert code == 0, err
    assert "g holds 5 items of 2 labels." in out
    code, out, _ = surefind("items", "g", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["id"] for row in rows] == [7, "a", "b", "c", "d"]
    assert rows[0] | {"novelty": None} == {
        "id": 7,
        "label": "dog",
        "group": None,
        "kappa": None,
        "novelty": None,
        "payload": None,
    }
    assert rows[1]["kappa"] == 1.5
    assert rows[1]["payload"] == {"path": "a.png"}


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        (("a", "7"), ["a", 7]),
        (("--label", "cat"), ["a", "b"]),
        (("--label", "cat", "--label", "dog"), [7, "a", "b", "c"]),
        (("a", "c", "--label", "dog"), ["c"]),
        (("a", "--label", "dog"), []),
    ],
)
def test_items_are_chosen_by_ids_and_labels(surefind, gallery, chosen, ids):
    code, out, err = surefind("items", "g", *chosen, "--json")
    assert code == 0, err
    assert [row["id"] for row in json.loads(out)] == ids


def test_files_have_all_items_in_the_format_of_their_suffix(surefind, gallery):
    for suffix in ("csv", "json", "parquet"):
        assert surefind("items", "g", "--out", f"made/a.{suffix}")[0] == 0
    with open("made/a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["7", "a", "b", "c", "d"]
    assert rows[0]["kappa"] == ""
    assert json.loads(rows[1]["payload"]) == {"path": "a.png"}
    with open("made/a.json") as file:
        assert json.load(file) == json.loads(surefind("items", "g", "--json")[1])
    table = pq.read_table("made/a.parquet")
    assert table.column_names == list(COLUMNS)
    assert table["id"].to_pylist() == ["7", "a", "b", "c", "d"]
    assert table["kappa"].to_pylist()[:2] == [None, 1.5]
    assert table["label"].to_pylist()[-1] is None


def test_items_are_deleted(surefind, gallery):
    code, out, err = surefind("items", "g", "a", "7", "--delete")
    assert code == 0, err
    assert "Deleted 2 items; g holds 3." in out
    assert labels().keys() == {"b", "c", "d"}


def test_the_last_item_may_go(surefind, gallery):
    assert surefind("items", "g", "a", "b", "c", "d", "7", "--delete")[0] == 0
    code, out, err = surefind("items", "g")
    assert code == 0, err
    assert "g holds 0 items of 0 labels." in out


def test_items_are_relabelled(surefind, gallery):
    code, out, err = surefind("items", "g", "a", "d", "--relabel", "bird", "--json")
    assert code == 0, err
    moved = [{"id": "a", "from": "cat", "to": "bird"}, {"id": "d", "from": None, "to": "bird"}]
    assert json.loads(out)["relabelled"] == moved
    assert labels() == {"a": "bird", "b": "cat", "c": "dog", "d": "bird", 7: "dog"}
    code, out, _ = surefind("items", "g", "--label", "dog", "--relabel", "wolf")
    assert "Relabelled 2 items of g." in out
    code, out, _ = surefind("items", "g", "c", "b", "--relabel", "wolf")
    assert "Relabelled 1 items of g. 1 had that label already." in out
    surefind("items", "g", "b", "--relabel", "")
    assert labels()["b"] is None
    with Gallery.open("g", mode="r") as found:
        assert found.get("a").payload == {"path": "a.png"}
        assert found.get("a").kappa == 1.5


def test_a_table_relabels_many(surefind, gallery):
    with open("mend.csv", "w") as file:
        file.write('id,label\na,dog\n7,cat\nb,""\n')
    code, _, err = surefind("items", "g", "--relabel", "mend.csv")
    assert code == 0, err
    assert labels() == {"a": "dog", "b": None, "c": "dog", "d": None, 7: "cat"}


def test_labels_stay_numbers_where_they_are(surefind):
    with Gallery(path="n") as made:
        made.add(unit(3), ids=["a", "b", "c"], labels=[1, 2, 2])
    assert surefind("items", "n", "--label", "1", "--relabel", "5")[0] == 0
    assert labels("n") == {"a": 5, "b": 2, "c": 2}


def test_a_calibration_is_renewed(surefind):
    with Gallery(path="g") as made:
        made.add(unit(30), labels=["x", "y"] * 15)
        made.calibrate(unit(30, 1), ["x"] * 30)
    code, out, err = surefind("items", "g", "3", "--relabel", "x")
    assert code == 0, err
    assert "Recalibrated for the changed items" in out
    code, out, _ = surefind("items", "g", "4", "--json", "--delete")
    assert json.loads(out)["renewed"]
    with Gallery.open("g", mode="r") as again:
        assert not again.search(unit(1, 3)).stale
