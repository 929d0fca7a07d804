import numpy as np
import pytest

import surefind as sf
from surefind.data.sources import (
    LABELS,
    VECTORS,
    load_manifest,
    read_arrays,
    read_column,
    read_vector_file,
)


def test_both_kinds_of_file_are_read(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez_compressed(tmp_path / "b.npz", x=np.arange(2), y=np.array(["a", "b"]))
    assert read_arrays(tmp_path / "a.npy")["array"].tolist() == [0, 1, 2]
    stored = read_arrays(tmp_path / "b.npz")
    assert stored["x"].tolist() == [0, 1]
    assert stored["y"].tolist() == ["a", "b"]


@pytest.mark.parametrize("keep", [4, 60, 200])
def test_half_a_file_is_refused(tmp_path, keep):
    np.savez(tmp_path / "b.npz", x=np.arange(200))
    path = tmp_path / "b.npz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(sf.InputError, match=r"b\.npz is damaged or half copied"):
        read_arrays(path)


@pytest.mark.parametrize("content", [b"", b"\x93N", b"1.0, 2.0\n3.0, 4.0\n"])
def test_what_numpy_did_not_save_is_told_so(tmp_path, content):
    """A text under the name of an array is not called damaged."""
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(
        sf.InputError, match=r"a\.npy is not a file that NumPy saved\. Write it with"
    ):
        read_arrays(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.save, lambda path, x: np.savez(path, labels=x)])
def test_python_objects_are_called_what_they_are(tmp_path, save):
    """Texts of pandas are objects: the file is whole, and its owner is told how to save them."""
    path = tmp_path / ("a.npy" if save is np.save else "a.npz")
    save(path, np.array(["cat", "dog"], dtype=object))
    with pytest.raises(sf.InputError, match="holds Python objects") as caught:
        read_arrays(path)
    assert caught.value.field == "path"
    assert "astype(str)" in caught.value.hint
    assert "damaged" not in str(caught.value)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(sf.InputError, match=r"gone\.npy does not exist"):
        read_arrays(tmp_path / "gone.npy")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_the_names_that_are_accepted_are_those_that_the_message_names(tmp_path, suffix):
    import pyarrow as arrow
    from pyarrow import parquet

    def write(columns):
        path = tmp_path / f"a{suffix}"
        if suffix == ".npz":
            np.savez(path, **columns)
        else:
            parquet.write_table(arrow.table({k: list(v) for k, v in columns.items()}), path)
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


def test_a_table_of_vectors_is_refused_in_a_sentence(tmp_path):
    names = ["label", *(f"f{i}" for i in range(1280))]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    with pytest.raises(sf.InputError) as caught:
        load_manifest(tmp_path / "a.csv")
    assert caught.value.field == "path"
    assert "1,273 more" in caught.value.message
    assert "numpy.savez" in caught.value.hint
    assert len(str(caught.value)) < 400
