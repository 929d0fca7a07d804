"""The day after: new labels, mended ones, a copy, and queries that have changed."""

import shutil

import numpy as np
import pytest
from newcomer import digits, truth, vectors, wrong_matches

import surefind as sf

pytestmark = pytest.mark.nightly

MAX_WRONG = 0.1


@pytest.fixture(scope="module")
def head():
    return sf.LaplaceHead().fit(vectors(digits().learn), digits().learn.labels)


@pytest.fixture(scope="module")
def first_day(head, tmp_path_factory):
    """A calibrated gallery in a folder, as the first day left it; not to be changed."""
    folder = tmp_path_factory.mktemp("first-day") / "gallery"
    enrol, held_out = digits().enrol, digits().held_out
    gallery = sf.Gallery(path=folder)
    gallery.add(head.embed(vectors(enrol)), ids=[f"d{i}" for i in range(300)], labels=enrol.labels)
    gallery.calibrate(head.embed(vectors(held_out)), truth(held_out), max_wrong=MAX_WRONG)
    gallery.close()
    return folder


@pytest.fixture
def gallery(first_day, tmp_path):
    """Open a copy of it."""
    gallery = sf.Gallery.open(shutil.copytree(first_day, tmp_path / "gallery"))
    yield gallery
    gallery.close()


def asked(head):
    return head.embed(vectors(digits().asked))


def test_a_digit_enrolled_on_day_two_is_found_and_the_promise_renewed(head, gallery):
    held_out = digits().held_out
    nines = np.flatnonzero(held_out.labels == 9)
    before = gallery.search(asked(head))
    gallery.add(head.embed(vectors(held_out)[nines]), labels=held_out.labels[nines])
    assert gallery.search(asked(head)).stale
    gallery.renew()
    after = gallery.search(asked(head))
    assert not after.stale
    nine = digits().asked.labels == 9
    assert (before.label[nine] != 9).all()
    assert (after.label[nine] == 9).mean() > 0.8
    right = np.where(nine, 9, truth(digits().asked))
    assert wrong_matches(after.decision, after.label, right) <= MAX_WRONG


def test_a_label_that_is_taken_away_is_not_answered_any_more(head, gallery):
    zeros = [i for i, label in enumerate(digits().enrol.labels) if label == 0]
    gallery.delete([f"d{i}" for i in zeros])
    answers = gallery.search(asked(head))
    assert 0 not in answers.label
    right = np.where(digits().asked.labels == 0, -1, truth(digits().asked))
    assert wrong_matches(answers.decision, answers.label, right) <= MAX_WRONG


def test_wrong_labels_are_found_and_mended(head, gallery):
    true = {f"d{i}": int(label) for i, label in enumerate(digits().enrol.labels)}
    rows = np.random.default_rng(0).choice(300, 9, replace=False)
    swapped = {f"d{i}": (true[f"d{i}"] + 3) % 8 for i in rows}
    gallery.update(ids=list(swapped), labels=list(swapped.values()))
    found = {one.id: one.suggested for one in gallery.audit().of("mislabelled")}
    known = swapped.keys() & found.keys()
    assert len(known) >= len(swapped) / 2
    assert all(found[id_] == true[id_] for id_ in known)
    gallery.update(ids=list(swapped), labels=[true[id_] for id_ in swapped])
    assert all(gallery.get(id_).label == true[id_] for id_ in swapped)


def test_the_same_by_the_command_line(does, refuses, gallery, tmp_path):
    gallery.close()
    own, other = digits().enrol.labels[7], (digits().enrol.labels[7] + 1) % 8
    does("items", "gallery", "d7", "--relabel", (own + 3) % 8)
    assert "d7" in does("audit", "gallery", "--json")
    assert "d999" in refuses("items", "gallery", "d7", "d999", "--delete")
    does("items", "gallery", "d7", "--relabel", own)
    does("items", "gallery", "--label", other, "--delete")
    with sf.Gallery.open(tmp_path / "gallery", mode="r") as kept:
        assert kept.get("d7").label == own
        assert other not in kept.labels()


def test_a_copy_of_a_good_day_answers_as_then(head, gallery, tmp_path):
    before = gallery.search(asked(head), watch=False)
    gallery.save(tmp_path / "copy")
    gallery.delete([f"d{i}" for i in range(250)])
    kept = sf.Gallery.open(tmp_path / "copy")
    after = kept.search(asked(head), watch=False)
    np.testing.assert_array_equal(after.label, before.label)
    np.testing.assert_array_equal(after.decision, before.decision)
    kept.close()
    with pytest.raises(sf.InputError):
        gallery.delete(["d0"])  # is gone already


def test_queries_that_have_changed_raise_an_alarm(head, gallery):
    usual = asked(head)
    gallery.search(usual)
    assert not gallery.watch().alarm
    inverted = head.embed(255 - vectors(digits().asked))
    for _ in range(3):
        gallery.search(inverted)
    assert gallery.watch().alarm
    assert gallery.watch().sentence
