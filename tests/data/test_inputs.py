"""What a model takes: determined from training data, saved, and required of later inputs."""

import json

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import IMAGENET, InputSpec, Preprocessing

CUT = Preprocessing(resize=12, crop=10, mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.fixture
def colours(rng):
    return rng.integers(0, 256, (4, 3, 16, 20), dtype=np.uint8)


@pytest.mark.parametrize(
    ("inputs", "preprocessing", "expected"),
    [
        (np.zeros((2, 5), np.float32), None, InputSpec("vector", (5,))),
        (np.zeros((2, 8, 6), np.uint8), None, InputSpec("image", (1, 8, 6), "L", (0.0, 1.0))),
        (torch.zeros(2, 3, 8, 6).byte(), None, InputSpec("image", (3, 8, 6), "RGB", (0.0, 1.0))),
        (np.zeros((2, 2, 8, 6), np.uint8), None, InputSpec("image", (2, 8, 6), None, (0.0, 1.0))),
        (
            torch.eye(6).view(2, 3, 2, 3) * 4 - 1,
            None,
            InputSpec("image", (3, 2, 3), "RGB", (-1.0, 3.0)),
        ),
        (
            np.zeros((2, 20, 30), np.uint8),
            CUT,
            InputSpec("image", (3, 10, 10), "L", (0.0, 1.0), CUT),
        ),
    ],
    ids=["vectors", "grey", "colour", "two channels", "floats", "preprocessed"],
)
def test_it_is_determined_from_the_training_data(inputs, preprocessing, expected):
    spec = InputSpec.of(inputs, preprocessing)
    assert spec == expected
    assert InputSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_the_size_is_free_only_where_preprocessing_lets_it_vary(save_image):
    files = ImageFiles([save_image("a.png")], "L")
    assert InputSpec.of(files).shape == (1, 16, 20)
    free = InputSpec.of(files, Preprocessing(resize=8))
    assert free.shape == (1, None, None)
    assert free.prepare(save_image("tall.png", size=(10, 30))).shape == (1, 1, 24, 8)
    assert InputSpec.of(files, Preprocessing(crop=8)).shape == (1, 8, 8)


@pytest.mark.parametrize("preprocessing", [None, CUT])
def test_path_bytes_files_and_arrays_are_prepared_alike(save_image, colours, preprocessing):
    spec = InputSpec.of(colours, preprocessing)
    paths = [save_image("a.png"), save_image("b.png")]
    files = ImageFiles(paths, "L")  # the model's mode counts, not this
    stored = np.stack([ImageFiles(paths).decode(i) for i in range(2)]).transpose(0, 3, 1, 2)
    together = spec.prepare(stored)
    assert torch.equal(spec.prepare(torch.from_numpy(stored)), together)
    assert torch.equal(spec.prepare(files), together)
    assert torch.equal(Dataset(files).read(preprocessing=spec), together)
    assert torch.equal(spec.prepare(files, [1]), together[1:])
    for i, path in enumerate(paths):
        assert torch.equal(spec.prepare(path), together[i : i + 1])
        assert torch.equal(spec.prepare(path.read_bytes()), together[i : i + 1])


def test_a_file_of_another_size_is_resized_and_an_array_refused(save_image, colours):
    other = save_image("other.png", size=(41, 33))
    for preprocessing in (None, Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3)):
        spec = InputSpec.of(colours, preprocessing)
        assert spec.prepare(other).shape == (1, 3, 16, 20)
        with pytest.raises(sf.InputError, match=r"\(3, 33, 41\).*\(3, 16, 20\)"):
            spec.prepare(ImageFiles([other]).decode(0).transpose(2, 0, 1)[None])


def test_what_a_model_does_not_take_is_refused(save_image, colours):
    path = save_image("a.png")
    vectors, two = InputSpec.of(np.zeros((1, 5))), InputSpec.of(colours[:, :2])
    with pytest.raises(sf.InputError, match=r"image files.*vectors of shape \(5,\)"):
        vectors.prepare(path)
    with pytest.raises(sf.InputError, match=r"vectors of shape \(4,\).*vectors of shape \(5,\)"):
        vectors.prepare(np.zeros((2, 4)))
    with pytest.raises(sf.InputError, match=r"image files.*\(2, 16, 20\)"):
        two.prepare(ImageFiles([path]))
    with pytest.raises(sf.InputError, match="mean has 3 channels"):
        InputSpec.of(colours, IMAGENET).prepare(colours[:, :2])
    assert vectors.prepare(np.zeros((0, 4))).shape == (0, 4)


def test_eight_bits_are_not_scaled_to_a_range_that_is_not_known(save_image, colours):
    centred = InputSpec.of(colours.astype(np.float32) / 127.5 - 1)
    for source in (colours, save_image("a.png"), save_image("a.png").read_bytes()):
        with pytest.raises(sf.InputError, match="from -1 to 1"):
            centred.prepare(source)
    unit = colours.astype(np.float32) / 255
    torch.testing.assert_close(
        InputSpec.of(unit).prepare(colours), InputSpec.of(colours).prepare(unit)
    )


def test_too_many_pixels_are_refused_in_bytes_too(save_image, colours):
    spec = InputSpec.of(colours)
    with pytest.raises(sf.InputError, match="the image has 20 × 16 pixels"):
        spec.prepare(save_image("a.png").read_bytes(), max_pixels=100)
