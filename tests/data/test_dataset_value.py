import numpy as np
import pytest
import torch

import surefind as sf
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import IMAGENET, Preprocessing


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (6, 3, 10, 8), dtype=np.uint8)


@pytest.fixture
def full(images):
    return Dataset(
        images,
        np.array([0, 1, 2, 0, 1, 2]),
        positions=np.arange(12.0).reshape(6, 2) * 40,
        names=[f"n{i}" for i in range(6)],
        classes=["a", "b", "c"],
        name="six",
    )


@pytest.mark.parametrize(
    "index",
    [
        slice(1, 5, 2),
        [3, 1],
        torch.tensor([3, 1]),
        np.array([False, True, True, False, False, True]),
        2,
        -1,
        slice(0, 0),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_index_takes_the_same_rows_of_everything(full, images, index, as_tensor):
    data = full
    if as_tensor:
        data = Dataset(
            torch.from_numpy(images), full.labels, positions=full.positions, names=full.names
        )
    part = data[index]
    rows = np.atleast_1d(np.arange(6)[np.asarray(index) if not isinstance(index, slice) else index])
    assert len(part) == len(rows)
    assert part.labels.tolist() == [int(i) % 3 for i in rows]
    assert part.names == tuple(f"n{i}" for i in rows)
    assert torch.equal(part.positions, full.positions[torch.from_numpy(rows)])
    assert type(part.inputs) is type(data.inputs)
    assert torch.equal(part.read(), data.read(rows))
    assert part.name == data.name


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        (np.array(["dog", "cat", "dog"]), [1, 0, 1], ("cat", "dog")),
        (["dog", "cat", "dog"], [1, 0, 1], ("cat", "dog")),
        (np.array(["dog", "cat", "dog"], dtype=object), [1, 0, 1], ("cat", "dog")),
        (np.array([7, 3, 7], dtype=np.uint8), [7, 3, 7], None),
        (torch.tensor([7, 3, 7], dtype=torch.int32), [7, 3, 7], None),
        ([7, -3, 7], [7, -3, 7], None),
    ],
)
def test_labels_become_int64(labels, expected, classes):
    data = Dataset(torch.zeros(3, 2), labels)
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == expected
    assert data.classes == classes


def test_named_labels_follow_given_classes():
    data = Dataset(torch.zeros(2, 2), ["b", "a"], classes=["c", "b", "a"])
    assert data.labels.tolist() == [1, 2]
    assert data[:0].labels.dtype == torch.int64


