"""Calibrations that stay true while items come and go, and calibrations by the gallery's own items."""

import threading
from dataclasses import asdict

import numpy as np
import pytest

from surefind.decisions.decider import Decider, Target
from surefind.decisions.groups import draw_parts
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError, StaleError
from surefind.gallery import renewal
from surefind.gallery.calibration_queries import CalibrationQueries, copies_below
from surefind.gallery.calibration_record import ask
from surefind.gallery.gallery import Gallery
from surefind.gallery.label_fit import LabelFit
from surefind.gallery.neighbourhoods import KEPT, Neighbourhoods

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
    gallery.search(people.faces([0]))
    after = gallery.calibration
    asked = [label for label in gallery._kept.queries.labels if label in ("p30", "p31")]
    assert after.unknown == before.unknown - len(asked)
    gallery.delete([id_ for id_ in gallery if str(id_).startswith(("0-", "1-"))])
    gallery.search(people.faces([5]))
    gone = sum(label in ("p0", "p1") for label in gallery._kept.queries.labels)
    assert gallery.calibration.unknown == after.unknown + gone
    assert gallery._kept.record.decider.renewals == 2


def uneven(rng, count):
    """People as they come: the first rarely, the last thirty times as often."""
    return rng.choice(30, size=count, p=np.arange(1, 31) / 465)


def test_how_often_labels_are_asked_for_is_learnt_from_queries_and_kept(tmp_path):
    people, rng = People(spread=0.6), np.random.default_rng(3)
    gallery, who = Gallery(), np.repeat(np.arange(30), np.arange(1, 31))
    gallery.add(people.faces(who), labels=names(who), ids=[f"{w}-{n}" for n, w in enumerate(who)])
    assert gallery.label_model.prior == 0  # items cannot say
    asked = uneven(rng, 1500)
    gallery.calibrate(people.faces(asked), names(asked), max_wrong=0.3, contributions=False)
    learnt = gallery._kept.record.decider.label_model.prior
    assert 0.4 < learnt < 2
    fresh = uneven(rng, 1000)
    faces = people.faces(fresh)
    found = gallery.search(faces, k=1)
    right = np.mean(found.label == names(fresh))
    assert right > np.mean(found.labels[:, 0] == names(fresh))
    assert right > np.mean(copied(gallery).search(faces, k=1).label == names(fresh))
    # The same without decisions, and after it was opened again.
    assert (gallery.search(faces, k=1, decide=False).label == found.label).all()
    gallery.save(tmp_path / "own")
    gallery.snapshot(tmp_path / "kept")
    with Gallery.open(tmp_path / "kept") as again:
        assert again.label_model == gallery.label_model
        assert again._kept.record.decider.label_model == again.label_model
        few = np.arange(30).repeat(2)
        again.add(people.faces(few), labels=names(few))  # a tenth more
        assert again.label_model.enrolled > gallery.label_model.enrolled
        assert again.label_model.prior == learnt
    # So many more that the rest is fitted again, and this with it.
    more = np.repeat(np.arange(30), 2 * np.arange(1, 31))
    gallery.add(people.faces(more), labels=names(more))
    gallery.search(faces[:1])
    renewed = gallery._kept.record.decider
    assert renewed.renewals == 1
    assert renewed.label_model.enrolled > len(who)
    assert renewed.label_model.prior == pytest.approx(learnt, abs=0.5)
    assert renewed.label_model.prior != learnt
    gallery.calibrate(unknown_share=0.5)
    assert gallery._kept.record.decider.label_model.prior == 0
    gallery.close()


