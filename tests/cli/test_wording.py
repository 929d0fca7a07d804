"""Errors speak of commands and options, not of Python."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import surefind as sf
from surefind.apps.cli.app import explanation
from surefind.apps.cli.wording import SAYINGS, for_commands
from surefind.gallery.gallery import Gallery

ROOT = Path(sf.__file__).parent


def raised_sentences():
    """All that the library raises, with 1 for what is filled in."""
    for file in ROOT.rglob("*.py"):
        if "cli" in file.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                yield text_of(node.exc.args[0])


def text_of(node):
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "1" for v in node.values)
    return ""


def test_every_saying_stands_for_something_that_the_library_says():
    """If the library words it anew, this says which pattern no longer fits."""
    sentences = [*raised_sentences(), unit_advice(), absent_set()]
    for pattern, _ in SAYINGS:
        assert any(re.search(pattern, sentence) for sentence in sentences), pattern


def unit_advice():
    """One that is put together from parts, as is the next."""
    with Gallery() as gallery, pytest.raises(sf.InputError) as caught:
        gallery.add(np.full((1, 3), 2.0))
    return str(caught.value)


def absent_set():
    with pytest.raises(sf.InputError) as caught:
        sf.data.catalogue.load("msls")
    return str(caught.value)


def test_vectors_of_another_length_are_told_about_normalize():
    said = for_commands(unit_advice())
    assert said.endswith(
        "has length 3.464. Add --normalize; or --run RUN, if a run embedded the gallery."
    )


def test_a_gallery_that_is_not_there_is_made_by_a_command(tmp_path):
    for place in (tmp_path / "g", tmp_path / "g.db"):
        with pytest.raises(sf.InputError) as caught:
            Gallery.open(place)
        made = f"there is no gallery at {place}; make one: surefind index SOURCE --out {place}."
        assert explanation(caught.value) == made


def test_a_gallery_that_is_in_use_is_not_opened_by_a_keyword(tmp_path):
    with Gallery(path=tmp_path / "g"), pytest.raises(sf.SurefindError) as caught:
        Gallery.open(tmp_path / "g")
    assert explanation(caught.value).endswith("one writer at a time. Close it there.")


def test_a_backbone_is_fetched_by_a_command():
    from surefind.models.backbones import load_backbone  # transformers is slow to import.

    with pytest.raises(sf.InputError) as caught:
        load_backbone("nobody/nothing")
    said = explanation(caught.value)
    assert "Fetch it with `hf download nobody/nothing`, or copy its config.json" in said
    assert "download=True" not in said


def test_a_set_that_is_not_there_is_given_with_an_option():
    assert for_commands(absent_set()).endswith("and give that folder with --data.")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("learning_rate must be above 0", "--learning-rate must be above 0"),
        ("with batch_size 64 and", "with --batch-size 64 and"),
        ("runs/learning_rate is no run", "runs/learning_rate is no run"),
        ("learning_rate.npy does not exist", "learning_rate.npy does not exist"),
    ],
)
def test_arguments_become_options_and_paths_stay(said, expected):
    assert for_commands(said) == expected
