import numpy as np
import pytest
from PIL import Image, ImageDraw

import surefind as sf
from surefind.data.images import (
    Frame,
    ImageFiles,
    check_exist,
    decode_image,
    verify_images,
)


def test_pixels_come_back_as_stored(save_image):
    path = save_image("a.png")
    np.testing.assert_array_equal(decode_image(path), np.asarray(Image.open(path)))
    assert decode_image(path, mode="L").shape == (16, 20)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_exif_orientation_is_applied(tmp_path, orientation, suffix):
    """The corner that a viewer shows at the top left is red, whatever way round it is stored."""
    upright = Image.new("RGB", (32, 16), "blue")
    ImageDraw.Draw(upright).rectangle((0, 0, 15, 7), fill="red")
    ways = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright if orientation == 1 else upright.transpose(ways[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / f"a.{suffix}", exif=exif, quality=95)
    pixels = decode_image(tmp_path / f"a.{suffix}").astype(int)
    assert pixels.shape == (16, 32, 3)
    assert pixels[3, 7, 0] > 200
    assert pixels[3, 24, 2] > 200
    assert pixels[12, 7, 2] > 200


TEXT_FOR_ORIENTATION = b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x02\0\0\0A\0\0\0\0\0\0\0"


@pytest.mark.parametrize("block", [b"garbage garbage", TEXT_FOR_ORIENTATION])
def test_a_broken_exif_block_is_ignored(save_image, block):
    path = save_image("a.jpg", exif=b"Exif\x00\x00" + block)
    assert decode_image(path).shape == (16, 20, 3)


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "expected"),
    [
        ("CMYK", (0, 255, 255, 0), "tif", (255, 0, 0)),
        ("CMYK", (0, 0, 0, 255), "jpg", (0, 0, 0)),
        ("I;16", 65535, "png", (255, 255, 255)),
        ("I;16", 32896, "png", (128, 128, 128)),
        ("I", 257, "tif", (1, 1, 1)),
        ("L", 77, "png", (77, 77, 77)),
        ("1", 1, "png", (255, 255, 255)),
        ("P", 0, "gif", (0, 0, 0)),
        ("RGBA", (255, 0, 0, 255), "png", (255, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "png", (255, 255, 255)),
        ("LA", (0, 0), "png", (255, 255, 255)),
    ],
)
def test_every_kind_of_pixel_becomes_8_bit_rgb(save_image, mode, colour, suffix, expected):
    pixels = decode_image(save_image(f"a.{suffix}", mode=mode, colour=colour))
    assert pixels.dtype == np.uint8
    assert pixels.shape == (16, 20, 3)
    np.testing.assert_allclose(pixels, np.broadcast_to(expected, pixels.shape), atol=2)


def test_floating_point_pixels_are_refused(save_image):
    with pytest.raises(sf.InputError, match=r"a\.tif holds floating-point pixels"):
        decode_image(save_image("a.tif", mode="F", colour=0.5))


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert decode_image(tmp_path / "a.gif")[0, 0].tolist() == [255, 0, 0]


def test_a_jpeg_shrinks_while_it_decodes_but_never_below_the_output(save_image):
    """Decoded at half size or not, the framed result has the size asked for and looks the same."""
    big = Image.linear_gradient("L").resize((400, 300)).convert("RGB")
    path = save_image("a.jpg")
    big.save(path, quality=95)
    frame = Frame((0.1, 0.2, 0.9, 0.8), (64, 36))
    drafted = decode_image(path, framing=lambda w, h: frame).astype(int)
    plain = big.resize((64, 36), Image.Resampling.BILINEAR, box=(40, 60, 360, 240))
    assert drafted.shape == (36, 64, 3)
    assert np.abs(drafted - np.asarray(plain).astype(int)).max() <= 4


