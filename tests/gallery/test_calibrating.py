"""Calibrations: what they rest on, how they are kept and renewed, and when they are refused."""

import json
import sqlite3
import zlib

import numpy as np
import pytest
from gallery.people import DIM, People, names, unit

from surefind.decisions.decider import LEAST, Decider
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery
from surefind.labels.model import LabelModel


@pytest.fixture
def people():
    return People()


@pytest.fixture
def gallery(people):
    made = people.gallery()
    made.calibrate(*people.asked(), max_wrong=0.1)
    return made


def test_known_people_match_and_unknown_ones_do_not(gallery, people):
    made = gallery.calibration
    assert made.reached
    assert not made.stale
    assert 0.4 < made.unknown / made.queries < 0.6
    assert made.left_out_queries  # unknown queries are always tested by labels left out too
    known = gallery.search(people.faces(np.arange(20).repeat(5)), k=3)
    right = known.label == np.array(names(np.arange(20).repeat(5)), dtype=object)
    assert (known.decision[right] == "match").mean() > 0.7
    unknown = gallery.search(people.faces(np.arange(20, 40).repeat(5)))
    assert (unknown.decision == "match").mean() < 0.1
    assert [bool(r) for r in unknown.reasons] == (unknown.decision != "match").tolist()
    assert known.ids.shape == (100, 3)
    assert json.dumps(known.records())


def test_items_play_the_queries_where_there_are_none(people):
    gallery = people.gallery(each=15)
    made = gallery.calibrate(max_wrong=0.1)
    assert made.reached
    assert any("Items played the queries" in note for note in made.notes)
    assert made == gallery.calibrate(max_wrong=0.1)
    found = gallery.search(people.faces(np.arange(40).repeat(5)))
    wrong = found.label != np.array(names(np.arange(40).repeat(5)), dtype=object)
    matched = found.decision == "match"
    assert matched[:100].mean() > 0.5
    assert wrong[matched].mean() < 0.1


def test_items_that_a_network_was_trained_on_play_no_queries(people, tmp_path):
    gallery = people.gallery(each=15, path=tmp_path / "gallery")
    trained = [*gallery][::2]
    made, whole = (gallery.calibrate(max_wrong=0.1, trained=x) for x in (trained, None))
    assert made.queries < 0.6 * whole.queries
    said = f"{len(trained):,} items that the network was trained on played no queries."
    assert said in made.notes
    assert said not in whole.notes
    gallery.calibrate(max_wrong=0.1, trained=trained)
    gallery.close()
    with Gallery.open(tmp_path / "gallery") as again:  # a renewal leaves them out too
        new = people.faces(np.arange(20))
        again.add(new, ids=[f"new {i}" for i in range(20)], labels=names(np.arange(20)))
        renewed = again.renew()
        assert said in renewed.notes
        assert renewed.queries < 0.6 * whole.queries
        with pytest.raises(DegenerateError, match="played no queries"):
            again.calibrate(trained=[*again])


@pytest.mark.parametrize("given", [False, True], ids=["groups of add", "groups of calibrate"])
def test_groups_are_left_out_together(given):
    """Sessions are recognised, people are not: without their session nobody is found."""
    rng = np.random.default_rng(4)
    session = np.repeat(np.arange(100), 4)
    centres = unit(rng.normal(size=(100, DIM)))
    x = unit(centres[session] + 0.12 * rng.normal(size=(400, DIM)))
    easy, hard, ids = Gallery(), Gallery(), [f"i{n}" for n in range(400)]
    easy.add(x, labels=session % 25, ids=ids)
    hard.add(x, labels=session % 25, ids=ids, groups=None if given else [f"s{s}" for s in session])
    groups = dict(zip(ids, map(str, session), strict=True)) if given else None
    fooled, honest = easy.calibrate(max_wrong=0.1), hard.calibrate(groups=groups, max_wrong=0.1)
    assert fooled.right > 0.6 * (fooled.queries - fooled.unknown)
    assert honest.right < 0.3 * (honest.queries - honest.unknown)


