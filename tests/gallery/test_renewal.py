"""Calibrations that stay true while items come and go, and calibrations by the gallery's own items."""

import threading

import numpy as np
import pytest

from surefind.decisions.calibration import Target, draw_parts
from surefind.decisions.decider import Rule
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.calibrating import answer
from surefind.gallery.calibration_queries import copies_below
from surefind.gallery.gallery import Gallery
from surefind.gallery.label_fit import LabelFit
from surefind.gallery.neighbourhoods import Neighbourhoods

DIM = 16


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


class People:
    """People with faces around a centre each."""

    def __init__(self, count=60, spread=0.25, seed=0):
        self.rng = np.random.default_rng(seed)
        self.centres = unit(self.rng.normal(size=(count, DIM)))
        self.spread = spread

    def faces(self, who):
        who = np.asarray(who)
        noise = self.spread * self.rng.normal(size=(len(who), DIM))
        return unit(self.centres[who] + noise)


def names(who):
    return [f"p{w}" for w in who]


@pytest.fixture
def people():
    return People()


def calibrated(people, *, each=3, enrolled=30, queries=900, **options):
    """A gallery of the first people, calibrated with queries of everyone."""
    gallery = Gallery(**options)
    who = np.repeat(np.arange(enrolled), each)
    gallery.add(people.faces(who), labels=names(who), ids=[f"{w}-{n}" for n, w in enumerate(who)])
    asked = people.rng.integers(60, size=queries)
    gallery.calibrate(people.faces(asked), names(asked), max_wrong=0.1, contributions=False)
    return gallery


def test_labels_that_are_not_enrolled_are_unknown_and_change_sides(people):
    gallery = calibrated(people)
    before = gallery.calibration
    assert any("count as unknown until they are enrolled" in note for note in before.notes)
    assert 0.4 < before.unknown / before.queries < 0.6
    gallery.add(people.faces([30, 30, 31, 31]), labels=names([30, 30, 31, 31]))
    after = gallery.renew()
    asked = [label for label in gallery._state.queries.labels if label in ("p30", "p31")]
    assert after.unknown == before.unknown - len(asked)
    gallery.delete([id_ for id_ in gallery if str(id_).startswith(("0-", "1-"))])
    gallery.renew()
    gone = sum(label in ("p0", "p1") for label in gallery._state.queries.labels)
    assert gallery.calibration.unknown == after.unknown + gone
    assert gallery.calibration.renewals == 2


def uneven(rng, count):
    """People as they come: the first rarely, the last thirty times as often."""
    return rng.choice(30, size=count, p=np.arange(1, 31) / 465)


def test_how_often_labels_are_asked_for_is_learnt_from_queries_and_kept(tmp_path):
    people, rng = People(spread=0.6), np.random.default_rng(3)
    gallery, who = Gallery(), np.repeat(np.arange(30), np.arange(1, 31))
    gallery.add(people.faces(who), labels=names(who), ids=[f"{w}-{n}" for n, w in enumerate(who)])
    assert gallery._label_fit().model.prior == 0  # items cannot say
    asked = uneven(rng, 1000)
    gallery.calibrate(people.faces(asked), names(asked), max_wrong=0.3, contributions=False)
    learnt = gallery._state.record.rule.labels.prior
    assert 0.4 < learnt < 2
    gallery.save(tmp_path / "own")
    gallery.save(tmp_path / "kept")
    with Gallery.open(tmp_path / "kept") as again:
        assert again._label_fit().model == gallery._label_fit().model
        assert again._state.record.rule.labels == again._label_fit().model
        few = np.arange(30).repeat(2)
        again.add(people.faces(few), labels=names(few))  # a tenth more
        assert again._label_fit().model.enrolled > gallery._label_fit().model.enrolled
        assert again._label_fit().model.prior == learnt
    # So many more that the rest is fitted again, and this with it.
    more = np.repeat(np.arange(30), 2 * np.arange(1, 31))
    gallery.add(people.faces(more), labels=names(more))
    gallery.renew()
    renewed = gallery._state.record.rule
    assert renewed.calibration.renewals == 1
    assert renewed.labels.enrolled > len(who)
    assert renewed.labels.prior == pytest.approx(learnt, abs=0.5)
    assert renewed.labels.prior != learnt
    gallery.calibrate(unknown_share=0.5)
    assert gallery._state.record.rule.labels.prior == 0
    gallery.close()


