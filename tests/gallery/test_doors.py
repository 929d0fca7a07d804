"""What cannot be used is refused with words, and nothing changes."""

import json

import numpy as np
import pytest
import torch

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery import milvus_engine
from surefind.gallery.gallery import Gallery

X = np.eye(4)


@pytest.fixture
def gallery():
    made = Gallery()
    made.add(X, ids=["a", "b", "c", "d"], labels=["A", "B", "C", "D"])
    return made


@pytest.mark.parametrize(
    ("vectors", "error"),
    [
        (2 * X, InputError),
        (np.zeros((1, 4)), DegenerateError),
        (np.full((1, 4), np.nan), InputError),
        (np.full((1, 4), np.inf), InputError),
        (X[:3, :3], InputError),
        (X[0], InputError),
        (np.empty((0, 4)), DegenerateError),
        ([["x", "y"]], InputError),
        (None, InputError),
    ],
)
@pytest.mark.parametrize("call", ["add", "search", "calibrate"])
def test_vectors_that_are_no_directions(gallery, vectors, error, call):
    arguments = {"calibrate": {"truth": [None]}}.get(call, {})
    with pytest.raises(error) as refused:
        getattr(gallery, call)(vectors, **arguments)
    assert refused.value.field == ("embeddings" if call == "add" else "queries")
    assert len(gallery) == 4


def test_normalize_rescales_but_takes_no_zero():
    gallery = Gallery(normalize=True)
    gallery.add(np.array([[3, 4], [-2, 0]]), ids=[1, 2])
    np.testing.assert_allclose(gallery.get(1).vector, [0.6, 0.8])
    with pytest.raises(DegenerateError) as refused:
        gallery.add(np.zeros((1, 2)))
    assert refused.value.field == "embeddings"
    with pytest.raises(InputError) as refused:
        gallery.search(np.full((1, 2), np.nan))
    assert refused.value.field == "queries"


def test_tensors_arrays_and_embeddings_are_all_welcome():
    gallery = Gallery()
    u = torch.nn.functional.normalize(torch.ones(1, 4, requires_grad=True), dim=1)
    gallery.add(u, ids=["tensor"])
    gallery.add(X[:1].astype(np.float32), ids=np.array(["array"]))
    gallery.add(Embeddings(u.detach(), torch.ones(1)), ids=torch.tensor([3]), labels=np.array([5]))
    assert set(gallery) == {"tensor", "array", 3}
    assert gallery.get(3).kappa == 1
    assert gallery.get("tensor").kappa == np.inf
    assert type(gallery.get(3).label) is int


def test_a_closed_gallery_says_so(gallery):
    gallery.close()
    gallery.close()
    assert repr(gallery) == "Gallery(closed)"
    with pytest.raises(InputError, match="closed"):
        gallery.search(X)


def test_missing_packages_are_named(monkeypatch, tmp_path):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(milvus_engine, "import_module", absent)
    with pytest.raises(InputError, match="pip install pymilvus milvus-lite"):
        Gallery(tmp_path / "x.db", "milvus")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"ids": ["\ud800"]}, "ids"),
        ({"ids": [2**128]}, "ids"),
        ({"ids": [10**5000]}, "ids"),
        ({"labels": ["a\udfff"]}, "labels"),
        ({"labels": [-(2**128)]}, "labels"),
        ({"groups": ["\ud800"]}, "groups"),
        ({"payload": [{"path": "\ud800"}]}, "payload"),
        ({"payload": [{"\udc00": 1}]}, "payload"),
        ({"payload": [{"x": [1, {"y": "\ud83d"}]}]}, "payload"),
        ({"payload": [{"x": json.loads("[" * 250 + "]" * 250)}]}, "payload"),
        ({"payload": [{"x": 10**5000}]}, "payload"),
    ],
)
def test_what_no_file_or_answer_can_hold_is_refused(gallery, wrong, field):
    with pytest.raises(InputError) as refused:
        gallery.add(X[:1], **{"ids": ["new"]} | wrong)
    assert refused.value.field == field
    str(refused.value).encode()
    if field != "ids":
        with pytest.raises(InputError) as refused:
            gallery.update(ids=["a"], **wrong)
        assert refused.value.field == field
    assert set(gallery) == {"a", "b", "c", "d"}
    assert gallery.get("a").label == "A"


def test_a_payload_of_any_characters_and_a_hundred_levels_comes_back(gallery):
    deep = {"x": json.loads("[" * 99 + "]" * 99), "\U0001f600": "\U0001f600 ü \0 \\ud800"}
    gallery.add(X[:1], ids=["new"], payload=[deep])
    assert gallery.get("new").payload == deep


def test_automatic_ids_leave_out_numbers_that_are_too_high():
    gallery = Gallery()
    gallery.add(X, ids=[2**53 - 1, 2**52, 2**100, 7])
    assert gallery.add(X[:2]) == [8, 9]
    assert gallery.add(X[:1]) == [10]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda g, _: Gallery(engine="annoy"), "engine"),
        (lambda g, _: Gallery(index="ivf"), "index"),
        (lambda g, _: Gallery(engine="milvus"), None),
        (lambda g, _: Gallery("folder", "milvus"), None),
        (lambda g, place: Gallery(path=place), None),  # in use by something else
        (lambda g, place: Gallery(path=place / "thesis.tex"), None),
        (lambda g, place: Gallery.open(place, mode="a"), "mode"),
        (lambda g, place: Gallery.open(place, index="ivf"), "index"),
        (lambda g, place: Gallery.open(place / "nothing"), "path"),
        (lambda g, place: Gallery.open(place / "nothing", mode="r"), "path"),
        (lambda g, place: Gallery.open(place / "nothing.db"), "path"),
        (lambda g, _: g.save(), None),
        (lambda g, _: Gallery().add(np.ones((1, 1))), "embeddings"),
        (lambda g, _: g.add(X[:1], ids=["x", "y"]), "ids"),
        (lambda g, _: g.add(X[:1], ids=[1.5]), "ids"),
        (lambda g, _: g.add(X[:1], ids=[None]), "ids"),
        (lambda g, _: g.add(X[:3], ids=["x", "y", "x"]), "ids"),
        (lambda g, _: g.add(X[:1], labels=[1, 2]), "labels"),
        (lambda g, _: g.add(X[:1], labels=[1.5]), "labels"),
        (lambda g, _: g.add(X[:1], labels=[-1]), "labels"),
        (lambda g, _: g.add(X[:1], payload=[{}, {}]), "payload"),
        (lambda g, _: g.add(X[:1], payload=["text"]), "payload"),
        (lambda g, _: g.add(X[:1], payload=[{"x": {1, 2}}]), "payload"),
        (lambda g, _: g.add(X[:1], payload=[{"x": float("nan")}]), "payload"),
        (lambda g, _: g.add(X, groups=["a"]), "groups"),
        (lambda g, _: g.add(X, groups=[1.5] * 4), "groups"),
        (lambda g, _: g.update(X[:1], ids=["a", "b"]), "ids"),
        (lambda g, _: g.update(X[:2], ids=["a", "a"]), "ids"),
        (lambda g, _: g.delete(["a", "a"]), "ids"),
        (lambda g, _: g.calibrate(X, [None] * 4, ids=[1, 2]), "ids"),
        (lambda g, _: g.search(X, k=0), "k"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(gallery, tmp_path, call, field):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError) as refused:
        call(gallery, tmp_path)
    assert refused.value.field == field
    assert len(gallery) == 4
