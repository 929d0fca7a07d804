"""An audit finds what was planted, twice alike, and its table mends it."""

import numpy as np
import pytest
from gallery.people import People, names

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery


@pytest.fixture
def people():
    return People(spread=0.2)


@pytest.fixture
def gallery(people):
    return people.gallery(each=20)


def test_planted_labels_are_found_and_mended(gallery):
    rng, ids = np.random.default_rng(1), list(gallery)
    before = gallery.audit()
    assert before.wrong <= 4
    true = {ids[row]: gallery.get(ids[row]).label for row in rng.choice(400, 20, replace=False)}
    others = [(int(name[1:]) + rng.integers(1, 20)) % 20 for name in true.values()]
    gallery.update(ids=list(true), labels=names(others))
    found = gallery.audit()
    assert found == gallery.audit()
    assert (found.items, found.labels, found.judged) == (400, 20, 400)
    assert 15 <= found.wrong <= 25
    suspects = found.of("mislabelled")
    assert len({suspect.id for suspect in suspects} & true.keys()) >= 16
    assert len(suspects) <= 25
    assert found.improbable >= 18
    scores = [suspect.score for suspect in suspects]
    assert scores == sorted(scores, reverse=True)
    gallery.update(ids=[s.id for s in suspects], labels=[s.suggested for s in suspects])
    assert sum(gallery.get(id_).label == name for id_, name in true.items()) >= 16
    assert {"id", "label", "suggested"} <= found.to_rows(1)[0].keys()
    assert len(found.to_rows(1)) == len({one.kind for one in found.findings})
    assert found.summary == " ".join(found.sentences)


def test_errors_that_follow_a_pattern_are_seen_as_confusions(gallery):
    wrong = [f"3-{n}" for n in range(60, 68)]
    gallery.update(ids=wrong, labels=["p10"] * 8)
    found = gallery.audit()
    assert found.improbable >= 6
    assert {found.of("confusion")[0].label, found.of("confusion")[0].suggested} == {"p3", "p10"}


def test_near_duplicates_with_different_labels(gallery, people):
    face = people.faces([3])
    near = face + 1e-4 * people.rng.normal(size=face.shape)
    near /= np.linalg.norm(near)
    gallery.add(np.concatenate([face, near]), ids=["one", "two"], labels=["p3", "p4"])
    (pair,) = gallery.audit().of("duplicate")
    assert {pair.id, pair.other_id} == {"one", "two"}
    assert pair.score > 0.999
    assert len(gallery.audit(duplicate=0.0).of("duplicate")) > 100
    assert gallery.audit(duplicate=1.0).of("duplicate") == ()


def test_labels_that_are_confused_are_named():
    people = People(20)
    people.centres[1] = people.centres[0]
    found = people.gallery(each=20).audit().of("confusion")[0]
    assert {found.label, found.suggested} == {"p0", "p1"}


def test_items_of_low_concentration_or_unlike_anything_are_hardly_usable(people):
    who = np.repeat(np.arange(20), 10)
    kappa, novelty = people.rng.uniform(50, 100, 200), np.full(200, 0.5)
    kappa[3], novelty[7] = 1e-3, 1e-4
    gallery = Gallery()
    gallery.add(Embeddings(people.faces(who), kappa, novelty), labels=names(who), ids=range(200))
    found = gallery.audit().of("unusable")
    assert [one.id for one in found] == [7, 3]
    assert "unlike anything seen" in found[0].sentence.lower()
    assert "less certain" in found[1].sentence


def test_items_that_would_be_a_match_without_their_label(gallery, people):
    assert gallery.audit().of("impostor") == ()
    gallery.calibrate(*people.asked(900), max_wrong=0.1)
    twin = people.centres[3] + 0.02 * people.rng.normal(size=(10, 16))
    twin /= np.linalg.norm(twin, axis=1, keepdims=True)
    gallery.add(twin, labels=["twin"] * 10, ids=[f"twin {n}" for n in range(10)])
    found = gallery.audit().of("impostor")
    assert sum(one.label == "twin" for one in found) >= 5


def test_a_sample_is_judged_by_itself(gallery):
    found = gallery.audit(items=200, seed=3)
    assert (found.items, found.judged) == (400, 200)
    assert found == gallery.audit(items=200, seed=3)


def test_what_cannot_be_audited_is_refused(gallery, people):
    one, none = Gallery(), Gallery()
    one.add(people.faces([0, 0]), labels=["a", "a"])
    none.add(people.faces([0, 1]))
    for call, error, field in (
        (lambda: Gallery().audit(), DegenerateError, None),
        (one.audit, DegenerateError, "labels"),
        (none.audit, DegenerateError, "labels"),
        (lambda: gallery.audit(items=0), InputError, "items"),
        (lambda: gallery.audit(duplicate=1.5), InputError, "duplicate"),
    ):
        with pytest.raises(error) as refused:
            call()
        assert refused.value.field == field