def test_copies_of_an_item_do_not_answer_it():
    rng = np.random.default_rng(5)
    x = unit(rng.normal(size=(200, DIM)))  # labels at random: only a copy could be right
    gallery = Gallery()
    gallery.add(np.repeat(x, 2, axis=0), labels=np.repeat(rng.integers(20, size=200), 2))
    assert gallery.calibrate().right < 60


def test_queries_that_are_items_are_left_out_or_refused(people):
    gallery = people.gallery()
    (x, truth), own = people.asked(), [gallery.get(id_) for id_ in list(gallery)[:30]]
    vectors = np.stack([item.vector for item in own])
    made = gallery.calibrate(np.concatenate([x, vectors]), [*truth, *(i.label for i in own)])
    assert made.queries == 600
    assert any("30 of the queries are items" in note for note in made.notes)
    ids = [f"query {n}" for n in range(590)] + [item.id for item in own[:10]]
    assert gallery.calibrate(x, truth, ids=ids).queries == 590
    before = gallery.calibration
    with pytest.raises(InputError) as refused:
        gallery.calibrate(vectors, [item.label for item in own])
    assert refused.value.field == "queries"
    assert gallery.calibration == before


def test_labels_that_are_enrolled_or_removed_change_sides(gallery, people):
    before, truth = gallery.calibration, gallery._asked().truth.tolist()
    people.enrol(gallery, [20, 20, 21, 21])
    assert gallery.calibration.stale
    after = gallery.renew()
    assert after.unknown == before.unknown - truth.count("p20") - truth.count("p21")
    gallery.delete([id_ for id_ in gallery if str(id_).startswith(("0-", "1-"))])
    assert gallery.renew().unknown == after.unknown + truth.count("p0") + truth.count("p1")
    assert gallery.calibration.renewals == 2
    assert not gallery.calibration.stale


def test_undone_changes_make_the_calibration_hold_again(gallery, people):
    people.enrol(gallery, [0], ids=["guest"])
    assert gallery.search(people.faces([0])).stale
    gallery.delete("guest")
    gallery.update(ids=["0-0"], payload=[{"seen": True}])
    assert not gallery.search(people.faces([0])).stale


def test_new_labels_are_reviewed_until_items_of_them_were_asked():
    """Labels that no query knows: of few items they stay untested, of many a renewal asks left-out ones."""
    people = People(42)
    gallery = people.gallery()
    who = people.rng.integers(40, size=600)
    gallery.calibrate(people.faces(who), names(who), max_wrong=0.1)
    people.enrol(gallery, [40] * (LEAST - 1) + [41] * 20)

    def answers():
        found = gallery.search(people.faces([40] * 20 + [41] * 20))
        assert (found.label[:20] == "p40").mean() > 0.8
        assert (found.label[20:] == "p41").mean() > 0.8
        return found

    for row, decision in enumerate(answers().decision):
        assert decision != "match", row
    assert gallery.renew().queries > 600
    found = answers()
    assert "match" not in found.decision[:20]
    assert any("label not tested" in why for reasons in found.reasons[:20] for why in reasons)
    assert (found.decision[20:] == "match").any()


def test_copies_and_groups_of_a_new_label_do_not_answer_each_other():
    """An item of it is there ten times, or all are of one video: nothing of it is left to be asked."""
    people = People(42)
    gallery, who = people.gallery(each=30), people.rng.integers(40, size=600)
    gallery.calibrate(people.faces(who), names(who), max_wrong=0.1)
    gallery.add(np.repeat(people.faces([40]), 10, axis=0), labels=["p40"] * 10)
    people.enrol(gallery, [41] * 10, groups=["video"] * 10)
    for _ in range(2):
        gallery.renew()
        found = gallery.search(people.faces([40, 41] * 10))
        assert "match" not in found.decision
        assert not {"p40", "p41"} & {*gallery.calibration.labels}
        gallery.delete(next(iter(gallery)))


