import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import surefind as sf
from surefind.data.sources import (
    LABELS,
    VECTORS,
    load_digits,
    load_folder,
    load_manifest,
    read_arrays,
    read_column,
    read_table,
    read_vector_file,
)


def test_a_folder_per_class_is_one_part(tmp_path, save_image):
    for name in ("dog/1.JPG", "dog/deep/2.png", "cat/3.webp", "cat/.hidden.png"):
        save_image(f"pets/{name}", size=(8, 8))
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("x")
    (tmp_path / "pets" / ".cache").mkdir()
    data = load_folder(tmp_path / "pets")["all"]
    assert data.names == ("cat/3.webp", "dog/1.JPG", "dog/deep/2.png")
    assert data.labels.tolist() == [0, 1, 1]
    assert (data.classes, data.name) == (("cat", "dog"), "pets")
    assert data.read().shape == (3, 3, 8, 8)


def test_part_folders_share_their_classes(tmp_path, save_image):
    for name in ("train/a/1.png", "train/b/1.png", "Test/b/1.png", "Test/c/1.png"):
        save_image(name)
    splits = load_folder(tmp_path, mode="L", name="mine")
    assert sorted(splits) == ["test", "train"]
    assert splits.train.labels.tolist() == [0, 1]
    assert splits.test.labels.tolist() == [1, 2]
    assert splits.test.classes == ("a", "b", "c")
    assert splits.test.read().shape == (2, 1, 16, 20)


def test_a_class_that_is_called_test_beside_others_is_a_class(tmp_path, save_image):
    save_image("test/1.png")
    save_image("exam/1.png")
    assert load_folder(tmp_path)["all"].classes == ("exam", "test")


@pytest.fixture
def folder(tmp_path, save_image):
    for name in ("a", "b", "c", "d"):
        save_image(f"pictures/{name}.png", size=(6, 4))
    return tmp_path


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_of_labels_and_splits(folder):
    path = write(
        folder / "list.csv",
        "path,label,split,remark\n"
        "pictures/a.png,cat,train,\n"
        "pictures/b.png,dog,train,x\n"
        '"pictures/c.png",bird,test,"a, b"\n'
        f"{folder}/pictures/d.png,dog,test,\n",
    )
    splits = load_manifest(path)
    assert list(splits) == ["train", "test"]
    assert splits.train.classes == splits.test.classes == ("bird", "cat", "dog")
    assert splits.train.labels.tolist() == [1, 2]
    assert splits.test.labels.tolist() == [0, 2]
    assert splits.train.names == ("pictures/a.png", "pictures/b.png")
    assert splits.test.name == "list"
    assert splits.test.read().shape == (2, 3, 4, 6)


def test_a_parquet_of_positions(folder):
    table = pa.table({
        "path": ["pictures/a.png", "pictures/b.png"],
        "easting": [500000.25, 500010.0],
        "northing": [4649776, 4649777],
        "name": ["first", "second"],
    })
    pq.write_table(table, folder / "places.parquet")
    data = load_manifest(folder / "places.parquet", mode="L", name="places")["all"]
    assert data.labels is None
    assert data.positions.tolist() == [[500000.25, 4649776.0], [500010.0, 4649777.0]]
    assert data.names == ("first", "second")
    assert data.read().shape == (2, 1, 4, 6)
    assert data.relation().n_positive == 2


def test_parquet_labels_may_be_numbers_and_are_sorted_as_such(folder):
    table = pa.table({"path": [f"pictures/{c}.png" for c in "abc"], "label": [10, 9, 10]})
    pq.write_table(table, folder / "list.pq")
    data = load_manifest(folder / "list.pq")["all"]
    assert data.classes == ("9", "10")
    assert data.labels.tolist() == [1, 0, 1]


def test_a_byte_order_mark_and_blank_lines_are_no_matter(folder):
    path = folder / "list.csv"
    path.write_bytes(b"\xef\xbb\xbfpath, label\r\npictures/a.png, cat\r\n\r\n")
    assert load_manifest(path)["all"].classes == ("cat",)


