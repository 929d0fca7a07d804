import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from stored import npz

import surefind as sf
from surefind.cli.galleries import (
    check_model,
    existing_gallery,
    labels_like,
    read_items,
)
from surefind.cli.runs import open_run
from surefind.gallery.gallery import Gallery


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def unit(n, seed=0, z=4):
    x = np.random.default_rng(seed).normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_what_embed_writes_is_taken_as_it_is(surefind, sure):
    for file in ("test.npz", "test.parquet"):
        code, _, err = surefind("embed", sure, "digits:test", "--out", file)
        assert code == 0, err
    stored = npz("test.npz")
    for file in ("test.npz", "test.parquet"):
        items = read_items(file, None)
        np.testing.assert_array_equal(items.embeddings.mean, stored["mean"])
        np.testing.assert_array_equal(items.embeddings.kappa, stored["kappa"])
        assert items.ids == [str(i) for i in range(599)]
        assert items.labels == stored["labels"].tolist()


def test_rows_without_ids_are_named_by_their_source(tmp_path):
    np.save("b.npy", unit(3))
    (tmp_path / "b.csv").write_text('label\nx\n""\nz\n')
    assert read_items("b.npy", None).labels is None
    items = read_items("b.npy", None, labels=tmp_path / "b.csv")
    assert items.ids == ["b/0", "b/1", "b/2"]
    assert items.labels == ["x", None, "z"]
    assert items.files is None


def test_images_are_embedded_by_a_run(sure, broken):
    (broken / "cat" / "broken.png").unlink()
    items = read_items("pets", sure)
    assert items.embeddings.mean.shape == (12, 8)
    assert items.ids[0] == "cat/0.png"
    assert items.labels == ["cat"] * 6 + ["dog"] * 6
    assert items.files[0] == "pets/cat/0.png"
    assert items.kept is None


def test_bad_images_are_refused(sure, broken):
    with pytest.raises(sf.InputError) as caught:
        read_items("pets", sure)
    assert caught.value.field == "on_bad"


def test_bad_images_can_be_left_out(sure, broken, capsys):
    items = read_items("pets", sure, on_bad="skip")
    heard = capsys.readouterr().out.splitlines()
    assert heard[0] == "Left out 1 images that cannot be read:"
    assert heard[1].startswith("  pets/cat/broken.png: ")
    assert "cat/broken.png" not in items.ids
    (broken / "cat" / "broken.png").unlink()
    clean = read_items("pets", sure)
    assert (items.ids, items.labels, items.files) == (clean.ids, clean.labels, clean.files)
    torch.testing.assert_close(items.embeddings.mean, clean.embeddings.mean)
    later = read_items("pets", sure, later=True)
    torch.testing.assert_close(later.embeddings[3:5].mean, clean.embeddings.mean[3:5])


def test_a_column_beside_images_has_a_row_for_those_left_out_too(sure, broken, tmp_path):
    """The files are sorted: 0, 1, 2, 3, 4, 5, broken."""
    np.save("labels.npy", np.array([*"abcdef", "bad"]))
    how = {"labels": tmp_path / "labels.npy", "on_bad": "skip"}
    items = read_items("pets/cat", sure, **how)
    assert items.labels == [*"abcdef"]
    assert items.column(tmp_path / "labels.npy", ("group",)) == items.labels
    np.save("labels.npy", np.arange(6))
    with pytest.raises(sf.InputError) as caught:
        read_items("pets/cat", sure, **how)
    assert caught.value.field == "labels"


def write_inputs():
    np.save("good.npy", unit(3))
    np.save("none.npy", np.zeros((0, 4), dtype=np.float32))
    np.save("images.npy", np.zeros((3, 8, 8), dtype=np.uint8))
    np.savez("two.npz", x=np.zeros(2), z=np.zeros(2))
    np.savez("texts.npz", features=np.array(["a", "b"]))
    np.savez("unnamed.npz", features=unit(2), ids=["a", ""])
    pq.write_table(pa.table({"features": [[1.0, 0.0], [1.0]]}), "ragged.parquet")
    np.save("labels.npy", np.arange(2))
    np.savez("odd.npz", a=np.arange(3), b=np.arange(3))


@pytest.mark.parametrize(
    ("source", "labels", "field"),
    [
        ("digits:test", None, "run"),
        ("images.npy", None, "run"),
        ("none.npy", None, "source"),
        ("two.npz", None, "path"),
        ("texts.npz", None, "path"),
        ("ragged.parquet", None, "path"),
        ("unnamed.npz", None, "ids"),
        ("good.npy", "labels.npy", "labels"),
        ("good.npy", "odd.npz", "path"),
        ("good.npy", "gone.csv", "path"),
        ("gone.npy", None, "source"),
    ],
)
def test_what_gives_no_items_is_refused(tmp_path, source, labels, field):
    write_inputs()
    with pytest.raises(sf.InputError) as caught:
        read_items(source, None, labels=None if labels is None else tmp_path / labels)
    assert caught.value.field == field


def test_a_run_that_is_not_there_is_refused(tmp_path):
    np.save("good.npy", unit(3))
    with pytest.raises(sf.InputError) as caught:
        read_items("good.npy", tmp_path / "gone")
    assert caught.value.field == "run"


def test_an_empty_set_of_images_holds_nothing(sure):
    np.save("none.npy", np.zeros((0, 8, 8), dtype=np.uint8))
    with pytest.raises(sf.InputError) as caught:
        read_items("none.npy", sure)
    assert caught.value.field == "source"


def test_a_column_is_read_from_any_file(tmp_path):
    np.save("b.npy", unit(2))
    items = read_items("b.npy", None)
    np.save(tmp_path / "a.npy", np.array([3, -1]))
    np.savez(tmp_path / "a.npz", group=np.array(["x", ""]))
    pq.write_table(pa.table({"group": ["x", None]}), tmp_path / "a.parquet")
    assert items.column(tmp_path / "a.npy", ("group",)) == ["3", None]
    assert items.column(tmp_path / "a.npz", ("group",)) == ["x", None]
    assert items.column(tmp_path / "a.parquet", ("group",)) == ["x", None]


def test_labels_follow_a_gallery_of_whole_numbers():
    with Gallery() as gallery:
        gallery.add(unit(2), labels=[None, 3])
        assert labels_like(gallery, ["3", "-7", "x", None]) == [3, -7, "x", None]
    with Gallery() as gallery:
        assert labels_like(gallery, ["3", None]) == ["3", None]


def test_milvus_lite_is_a_gallery_too(surefind):
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"])
    for added in (3, 0):
        code, out, err = surefind("index", "a.npz", "--out", "g.db")
        assert code == 0, err
        assert f"Added {added} items and updated {3 - added}; g.db holds 3" in out


def test_another_run_is_refused(trained, sure):
    with Gallery(model=open_run(sure).fingerprint) as gallery:
        check_model(gallery, sure)
        check_model(gallery, None)
        with pytest.raises(sf.InputError) as caught:
            check_model(gallery, trained)
        assert caught.value.field == "run"
    with Gallery() as gallery:
        check_model(gallery, trained)


def test_a_place_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    for place in ("mine", "mine/letter.txt"):
        with pytest.raises(sf.InputError, match=place):
            existing_gallery(str(tmp_path / place))


def test_an_empty_folder_can_become_a_gallery(tmp_path):
    assert existing_gallery(str(tmp_path)) is None
