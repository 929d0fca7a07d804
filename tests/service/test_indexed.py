"""What `surefind index` made of a folder of images, as `surefind serve` finds it."""

import numpy as np
import pytest
import typer
from PIL import Image
from service.world import png
from typer.testing import CliRunner

from surefind.cli import serve as serving
from surefind.cli.app import register
from surefind.cli.galleries import index, remember
from surefind.gallery.gallery import Gallery


def invoke(command, *arguments):
    app = typer.Typer()
    register(app, command)
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


@pytest.fixture
def indexed(world, tmp_path):
    """A run, a folder of images by class, and the gallery of them."""
    world.learner.save(tmp_path / "run")
    for n, (pixels, label) in enumerate(
        zip(world.known[:12], world.known_labels[:12], strict=True)
    ):
        folder = tmp_path / "images" / f"digit {label}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.png").write_bytes(png(pixels))
    invoke(index, tmp_path / "images", "--run", tmp_path / "run", "--out", tmp_path / "gallery")
    return tmp_path


def test_a_gallery_finds_its_model_and_its_pictures(indexed, serve, ask, world):
    assert "searched with images and vectors" in invoke(
        serving.serve, indexed / "gallery", "--check"
    )
    gallery = Gallery.open(indexed / "gallery")
    learner, images = serving.learner_for(gallery, None), serving.remembered_images(gallery)
    client = serve(gallery=gallery, learner=learner, images=images)
    (answer,) = ask(client, png(world.known[0]), payload=True).json()["answers"]
    nearest = answer["neighbours"][0]
    assert nearest["payload"] == {"path": f"digit {world.known_labels[0]}/0.png"}
    assert nearest["image"]
    shown = client.get(f"/v1/items/{nearest['id']}/image")
    assert shown.status_code == 200
    (indexed / "shown.webp").write_bytes(shown.content)
    with Image.open(indexed / "shown.webp") as picture:
        assert np.array_equal(np.asarray(picture.convert("L")), world.known[0])


def test_a_run_that_is_not_the_same_any_more_embeds_nothing(indexed):
    model = indexed / "run" / "model.safetensors"
    model.write_bytes(model.read_bytes() + b" ")
    assert "vectors only" in invoke(serving.serve, indexed / "gallery", "--check")
    model.unlink()
    assert "vectors only" in invoke(serving.serve, indexed / "gallery", "--check")


def test_images_that_are_gone_are_not_looked_for(indexed):
    (indexed / "images").rename(indexed / "elsewhere")
    with Gallery.open(indexed / "gallery") as gallery:
        assert serving.remembered_images(gallery) is None


def test_files_outside_the_first_folder_keep_their_full_path(tmp_path):
    gallery = Gallery()
    one = [str(tmp_path / "one" / "a" / "x.png"), str(tmp_path / "one" / "b" / "y.png")]
    assert remember(gallery, None, one) == [{"path": "a/x.png"}, {"path": "b/y.png"}]
    assert gallery.info["images"] == str(tmp_path / "one")
    other = str(tmp_path / "two" / "z.png")
    assert remember(gallery, tmp_path, [other]) == [{"path": other}]
    assert gallery.info["run"] == str(tmp_path)
    assert remember(gallery, None, None) is None


def test_a_whole_machine_is_no_folder_of_images(tmp_path):
    gallery = Gallery()
    remember(gallery, None, ["/one/x.png", "/two/y.png"])
    assert "images" not in gallery.info
