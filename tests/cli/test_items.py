import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from stored import npz

import surefind as sf
from surefind.apps.cli.items import read_column, read_items


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
        items = read_items(file, None, None)
        np.testing.assert_array_equal(items.embeddings.mean, stored["mean"])
        np.testing.assert_array_equal(items.embeddings.kappa, stored["kappa"])
        assert items.ids == [str(i) for i in range(599)]
        assert items.labels == stored["labels"].tolist()


def test_rows_without_ids_are_named_by_their_source(tmp_path):
    np.save("b.npy", unit(3))
    (tmp_path / "b.csv").write_text('label\nx\n""\nz\n')
    assert read_items("b.npy", None, None).labels is None
    items = read_items("b.npy", None, None, labels=tmp_path / "b.csv")
    assert items.ids == ["b/0", "b/1", "b/2"]
    assert items.labels == ["x", None, "z"]
    assert items.files is None


def test_images_are_embedded_by_a_run(sure, broken):
    (broken / "cat" / "broken.png").unlink()
    items = read_items("pets", sure, None)
    assert items.embeddings.mean.shape == (12, 8)
    assert items.ids[0] == "cat/0.png"
    assert items.labels == ["cat"] * 6 + ["dog"] * 6
    assert items.files[0] == "pets/cat/0.png"
    assert items.kept is None


def test_bad_images_are_refused(sure, broken):
    with pytest.raises(sf.InputError, match="1 of 13 image files cannot be used"):
        read_items("pets", sure, None)


def test_bad_images_can_be_left_out(sure, broken):
    heard = []
    items = read_items("pets", sure, None, on_bad="skip", announce=heard.append)
    assert heard[0] == "Left out 1 images that cannot be read:"
    assert heard[1].startswith("  pets/cat/broken.png: ")
    assert "cat/broken.png" not in items.ids
    (broken / "cat" / "broken.png").unlink()
    clean = read_items("pets", sure, None)
    assert (items.ids, items.labels, items.files) == (clean.ids, clean.labels, clean.files)
    torch.testing.assert_close(items.embeddings.mean, clean.embeddings.mean)


def test_a_column_beside_images_has_a_row_for_those_left_out_too(sure, broken, tmp_path):
    """The files are sorted: 0, 1, 2, 3, 4, 5, broken."""
    np.save("labels.npy", np.array([*"abcdef", "bad"]))
    how = {"labels": tmp_path / "labels.npy", "on_bad": "skip"}
    items = read_items("pets/cat", sure, None, **how)
    assert items.labels == [*"abcdef"]
    assert items.column(tmp_path / "labels.npy", ("group",)) == items.labels
    np.save("labels.npy", np.arange(6))
    with pytest.raises(sf.InputError, match=r"labels.npy has 6 rows and the source 7"):
        read_items("pets/cat", sure, None, **how)


def write_inputs():
    np.save("good.npy", unit(3))
    np.save("none.npy", np.zeros((0, 4), dtype=np.float32))
    np.save("images.npy", np.zeros((3, 8, 8), dtype=np.uint8))
    np.savez("two.npz", x=np.zeros(2), y=np.zeros(2))
    np.savez("texts.npz", features=np.array(["a", "b"]))
    np.savez("unnamed.npz", features=unit(2), ids=["a", ""])
    pq.write_table(pa.table({"features": [[1.0, 0.0], [1.0]]}), "ragged.parquet")
    np.save("labels.npy", np.arange(2))
    np.savez("odd.npz", a=np.arange(3), b=np.arange(3))


@pytest.mark.parametrize(
    ("source", "labels", "message"),
    [
        ("digits:test", None, "digits:test holds images; give --run RUN"),
        ("images.npy", None, "Images need --run RUN"),
        ("none.npy", None, "none.npy holds nothing"),
        ("two.npz", None, "two.npz holds 'x', 'y' and none is called 'features'"),
        ("texts.npz", None, "is no table of numbers"),
        ("ragged.parquet", None, "is no table of numbers"),
        ("unnamed.npz", None, "row 1 has no id"),
        ("good.npy", "labels.npy", "labels.npy has 2 rows and the source 3"),
        ("good.npy", "odd.npz", "odd.npz holds 'a', 'b'; name the column 'label'"),
        ("good.npy", "gone.csv", "gone.csv does not exist"),
        ("gone.npy", None, "neither a known set"),
    ],
)
def test_what_gives_no_items_is_refused(tmp_path, source, labels, message):
    write_inputs()
    with pytest.raises(sf.InputError, match=message):
        read_items(source, None, None, labels=None if labels is None else tmp_path / labels)


def test_a_run_that_is_not_there_is_refused(tmp_path):
    np.save("good.npy", unit(3))
    with pytest.raises(sf.InputError, match="gone does not exist"):
        read_items("good.npy", tmp_path / "gone", None)


def test_an_empty_set_of_images_holds_nothing(sure):
    np.save("none.npy", np.zeros((0, 8, 8), dtype=np.uint8))
    with pytest.raises(sf.InputError, match=r"none\.npy holds nothing"):
        read_items("none.npy", sure, None)


def test_a_column_is_read_from_any_file(tmp_path):
    np.save(tmp_path / "a.npy", np.array([3, -1]))
    np.savez(tmp_path / "a.npz", group=np.array(["x", ""]))
    pq.write_table(pa.table({"group": ["x", None]}), tmp_path / "a.parquet")
    assert read_column(tmp_path / "a.npy", ("group",), 2) == ["3", None]
    assert read_column(tmp_path / "a.npz", ("group",), 2) == ["x", None]
    assert read_column(tmp_path / "a.parquet", ("group",), 2) == ["x", None]