def test_files_are_indexed_like_rows(save_image):
    files = ImageFiles([save_image(f"{i}.png", size=(4 + i, 4)) for i in range(3)], "L")
    assert len(files) == 3
    assert files[[2, 0]].paths == (files.paths[2], files.paths[0])
    assert files[-1].mode == "L"
    assert [f.paths[0] for f in files] == list(files.paths)
    assert files.decode(2).shape == (4, 6)


def half_a_file(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tif"])
def test_a_truncated_file_is_refused_by_name(save_image, suffix):
    path = save_image(f"half.{suffix}", size=(100, 80))
    half_a_file(path)
    with pytest.raises(sf.InputError, match=rf"half\.{suffix} cannot be decoded"):
        decode_image(path)


def test_what_is_no_image_is_refused_by_name(tmp_path, save_image):
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    for name in ("text.jpg", "empty.png"):
        with pytest.raises(sf.InputError, match=f"{name} cannot be decoded: not an image"):
            decode_image(tmp_path / name)
    with pytest.raises(sf.InputError, match=r"folder\.png cannot be decoded"):
        decode_image(tmp_path / "folder.png")
    with pytest.raises(sf.InputError, match=r"gone\.png does not exist"):
        decode_image(tmp_path / "gone.png")


def test_a_huge_image_is_refused_before_it_is_decoded(save_image):
    path = save_image("wide.png", size=(101, 100), colour="red")
    with pytest.raises(sf.InputError, match="101 × 100 pixels, more than max_pixels = 10000"):
        decode_image(path, max_pixels=10_000)
    assert decode_image(path, max_pixels=10_100).shape == (100, 101, 3)


@pytest.mark.parametrize("side", [9_500, 14_000])
def test_a_decompression_bomb_is_refused_also_by_pillows_limit(tmp_path, side):
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    with pytest.raises(sf.InputError, match=r"bomb\.png cannot be decoded: Image size"):
        decode_image(tmp_path / "bomb.png", max_pixels=10**9)


@pytest.fixture
def mixed(tmp_path, save_image):
    paths = [save_image(f"{i}.jpg", size=(60, 50)) for i in range(4)]
    half_a_file(paths[1])
    paths[3].write_text("no")
    return ImageFiles([*paths, tmp_path / "gone.jpg"])


def test_bad_files_are_refused_by_name(mixed):
    with pytest.raises(sf.InputError, match="3 of 5 image files cannot be used") as error:
        verify_images(mixed)
    assert all(name in str(error.value) for name in ("1.jpg", "3.jpg", "gone.jpg"))
    assert "0.jpg" not in str(error.value)


@pytest.mark.parametrize("workers", [1, 3])
def test_bad_files_are_skipped_and_reported(mixed, workers):
    bad = verify_images(mixed, on_bad="skip", workers=workers)
    assert [*bad] == [1, 3, 4]
    assert mixed.paths[1] in bad[1]
    assert "does not exist" in bad[4]


def test_settings_are_checked(tmp_path):
    with pytest.raises(sf.InputError, match="paths must be a sequence of paths; got the one path"):
        ImageFiles("a.jpg")
    with pytest.raises(sf.InputError, match="mode must be one of 'RGB', 'L'; got 'CMYK'"):
        ImageFiles([], "CMYK")
    with pytest.raises(sf.InputError, match="max_pixels must be a whole number of at least 1"):
        ImageFiles([], max_pixels=0)
    with pytest.raises(sf.InputError, match="on_bad must be one of 'refuse', 'skip'"):
        verify_images(ImageFiles([]), on_bad="ignore")
    with pytest.raises(sf.InputError, match="workers must be a whole number of at least 1"):
        verify_images(ImageFiles([]), workers=0)


def test_missing_files_are_named(tmp_path, save_image):
    there = save_image("a.png")
    check_exist([there], "list.csv")
    gone = [tmp_path / f"{i}.png" for i in range(7)]
    with pytest.raises(sf.InputError, match=r"7 of 8 files that list\.csv lists .*0\.png.* 2 more"):
        check_exist([there, *gone], "list.csv")
