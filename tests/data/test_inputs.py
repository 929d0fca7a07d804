import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import surefind as sf
from surefind.data.dataset import Dataset
from surefind.data.images import Frame, ImageFiles, frame_image, frame_tensor
from surefind.data.inputs import (
    IMAGENET,
    IMAGENET_MEAN,
    IMAGENET_STD,
    FeatureViews,
    InputSpec,
    Preprocessing,
    example_rng,
)

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


def views(v=4, n=6):
    values = np.arange(v)[:, None, None] * 100.0 + np.arange(n)[:, None] + np.zeros(2)
    return FeatureViews(values.astype(np.float16), "key", "network", None)


def test_evaluation_reads_the_plain_view_and_training_an_augmented_one():
    data = sf.Dataset(views(), torch.arange(6) % 2)
    assert torch.equal(data.read()[:, 0], torch.arange(6.0))
    assert data.read().dtype == torch.float32
    drawn = [data.read(augment_seed=(0, epoch))[:, 0] for epoch in range(40)]
    for one in drawn:
        assert torch.equal(one % 100, torch.arange(6.0))
    seen = {int(x) // 100 for one in drawn for x in one}
    assert seen == {1, 2, 3}
    assert torch.equal(drawn[3], data.read(augment_seed=(0, 3))[:, 0])


def test_an_example_that_comes_twice_in_a_batch_has_a_view_each_time():
    rows = np.zeros(60, np.int64)
    found = views().read(rows, (0, 1))[:, 0]
    assert len(found.unique()) == 3


def test_without_augmented_views_there_is_the_plain_one():
    one = views(v=1)
    rows = np.arange(6)
    assert torch.equal(one.read(rows, (0, 1)), one.read(rows))


def test_selections_of_rows_nest_and_have_names_of_their_own():
    data = sf.Dataset(views(), torch.arange(6) % 2)
    part = data[torch.tensor([4, 1, 5])][1:]
    assert part.read()[:, 0].tolist() == [1, 5]
    assert len(part.inputs) == 2
    assert np.shares_memory(part.inputs.values, data.inputs.values)
    prints = {d.inputs.fingerprint() for d in (data, part, data[:2])}
    assert len(prints) == 3
    assert [len(x) for x in part.inputs] == [1, 1]


def test_evaluation_resizes_and_cuts_the_centre():
    """256 of the shorter side, then 224: the box is 7/8 of the shorter side, in the middle."""
    frame = IMAGENET.frame(400, 200)
    assert frame.size == (224, 224)
    side = 200 * 224 / 256
    np.testing.assert_allclose(
        frame.box, ((400 - side) / 800, 1 / 16, (400 + side) / 800, 15 / 16), atol=1e-12
    )


def test_without_a_crop_the_aspect_ratio_stays():
    assert Preprocessing(resize=50).frame(100, 200) == Frame((0.0, 0.0, 1.0, 1.0), (50, 100))
    assert Preprocessing().frame(7, 5) == Frame((0.0, 0.0, 1.0, 1.0), (7, 5))
    assert Preprocessing(resize=1).frame(1000, 1).size == (1000, 1)


def test_a_crop_without_resize_takes_pixels_as_they_are(rng):
    x = torch.from_numpy(rng.random((2, 3, 10, 12))).float()
    cut = frame_tensor(x, Preprocessing(crop=6).frame(12, 10))
    assert torch.equal(cut, x[:, :, 2:8, 3:9])


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (640, 480)])
def test_random_frames_cover_a_share_of_the_area_within_the_image(size):
    p = Preprocessing(crop=8, random_area=(0.2, 0.6), random_ratio=(0.5, 2.0), flip=True)
    flips = 0
    for row in range(200):
        frame = p.random_frame(*size, example_rng((1, 2), row, 0))
        left, top, right, bottom = frame.box
        assert 0 <= left < right <= 1 + 1e-9
        assert 0 <= top < bottom <= 1 + 1e-9
        assert frame.size == (8, 8)
        w, h = (right - left) * size[0], (bottom - top) * size[1]
        if size == (640, 480):
            assert 0.2 - 1e-9 <= w * h / (640 * 480) <= 0.6 + 1e-9
            assert 0.5 - 1e-9 <= w / h <= 2 + 1e-9
        flips += frame.flip
    assert 60 < flips < 140


