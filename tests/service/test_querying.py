"""Many callers in one search: each gets what it would get alone, and errors stay with their callers."""

import numpy as np
import pytest

from surefind.apps.service.querying import Query, search_together
from surefind.errors import DegenerateError, InputError, StaleError
from surefind.gallery.gallery import Gallery


def nothing(_id, _payload):
    return False


@pytest.fixture
def gallery():
    made = Gallery()
    made.add(np.eye(3), ids=list("abc"), payload=[{"n": 1}, None, {"n": 3}])
    return made


def test_each_gets_its_own_rows_and_its_own_k(gallery):
    queries = [
        Query([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [5.0, None], 2),
        Query([[0.0, 1.0, 0.0]], [7.0], 1),
    ]
    one, two = search_together(gallery, lambda id_, payload: payload == {"n": 3}, queries)
    assert [a["neighbours"][0]["id"] for a in one.answers] == ["a", "c"]
    assert [a["neighbours"][0]["image"] for a in one.answers] == [False, True]
    assert [len(a["neighbours"]) for a in one.answers + two.answers] == [2, 2, 1]
    assert [a["kappa"] for a in one.answers + two.answers] == [5.0, None, 7.0]
    assert one.vectors.shape == (2, 3)
    assert two.answers[0]["neighbours"][0]["id"] == "b"
    assert two.answers[0]["decision"] is None
    assert two.answers[0]["reasons"] == []


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ([[1.0, 0.0]], "2 dimensions and the gallery 3"),
        ([[2.0, 0.0, 0.0]], "length"),
        ([[0.0, 0.0, 0.0]], "zero"),
    ],
)
def test_what_is_wrong_with_one_is_told_to_that_one(gallery, bad, told):
    good = Query([[1.0, 0.0, 0.0]], [None], 3)
    first, wrong, last = search_together(gallery, nothing, [good, Query(bad, [None], 3), good])
    assert isinstance(wrong, InputError)
    assert told in str(wrong)
    assert first.answers == last.answers
    assert first.answers[0]["neighbours"][0]["id"] == "a"
    (alone,) = search_together(gallery, nothing, [Query(bad, [None], 3)])
    assert told in str(alone)


def test_an_empty_gallery_says_so_to_everybody_whatever_they_sent():
    queries = [Query([[1.0, 0.0]], [None], 1), Query([[1.0, 0.0, 0.0]], [None], 1)]
    for answer in search_together(Gallery(), nothing, queries):
        assert isinstance(answer, DegenerateError)
        assert "add items first" in str(answer)


def test_what_holds_for_all_is_raised(gallery, monkeypatch):
    def refuse(*_args, **_options):
        raise StaleError("calibrate again")

    monkeypatch.setattr(gallery, "search", refuse)
    good = Query([[1.0, 0.0, 0.0]], [None], 3)
    with pytest.raises(StaleError):
        search_together(gallery, nothing, [good, good])
