import csv
import json
from pathlib import Path

import numpy as np
import pytest

import surefind as sf
from surefind.gallery.gallery import Gallery


def faces(n, seed, people=20):
    """Unit vectors near 20 directions, and the number of each."""
    centres = np.random.default_rng(0).normal(size=(people, 8))
    rng = np.random.default_rng(seed)
    labels = rng.integers(people, size=n)
    x = centres[labels] + 0.3 * rng.normal(size=(n, 8))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def gallery(surefind):
    """A gallery of 20 people without a calibration, and 30 queries."""
    x, y = faces(100, 1)
    with Gallery(path="g") as made:
        made.add(x, ids=[f"p{i}" for i in range(100)], labels=[f"[{n}]" for n in y])
    x, y = faces(30, 5)
    np.savez("queries.npz", features=x, ids=[f"q{i}" for i in range(30)])
    return "g"


@pytest.fixture
def calibrated(gallery):
    x, y = faces(400, 2)
    with Gallery.open(gallery) as opened:
        truth = [f"[{n}]" for n in y]
        opened.calibrate(x, truth, max_wrong=0.2, confidence=0.9, contributions=False)
    return gallery


def expected(gallery, **options):
    with Gallery.open(gallery, mode="r") as opened:
        return opened.search(faces(30, 5)[0], **options)


def test_neighbours_without_a_calibration(surefind, gallery):
    code, out, err = surefind("search", gallery, "queries.npz", "-k", 4)
    assert code == 0, err
    answers = expected(gallery, k=4)
    assert "make one with labelled queries: surefind calibrate g HELD-OUT" in out
    assert "The first 20 of 30 queries" in out
    assert answers.ids[0, 0] in out
    assert f"({answers.labels[0, 0]}," in out  # brackets are no markup
    assert f"{answers.label[0]} ({answers.label_probability[0, 0]:.2f})" in out
    assert f"{answers.none[0]:.2f}" in out
    assert "all by the neighbourhood alone" in out
    code, out, err = surefind("search", gallery, "queries.npz", "--json")
    assert code == 0, err
    first = json.loads(out)[0]
    assert (first["decision"], first["probability"], first["reasons"]) == (None, None, [])
    assert first["neighbours"][0]["kappa"] is None


