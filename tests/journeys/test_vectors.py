"""Vectors from somewhere else, by the command line and in Python: the same answers at both doors."""

import csv
from functools import cache

import numpy as np
import pytest
from newcomer import digits, truth, vectors, wrong_matches

import surefind as sf

MAX_WRONG = 0.1


@pytest.fixture
def files(home):
    """Each part as NAME.npy beside NAME-labels.npy."""
    for name, part in vars(digits()).items():
        np.save(f"{name}.npy", vectors(part))
        np.save(f"{name}-labels.npy", truth(part))
    return home


def gallery_by_command(does):
    does("fit", "learn.npy", "--labels", "learn-labels.npy", "--out", "head")
    enrolled = ("--labels", "enrol-labels.npy", "--run", "head")
    does("index", "enrol.npy", *enrolled, "--out", "gallery")
    held_out = ("--labels", "held_out-labels.npy", "--run", "head")
    return does("calibrate", "gallery", "held_out.npy", *held_out, "--max-wrong", MAX_WRONG)


@cache
def gallery_in_python():
    learn, enrol, held_out = digits().learn, digits().enrol, digits().held_out
    head = sf.LaplaceHead().fit(vectors(learn), learn.labels)
    gallery = sf.Gallery()
    gallery.add(head.embed(vectors(enrol)), labels=enrol.labels)
    gallery.calibrate(head.embed(vectors(held_out)), truth(held_out), max_wrong=MAX_WRONG)
    return head, gallery


def test_both_doors_give_the_same_answers_and_keep_the_promise(does, files):
    gallery_by_command(does)
    does("search", "gallery", "asked.npy", "--run", "head", "--out", "answers.csv")
    with open("answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    head, gallery = gallery_in_python()
    answers = gallery.search(head.embed(vectors(digits().asked)))
    assert [row["decision"] for row in rows] == answers.decision.tolist()
    assert [row["label"] for row in rows] == [str(label) for label in answers.label]
    shown = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(shown, answers.probability, atol=1e-3)
    assert wrong_matches(answers.decision, answers.label, truth(digits().asked)) <= MAX_WRONG


def test_what_the_gallery_never_saw_is_not_matched():
    head, gallery = gallery_in_python()
    noise = np.random.default_rng(1).uniform(0, 255, (50, 64)).astype(np.float32)
    answers = gallery.search(head.embed(noise))
    assert (answers.decision != "match").all()
    assert all(answers.reasons)
