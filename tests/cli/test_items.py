import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.conftest import unit
from stored import npz

import surefind as sf
from surefind.cli.galleries import labels_like, read_items
from surefind.gallery.gallery import Gallery


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_what_embed_writes_is_taken_as_it_is(surefind, sure):
    for file in ("test.npz", "test.parquet"):
        code, _, err = surefind("embed", sure, "digits:test", "--out", file)
        assert code == 0, err
    stored = npz("test.npz")
    for file in ("test.npz", "test.parquet"):
        items = read_items(file, None)
        np.testing.assert_array_equal(items.embedded.mean, stored["mean"])
        np.testing.assert_array_equal(items.embedded.kappa, stored["kappa"])
        assert items.ids == [str(i) for i in range(599)]
        assert items.labels == stored["labels"].tolist()


def test_bad_images_can_be_left_out(sure, broken, capsys):
    items = read_items("pets", sure, on_bad="skip")
    heard = capsys.readouterr().out.splitlines()
    assert heard[0] == "Left out 1 images that cannot be read:"
    assert heard[1].startswith("  pets/cat/broken.png cannot be decoded")
    assert "cat/broken.png" not in items.ids
    (broken / "cat" / "broken.png").unlink()
    clean = read_items("pets", sure)
    assert (items.ids, items.labels, items.files) == (clean.ids, clean.labels, clean.files)
    np.testing.assert_array_equal(items.embeddings().mean, clean.embeddings().mean)


def test_a_column_beside_images_has_a_row_for_those_left_out_too(sure, broken, tmp_path):
    """The files are sorted: 0, 1, 2, 3, 4, 5, broken."""
    np.save("labels.npy", np.array([*"abcdef", "bad"]))
    how = {"labels": tmp_path / "labels.npy", "on_bad": "skip"}
    items = read_items("pets/cat", sure, **how)
    assert items.labels == [*"abcdef"]
    assert read_items("pets/cat", sure, groups=how["labels"], **how).groups == items.labels
    np.save("labels.npy", np.arange(6))
    with pytest.raises(sf.InputError) as caught:
        read_items("pets/cat", sure, **how)
    assert caught.value.field == "labels"


def test_a_column_is_read_from_any_file(tmp_path):
    np.save("b.npy", unit(2))
    np.save(tmp_path / "a.npy", np.array([3, -1]))
    np.savez(tmp_path / "a.npz", group=np.array(["x", ""]))
    pq.write_table(pa.table({"group": ["x", None]}), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text('[{"group": "x"}, {"group": null}]')
    for suffix, cell in (("npy", "3"), ("npz", "x"), ("parquet", "x"), ("json", "x")):
        found = read_items("b.npy", None, groups=tmp_path / f"a.{suffix}")
        assert found.groups == [cell, None]


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
        assert out.endswith("surefind calibrate g.db QUERIES")
