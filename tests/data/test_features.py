import numpy as np
import pytest

import surefind as sf
from surefind.data.catalogue import check, load
from surefind.data.features import CARS_FILE, CUB_FILE, read_features


def write(file, classes, **changes):
    y = np.repeat(np.asarray(classes, np.int16), 3)
    arrays = {
        "x": np.arange(len(y) * 4, dtype=np.float16).reshape(-1, 4),
        "y": y,
        "split": np.array(["train"] * len(y)),
        "path": np.array([f"{c}/{i}.jpg" for i, c in enumerate(y)]),
    }
    file.parent.mkdir(exist_ok=True)
    np.savez(file, **{k: v for k, v in (arrays | changes).items() if v is not None})


@pytest.mark.parametrize("inside", ["", "embeddings", "cub200-features"])
def test_birds_are_divided_by_class_wherever_the_file_is(tmp_path, inside):
    write(tmp_path / inside / CUB_FILE, range(1, 7))
    splits = load("cub200-features", tmp_path)
    assert sorted(set(splits.train.labels.tolist())) == [1, 2, 3]
    assert sorted(set(splits.test.labels.tolist())) == [4, 5, 6]
    assert splits.train.read(slice(0, 2)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert splits.test.names[0] == "4/9.jpg"
    assert (
        "part 'train' has 9 examples where 5864 are published."
        in check("cub200-features", tmp_path).problems
    )


def test_cars_are_the_test_part_alone(tmp_path):
    write(tmp_path / CARS_FILE, [99, 100])
    splits = load("cars196-features", tmp_path)
    assert list(splits) == ["test"]
    assert len(splits.test) == 6


def test_files_that_hold_something_else_are_refused(tmp_path):
    path = tmp_path / CUB_FILE
    write(path, [1, 2], path=None)
    with pytest.raises(sf.InputError, match="is no file of features: it has no 'path'"):
        read_features(path, name="birds")
    write(path, [1, 2], y=np.arange(4))
    with pytest.raises(sf.InputError, match=r"x has shape \(6, 4\), y \(4,\), path \(6,\)"):
        read_features(path, name="birds")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(sf.InputError, match="damaged or half copied"):
        load("cub200-features", tmp_path)
