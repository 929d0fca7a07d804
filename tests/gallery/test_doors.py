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
    arguments = {"calibrate": {"labels": [None]}}.get(call, {})
    with pytest.raises(error) as refused:
        getattr(gallery, call)(vectors, **arguments)
    assert refused.value.field == "embeddings"
    assert len(gallery) == 4


def test_a_length_that_is_not_one_is_named_with_the_remedy(gallery):
    with pytest.raises(InputError, match=r"row 0 has length 2.*normalize"):
        gallery.search(2 * X)


def test_normalize_rescales_but_takes_no_zero():
    gallery = Gallery(normalize=True)
    gallery.add(np.array([[3, 4], [-2, 0]]), ids=[1, 2])
    np.testing.assert_allclose(gallery.get(1).vector, [0.6, 0.8])
    with pytest.raises(DegenerateError) as refused:
        gallery.add(np.zeros((1, 2)))
    assert refused.value.field == "embeddings"
    with pytest.raises(InputError) as refused:
        gallery.search(np.full((1, 2), np.nan))
    assert refused.value.field == "embeddings"


def test_one_dimension_is_too_few():
    with pytest.raises(InputError) as refused:
        Gallery().add(np.ones((1, 1)))
    assert refused.value.field == "embeddings"


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
    ("field", "value"),
    [
        ("ids", ["x", "y"]),
        ("ids", [1.5]),
        ("ids", [None]),
        ("ids", ["a"]),
        ("labels", [1, 2]),
        ("labels", [1.5]),
        ("labels", [-1]),
        ("payload", [{}, {}]),
        ("payload", ["text"]),
        ("payload", [{"x": {1, 2}}]),
        ("payload", [{"x": float("nan")}]),
    ],
)
def test_ids_labels_and_payload_that_do_not_fit(gallery, field, value):
    with pytest.raises(InputError) as refused:
        gallery.add(X[:1], **{field: value})
    assert refused.value.field == field
    assert len(gallery) == 4


def test_an_id_may_come_once(gallery):
    for call in (
        lambda: gallery.add(X[:3], ids=["x", "y", "x"]),
        lambda: gallery.update(X[:2], ids=["a", "a"]),
        lambda: gallery.delete(["a", "a"]),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert refused.value.field == "ids"
    assert len(gallery) == 4


def test_update_wants_one_vector_per_id(gallery):
    with pytest.raises(InputError) as refused:
        gallery.update(X[:1], ids=["a", "b"])
    assert refused.value.field == "ids"


def test_options_that_do_not_exist(gallery, tmp_path):
    for call, field in (
        (lambda: Gallery("annoy"), "engine"),
        (lambda: Gallery(index="ivf"), "index"),
        (lambda: gallery.calibrate(X, [None] * 4, ids=[1, 2]), "ids"),
        (lambda: gallery.add(X, groups=["a"]), "groups"),
        (lambda: gallery.add(X, groups=[1.5] * 4), "groups"),
        (lambda: Gallery.open(tmp_path, mode="a"), "mode"),
        (lambda: Gallery.open(tmp_path, index="ivf"), "index"),
        (lambda: gallery.search(X, k=0), "k"),
        (lambda: gallery.search(X, k=-1), "k"),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert refused.value.field == field


def test_a_gallery_that_is_not_there(tmp_path):
    for name, options in (("nothing", {}), ("nothing", {"mode": "r"}), ("nothing.db", {})):
        with pytest.raises(InputError) as refused:
            Gallery.open(tmp_path / name, **options)
        assert refused.value.field == "path"


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

    monkeypatch.setattr(milvus_engine, "import_module", absent)
    with pytest.raises(InputError, match="pip install pymilvus milvus-lite"):
        Gallery("milvus", tmp_path / "x.db")


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
