import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import surefind as sf
from surefind.cli.galleries import read_items
from surefind.cli.learn import chosen_encoder, labelled
from surefind.data.inputs import Preprocessing
from surefind.data.sources import part_names, read_source, read_vector_file, split_part


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_part_is_picked_by_name_or_by_preference():
    assert len(read_source("digits:ood")) == 500
    assert len(read_source("digits", prefer="test")) == 599
    with pytest.raises(sf.InputError) as caught:
        read_source("digits")
    assert caught.value.field == "source"
    assert "digits:train, digits:test, digits:ood" in caught.value.message


def test_a_colon_in_a_path_is_no_part(tmp_path):
    (tmp_path / "a:b").mkdir()
    assert split_part("a:b") == ("a:b", None)
    assert split_part("a:b:test") == ("a:b", "test")


def test_folders_per_class_have_labels_and_loose_images_none(pets):
    assert read_source("pets").classes == ("cat", "dog")
    loose = read_source("pets/cat", mode="L")
    assert loose.labels is None
    assert loose.names == ("0.png", "1.png", "2.png", "3.png")
    assert loose.read().shape[1] == 1


@pytest.mark.parametrize("column", ["features", "x"])
def test_one_reader_serves_every_command(column):
    """What `fit` takes as vectors, `index` takes too: under a known name, or as the only ones."""
    vectors = np.eye(3, dtype=np.float32)
    beside = {"labels": ["x", "y", "x"], "ids": list("abc"), "kappa": [1.0, 2.0, 3.0]}
    np.savez("a.npz", **{column: vectors}, **beside)
    pq.write_table(pa.table({column: list(vectors), **beside}), "a.parquet")
    for name in ("a.npz", "a.parquet"):
        data, items = read_source(name), read_items(name, None)
        np.testing.assert_array_equal(data.read().numpy(), vectors)
        np.testing.assert_array_equal(items.embedded.mean, vectors)
        assert items.embedded.kappa.tolist() == beside["kappa"]
        assert [data.classes[y] for y in data.labels] == items.labels == beside["labels"]
        assert list(data.names) == items.ids == beside["ids"]


@pytest.mark.parametrize(
    "labels", [["x", "", "y"], [3, -1, 4], [3.0, np.nan, 4.0]], ids=["empty", "-1", "NaN"]
)
def test_examples_without_a_label_are_left_out_of_a_fit(labels, capsys):
    np.savez("a.npz", features=np.eye(3), labels=labels)
    found = labelled(read_vector_file("a.npz").dataset("a"))
    assert found.names is None
    np.testing.assert_array_equal(found.inputs, np.eye(3)[[0, 2]])
    heard = capsys.readouterr().out
    assert heard == "1 examples have no label (empty, or -1), and are left out.\n"
    assert labelled(found) is found


@pytest.mark.parametrize(("kind", "z"), [("fashion-mnist", 3), ("cifar10", 16), ("small", 8)])
def test_encoders_have_names(kind, z):
    network, preprocessing = chosen_encoder(kind, read_source("digits:test"), None, 0)
    assert network.embedding_dim == z
    assert preprocessing is None


@pytest.mark.parametrize(("kind", "side", "z"), [("small", 16, 8), ("cifar10", 32, 16)])
def test_images_in_files_are_resized_to_what_a_network_by_name_takes(pets, kind, side, z):
    photos = read_source("pets")
    network, preprocessing = chosen_encoder(kind, photos, None, 0)
    assert preprocessing == Preprocessing(resize=side, crop=side)
    inputs = photos.read(slice(0, 2), preprocessing=preprocessing)
    assert inputs.shape == (2, 3, side, side)
    assert network(inputs).shape == (2, z)


def test_the_parts_of_a_source_are_known_without_reading_a_known_set(pets):
    assert part_names("digits") == ("train", "test", "ood")
    assert part_names("pets") == ("all",)
    np.save("a.npy", np.ones((2, 3)))
    assert part_names("a.npy") == ("all",)
