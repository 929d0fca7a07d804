"""Everything that goes wrong on a first day: each time a sentence, and nothing left behind."""

import json
import shutil

import numpy as np
import pytest
from command_line import command
from newcomer import digits, truth, vectors

import surefind as sf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def first_hour(tmp_path_factory):
    """A gallery of unit vectors, and files that one might give to it by mistake; not to be changed."""
    folder = tmp_path_factory.mktemp("first-hour")
    enrol, held_out = digits().enrol, digits().held_out
    good = unit(vectors(enrol))
    files = {
        "good": good,
        "labels": enrol.labels,
        "held-out": unit(vectors(held_out)),
        "held-out-labels": truth(held_out),
        "nan": np.where(np.arange(64) == 3, np.nan, good),
        "zero": good * (np.arange(len(good)) != 5)[:, None],
        "long": good * 3,
        "text": np.array([["a", "b"]]),
        "objects": np.array([{"a": 1}], dtype=object),
        "few-labels": enrol.labels[:-1],
        "flat": good[0],
        "none": good[:0],
    }
    for name, rows in files.items():
        np.save(folder / f"{name}.npy", rows, allow_pickle=True)
    (folder / "half.npy").write_bytes((folder / "good.npy").read_bytes()[:1000])
    (folder / "words.npy").write_text("these are no vectors")
    (folder / "not-a-gallery").mkdir()
    (folder / "not-a-gallery" / "notes.txt").write_text("nothing")
    labels = ("--labels", folder / "labels.npy")
    code, _, err = command("index", folder / "good.npy", *labels, "--out", folder / "gallery")
    assert code == 0, err
    return folder


@pytest.fixture
def gallery(home, first_hour):
    """A copy of it all, to work in."""
    shutil.copytree(first_hour, home, dirs_exist_ok=True)
    return home / "gallery"


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


FILES = ("nan", "zero", "long", "text", "objects", "flat", "none", "half", "words", "missing")


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named_by_every_command_that_reads_it(refuses, gallery, name):
    for line in (
        ("search", "gallery", f"{name}.npy"),
        ("index", f"{name}.npy", "--out", "new"),
        ("fit", f"{name}.npy", "--labels", "labels.npy", "--out", "new"),
    ):
        if line[0] == "fit" and name in {"zero", "long"}:
            continue  # vectors of any length are welcome there
        said = refuses(*line)
        assert len(said) < 500, "a sentence, not a page"


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (("search", "nowhere", "good.npy"), 1, "nowhere"),
        (("search", "not-a-gallery", "good.npy"), 1, "not-a-gallery"),
        (("search", "gallery", "good.npy", "--run", "nowhere"), 1, "nowhere"),
        (("search", "gallery", "good.npy", "-k", "0"), 1, "-k"),
        (("search", "gallery", "good.npy", "-k", "many"), 2, "-k"),
        (("search", "gallery"), 2, "queries"),
        (("serach", "gallery", "good.npy"), 2, "serach"),
        (("calibrate", "gallery", "held-out.npy", "--max-wrong", "1.5"), 1, "--max-wrong"),
        (("index", "good.npy", "--labels", "few-labels.npy", "--out", "new"), 1, "labels"),
        (("train", "nowhere", "--out", "run"), 1, "nowhere"),
        (("evaluate", "not-a-gallery"), 1, "not-a-gallery"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_slip_is_answered_with_what_was_meant(refuses, gallery, line, code, word):
    assert word.lower() in refuses(*line, code=code).lower()


def test_a_promise_that_the_queries_cannot_prove_is_not_made(refuses, does, gallery):
    np.save("five.npy", np.load("held-out.npy")[:5])
    np.save("five-labels.npy", np.load("held-out-labels.npy")[:5])
    said = refuses("calibrate", "gallery", "five.npy", "--labels", "five-labels.npy")
    assert "queries" in said
    does("search", "gallery", "held-out.npy", "--out", "answers.json")
    answers = json.loads((gallery.parent / "answers.json").read_text())
    assert all(answer["decision"] != "match" for answer in answers), "nothing was promised"


def test_a_damaged_gallery_does_not_answer(refuses, gallery):
    with (gallery / "gallery.sqlite").open("r+b") as file:
        file.seek(4096)
        file.write(b"\x00" * 8192)
    refuses("search", "gallery", "held-out.npy")
    with pytest.raises(sf.SurefindError):
        sf.Gallery.open(gallery).search(np.load("held-out.npy"))
