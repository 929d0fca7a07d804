"""A folder of photographs, by the command line alone."""

import json

import pytest
from newcomer import KNOWN, digits, wrong_matches
from PIL import Image

import surefind as sf

pytestmark = pytest.mark.nightly

MAX_WRONG = 0.15
TRAINING = ("--epochs", 3, "--encoder", "cifar10", "--batch-size", 64)


@pytest.fixture
def folders(home):
    """A folder for each part, in it one for each label, as people keep photographs."""
    for name, part in vars(digits()).items():
        for i, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
            folder = home / name / (f"digit-{label}" if label < KNOWN else "nobody")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{i}.png")
    return home


def test_from_photographs_to_decisions(does, refuses, folders):
    broken = folders / "learn" / "digit-0" / "broken.png"
    broken.write_bytes(b"not a picture")
    assert "broken.png" in refuses("train", "learn", "--out", "run", *TRAINING)
    does("train", "learn", "--out", "run", *TRAINING, "--on-bad", "skip")
    does("index", "enrol", "--run", "run", "--out", "gallery")

    # It decides at once, by its own items; better by queries like those to come.
    does("search", "gallery", "asked", "--out", "first.json")
    first = json.loads((folders / "first.json").read_text())
    assert {answer["decision"] for answer in first} > {"match", "no_match"}

    does("calibrate", "gallery", "held_out", "--max-wrong", MAX_WRONG)
    does("search", "gallery", "asked", "--out", "answers.json")
    answers = json.loads((folders / "answers.json").read_text())
    assert len(answers) == len(first) == len(digits().asked.labels)
    right = [answer["query"].split("/")[0] for answer in answers]
    found = [answer["label"] for answer in answers]
    assert wrong_matches([a["decision"] for a in answers], found, right) <= MAX_WRONG

    # What is no photograph at all, and no folder of any.
    assert "broken.png" in refuses("search", "gallery", broken)
    (folders / "empty").mkdir()
    assert "empty" in refuses("search", "gallery", "empty")


def test_a_folder_alone_makes_a_gallery_that_keeps_its_promise(does, folders):
    """About queries like the images: those of digits that nobody knows are none."""
    does("index", "learn", "--out", "g")
    guaranteed = sf.Gallery.open("g", mode="r").calibration
    assert guaranteed.reached
    does("search", "g", "asked", "--out", "answers.json")
    answers = [
        answer
        for answer in json.loads((folders / "answers.json").read_text())
        if not answer["query"].startswith("nobody")
    ]
    decisions, found = ([answer[name] for answer in answers] for name in ("decision", "label"))
    right = [answer["query"].split("/")[0] for answer in answers]
    assert wrong_matches(decisions, found, right) <= guaranteed.target.max_wrong
    assert decisions.count("match") > len(answers) / 3
