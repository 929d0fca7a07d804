import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

import surefind as sf
from surefind.data.images import Frame, decoder_scale, frame_image, frame_tensor
from surefind.data.inputs import IMAGENET, IMAGENET_MEAN, IMAGENET_STD, Preprocessing, example_rng


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


def test_a_crop_that_does_not_fit_is_refused():
    with pytest.raises(sf.InputError, match=r"crop \(6\) is larger than the image \(10 × 5\)"):
        Preprocessing(crop=6).frame(10, 5)


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


def test_without_random_area_only_the_flip_is_random():
    p = Preprocessing(resize=8, crop=8, flip=True)
    frames = {p.random_frame(20, 10, example_rng((0,), i, 0)) for i in range(20)}
    assert {f.flip for f in frames} == {True, False}
    assert {f.box for f in frames} == {p.frame(20, 10).box}
    still = Preprocessing(resize=8, crop=8)
    assert not any(still.random_frame(20, 10, example_rng((0,), i, 0)).flip for i in range(20))


def test_randomness_belongs_to_seed_epoch_row_and_occurrence():
    draws = {
        example_rng((seed, epoch), row, again).random()
        for seed in range(3)
        for epoch in range(3)
        for row in range(3)
        for again in range(2)
    }
    assert len(draws) == 54
    assert example_rng((1, 2), 3, 0).random() == example_rng((1, 2), 3, 0).random()


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


def test_a_sliver_keeps_one_pixel():
    x = torch.rand(1, 1, 4, 4)
    assert frame_tensor(x, Frame((0.9, 0.9, 0.91, 0.91), (2, 2))).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("size", "scale"),
    [((100, 100), 1), ((51, 50), 1), ((50, 50), 2), ((25, 25), 4), ((1, 1), 8), ((200, 200), 1)],
)
def test_the_decoder_shrinks_no_further_than_the_output(size, scale):
    assert decoder_scale(Frame((0.0, 0.0, 1.0, 1.0), size), 100, 100) == scale


@pytest.mark.parametrize("value", [IMAGENET, Preprocessing(), Preprocessing(crop=5, flip=True)])
def test_settings_survive_json(value):
    assert Preprocessing.from_dict(json.loads(json.dumps(value.to_dict()))) == value


def test_unknown_settings_are_refused():
    with pytest.raises(sf.InputError, match="preprocessing has no setting 'size'; it has crop"):
        Preprocessing.from_dict({"size": 3})


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