def test_groups_have_thresholds(people):
    gallery, (x, truth) = people.gallery(), people.asked(900)
    groups = ["a" if n % 2 else "b" for n in range(900)]
    made = gallery.calibrate(x, truth, max_wrong=0.1, groups=groups)
    assert {g.name for g in made.groups} == {"a", "b"}
    assert "match" in gallery.search(x, groups=groups).decision


def test_another_model_is_refused(people):
    gallery = people.gallery(model="a")
    gallery.calibrate(*people.asked())
    gallery.model = "b"
    with pytest.raises(InputError) as refused:
        gallery.search(people.faces([0]))
    assert refused.value.field == "calibration"
    assert gallery.search(people.faces([0]), decide=False).decision is None
    assert gallery.info["faults"] == ["calibration: it was made with another model"]


def test_minus_one_and_none_are_the_same(people):
    gallery, (x, truth) = people.gallery(), people.asked()
    unknown = [name if int(name[1:]) < 20 else None for name in truth]
    first = gallery.calibrate(x, unknown)
    assert first == gallery.calibrate(x, [-1 if name is None else name for name in unknown])


def test_what_cannot_be_calibrated_is_refused(people):
    gallery, (x, truth) = people.gallery(), people.asked()
    for call, error, field in (
        (lambda: Gallery().calibrate(), DegenerateError, None),
        (lambda: gallery.calibrate(x, ["nobody"] * 600), InputError, "truth"),
        (lambda: gallery.calibrate(x, truth[1:]), InputError, "truth"),
        (lambda: gallery.calibrate(x[:3], truth[:3]), DegenerateError, "truth"),
        (lambda: gallery.calibrate(truth=truth), InputError, "queries"),
        (lambda: gallery.calibrate(ids=[1]), InputError, "queries"),
        (lambda: gallery.calibrate(groups=["a"]), InputError, "groups"),
        (lambda: gallery.calibrate(unknown_share=1.0), InputError, "unknown_share"),
        (lambda: gallery.calibrate(max_fpir=2.0), InputError, "max_fpir"),
        (lambda: people.gallery(each=1).calibrate(), DegenerateError, "labels"),
    ):
        with pytest.raises(error) as refused:
            call()
        assert refused.value.field == field
    assert gallery.calibration is None


def test_a_calibration_is_kept_with_the_items(gallery, people, tmp_path):
    later = people.faces(np.arange(30))
    made, answers = gallery.calibration, gallery.search(later)
    gallery.save(tmp_path / "g")
    people.enrol(gallery, [3], ids=["guest"])
    stale = gallery.search(later)
    gallery.close()
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        found = reader.search(later)
        assert found.stale
        np.testing.assert_allclose(found.probability, stale.probability, atol=1e-6)
        assert reader.renew().renewals == 1  # in memory
        assert not reader.search(later).stale
    with Gallery.open(tmp_path / "g") as again:
        again.delete("guest")
        assert again.calibration == made
        np.testing.assert_allclose(again.search(later).probability, answers.probability, atol=1e-6)
        people.enrol(again, [25, 25])
        renewed = again.renew()
    with Gallery.open(tmp_path / "g") as again:
        assert again.calibration == renewed


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
    gallery.save(tmp_path / "g")
    gallery.close()

    def lower(record):
        curve = record["value"]["calibration"]["risk_curve"]
        curve["thresholds"] = [x / 5 for x in curve["thresholds"]]

    edited(tmp_path / "g", ("metadata calibration", lower))
    with pytest.warns(RuntimeWarning, match=r"without decisions.*Calibrate again"):
        opened = Gallery.open(tmp_path / "g")
    with opened:
        assert opened.calibration is None
        assert opened.search(people.faces([0])).decision is None
        opened.calibrate(*people.asked(), max_wrong=0.1)
        assert opened.search(people.faces([0])).decision is not None