def test_queries_that_test_thresholds_teach_nothing():
    people, rng = People(spread=0.6), np.random.default_rng(3)
    gallery, who = Gallery(), np.repeat(np.arange(30), np.arange(1, 31))
    gallery.add(people.faces(who), labels=names(who))
    asked = uneven(rng, 900)
    faces, called = people.faces(asked), np.array(names(asked), dtype=object)
    gallery.calibrate(faces, called.tolist(), contributions=False)
    learnt = gallery._label_fit().model.prior
    (fitting, testing), _ = draw_parts(np.ones(900, dtype=bool), Target().rng)
    assert len(fitting) + len(testing) == 900
    called[testing] = called[rng.permutation(testing)]
    gallery.calibrate(faces, called.tolist(), contributions=False)
    assert gallery._label_fit().model.prior == learnt
    called[fitting] = "p0"
    gallery.calibrate(faces, called.tolist(), contributions=False)
    assert gallery._label_fit().model.prior != learnt


def copied(gallery):
    """A gallery with the same items that never was another one."""
    fresh = Gallery()
    items = list(gallery.items())
    fresh.add(
        np.stack([item.vector for item in items]),
        ids=[item.id for item in items],
        labels=[item.label for item in items],
        groups=[item.group for item in items],
    )
    return fresh


def as_if_anew(gallery):
    """What the kept queries say in a gallery with the same items, searched from scratch."""
    engine, state = copied(gallery)._engine, gallery._state
    hoods, labels = Neighbourhoods.search(engine, state.queries), state.record.labels
    found = answer(engine, state.queries, hoods, labels)
    return Rule.learn(state.target, found.answers, labels.model, notes=found.notes).calibration


def disturb(gallery, people, rng, step):
    """Enrol, delete and change some items."""
    who = rng.integers(60, size=4)
    gallery.add(people.faces(who), labels=names(who))
    gallery.delete(rng.choice([i for i in gallery if isinstance(i, str)], size=2).tolist())
    if step % 2:
        some = [i for i in gallery if isinstance(i, str)][:2]
        gallery.update(people.faces([7, 8]), ids=some, labels=["p7", "p8"])


@pytest.mark.parametrize("own", [False, True], ids=["held-out queries", "items as queries"])
def test_a_renewal_is_a_calibration_of_the_gallery_as_it_is(people, own):
    gallery = calibrated(people, each=8)
    if own:
        gallery.calibrate(unknown_share=0.3, max_wrong=0.1, contributions=False)
    rng = np.random.default_rng(5)
    for step in range(4):
        disturb(gallery, people, rng, step)
        renewed = gallery.renew()
        assert renewed == as_if_anew(gallery)
        assert gallery.renew().renewals == renewed.renewals
    assert gallery.calibration.renewals == 4


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_decisions_go_on_after_changes(people, index, tmp_path):
    """Marked as stale until the calibration is renewed, which is stored, or kept in memory by a reader."""
    gallery = calibrated(people, index=index)
    gallery.save(tmp_path / "g")
    gallery.add(people.faces([40]), labels=["p40"], ids=["guest"])
    answers = gallery.search(people.faces([0]))
    assert answers.stale
    assert answers.decision is not None
    assert gallery.calibration.stale
    assert not gallery.renew().stale
    assert not gallery.search(people.faces([0])).stale
    renewed = gallery.calibration
    gallery.close()
    with Gallery.open(tmp_path / "g") as again:
        assert again.calibration == renewed
        assert (again.calibration.renewals, again.calibration.made) == (1, renewed.made)
        again.delete("guest")
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        assert reader.search(people.faces([0])).stale
        assert reader.renew().renewals == 2
        assert not reader.search(people.faces([0])).stale
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        assert reader.calibration.renewals == 1


def test_another_model_is_refused(people):
    gallery = calibrated(people, model="a")
    gallery.model = "b"
    with pytest.raises(InputError, match="made with the model 'a', and now it is 'b'") as refused:
        gallery.search(people.faces([0]))
    assert refused.value.field == "calibration"
    assert gallery.search(people.faces([0]), decide=False).decision is None
    assert gallery.info["faults"] == ["calibration: it was made with another model"]


