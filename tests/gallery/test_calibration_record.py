"""Decisions: what they rest on, how they are kept, and when they are refused."""

import json
import sqlite3
import zlib
from dataclasses import replace

import numpy as np
import pytest

from surefind.decisions.label_posterior import LabelModel
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery
from surefind.gallery.label_fit import LabelFit

DIM, PEOPLE = 16, 20


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    centres, strangers = unit(rng.normal(size=(2, PEOPLE, DIM)).reshape(-1, DIM)).reshape(
        2, PEOPLE, DIM
    )

    def faces(of, each, spread=0.08):
        who = np.repeat(np.arange(PEOPLE), each)
        mean = unit(of[who] + spread * rng.normal(size=(len(who), DIM)))
        return Embeddings(mean, rng.uniform(50, 100, len(who))), [f"p{w}" for w in who]

    return {
        "gallery": faces(centres, 3),
        "known": faces(centres, 20),
        "unknown": (faces(strangers, 10)[0], [None] * 200),
        "later": faces(centres, 2),
        "strange": faces(strangers, 1),
    }


def both(people):
    (a, x), (b, y) = people["known"], people["unknown"]
    return Embeddings(np.r_[a.mean, b.mean], np.r_[a.kappa, b.kappa]), x + y


@pytest.fixture
def gallery(people):
    made = Gallery(model="face-1")
    items, labels = people["gallery"]
    made.add(items, labels=labels)
    return made


def test_known_people_match_and_strangers_do_not(gallery, people):
    calibration = gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    assert calibration == gallery.calibration
    assert calibration.reached
    assert calibration.unknown == 200
    items, labels = people["later"]
    answers = gallery.search(items, k=3)
    np.testing.assert_array_equal(gallery.search(items, k=30).probability, answers.probability)
    assert (answers.label == labels).mean() > 0.95
    assert (answers.decision == "match").mean() > 0.9
    assert (answers.probability[answers.decision == "match"] > 0.5).all()
    strange = gallery.search(people["strange"][0])
    assert (strange.decision == "match").mean() <= 0.1
    assert [bool(r) for r in strange.reasons] == (strange.decision != "match").tolist()
    assert len(strange.reasons) == len(strange) == PEOPLE


def test_minus_one_and_none_are_the_same(gallery, people):
    items, labels = both(people)
    first = gallery.calibrate(items, labels, contributions=False)
    again = gallery.calibrate(items, [-1 if x is None else x for x in labels], contributions=False)
    assert first == again


def test_undone_changes_make_the_calibration_hold_again(gallery, people):
    later = people["later"][0]
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    gallery.add(later[:1], ids=["guest"])
    gallery.delete("guest")
    gallery.update(ids=[0], payload=[{"seen": True}])
    assert not gallery.search(later).stale


def test_labels_must_be_in_the_gallery(gallery, people):
    items, labels = both(people)
    for given, error, field in (
        ((items, ["nobody"] * len(labels)), InputError, "labels"),
        ((items, labels[1:]), InputError, "labels"),
        ((items[:5], labels[:5]), DegenerateError, None),
    ):
        with pytest.raises(error) as refused:
            gallery.calibrate(*given)
        assert refused.value.field == field
    assert gallery.calibration is None


def test_queries_that_are_items_are_answered_without_themselves(people):
    """Labels at random: only a query that finds itself could be right."""
    rng = np.random.default_rng(3)
    x = unit(rng.normal(size=(800, DIM)))
    names = rng.integers(40, size=800)
    gallery = Gallery()
    gallery.add(x, labels=names, ids=[f"i{n}" for n in range(800)])
    calibration = gallery.calibrate(x, names, contributions=False)
    assert calibration.right < 0.2 * calibration.queries
    assert any("800 of the queries are items of the gallery" in note for note in calibration.notes)
    moved = unit(x + 0.02 * rng.normal(size=x.shape))
    known = gallery.calibrate(moved, names, ids=[f"i{n}" for n in range(800)], contributions=False)
    assert known.right < 0.2 * known.queries
    fresh = gallery.calibrate(unit(rng.normal(size=(800, DIM))), names, contributions=False)
    assert not any("items of the gallery" in note for note in fresh.notes)


def test_a_query_that_is_its_labels_only_item_is_unknown():
    rng = np.random.default_rng(4)
    x = unit(rng.normal(size=(60, DIM)))
    gallery = Gallery()
    gallery.add(x, labels=[0] * 30 + list(range(1, 31)))
    calibration = gallery.calibrate(x, [0] * 30 + list(range(1, 31)), contributions=False)
    assert calibration.unknown == 30