def test_queries_that_test_thresholds_teach_nothing():
    people, rng = People(spread=0.6), np.random.default_rng(3)
    gallery, who = Gallery(), np.repeat(np.arange(30), np.arange(1, 31))
    gallery.add(people.faces(who), labels=names(who))
    asked = uneven(rng, 900)
    faces, called = people.faces(asked), np.array(names(asked), dtype=object)
    gallery.calibrate(faces, called.tolist(), contributions=False)
    learnt = gallery.label_model.prior
    (fitting, testing), _ = draw_parts(np.ones(900, dtype=bool), Target().rng)
    assert len(fitting) + len(testing) == 900
    called[testing] = called[rng.permutation(testing)]
    gallery.calibrate(faces, called.tolist(), contributions=False)
    assert gallery.label_model.prior == learnt
    called[fitting] = "p0"
    gallery.calibrate(faces, called.tolist(), contributions=False)
    assert gallery.label_model.prior != learnt


def copied(gallery):
    """A gallery with the same items that never was another one."""
    fresh = Gallery()
    for block in gallery.records():
        fresh.add(
            np.stack([item.vector for item in block]),
            ids=[item.id for item in block],
            labels=[item.label for item in block],
            groups=[item.group for item in block],
        )
    return fresh


def as_if_anew(gallery):
    """What the kept queries say in a gallery with the same items, searched from scratch."""
    engine, kept = copied(gallery)._engine, gallery._kept
    asked = ask(
        engine,
        kept.queries,
        Neighbourhoods.search(engine, kept.queries),
        kept.record.labels.model,
    )
    made = Decider(**asdict(kept.record.decider.target))
    return made.learned(asked.answers, kept.record.labels.model, notes=asked.notes).calibration


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
        assert gallery.renew() is renewed
    assert gallery._kept.record.decider.renewals == 4


def test_neighbourhoods_follow_every_change(people):
    """Lists are complete up to their horizon, by sorting all distances in float64."""
    gallery = Gallery()
    who = np.repeat(np.arange(60), 12)
    gallery.add(people.faces(who), labels=names(who), ids=[f"{n}" for n in range(len(who))])
    queries = held_out(people.faces(np.arange(60)), names(range(60)))
    hoods = Neighbourhoods.search(gallery._engine, queries)
    rng = np.random.default_rng(1)
    cut = 0
    for step in range(12):
        if step % 3 == 2:  # near one query, so that its list grows long
            changed = gallery.add(people.faces([4] * 40), labels=names([4] * 40))
        else:
            ids = list(gallery)
            changed = [ids[row] for row in rng.permutation(len(ids))[:30]]
            gallery.delete(changed)
        hoods = hoods.updated(gallery._engine, queries, changed)
        items = [item for block in gallery.records() for item in block]
        vectors = np.stack([item.vector for item in items]).astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        own = queries.vectors.astype(np.float64)
        gaps = 1 - own / np.linalg.norm(own, axis=1, keepdims=True) @ vectors.T
        for q in range(len(queries)):
            order = np.argsort(gaps[q])
            inside = gaps[q, order] <= hoods.horizon[q] + 1e-12
            known = np.isfinite(hoods.gaps[q])
            assert known.sum() == inside.sum() >= min(100, len(items))
            np.testing.assert_allclose(hoods.gaps[q, known], gaps[q, order[inside]], atol=1e-7)
            assert set(hoods.ids[q, known]) == {items[n].id for n in order[inside]}
        cut = max(cut, hoods.gaps.shape[1])
    assert cut <= KEPT


def held_out(vectors, labels, **known):
    kappa = np.full(len(vectors), np.inf)
    ids, groups = known.get("ids"), known.get("groups")
    return CalibrationQueries.held_out(vectors, kappa, None, labels, ids, groups)


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_decisions_go_on_after_changes(people, index, tmp_path):
    gallery = calibrated(people, index=index)
    gallery.save(tmp_path / "g")
    gallery.add(people.faces([40]), labels=["p40"], ids=["guest"])
    assert not gallery.search(people.faces([0])).stale
    renewed = gallery.calibration
    gallery.close()
    with Gallery.open(tmp_path / "g") as again:
        assert again.calibration == renewed
        assert again._kept.record.decider.renewals == 1
        again.delete("guest")
        again.search(people.faces([0]))
        assert again._kept.record.decider.renewals == 2
    with Gallery.open(tmp_path / "g") as again:
        again.add(people.faces([41]), labels=["p41"])
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        assert not reader.search(people.faces([0])).stale
        assert reader._kept.record.decider.renewals == 3
    with Gallery.open(tmp_path / "g", mode="r", on_stale="mark") as reader:
        assert reader.search(people.faces([0])).stale
        assert reader._kept.record.decider.renewals == 2