@pytest.mark.parametrize("call", ["renew", "calibrate"])
def test_what_changes_meanwhile_makes_it_stale(people, monkeypatch, call):
    """A renewal and a calibration compute on a copy, without the lock."""
    gallery = calibrated(people)
    gallery.add(people.faces([41]), labels=["p41"])
    search = Neighbourhoods.search

    def overtaken(engine, queries):
        assert not gallery._lock._is_owned()
        if len(gallery) < 92:
            gallery.add(people.faces([42]), labels=["p42"])
        return search(engine, queries)

    monkeypatch.setattr(Neighbourhoods, "search", overtaken)
    made = gallery.renew() if call == "renew" else gallery.calibrate(max_wrong=0.1)
    assert made.stale
    assert made.renewals == (call == "renew")
    assert not gallery.renew().stale


def test_searches_go_on_during_a_renewal_and_never_mix(people):
    """Every answer comes from one calibration, and says whether that is for the items of then."""
    gallery = calibrated(people)
    later, seen, stop = people.faces(np.arange(30)), [], threading.Event()

    def ask_on():
        while not stop.is_set():
            found = gallery.search(later)
            seen.append((found.stale, tuple(found.probability.tolist())))

    def renew_on():
        for n in range(6):
            gallery.add(people.faces([30 + n]), labels=names([30 + n]))
            gallery.renew()

    asking = threading.Thread(target=ask_on)
    asking.start()
    renew_on()
    stop.set()
    asking.join()
    assert not gallery.search(later).stale
    assert any(not stale for stale, _ in seen)
    fresh = [found for stale, found in seen if not stale]
    assert len(set(fresh)) <= 7


def test_the_gallery_calibrates_itself():
    people, gallery = People(spread=0.12), Gallery()
    who = np.repeat(np.arange(40), 20)
    gallery.add(people.faces(who), labels=names(who))
    made = gallery.calibrate(unknown_share=0.4, max_wrong=0.05, contributions=False)
    assert made.reached
    assert made.unknown / made.queries == pytest.approx(0.4, abs=0.01)
    assert made.queries == 800
    assert "own items played the queries" in made.summary
    known = gallery.search(people.faces(np.repeat(np.arange(40), 5)))
    right = known.label == np.array(names(np.repeat(np.arange(40), 5)), dtype=object)
    assert (known.decision[right] == "match").mean() > 0.5
    unknown = gallery.search(people.faces(np.repeat(np.arange(40, 60), 10)))
    matched = np.concatenate([known.decision, unknown.decision]) == "match"
    wrong = np.concatenate([~right, np.ones(len(unknown), dtype=bool)])
    assert wrong[matched].mean() < 0.1


def test_an_item_that_plays_a_query_never_answers_itself(people):
    """Leave-one-out and leave-label-out by galleries that never held the items."""
    gallery = Gallery()
    who = np.repeat(np.arange(15), 6)
    gallery.add(people.faces(who), labels=names(who))
    gallery.calibrate(unknown_share=0.5, max_wrong=0.2, contributions=False)
    engine, queries = gallery._engine, gallery._state.queries
    model = gallery._state.record.labels
    asked = answer(engine, queries, Neighbourhoods.search(engine, queries), model).answers
    items = {item.id: item for item in gallery.items()}
    for row, (id_, label, strict) in enumerate(
        zip(queries.ids, queries.labels, queries.stranger, strict=True)
    ):
        rest = [
            item
            for item in items.values()
            if item.id != id_ and not (strict and item.label == label)
        ]
        alone = Gallery()
        alone.add(
            np.stack([i.vector for i in rest]),
            labels=[i.label for i in rest],
            ids=[i.id for i in rest],
        )
        alone._labels = LabelFit(model.model, len(rest))
        found = alone.search(items[id_].vector[None])
        assert found.label[0] == asked.answer[row]
        assert asked.enrolled[row] == (not strict)


@pytest.mark.parametrize("blur", [0.0, 1e-3], ids=["copies", "near-duplicates"])
def test_items_that_occur_twice_do_not_fool_it(blur):
    """Labels at random: only a copy could be right, and held-out queries never are but by chance."""
    rng = np.random.default_rng(3)
    x = unit(rng.normal(size=(400, DIM)))
    label = rng.integers(20, size=400)
    gallery = Gallery()
    gallery.add(np.r_[x, unit(x + blur * rng.normal(size=x.shape))], labels=np.r_[label, label])
    made = gallery.calibrate(unknown_share=0.2, max_wrong=0.05, contributions=False)
    assert not made.reached
    assert made.right < 0.2 * made.queries