def test_a_null_is_an_empty_cell(tmp_path):
    pq.write_table(pa.table({"path": ["a", None]}), tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert table["path"] == ["a", ""]
    assert len(table) == 2


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_the_names_that_are_accepted_are_those_that_the_message_names(tmp_path, suffix):
    def write(columns):
        path = tmp_path / f"a{suffix}"
        if suffix == ".npz":
            np.savez(path, **columns)
        else:
            pq.write_table(pa.table({k: list(v) for k, v in columns.items()}), path)
        return path

    two, more = np.eye(2, dtype=np.float32), np.arange(2)
    for vectors in VECTORS:
        for labels in LABELS:
            found = read_vector_file(write({"other": more, vectors: two, labels: more, "b": more}))
            np.testing.assert_array_equal(found.vectors, two)
            assert found.labels.tolist() == [0, 1]
    with pytest.raises(sf.InputError) as caught:
        read_vector_file(write({"one": two, "two": two}))
    assert caught.value.field == "path"
    hint = caught.value.hint
    assert all(repr(name) in hint for name in (*VECTORS, *LABELS))
    with pytest.raises(sf.InputError) as caught:
        read_column(write({"one": more, "two": more}), LABELS)
    assert all(repr(name) in caught.value.message for name in LABELS)


def test_a_flat_folder_is_told_what_to_do(tmp_path, save_image):
    save_image("flat/1.png")
    with pytest.raises(
        sf.InputError, match=r"flat has images but no class folders.*flat/cat/1\.jpg"
    ):
        load_folder(tmp_path / "flat")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "name each column once"),
        ("path,label\n", "lists no images"),
        ("label\ncat\n", "'label'"),
        ("path,easting\npictures/a.png,1\n", "'easting' and 'northing'"),
        ("path,label,path\na,b,c\n", "name each column once"),
        ("path,label\npictures/a.png,cat\npictures/b.png\n", "line 3"),
        ("path,label\npictures/a.png,\n", "line 2: label"),
        ("path,label\n,cat\n", "line 2: path"),
        ("path,label,split\npictures/a.png,cat,\n", "line 2: split"),
        ("path,label\npictures/z.png,cat\n", "z.png"),
        ("path,easting,northing\npictures/a.png,1,2\npictures/b.png,east,2\n", "line 3: easting"),
        ("path,easting,northing\npictures/a.png,1,nan\n", "northing"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_where(folder, text, named):
    with pytest.raises(sf.InputError) as caught:
        load_manifest(write(folder / "list.csv", text))
    assert named in caught.value.message


BROKEN = {
    "no folder": (load_folder, "gone", None),
    "no class": (load_folder, "empty/b", None),
    "a class without images": (load_folder, "empty", None),
    "no table": (read_table, "gone.csv", None),
    "no text": (read_table, "binary.csv", b"path\n\xff\xfe\n"),
    "half a Parquet": (read_table, "half.parquet", b"PAR1 half a file"),
    "no array": (read_arrays, "gone.npy", None),
    "an empty array": (read_arrays, "a.npy", b""),
    "a text as an array": (read_arrays, "b.npy", b"1.0, 2.0\n3.0, 4.0\n"),
    "half an archive": (read_arrays, "c.npz", b"PK\x03\x04 half"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(tmp_path, name):
    read, path, content = BROKEN[name]
    (tmp_path / "empty" / "b").mkdir(parents=True)
    if content is not None:
        (tmp_path / path).write_bytes(content)
    with pytest.raises(sf.InputError) as caught:
        read(tmp_path / path)
    assert caught.value.field == "path"
    assert path in str(caught.value)


@pytest.mark.parametrize("save", [np.save, lambda path, x: np.savez(path, labels=x)])
def test_python_objects_are_called_what_they_are(tmp_path, save):
    """Texts of pandas are objects: the file is whole, and its owner is told how to save them."""
    path = tmp_path / ("a.npy" if save is np.save else "a.npz")
    save(path, np.array(["cat", "dog"], dtype=object))
    with pytest.raises(sf.InputError, match="holds Python objects") as caught:
        read_arrays(path)
    assert "astype(str)" in caught.value.hint


def test_digits_and_photographs():
    splits = load_digits(n_ood=50)
    assert {p: len(splits[p]) for p in splits} == {"train": 1198, "test": 599, "ood": 50}
    assert splits.train.labels.unique().tolist() == list(range(10))
    assert splits.train.read().shape[1:] == splits["ood"].read().shape[1:] == (1, 8, 8)
    assert splits.train.inputs.max() == 255
    assert splits["ood"].labels is None
    assert torch.equal(splits["ood"].read(), load_digits(n_ood=50)["ood"].read())
    assert not torch.equal(splits["ood"].read(), load_digits(n_ood=50, seed=1)["ood"].read())
    with pytest.raises(sf.InputError, match="n_ood must be a whole number of at least 1"):
        load_digits(n_ood=0)
