import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surefind as sf
from surefind.cli.indexing import labels_like, read_column
from surefind.gallery.gallery import Gallery


def unit(n, seed=0, z=4):
    x = np.random.default_rng(seed).normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def content(path="g"):
    with Gallery.open(path, mode="r") as gallery:
        return {i: gallery.get(i) for i in gallery}


def test_images_are_embedded_by_a_run_and_named_by_their_files(surefind, sure, tmp_path):
    from PIL import Image

    for label in ("one", "two"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(2):
            pixels = np.full((8, 8), 100 * i, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    code, out, err = surefind("index", "images", "--run", sure, "--out", "g")
    assert code == 0, err
    assert "Added 4 items and updated 0; g holds 4 of 8 dimensions." in out
    assert f"Next, or with other queries than these: surefind search g images --run {sure}" in out
    found = content()
    assert {i: item.label for i, item in found.items()} == {
        "one/0.png": "one",
        "one/1.png": "one",
        "two/0.png": "two",
        "two/1.png": "two",
    }
    assert all(np.isfinite(item.kappa) for item in found.values())


def test_what_embed_writes_is_taken_as_it_is(surefind, sure):
    for file in ("test.npz", "test.parquet"):
        surefind("embed", sure, "digits:test", "--out", file)
        code, _, err = surefind("index", file, "--out", f"{file}-gallery")
        assert code == 0, err
    stored, found = np.load("test.npz"), content("test.npz-gallery")
    np.testing.assert_allclose(found["7"].vector, stored["mean"][7], atol=1e-6)
    assert found["7"].kappa == stored["kappa"][7]
    assert found["7"].label == str(stored["labels"][7])
    with Gallery.open("test.npz-gallery") as one, Gallery.open("test.parquet-gallery") as two:
        assert len(one) == 599
        assert one.fingerprint == two.fingerprint


def test_items_are_added_and_updated(surefind):
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"], labels=[1, 2, 3])
    np.savez("b.npz", features=unit(2, 1), ids=["c", "d"], labels=["x", ""])
    surefind("index", "a.npz", "--out", "g")
    code, out, err = surefind("index", "b.npz", "--out", "g")
    assert code == 0, err
    assert "Added 1 items and updated 1; g holds 4" in out
    found = content()
    assert {i: item.label for i, item in found.items()} == {"a": "1", "b": "2", "c": "x", "d": None}
    np.testing.assert_allclose(found["c"].vector, unit(2, 1)[0], atol=1e-6)
    surefind("index", "b.npz", "--out", "g", "--prefix", "new-")
    assert {"new-c", "new-d"} < content().keys()


def test_rows_without_ids_are_named_by_their_source(surefind):
    np.save("a.npy", unit(2))
    np.save("b.npy", unit(3, 1))
    with open("b.csv", "w") as file:
        file.write('label\nx\n""\nz\n')
    surefind("index", "a.npy", "--out", "g")
    code, _, err = surefind("index", "b.npy", "--out", "g", "--labels", "b.csv")
    assert code == 0, err
    labels = {i: item.label for i, item in content().items()}
    assert labels == {"a/0": None, "a/1": None, "b/0": "x", "b/1": None, "b/2": "z"}
    assert all(np.isinf(item.kappa) for item in content().values())


def test_labels_follow_a_gallery_of_whole_numbers():
    with Gallery() as gallery:
        gallery.add(unit(2), labels=[None, 3])
        assert labels_like(gallery, ["3", "-7", "x", None]) == [3, -7, "x", None]
    with Gallery() as gallery:
        assert labels_like(gallery, ["3", None]) == ["3", None]


def test_milvus_lite_is_a_gallery_too(surefind):
    pytest.importorskip("milvus_lite")
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"])
    for added in (3, 0):
        code, out, err = surefind("index", "a.npz", "--out", "g.db")
        assert code == 0, err
        assert f"Added {added} items and updated {3 - added}; g.db holds 3" in out


def test_another_run_is_refused(surefind, sure, trained):
    surefind("index", "digits:test", "--run", sure, "--out", "g")
    before = content().keys()
    code, _, err = surefind("index", "digits:test", "--run", trained, "--out", "g")
    assert code == 1
    assert "the gallery was made with another run" in err
    assert content().keys() == before
    code, _, err = surefind("index", "digits:test", "--run", sure, "--out", "g")
    assert code == 0, err


def test_a_calibration_is_said_to_be_out_of_date(surefind):
    with Gallery(path="g") as gallery:
        gallery.add(unit(30), labels=["x"] * 30)
        gallery.calibrate(unit(30, 1), ["x"] * 30, contributions=False)
    np.save("a.npy", unit(1, 2))
    code, out, err = surefind("index", "a.npy", "--out", "g")
    assert code == 0, err
    assert "out of date; make it again with labelled queries: surefind calibrate g HELD-OUT" in out


def write_inputs():
    np.save("good.npy", unit(3))
    np.save("long.npy", 2 * unit(3))
    np.save("none.npy", np.zeros((0, 4), dtype=np.float32))
    np.save("images.npy", np.zeros((3, 8, 8), dtype=np.uint8))
    np.save("other.npy", unit(3, z=5))
    np.savez("two.npz", x=np.zeros(2), y=np.zeros(2))
    np.savez("texts.npz", features=np.array(["a", "b"]))
    np.savez("twice.npz", features=unit(2), ids=["a", "a"])
    np.savez("unnamed.npz", features=unit(2), ids=["a", ""])
    np.savez("unsure.npz", features=unit(2), kappa=np.array([1, -1.0]))
    pq.write_table(pa.table({"features": [[1.0, 0.0], [1.0]]}), "ragged.parquet")
    np.save("labels.npy", np.arange(2))
    np.savez("odd.npz", a=np.arange(3), b=np.arange(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["digits:test"], "digits:test holds images; give --run RUN"),
        (["images.npy"], "Images need --run RUN"),
        (["long.npy"], "row 0 has length 2. Add --normalize; or --run RUN"),
        (["none.npy"], "none.npy holds nothing"),
        (["other.npy"], "embeddings have 5 dimensions and the gallery 4"),
        (["two.npz"], "two.npz holds 'x', 'y' and none is called 'features'"),
        (["texts.npz"], "is no table of numbers"),
        (["ragged.parquet"], "is no table of numbers"),
        (["twice.npz"], "ids must be distinct; 'a' comes more than once"),
        (["unnamed.npz"], "row 1 has no id"),
        (["unsure.npz"], "kappa must not be negative"),
        (["good.npy", "--labels", "labels.npy"], "labels.npy has 2 rows and the source 3"),
        (["good.npy", "--labels", "odd.npz"], "odd.npz holds 'a', 'b'; name the column 'label'"),
        (["good.npy", "--labels", "gone.csv"], "gone.csv does not exist"),
        (["gone.npy"], "neither a known set"),
        (["good.npy", "--run", "gone"], "gone does not exist"),
    ],
)
def test_what_cannot_be_indexed_is_refused(surefind, options, message):
    write_inputs()
    with Gallery(path="g") as gallery:
        gallery.add(unit(1), ids=["there"])
    code, _, err = surefind("index", *options, "--out", "g")
    assert code == 1
    assert message in err
    assert content().keys() == {"there"}


@pytest.mark.parametrize("name", ["long.npy", "twice.npz", "unsure.npz"])
def test_what_is_refused_leaves_no_gallery_behind(surefind, tmp_path, name):
    write_inputs()
    assert surefind("index", name, "--out", "g")[0] == 1
    assert not (tmp_path / "g").exists()
    code, _, err = surefind("index", "other.npy", "--out", "g")  # of another dimension
    assert code == 0, err


def test_an_id_twice_is_noticed_before_the_first_block_is_written(surefind, tmp_path, monkeypatch):
    monkeypatch.setattr("surefind.cli.indexing.BLOCK", 2)
    np.savez("twice.npz", features=unit(4), ids=["a", "b", "c", "a"])
    code, _, err = surefind("index", "twice.npz", "--out", "g")
    assert code == 1
    assert "'a' comes more than once" in err
    assert not (tmp_path / "g").exists()


def test_a_gallery_within_its_run_is_explained_there(surefind, run):
    assert surefind("index", "digits:test", "--run", "plain", "--out", "plain/gallery")[0] == 0
    assert "| gallery | items that can be searched |" in (run / "README.md").read_text()


def test_an_empty_set_of_images_holds_nothing(surefind, sure):
    np.save("none.npy", np.zeros((0, 8, 8), dtype=np.uint8))
    code, _, err = surefind("index", "none.npy", "--run", sure, "--out", "g")
    assert code == 1
    assert "none.npy holds nothing" in err


def test_vectors_of_any_length_can_be_rescaled(surefind):
    np.save("long.npy", 2 * unit(3))
    code, _, err = surefind("index", "long.npy", "--out", "g", "--normalize")
    assert code == 0, err
    np.testing.assert_allclose(content()["long/0"].vector, unit(3)[0], atol=1e-6)


def test_a_place_that_holds_something_else_is_left_alone(surefind, tmp_path):
    np.save("good.npy", unit(3))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("")
    for place in ("mine", "good.npy"):
        code, _, err = surefind("index", "nowhere", "--out", place)  # before anything is read
        assert code == 1
        assert f"{place} is in use by something else" in err


def test_an_empty_folder_becomes_a_gallery(surefind, tmp_path):
    np.save("good.npy", unit(3))
    (tmp_path / "g").mkdir()
    code, _, err = surefind("index", "good.npy", "--out", "g")
    assert code == 0, err
    assert len(content()) == 3


def test_a_column_is_read_from_any_file(tmp_path):
    np.save(tmp_path / "a.npy", np.array([3, -1]))
    np.savez(tmp_path / "a.npz", group=np.array(["x", ""]))
    pq.write_table(pa.table({"group": ["x", None]}), tmp_path / "a.parquet")
    assert read_column(tmp_path / "a.npy", ("group",), 2) == ["3", None]
    assert read_column(tmp_path / "a.npz", ("group",), 2) == ["x", None]
    assert read_column(tmp_path / "a.parquet", ("group",), 2) == ["x", None]


def test_a_gallery_made_here_is_one_of_the_library(surefind, sure):
    surefind("index", "digits:train", "--run", sure, "--out", "g")
    with Gallery.open("g") as gallery:
        test = sf.data.catalogue.load("digits").test[:50]
        answers = gallery.search(sf.load(sure).embed(test), k=1)
        right = [int(x) == int(y) for x, y in zip(answers.labels[:, 0], test.labels, strict=True)]
        assert np.mean(right) > 0.5
        assert json.dumps(gallery.model).startswith('"sha256:')