def test_another_model_cannot_be_made_good(people):
    gallery = calibrated(people, model="a")
    gallery.model = "b"
    with pytest.raises(StaleError, match="the model was 'a' and is 'b'"):
        gallery.search(people.faces([0]))
    gallery.add(people.faces([0]), labels=["p0"])
    with pytest.raises(StaleError, match=r"the model was 'a'.*items were added"):
        gallery.search(people.faces([0]))


def test_searches_go_on_during_a_renewal_and_never_mix(people):
    """Every answer comes from one calibration, and says whether that is for the items of then."""
    gallery = calibrated(people, on_stale="mark")
    later, seen, stop = people.faces(np.arange(30)), [], threading.Event()

    def ask_on():
        while not stop.is_set():
            found = gallery.search(later)
            seen.append((found.stale, tuple(found.probability.tolist())))

    def renew_on():
        for n in range(12):
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
    assert len(set(fresh)) <= 13


def searched_sizes(monkeypatch, seen=lambda: None):
    """Note how many calibration queries search at a time, and call something after each."""
    sizes, search = [], Neighbourhoods.search

    def noted(engine, queries):
        found = search(engine, queries)
        sizes.append(len(queries))
        seen()
        return found

    monkeypatch.setattr(Neighbourhoods, "search", noted)
    return sizes


@pytest.mark.parametrize("own", [False, True])
def test_where_all_queries_search_again_they_take_turns(people, own, monkeypatch):
    """With a graph nothing is followed: each turn is short, and the sum of them a calibration."""
    gallery = calibrated(people, index="hnsw", each=6)
    if own:
        gallery.calibrate(unknown_share=0.4, max_wrong=0.2, contributions=False)
    gallery.add(people.faces([41]), labels=["p41"], ids=["guest"])
    monkeypatch.setattr(renewal, "TURN_OF_ITEMS", 50)
    with monkeypatch.context() as patch:
        sizes = searched_sizes(patch)
        made = gallery.renew()
    assert max(sizes) == (50 if own else renewal.TURN)
    assert sum(sizes) == len(gallery._kept.queries)
    assert made == as_if_anew(gallery)


def test_a_renewal_that_is_always_overtaken_is_made_on_a_copy(people, monkeypatch):
    gallery = calibrated(people, index="hnsw", on_stale="mark")
    held = []

    def overtake():
        held.append(gallery._lock._is_owned())
        if len(gallery) < 200:
            gallery.add(people.faces([len(gallery) % 60]), labels=["more"])

    sizes = searched_sizes(monkeypatch, overtake)
    gallery.add(people.faces([41]), labels=["p41"])
    gallery.renew()
    assert (sizes[-1], held[-1]) == (900, False)
    assert gallery.renewals == 1
    assert gallery.stale
    monkeypatch.undo()
    gallery.renew()
    assert not gallery.stale


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
    kept = gallery._kept
    engine, queries, model = gallery._engine, kept.queries, kept.record.labels
    asked = ask(engine, queries, Neighbourhoods.search(engine, queries), model.model).answers
    items = {item.id: item for block in gallery.records() for item in block}
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


def test_queries_survive_json(people):
    gallery = calibrated(people)
    queries = gallery._kept.queries
    again = CalibrationQueries.from_json(queries.to_json())
    assert again.to_json() == queries.to_json()
    np.testing.assert_array_equal(again.vectors, queries.vectors)
    np.testing.assert_array_equal(again.kappa, queries.kappa)