def test_edited_queries_renew_nothing(gallery, people, tmp_path):
    gallery.save(tmp_path / "g")
    gallery.close()
    edited(
        tmp_path / "g", ("metadata queries", lambda kept: kept["value"]["truth"]["data"].reverse())
    )
    with Gallery.open(tmp_path / "g") as opened:
        opened.delete("0-0")
        assert opened.info["reviews_needed"] > 1
        assert opened.search(people.faces([3])).label[0] == "p3"
        with pytest.raises(InputError) as refused:
            opened.renew()
        assert refused.value.field == "stored"


def test_an_edited_label_model_is_fitted_again(gallery, people, tmp_path):
    gallery.save(tmp_path / "g")
    gallery.close()
    edited(tmp_path / "g", ("metadata label model", lambda kept: kept["model"].update(checksum="")))
    with Gallery.open(tmp_path / "g") as opened:
        assert opened.search(people.faces([3])).label[0] == "p3"


def test_items_that_play_queries_have_their_own_novelty(people):
    who = np.repeat(np.arange(20), 15)
    p = people.rng.random(300)
    gallery = Gallery()
    gallery.add(Embeddings(people.faces(who), np.full(300, 50.0), p), labels=names(who))
    made = gallery.calibrate(max_wrong=0.1)
    assert made.gate_counts.unlike + made.gate_counts.unusual == (p <= 0.1).sum()
    with pytest.raises(InputError) as refused:
        gallery.search(people.faces([0]))
    assert refused.value.field == "novelty"


def test_queries_without_novelty_are_compared_with_items_by_that_of_the_label_model():
    """Whatever novelty the items have of their own: here all are unlike anything."""
    people, who, made = People(spread=0.35), np.repeat(np.arange(20), 15), []
    x, truth = people.asked()
    for novelty in (None, np.full(300, 1e-6)):
        gallery = Gallery()
        faces = People(spread=0.35).faces(who)
        gallery.add(Embeddings(faces, np.full(300, np.inf), novelty), labels=names(who))
        made.append(gallery.calibrate(x, truth, max_wrong=0.5, max_false_alarms=0.001))
    assert made[0].left_out_matched == made[1].left_out_matched > 0


def test_a_changed_gallery_answers_like_a_new_one(people):
    """Items that come and go change the centres, until they are a tenth of all."""
    gallery = people.gallery(each=20)
    gallery.search(people.faces([0]))
    fitted = gallery._learned.model.settings.items
    people.enrol(gallery, np.arange(20), ids=range(20))
    gallery.update(people.faces([7, 8]), ids=["7-140", "8-160"])
    gallery.update(ids=["9-180"], labels=["p10"])
    gallery.delete([f"3-{n}" for n in range(60, 75)])
    assert gallery._learned.model.settings.items == fitted
    items = list(gallery.items())
    model = gallery._learned.model.recounted(
        np.stack([i.vector for i in items]), [i.label for i in items]
    )
    queries = people.faces(np.arange(20))
    found, expected = gallery.search(queries), model.posterior(queries)
    assert gallery._learned.model.counts == model.counts == gallery.labels()
    assert found.label.tolist() == expected.label.tolist()
    np.testing.assert_allclose(found.none, expected.none, atol=0.05)
    people.enrol(gallery, np.arange(20).repeat(3))
    gallery.search(queries)
    assert gallery._learned.model.settings.items == len(gallery)


def test_items_that_somebody_else_added_can_be_deleted(gallery, people):
    """As in a collection of Milvus, which several may change."""
    theirs = Gallery()
    people.enrol(theirs, [30, 30], ids=["x", "y"])
    gallery._engine.put(theirs._engine.fetch(["x", "y"]))
    gallery.delete(["x", "y"])
    assert (gallery.search(people.faces(np.arange(20))).label == names(range(20))).mean() > 0.8