def test_a_ratio_that_never_fits_falls_back_to_the_centre():
    p = Preprocessing(crop=8, random_area=(1.0, 1.0), random_ratio=(1.0, 1.0))
    assert p.random_frame(200, 100, example_rng((0,), 0, 0)).box == (0.25, 0.0, 0.75, 1.0)


def test_normalisation_is_its_definition(rng):
    x = torch.from_numpy(rng.random((2, 3, 4, 5))).float()
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    expected = (x - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(IMAGENET.normalise(x), expected)
    assert Preprocessing().normalise(x) is x


def test_grey_images_are_repeated_to_the_channels_of_the_statistics(rng):
    x = torch.from_numpy(rng.random((2, 1, 4, 5))).float()
    torch.testing.assert_close(IMAGENET.normalise(x), IMAGENET.normalise(x.expand(2, 3, 4, 5)))
    with pytest.raises(sf.InputError, match="mean has 3 channels but the images have 2"):
        IMAGENET.normalise(torch.zeros(1, 2, 4, 4))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
def test_tensors_and_pillow_images_are_framed_alike(rng, interpolation, flip):
    """Inside the box; at its border Pillow sees the pixels beyond."""
    pixels = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    frame = Frame((0.25, 0.1, 0.75, 0.9), (13, 11), flip, interpolation)
    image = np.asarray(frame_image(Image.fromarray(pixels), frame))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    framed = frame_tensor(tensor, frame)[0].permute(1, 2, 0) * 255
    assert framed.shape == image.shape
    inside = (slice(2, -2), slice(2, -2))
    assert (framed - torch.from_numpy(image.copy()))[inside].abs().max() < 2


@pytest.mark.parametrize("value", [IMAGENET, Preprocessing(), Preprocessing(crop=5, flip=True)])
def test_settings_survive_json(value):
    assert Preprocessing.from_dict(json.loads(json.dumps(value.to_dict()))) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be a whole number of at least 1; got 0"),
        ({"crop": -1}, "crop must be a whole number of at least 1; got -1"),
        ({"resize": 4, "crop": 5}, r"crop \(5\) must not be larger than resize \(4\)"),
        ({"mean": (0.5,)}, "mean and std need one value per channel each"),
        ({"std": (0.5,)}, "mean and std need one value per channel each"),
        ({"mean": (0.5,), "std": (1.0, 1.0)}, "mean and std need one value per channel each"),
        ({"mean": (0.5,), "std": (0.0,)}, "std above 0"),
        ({"random_area": (0.1, 1.0)}, "random_area needs crop"),
        ({"crop": 5, "random_area": (0.5, 1.5)}, "random_area must be .* ≤ 1.0; got"),
        ({"crop": 5, "random_area": (0.0, 0.5)}, "random_area must be"),
        ({"random_ratio": (2.0, 1.0)}, "random_ratio must be"),
        ({"random_ratio": (1.0, math.inf)}, "random_ratio must be"),
        ({"interpolation": "nearest"}, "interpolation must be one of 'bilinear', 'bicubic'"),
    ],
)
def test_settings_that_contradict_are_refused(options, message):
    with pytest.raises(sf.InputError, match=message):
        Preprocessing(**options)


def test_a_crop_as_large_as_the_resized_image_is_all_of_the_shorter_side():
    # 24 / (24 / 253) is larger than 253.
    for side in (16, 24, 64, 224):
        for short in range(side, 600):
            left, top, right, bottom = Preprocessing(resize=side, crop=side).frame(600, short).box
            assert (top, bottom) == (0.0, 1.0)
            assert (right - left) * 600 == pytest.approx(short)