def test_uint8_images_are_read_in_0_to_1(full, images):
    x = full.read([4, 0])
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, torch.from_numpy(images[[4, 0]]).float() / 255)
    grey = Dataset(torch.from_numpy(images[:, 0]))
    assert torch.equal(grey.read(), full.read()[:, :1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_features_are_read_as_float32(dtype):
    values = torch.arange(6.0).reshape(3, 2).to(dtype)
    for inputs in (values, values.numpy()):
        x = Dataset(inputs).read([2, 0])
        assert x.dtype == torch.float32
        assert x.tolist() == [[4, 5], [0, 1]]


def test_reading_does_not_touch_the_stored_values():
    stored = torch.ones(2, 3, 4, 4)
    data = Dataset(stored)
    data.read().zero_()
    Dataset(stored.numpy()).read(0).zero_()
    data.read(preprocessing=Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3))
    assert (stored == 1).all()


def test_a_read_only_memory_map_is_read_without_a_copy_of_the_whole(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.random((5, 3)).astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Dataset(mapped)
    assert data.inputs is mapped
    assert torch.equal(data.read([1, 3]), torch.from_numpy(mapped[[1, 3]].copy()))


def test_evaluation_frames_tensors_as_a_batch(full):
    p = Preprocessing(resize=6, crop=4, mean=(0.5,) * 3, std=(0.2,) * 3)
    together = full.read(preprocessing=p)
    assert together.shape == (6, 3, 4, 4)
    alone = torch.cat([full.read(i, preprocessing=p) for i in range(6)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("area", [(0.2, 0.9), None])
def test_augmentation_depends_on_seed_epoch_and_row_only(full, area):
    p = Preprocessing(resize=6, crop=4, random_area=area, flip=True)
    x = full.read([0, 1, 2], preprocessing=p, augment_seed=(3, 1))
    assert torch.equal(x[2:], full.read(2, preprocessing=p, augment_seed=(3, 1)))
    assert torch.equal(x.flip(0), full.read([2, 1, 0], preprocessing=p, augment_seed=(3, 1)))
    everything = [
        full.read(preprocessing=p, augment_seed=key) for key in ((3, 1), (3, 2), (4, 1), 3)
    ]
    assert not any(torch.equal(everything[0], other) for other in everything[1:])


def test_a_repeated_example_is_augmented_anew(full):
    p = Preprocessing(crop=4, random_area=(0.2, 0.9))
    x = full.read([1, 1], preprocessing=p, augment_seed=0)
    assert not torch.equal(x[0], x[1])


def test_files_read_as_the_same_images_in_memory(save_image):
    paths = [save_image(f"{i}.png") for i in range(3)]
    files = Dataset(ImageFiles(paths), [0, 1, 0])
    grey = Dataset(ImageFiles(paths, "L"))
    assert files.read().shape == (3, 3, 16, 20)
    assert grey.read([1]).shape == (1, 1, 16, 20)
    assert files[1:].read().equal(files.read()[1:])
    assert files.read([], preprocessing=IMAGENET).shape[0] == 0
    memory = Dataset((files.read() * 255).round().to(torch.uint8))
    assert torch.equal(files.read(), memory.read())
    p = Preprocessing(resize=12, crop=10)
    assert torch.equal(files.read(preprocessing=p), memory.read(preprocessing=p))
    assert memory.read([], preprocessing=p).shape[0] == 0


def test_files_of_different_sizes_need_a_crop(save_image):
    data = Dataset(ImageFiles([save_image("a.png"), save_image("b.png", size=(5, 9))]))
    with pytest.raises(sf.InputError, match=r"a\.png gives \(16, 20\) and .*b\.png gives \(9, 5\)"):
        data.read()
    assert data.read(preprocessing=Preprocessing(resize=8, crop=8)).shape == (2, 3, 8, 8)


def test_the_relation_is_labels_or_positions(full):
    assert full.relation([2, 1]).tolist() == [2, 1]
    places = Dataset(full.inputs, positions=full.positions).relation(slice(0, 3))
    assert isinstance(places, sf.Positions)
    assert (places.positive_radius, places.negative_radius, len(places)) == (25.0, 50.0, 3)
    wide = Dataset(full.inputs, positions=full.positions).relation(
        positive_radius=200.0, negative_radius=300.0
    )
    assert wide.n_positive == 10
    with pytest.raises(sf.InputError, match="six has neither labels nor positions"):
        Dataset(full.inputs, name="six").relation()


def test_verification_drops_what_cannot_be_read(save_image):
    paths = [save_image("a.jpg"), save_image("b.jpg"), save_image("c.jpg")]
    paths[1].write_bytes(b"broken")
    data = Dataset(ImageFiles(paths), [0, 1, 2], names=["a", "b", "c"])
    with pytest.raises(sf.InputError, match=r"b\.jpg"):
        data.verify()
    kept, bad = data.verify(on_bad="skip")
    assert kept.names == ("a", "c")
    assert kept.labels.tolist() == [0, 2]
    assert bad[0].startswith(str(paths[1]))
    assert kept.verify() == (kept, [])
    memory = Dataset(torch.zeros(2, 3))
    assert memory.verify() == (memory, [])


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([[1.0]], {}, "inputs must be a tensor, a NumPy array or ImageFiles; got list"),
        (torch.zeros(3), {}, r"inputs must be features .* got float32 of shape \(3,\)"),
        (torch.zeros(3, 4, dtype=torch.bool), {}, "got bool"),
        (np.zeros((3, 4), complex), {}, r"got complex128 of shape \(3, 4\)"),
        (torch.zeros(3, 4, 4), {}, "got float32"),
        (torch.tensor([[0.0], [torch.nan]]), {}, "NaN or infinite values, first in row 1"),
        (np.array([[0.0], [0.0], [np.inf]]), {}, "first in row 2"),
        (torch.zeros(2, 1), {"labels": [0, 1, 2]}, r"labels must have one .* \(2,\); got \(3,\)"),
        (torch.zeros(2, 1), {"labels": [[0], [1]]}, r"got \(2, 1\)"),
        (torch.zeros(2, 1), {"labels": [0.0, 1.5]}, "row 1 has 1.5"),
        (torch.zeros(2, 1), {"labels": [0, None]}, "row 1 has none"),
        (torch.zeros(2, 1), {"labels": np.array(["a", None])}, "row 1 has none"),
        (torch.zeros(2, 1), {"labels": ["a", "b"], "classes": ["a"]}, "'b', which classes does"),
        (torch.zeros(2, 1), {"labels": [0, 2], "classes": "ab"}, "lie in 0 … 1, .* got 0 … 2"),
        (torch.zeros(2, 1), {"labels": [-1, 0], "classes": "ab"}, "got -1 … 0"),
        (torch.zeros(2, 1), {"names": ["a"]}, "names must have one entry per example, 2; got 1"),
        (torch.zeros(2, 1), {"positions": [[0, 1]]}, r"positions must be \(n, 2\) .* n = 2"),
        (torch.zeros(1, 1), {"positions": [[0, np.nan]]}, "positions holds NaN .* row 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused(inputs, options, message):
    with pytest.raises(sf.InputError, match=message):
        Dataset(inputs, **options)


def test_a_bad_row_is_found_beyond_the_first_block():
    values = np.zeros((5000, 2), np.float32)
    values[4500, 1] = np.nan
    with pytest.raises(sf.InputError, match="first in row 4500"):
        Dataset(values)


def test_requests_that_do_not_fit_are_refused(full):
    with pytest.raises(sf.InputError, match="augment_seed needs preprocessing"):
        full.read(augment_seed=1)
    with pytest.raises(sf.InputError, match="augment_seed must be a whole number of at least 0"):
        full.read(preprocessing=Preprocessing(), augment_seed=-1)
    with pytest.raises(sf.InputError, match="preprocessing is for images"):
        Dataset(torch.zeros(2, 3)).read(preprocessing=IMAGENET)
