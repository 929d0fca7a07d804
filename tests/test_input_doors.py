"""One image, by every door: a path, an upload, an array and the command line give one embedding."""

import sys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from torch import nn

import surefind as sf
from surefind.cli import main
from surefind.data.images import ImageFiles, decode_image
from surefind.data.inputs import IMAGENET_MEAN, IMAGENET_STD
from surefind.service.images import ImageEmbedder

CUT = sf.Preprocessing(resize=14, crop=12, mean=IMAGENET_MEAN, std=IMAGENET_STD, flip=True)


def fitted(channels, preprocessing):
    """A network for images of 16 × 12 pixels, or of what preprocessing makes of them."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, channels, 12, 16), dtype=np.uint8)
    side = (12, 12) if preprocessing else (12, 16)
    net = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten())
    encoder = sf.Encoder(net, nn.Linear(4 * (side[0] - 2) * (side[1] - 2), 3))
    options = {"method": "laplace-posthoc", "epochs": 1, "preprocessing": preprocessing}
    return sf.MetricLearner(encoder, **options).fit(sf.Dataset(pixels, np.arange(24) % 4))


@pytest.fixture(scope="module", params=["grey", "colour"])
def learner(request):
    return fitted(1, None) if request.param == "grey" else fitted(3, CUT)


def images():
    """A PNG of the training size, a JPEG stored on its side, and a PNG of another size."""
    rng = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, size, options in (
        ("same.png", (16, 12), {}),
        ("rotated.jpg", (12, 16), {"exif": exif}),
        ("other.png", (31, 23), {}),
    ):
        out = BytesIO()
        pixels = rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(out, "JPEG" if name.endswith("jpg") else "PNG", **options)
        yield name, out.getvalue()


IMAGES = dict(images())


@pytest.mark.parametrize("name", IMAGES)
def test_every_door_gives_the_same_embedding(learner, tmp_path, monkeypatch, name):
    data = IMAGES[name]
    (tmp_path / "photos").mkdir()
    path = tmp_path / "photos" / name
    path.write_bytes(data)
    found = {"path": learner.embed_batch(learner.input_spec_.prepare(path)).numpy()}
    found["files"] = learner.embed(sf.Dataset(ImageFiles([path]))).numpy()
    upload = ImageEmbedder(learner, 10**6)
    found["upload"] = upload.embed([upload.read(data)])[0]

    mode = learner.input_spec_.mode
    pixels = decode_image(path, mode=mode)
    array = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)[None]
    if name == "other.png" and learner.preprocessing is None:
        with pytest.raises(sf.InputError, match=r"\(1, 23, 31\).*\(1, 12, 16\)"):
            learner.embed(array)
    else:
        found["array"] = learner.embed(array)

    learner.save(tmp_path / "run")
    command = ["embed", tmp_path / "run", path.parent, "--out", tmp_path / "out.npz"]
    monkeypatch.setattr(sys, "argv", ["surefind", *map(str, command)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    with np.load(tmp_path / "out.npz") as stored:
        found["command line"] = sf.Embeddings(stored["mean"], stored["kappa"])

    for door, embedding in found.items():
        np.testing.assert_allclose(
            embedding.mean.reshape(-1), found["path"].mean[0], atol=1e-6, err_msg=door
        )
        kappa = float(np.reshape(embedding.kappa, -1)[0])
        np.testing.assert_allclose(kappa, found["path"].kappa[0], rtol=1e-5, err_msg=door)


def test_a_saved_model_knows_its_inputs(learner, tmp_path):
    learner.save(tmp_path)
    assert sf.load(tmp_path).input_spec_ == learner.input_spec_