def test_leaving_oneself_out_is_a_gallery_without_oneself(people):
    """Each query in turn, in a gallery that never held it."""
    items, labels = people["gallery"]
    whole = Gallery()
    whole.add(items, labels=labels)
    model = whole._label_fit().model
    calibration = whole.calibrate(items, labels, contributions=False)
    right = 0
    for n in range(len(labels)):
        rest = [i for i in range(len(labels)) if i != n]
        gallery = Gallery()
        gallery.add(items[rest], labels=[labels[i] for i in rest])
        gallery._labels = LabelFit(model, len(rest))
        right += gallery.search(items[[n]]).label[0] == labels[n]
    assert calibration.right == right


def test_a_later_fit_of_the_labels_does_not_change_a_calibration(gallery, people):
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    before = gallery.search(people["later"][0])
    gallery._labels = LabelFit(LabelModel(temperature=1.0, none_level=9.0), len(gallery))
    after = gallery.search(people["later"][0])
    np.testing.assert_array_equal(before.probability, after.probability)
    undecided = gallery.search(people["later"][0], decide=False)
    assert (undecided.none != before.none).any()


def test_plain_vectors_get_no_decision_where_the_calibration_had_kappa(gallery, people):
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    later = people["later"][0]
    some = Embeddings(later.mean, np.where(np.arange(len(later)) == 3, np.inf, later.kappa))
    for queries in (later.mean, some):
        with pytest.raises(InputError) as refused:
            gallery.search(queries)
        assert refused.value.field == "embeddings"
        assert refused.value.hint
    assert gallery.search(later.mean, decide=False).decision is None
    assert (gallery.search(later).decision == "match").any()


def test_items_without_a_label_are_never_a_match(gallery, people):
    """Neither where they are near, nor by a calibration that calls everything a match."""
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    stranger = people["strange"][0][:1]
    gallery.add(np.repeat(stranger.mean, 150, axis=0))
    record = gallery._state.record
    made = record.rule.calibration
    every = replace(made.risk_curve, thresholds=(0.0,) * len(made.risk_curve.thresholds))
    rule = replace(record.rule, calibration=replace(made, risk_curve=every))
    gallery._state.record = replace(record, rule=rule)
    answers = gallery.search(stranger)
    assert answers.label[0] is None
    assert (answers.decision[0], answers.probability[0]) == ("no_match", 0)
    assert answers.reasons[0]


def test_queries_are_thinned_to_the_share_of_unknown_ones_that_is_expected(gallery, people):
    queries, truth = both(people)
    unknown = sum(label is None for label in truth)
    made = gallery.calibrate(queries, truth, contributions=False, max_wrong=0.05, unknown_share=0.8)
    assert made.unknown == unknown
    assert made.unknown / made.queries == pytest.approx(0.8, abs=0.01)


def edited(folder, change):
    """Edit what a gallery keeps as somebody would who knows the file: its own checksum fits."""
    connection = sqlite3.connect(folder / "gallery.sqlite")
    for key, value in connection.execute("SELECT key, value FROM state").fetchall():
        after = json.loads(value)
        if key == change[0]:
            change[1](after)
        text = json.dumps(after).encode()
        checksum = zlib.crc32(text, zlib.crc32(key.encode()))
        connection.execute(
            "UPDATE state SET value = ?, checksum = ? WHERE key = ?", (text, checksum, key)
        )
    connection.commit()
    connection.close()


def test_an_edited_threshold_is_refused(gallery, people, tmp_path):
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    gallery.save(tmp_path / "gallery")
    gallery.close()
    later = people["later"][0]
    edited(tmp_path / "gallery", ("none", None))
    with Gallery.open(tmp_path / "gallery") as same:
        assert same.search(later).decision is not None

    def lower(record):
        curve = record["value"]["rule"]["calibration"]["risk_curve"]
        curve["thresholds"] = [x / 5 for x in curve["thresholds"]]

    edited(tmp_path / "gallery", ("metadata calibration", lower))
    with pytest.warns(RuntimeWarning, match=r"without decisions.*Calibrate again"):
        opened = Gallery.open(tmp_path / "gallery")
    with opened:
        assert opened.calibration is None
        assert opened.search(later).decision is None
        opened.calibrate(*both(people), contributions=False, max_wrong=0.05)
        assert opened.search(later).decision is not None


def test_edited_queries_renew_nothing(gallery, people, tmp_path):
    gallery.calibrate(*both(people), contributions=False, max_wrong=0.05)
    gallery.save(tmp_path / "gallery")
    gallery.close()
    edited(
        tmp_path / "gallery", ("metadata queries", lambda kept: kept["value"]["labels"].reverse())
    )
    with Gallery.open(tmp_path / "gallery") as opened:
        opened.delete(0)
        with pytest.raises(InputError) as refused:
            opened.renew()
        assert refused.value.field == "stored"
