import numpy as np
import pytest

import surefind as sf
from surefind.data.formats import read_arrays


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


def test_python_objects_and_missing_files_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object))
    with pytest.raises(sf.InputError, match=r"a\.npy is damaged or half copied .*allow_pickle"):
        read_arrays(tmp_path / "a.npy")
    with pytest.raises(sf.InputError, match=r"gone\.npy does not exist"):
        read_arrays(tmp_path / "gone.npy")
