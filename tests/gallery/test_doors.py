"""What cannot be used is refused with words, and nothing changes."""

import numpy as np
import pytest
import torch

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery import milvus_engine, opening
from surefind.gallery.gallery import Gallery

X = np.eye(4)


@pytest.fixture
def gallery():
    made = Gallery()
    made.add(X, ids=["a", "b", "c", "d"], labels=["A", "B", "C", "D"])
    return made


@pytest.mark.parametrize(
    ("vectors", "error", "message"),
    [
        (2 * X, InputError, "row 0 has length 2.*normalize=True"),
        (np.zeros((1, 4)), DegenerateError, "zero"),
        (np.full((1, 4), np.nan), InputError, "NaN"),
        (np.full((1, 4), np.inf), InputError, "infinite"),
        (X[:, :3], DegenerateError, "zero"),
        (X[:3, :3], InputError, "3 dimensions and the gallery 4"),
        (X[0], InputError, "matrix"),
        (np.empty((0, 4)), DegenerateError, "empty"),
        ([["x", "y"]], InputError, "matrix of numbers; got list"),
        (None, InputError, "matrix of numbers; got NoneType"),
    ],
)
@pytest.mark.parametrize("call", ["add", "search", "calibrate"])
def test_vectors_that_are_no_directions(gallery, vectors, error, message, call):
    arguments = {"calibrate": {"labels": [None]}}.get(call, {})
    with pytest.raises(error, match=message):
        getattr(gallery, call)(vectors, **arguments)
    assert len(gallery) == 4


def test_normalize_rescales_but_takes_no_zero():
    gallery = Gallery(normalize=True)
    gallery.add(np.array([[3, 4], [-2, 0]]), ids=[1, 2])
    np.testing.assert_allclose(gallery.get(1).vector, [0.6, 0.8])
    with pytest.raises(DegenerateError, match="zero"):
        gallery.add(np.zeros((1, 2)))
    with pytest.raises(InputError, match="NaN"):
        gallery.search(np.full((1, 2), np.nan))


def test_one_dimension_is_too_few():
    with pytest.raises(InputError, match="at least 2 dimensions"):
        Gallery().add(np.ones((1, 1)))


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ["x", "y"]}, "ids must have one entry per embedding, 1; got 2"),
        ({"ids": [1.5]}, "an id must be .*got 1.5"),
        ({"ids": [None]}, "an id must be"),
        ({"ids": [True]}, "an id must be"),
        ({"labels": [1, 2]}, "labels must have one entry"),
        ({"labels": [1.5]}, "a label must be .*got 1.5"),
        ({"labels": [-1]}, "must not be -1"),
        ({"payload": [{}, {}]}, "payload must have one entry"),
        ({"payload": ["text"]}, "a payload must be a dict or None; got str"),
        ({"payload": [{"x": {1, 2}}]}, "what JSON can hold"),
        ({"payload": [{"x": float("nan")}]}, "what JSON can hold"),
    ],
)
def test_ids_labels_and_payload_that_do_not_fit(gallery, arguments, message):
    with pytest.raises(InputError, match=message):
        gallery.add(X[:1], **arguments)
    assert len(gallery) == 4


def test_an_id_may_come_once(gallery):
    for call in (
        lambda: gallery.add(X[:3], ids=["x", "y", "x"]),
        lambda: gallery.update(X[:2], ids=["a", "a"]),
        lambda: gallery.delete(["a", "a"]),
    ):
        with pytest.raises(InputError, match="comes more than once"):
            call()
    assert len(gallery) == 4


def test_update_wants_one_vector_per_id(gallery):
    with pytest.raises(InputError, match="ids must have one entry per embedding, 1; got 2"):
        gallery.update(X[:1], ids=["a", "b"])


def test_options_that_do_not_exist(gallery, tmp_path):
    for call in (
        lambda: Gallery("annoy"),
        lambda: Gallery(index="ivf"),
        lambda: Gallery(on_stale="ignore"),
        lambda: gallery.search(X, rank="best"),
        lambda: gallery.calibrate(X, [1] * 4, rank="best"),
        lambda: Gallery.open(tmp_path, mode="a"),
        lambda: Gallery.open(tmp_path, index="ivf"),
        lambda: Gallery.open(tmp_path, on_stale="ignore"),
    ):
        with pytest.raises(InputError, match="must be one of"):
            call()
    for k in (0, -1):
        for call in (
            lambda k=k: gallery.search(X, k=k),
            lambda k=k: gallery.calibrate(X, [None] * 4, k=k),
        ):
            with pytest.raises(InputError, match=r"\bk must be"):
                call()


def test_match_needs_a_known_uncertainty(gallery):
    with pytest.raises(InputError, match="no known uncertainty"):
        gallery.search(Embeddings(X, np.ones(4)), rank="match")


def test_a_gallery_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="there is no gallery at"):
        Gallery.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="there is no gallery at"):
        Gallery.open(tmp_path / "nothing", mode="r")
    with pytest.raises(InputError, match="there is no gallery at"):
        Gallery.open(tmp_path / "nothing.db")


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="in use by something else"):
        Gallery(path=tmp_path)
    with pytest.raises(InputError, match="in use by something else"):
        Gallery(path=tmp_path / "thesis.tex")


def test_saving_from_memory_wants_a_folder(gallery):
    with pytest.raises(InputError, match="give save a folder"):
        gallery.save()


def test_a_closed_gallery_says_so(gallery):
    gallery.close()
    gallery.close()
    assert repr(gallery) == "Gallery(closed)"
    with pytest.raises(InputError, match="closed"):
        gallery.search(X)


def test_milvus_wants_a_place():
    for path in (None, "folder"):
        with pytest.raises(InputError, match="needs a path"):
            Gallery("milvus", path)


def test_missing_packages_are_named(monkeypatch, tmp_path):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(opening, "import_module", absent)
    with pytest.raises(InputError, match=r"surefind\[gallery\]"):
        Gallery()
    monkeypatch.setattr(milvus_engine, "import_module", absent)
    with pytest.raises(InputError, match=r"surefind\[milvus\]"):
        Gallery("milvus", tmp_path / "x.db")


def test_a_block_holds_at_least_one_item(gallery):
    with pytest.raises(InputError, match="size must be"):
        next(gallery.records(0))