def policies():
    """Galleries of few labels, and what a search of the first item must say."""
    people = People()
    x = people.faces(np.arange(20))
    yield "no labels", (x, [None] * 20), None
    yield "one label", (people.faces([0] * 20), ["p0"] * 20), "p0"
    yield "two labels", (people.faces([0, 1] * 10), names([0, 1] * 10)), "p0"
    yield "one item a label", (x, names(range(20))), "p0"
    yield "one item", (x[:1], ["p0"]), "p0"
    yield "some without", (people.faces([0] * 20 + [1] * 9), ["p0"] * 20 + [None] * 9), "p0"
    yield "equal vectors", (np.repeat(x[:2], 10, axis=0), ["p0"] * 10 + [7] * 10), "p0"


@pytest.mark.parametrize(
    ("items", "label"), [p[1:] for p in policies()], ids=[p[0] for p in policies()]
)
def test_few_labels_are_named_policies(items, label):
    gallery = Gallery()
    gallery.add(items[0], labels=items[1])
    found = gallery.search(items[0][:1], k=2)
    assert found.label[0] == label
    assert found.decision is None
    assert found.ids.shape == (1, min(2, len(gallery)))
    assert gallery.renew() is None
    json.dumps(found.records())
    if label is not None:
        only = gallery.search(items[0][:1], labels=label)
        assert (only.label[0], set(only.neighbour_labels[0])) == (label, {label})


def test_a_label_that_was_emptied_is_no_label(gallery, people):
    x = people.faces([0] * 20)
    gallery.delete([id_ for id_ in gallery if str(id_).startswith("0-")])
    assert "p0" not in gallery.labels()
    assert "p0" not in gallery.search(x).label
    gallery.delete(list(gallery))
    gallery.add(x)
    found = gallery.search(x)
    assert set(found.label) == {None}
    assert set(found.decision) == {"no_match"}
    assert gallery.renew().stale
    people.enrol(gallery, [0, 0])
    assert set(gallery.search(x).label) == {"p0"}


def test_an_item_without_a_label_is_never_a_match(gallery, people):
    stranger = people.faces([30])
    gallery.add(np.repeat(stranger, 50, axis=0))
    answers = gallery.search(stranger)
    assert answers.neighbour_labels[0].tolist() == [None] * 10
    assert answers.decision[0] != "match"


@pytest.mark.parametrize("held_out", [False, True], ids=["items as queries", "held-out queries"])
def test_a_gallery_and_a_decider_answer_alike(people, held_out):
    gallery, (x, truth) = people.gallery(each=15), people.asked()
    items = [gallery.get(id_) for id_ in gallery]
    vectors, labels = np.stack([i.vector for i in items]), [i.label for i in items]
    decider = Decider(max_wrong=0.1).fit(vectors, labels)
    if held_out:
        decider.calibrate(x, truth)
        gallery.calibrate(x, truth, max_wrong=0.1)
    else:
        gallery.calibrate(max_wrong=0.1)
    assert gallery.calibration.threshold == decider.calibration.threshold
    queries = people.faces(np.arange(40))
    found, expected = gallery.search(queries), decider.decide(queries)
    for name in ("label", "decision", "probability", "none", "novelty"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    only = {"labels": ["p1", "p2"]}
    found, expected = gallery.search(queries, **only), decider.decide(queries, **only)
    np.testing.assert_array_equal(found.probability, expected.probability)


def test_searches_by_some_labels_decide(gallery, people):
    found = gallery.search(people.faces(np.arange(20)), labels=["p3", "p4"])
    assert set(found.label) <= {"p3", "p4"}
    assert found.decision[3] == found.decision[4] == "match"
    assert gallery.watch().queries == 0


def test_what_is_stored_is_not_written_again_with_small_changes(gallery, tmp_path, monkeypatch):
    gallery.save(tmp_path / "g")
    written = []
    original = LabelModel.to_stored
    monkeypatch.setattr(LabelModel, "to_stored", lambda model: written.append(1) or original(model))
    gallery.info |= {"run": "runs/a"}
    gallery.add(unit(np.ones((1, DIM))), labels=["p0"])
    assert not written
    gallery.close()
    assert written == [1]