def test_json_has_everything(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz", "-k", 4, "--json")
    assert code == 0, err
    answers, records = expected(calibrated, k=4), json.loads(out)
    assert [row["query"] for row in records] == [f"q{i}" for i in range(30)]
    assert [row["decision"] for row in records] == answers.decision.tolist()
    assert [row["probability"] for row in records] == answers.probability.tolist()
    assert [tuple(row["reasons"]) for row in records] == answers.reasons
    assert [[n["id"] for n in row["neighbours"]] for row in records] == answers.ids.tolist()
    assert [[n["label"] for n in row["neighbours"]] for row in records] == answers.labels.tolist()
    assert not any(row["stale"] for row in records)
    assert [row["label"] for row in records] == answers.label.tolist()
    assert [row["none"] for row in records] == answers.none.tolist()
    listed = [[found["label"] for found in row["label_probability"]] for row in records]
    assert listed == answers.candidates.tolist()
    for i, row in enumerate(records):
        evidence = [[item["id"] for item in found["items"]] for found in row["evidence"]]
        assert evidence == [found.ids for found in answers.evidence(i)]
        assert row["evidence"][0]["label"] == row["label"]


def test_the_table_shows_decisions_and_counts_them(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz")
    assert code == 0, err
    decisions = expected(calibrated).decision.tolist()
    counts = ", ".join(f"{decisions.count(d)} {d}" for d in ("match", "review", "no_match"))
    assert f"Decisions: {counts}." in out
    assert "of the label as calibrated" in out


@pytest.fixture
def outvoted(surefind):
    """A query whose nearest item is a stray a among many b."""
    rng = np.random.default_rng(0)
    centres = np.eye(4)[[0] * 30 + [1] * 30]
    x = centres + 0.05 * rng.normal(size=(60, 4))
    x[30] = np.eye(4)[0]  # b by its label, in the middle of the a
    labels = ["a"] * 30 + ["b"] * 30
    with Gallery(path="g", normalize=True) as made:
        made.add(x, ids=[f"i{i}" for i in range(60)], labels=labels)
    np.savez("query.npz", features=np.eye(4, dtype=np.float32)[:1], ids=["q"])
    return "g"


def test_the_label_need_not_be_the_nearest_items(surefind, outvoted):
    code, out, err = surefind("search", outvoted, "query.npz", "-k", 2, "--out", "a.csv", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["neighbours"][0]["id"], row["neighbours"][0]["label"]) == ("i30", "b")
    assert row["label"] == "a" == row["label_probability"][0]["label"]
    assert row["evidence"][0]["label"] == "a"
    with open("a.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["label"] for line in lines] == ["a", "a"]
    assert [line["item_label"] for line in lines] == ["b", "a"]
    assert lines[0]["runner_up"] == "b"
    _, out, _ = surefind("search", outvoted, "query.npz")
    assert f"│ q │ a ({row['label_probability'][0]['probability']:.2f})" in out


def test_files_have_every_query(surefind, calibrated):
    code, out, err = surefind("search", calibrated, "queries.npz", "-k", 3, "--out", "in/a.csv")
    assert code == 0, err
    assert "Wrote the answers of 30 queries to in/a.csv." in out
    with open("in/a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = expected(calibrated, k=3)
    assert [r["id"] for r in rows] == answers.ids.ravel().tolist()
    assert [r["rank"] for r in rows[:3]] == ["1", "2", "3"]
    assert {r["kappa"] for r in rows} == {r["item_kappa"] for r in rows} == {""}
    assert [r["item_label"] for r in rows] == answers.labels.ravel().tolist()
    first = rows[::3]
    assert [r["label"] for r in first] == answers.label.tolist()
    assert [r["runner_up"] for r in first] == answers.candidates[:, 1].tolist()
    for column, values in (
        ("label_probability", answers.label_probability[:, 0]),
        ("runner_up_probability", answers.label_probability[:, 1]),
        ("none", answers.none),
        ("probability", answers.probability),
    ):
        assert [float(r[column]) for r in first] == values.tolist()
    assert [r["decision"] for r in first] == answers.decision.tolist()
    surefind("search", calibrated, "queries.npz", "--out", "a.json")
    with open("a.json") as file:
        assert len(json.load(file)) == 30


def test_with_json_nothing_else_is_printed(surefind, sure):
    surefind("index", "digits:train", "--run", sure, "--out", "g")
    options = ("--run", sure, "-k", 2, "--json", "--out", "a.json")
    code, out, err = surefind("search", "g", "digits:test", *options)
    assert code == 0
    assert len(json.loads(out)) == 599
    assert "Embedding 599 inputs takes" in err
    assert "Wrote the answers" in err


def test_a_stale_calibration_is_refused_marked_or_ignored(surefind, refused, calibrated):
    with Gallery.open(calibrated) as opened:
        opened.delete(["p0"])
    error = refused("search", calibrated, "queries.npz")
    assert isinstance(error, sf.StaleError)
    assert "--stale mark" in error.hint_for("cli")
    code, out, err = surefind("search", calibrated, "queries.npz", "--stale", "mark")
    assert code == 0, err
    assert "They are stale" in out
    code, out, err = surefind("search", calibrated, "queries.npz", "--stale", "ignore")
    assert code == 0, err
    assert "Decisions" not in out


def test_bad_images_are_left_out_beside_what_a_program_reads(surefind, refused, sure, broken):
    assert surefind("index", "pets/dog", "--run", sure, "--out", "g")[0] == 0
    search = ("search", "g", "pets/cat", "--run", sure)
    assert refused(*search).field == "on_bad"
    code, out, err = surefind(*search, "--on-bad", "skip", "--json")
    assert code == 0, err
    assert [row["query"] for row in json.loads(out)] == [f"{i}.png" for i in range(6)]
    assert "Left out 1 images that cannot be read:" in err
    code, out, err = surefind(*search, "--on-bad", "skip")
    assert out.endswith(f"surefind calibrate g HELD-OUT --run {sure} --on-bad skip")


def test_groups_and_ranks_reach_the_gallery(surefind, calibrated):
    np.save("groups.npy", np.array(["day"] * 30))
    code, _, err = surefind("search", calibrated, "queries.npz", "--groups", "groups.npy")
    assert code == 0, err
    np.savez("sure.npz", mean=faces(30, 5)[0], kappa=np.full(30, 5.0))
    found = {}
    for rank in ("distance", "expected"):
        code, out, err = surefind("search", calibrated, "sure.npz", "--rank", rank, "--json")
        assert code == 0, err
        found[rank] = [(row["label"], row["decision"]) for row in json.loads(out)]
    assert found["distance"] == found["expected"]  # an order decides nothing


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["g", "queries.npz", "--out", "a.txt"], "out"),
        (["g", "queries.npz", "-k", 0], "k"),
        (["nowhere", "gone"], "path"),
        (["g", "queries.npz", "--rank", "match"], "rank"),
        (["g", "gone", "--out", "folder.csv"], "out"),
        (["g", "gone"], "source"),
    ],
)
def test_what_cannot_be_searched_is_refused(refused, gallery, options, field):
    Path("folder.csv").mkdir()
    assert refused("search", *options).field == field


def test_what_a_gallery_refuses_is_a_sentence(refused, gallery):
    np.save("wide.npy", np.eye(9, dtype=np.float32))
    Gallery(path="empty").close()
    for arguments in (("g", "wide.npy"), ("empty", "queries.npz")):
        assert isinstance(refused("search", *arguments), sf.InputError)


@pytest.mark.parametrize("options", [["g", "queries.npz", "--stale", "perhaps"], ["g"]])
def test_wrong_usage_has_its_own_code(surefind, options):
    assert surefind("search", *options)[0] == 2


def test_another_run_is_refused(surefind, refused, sure, trained):
    surefind("index", "digits:train", "--run", sure, "--out", "g")
    assert refused("search", "g", "digits:test", "--run", trained).field == "run"
