import pytest

import surefind as sf
from surefind.data.sources import load_folder


def test_a_folder_per_class_is_one_part(tmp_path, save_image):
    for name in ("dog/1.JPG", "dog/deep/2.png", "cat/3.webp", "cat/.hidden.png"):
        save_image(f"pets/{name}", size=(8, 8))
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("x")
    (tmp_path / "pets" / ".cache").mkdir()
    data = load_folder(tmp_path / "pets")["all"]
    assert data.names == ("cat/3.webp", "dog/1.JPG", "dog/deep/2.png")
    assert data.labels.tolist() == [0, 1, 1]
    assert (data.classes, data.name) == (("cat", "dog"), "pets")
    assert data.read().shape == (3, 3, 8, 8)


def test_part_folders_share_their_classes(tmp_path, save_image):
    for name in ("train/a/1.png", "train/b/1.png", "Test/b/1.png", "Test/c/1.png"):
        save_image(name)
    splits = load_folder(tmp_path, mode="L", name="mine")
    assert sorted(splits) == ["test", "train"]
    assert splits.train.labels.tolist() == [0, 1]
    assert splits.test.labels.tolist() == [1, 2]
    assert splits.test.classes == ("a", "b", "c")
    assert splits.test.read().shape == (2, 1, 16, 20)


def test_one_class_is_a_data_set_too(tmp_path, save_image):
    save_image("only/1.png")
    assert load_folder(tmp_path)["all"].classes == ("only",)


def test_a_class_that_is_called_test_beside_others_is_a_class(tmp_path, save_image):
    save_image("test/1.png")
    save_image("exam/1.png")
    assert load_folder(tmp_path)["all"].classes == ("exam", "test")


def test_folders_without_images_are_refused(tmp_path, save_image):
    with pytest.raises(sf.InputError, match="gone is not a folder"):
        load_folder(tmp_path / "gone")
    with pytest.raises(sf.InputError, match=r"holds no class folders .0 images"):
        load_folder(tmp_path)
    save_image("1.png")
    with pytest.raises(sf.InputError, match=r"holds no class folders .1 images lie in it"):
        load_folder(tmp_path)
    save_image("a/1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(sf.InputError, match=r"1 class folders .* the first is 'b'"):
        load_folder(tmp_path)
