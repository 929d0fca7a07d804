import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import faces, outsiders, unit
from PIL import Image

from surefind.cli.galleries import own_ids, read_items
from surefind.gallery.gallery import Gallery
from surefind.service.review_store import FILE, Reviews, read_reviews


@pytest.fixture
def gallery(surefind):
    """A gallery of 20 people, and queries with and without a match there."""
    x, y = faces(100, 1)
    with Gallery("g") as made:
        made.add(x, labels=[*map(str, y)])
    x, y = faces(400, 2)
    np.savez("queries.npz", features=x, labels=y)
    np.save("unknown.npy", outsiders(100, 3))
    return "g"


TARGET = ("--max-wrong", 0.2, "--confidence", 0.9)


def test_it_prints_the_summary_and_the_next_command(surefind, gallery):
    options = ("--unknown", "unknown.npy", *TARGET)
    code, out, err = surefind("calibrate", gallery, "queries.npz", *options)
    assert code == 0, err
    assert "Calibrating on 500 queries, 100 of them unknown." in out
    assert "Guarantee: at most 20 % of matches are wrong (90 % confidence)" in out
    assert out.endswith("Next: surefind search g queries.npz")
    with Gallery.open(gallery, mode="r") as opened:
        found = opened.calibration
        assert " ".join(found.summary.split()) in out
        assert (found.queries, found.unknown, found.target.max_wrong) == (500, 100, 0.2)
    x, y = faces(400, 2)
    both = np.concatenate([x, outsiders(100, 3)])
    truth = [*map(str, y), *[None] * 100]
    with Gallery.open(gallery) as opened:
        again = opened.calibrate(both, truth, max_wrong=0.2, confidence=0.9)
    assert (again.threshold, again.summary) == (found.threshold, found.summary)


def test_unknown_queries_may_be_among_the_others(surefind, gallery):
    mixed = np.concatenate([faces(300, 2)[0], outsiders(100, 3)])
    np.save("mixed.npy", mixed)
    y = faces(300, 2)[1]
    np.save("labels.npy", np.append(y, np.full(100, -1)))
    with open("labels.csv", "w") as file:
        file.write("\n".join(["label", *map(str, y), *['""'] * 100]) + "\n")
    for labels in ("labels.npy", "labels.csv"):
        code, out, err = surefind("calibrate", gallery, "mixed.npy", "--labels", labels, *TARGET)
        assert code == 0, err
        assert "400 queries, 100 of them unknown" in out


def test_the_items_may_play_the_queries(surefind, gallery):
    code, out, err = surefind("calibrate", gallery, "--unknown-share", 0.3, *TARGET)
    assert code == 0, err
    assert "Leave-one-out calibration on the items of g." in out
    assert out.endswith("surefind search g QUERIES")
    with Gallery.open(gallery, mode="r") as opened:
        assert opened.calibration.target.unknown_share == 0.3
        assert " ".join(opened.calibration.summary.split()) in out


def reviewed(n, *, decided=None):
    """The folder of a service in which random checks were reviewed, all or the first ones."""
    x, y = faces(n, 5)
    reviews = Reviews(Path("g.service") / FILE)
    for row in range(n):
        question = {"vector": x[row].tolist(), "kappa": None, "label": str(y[row])}
        drawn = {"sampled": True, "u": 0.01, "share": 0.02, "model": None}
        id_ = reviews.ask(question | drawn)
        if decided is None or row < decided:
            reviews.decide(id_, "accept")
    reviews.close()
    return "g.service"


def test_reviews_join_the_queries(surefind, gallery):
    surefind("calibrate", gallery, "queries.npz", "--unknown", "unknown.npy", *TARGET)
    code, out, err = surefind("calibrate", gallery, "--with-reviews", reviewed(60, decided=50))
    assert code == 0, err
    assert "50 reviewed random checks can be used, 10 wait." in out
    assert "Guarantee: at most 20 % of matches are wrong (90 % confidence)" in out
    assert "50 of the queries are a random share of live ones" in out
    with Gallery.open(gallery) as opened:
        found = opened.calibration
        assert (found.queries, found.target.max_wrong, found.target.confidence) == (550, 0.2, 0.9)
        again = opened.calibrate(reviews=read_reviews("g.service"))
    assert (again.threshold, again.summary) == (found.threshold, found.summary)
    options = ("--with-reviews", "g.service", "--max-wrong", 0.3)
    code, out, err = surefind("calibrate", gallery, *options)
    assert code == 0, err
    assert "at most 30 % of matches are wrong (90 % confidence)" in out
    code, out, err = surefind("calibrate", gallery, "queries.npz", *options[:2], *TARGET)
    assert code == 0, err
    assert "Calibrating on 400 queries, 0 of them" in out
    assert "and 50 reviewed ones." in out


def test_without_random_checks_it_says_how_to_get_some(refused, gallery):
    assert (
        refused("calibrate", gallery, "--with-reviews", reviewed(3, decided=0)).field == "reviews"
    )
    assert "surefind serve" in str(refused("calibrate", gallery, "--with-reviews", "nowhere"))


def test_a_guarantee_about_unknown_queries(surefind, gallery):
    options = ("--unknown", "unknown.npy", "--max-fpir", 0.1, *TARGET)
    code, out, err = surefind("calibrate", gallery, "queries.npz", *options)
    assert code == 0, err
    assert "and 10 % of unknown queries are a match (90 % confidence)" in out


def test_groups_have_thresholds_of_their_own(surefind, gallery):
    np.save("groups.npy", np.array(["day", "night"])[np.arange(400) % 2])
    line = ("calibrate", gallery, "queries.npz", "--groups", "groups.npy", *TARGET, "--json")
    code, out, err = surefind(*line)
    assert code == 0, err
    assert [group["name"] for group in json.loads(out)["groups"]] == ["day", "night"]


def test_an_item_of_the_gallery_is_no_query_if_its_id_says_so(surefind):
    x, y = faces(200, 1)
    names = [f"p{i}" for i in range(200)]
    np.savez("people.npz", features=x, labels=y, ids=names)
    near = unit(x + 0.01 * np.random.default_rng(0).normal(size=x.shape))
    others = np.array([*names[:50], *(f"q{i}" for i in range(150))])
    np.savez("same.npz", features=near, labels=y, ids=others)
    np.savez("other.npz", features=near, labels=y)  # ids of a file without them mean nothing
    surefind("index", "people.npz", "--out", "g")
    code, out, err = surefind("calibrate", "g", "same.npz", *TARGET)
    assert code == 0, err
    assert "50 of the queries are items, and were left out" in out
    code, out, err = surefind("calibrate", "g", "other.npz", *TARGET)
    assert code == 0, err
    assert "are items of the gallery" not in out


def test_images_of_the_same_name_in_another_folder_are_others(surefind, sure, pets, tmp_path):
    shutil.copytree(pets, tmp_path / "more")
    for file in (tmp_path / "more").rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(file))).save(file)
    assert surefind("index", "pets", "--run", sure, "--out", "g")[0] == 0
    with Gallery.open("g", mode="r") as gallery:
        for folder, same in (("pets", 8), ("more", 0)):
            items = read_items(folder, sure)
            assert set(items.ids) == set(gallery)
            assert len(own_ids(gallery, items)) == same