def test_a_gallery_of_copies_cannot_calibrate_itself():
    x = unit(np.random.default_rng(3).normal(size=(400, DIM)))
    gallery = Gallery()
    gallery.add(np.r_[x, x], labels=np.r_[:400, :400])
    with pytest.raises(DegenerateError, match="copies of it"):
        gallery.calibrate(unknown_share=0.5)


def test_collapsed_classes_are_no_copies():
    """Where a network draws classes together, near items are what a query finds too."""
    rng = np.random.default_rng(2)
    who = np.repeat(np.arange(10), 60)
    x = unit(np.eye(DIM)[who] + 0.01 * rng.normal(size=(600, DIM)))
    gallery = Gallery()
    gallery.add(x, labels=who)
    made = gallery.calibrate(unknown_share=0.3, max_wrong=0.05, contributions=False)
    assert made.reached
    assert made.right == made.queries - made.unknown


def test_a_valley_between_copies_and_others_is_found():
    rng = np.random.default_rng(0)
    far = 10 ** rng.normal(-0.6, 0.2, size=(500, 5))
    near = np.sort(far, axis=1)
    same = np.ones((500, 5), dtype=bool)
    assert copies_below(near, same) == 1e-6
    near[:, 0] = 10 ** rng.normal(-3, 0.3, size=500)
    assert 10**-2.4 < copies_below(near, same) < 10**-1.2
    near[5:, 0] = far[5:, 0].clip(0, near[5:, 1])
    assert copies_below(near, same) == 1e-6  # five copies are no hill


@pytest.mark.parametrize("given", [False, True], ids=["groups of add", "groups of calibrate"])
def test_groups_are_left_out_together(given):
    """Sessions are recognised, people are not: without their session nobody is found."""
    rng = np.random.default_rng(4)
    session = np.repeat(np.arange(100), 4)
    person = session % 25
    x = unit(unit(rng.normal(size=(100, DIM)))[session] + 0.12 * rng.normal(size=(400, DIM)))
    easy, hard = Gallery(), Gallery()
    ids = [f"i{n}" for n in range(400)]
    easy.add(x, labels=person, ids=ids)
    hard.add(x, labels=person, ids=ids, groups=None if given else [f"s{s}" for s in session])
    groups = dict(zip(ids, map(str, session), strict=True)) if given else None
    options = {"unknown_share": 0.2, "max_wrong": 0.1, "contributions": False}
    fooled = easy.calibrate(**options)
    honest = hard.calibrate(groups=groups, **options)
    assert fooled.right > 0.9 * (fooled.queries - fooled.unknown)
    assert honest.right < 0.3 * honest.queries
    assert honest.unknown / honest.queries == pytest.approx(0.2, abs=0.02)


def test_wrong_requests_are_refused(people):
    gallery = Gallery()
    with pytest.raises(DegenerateError, match="empty"):
        gallery.calibrate()
    gallery.add(people.faces(range(30)), labels=names(range(30)))
    with pytest.raises(DegenerateError, match="no label has two"):
        gallery.calibrate()
    gallery.add(people.faces(range(30)), labels=names(range(30)))
    for options, field in (
        ({"labels": names(range(3))}, "embeddings"),
        ({"ids": [1]}, "embeddings"),
        ({"unknown_share": 1.0}, "unknown_share"),
        ({"groups": ["a"]}, "groups"),
        ({"max_fpir": 2.0}, "max_fpir"),
    ):
        with pytest.raises(InputError) as refused:
            gallery.calibrate(**options)
        assert refused.value.field == field
    unlabelled = Gallery()
    unlabelled.add(people.faces(range(30)))
    with pytest.raises(DegenerateError, match="no label has two"):
        unlabelled.calibrate()


def test_novelty_of_items_guards_too(people):
    gallery = Gallery()
    who = np.repeat(np.arange(40), 20)
    p = people.rng.random(800)
    gallery.add(Embeddings(people.faces(who), np.full(800, 50.0), p), labels=names(who))
    made = gallery.calibrate(unknown_share=0.3, max_wrong=0.05, contributions=False)
    assert made.gate is not None
    assert made.gate_counts.unlike + made.gate_counts.unusual == (p <= 0.1).sum()
