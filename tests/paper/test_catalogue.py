import dataclasses
import gzip
import hashlib
import struct

import numpy as np
import pytest

import surefind as sf
from surefind.paper import catalogue
from surefind.paper.catalogue import ENTRIES, check, find, load


def write_idx(folder, prefix, n):
    folder.mkdir(parents=True, exist_ok=True)
    for name, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
        header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        values = (np.arange(np.prod(shape)) % 10).astype(np.uint8).tobytes()
        path = folder / f"{prefix}-{name}-ubyte.gz"
        path.write_bytes(gzip.compress(header + values, mtime=0))


@pytest.fixture
def small(tmp_path, monkeypatch):
    """MNIST as if its publisher had made 20 and 10 images, in a folder and in the catalogue."""
    for prefix, n in (("train", 20), ("t10k", 10)):
        write_idx(tmp_path / "mnist", prefix, n)
    sums = {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / "mnist").iterdir()
    }
    entry = dataclasses.replace(ENTRIES["mnist"], counts={"train": 20, "test": 10}, checksums=sums)
    monkeypatch.setattr(catalogue, "ENTRIES", {**ENTRIES, "mnist": entry})
    return tmp_path


def test_a_set_is_found_in_its_folder_or_the_one_above(small):
    assert find("mnist", small) == find("mnist", small / "mnist") == small / "mnist"
    assert len(load("mnist", small).train) == 20
    assert load("mnist", str(small / "mnist")).test.name == "MNIST"


def test_a_set_is_found_where_the_system_has_it(small, monkeypatch, tmp_path):
    fashion = dataclasses.replace(ENTRIES["fashion-mnist"], system=(str(small / "mnist"),))
    monkeypatch.setattr(catalogue, "ENTRIES", {"fashion-mnist": fashion})
    assert find("fashion-mnist") == small / "mnist"
    assert find("fashion-mnist", tmp_path / "elsewhere") == small / "mnist"
    assert load("fashion-mnist").test.classes[9] == "Ankle boot"


def test_a_whole_set_passes_the_check(small):
    report = check("mnist", small)
    assert report.ok
    assert report.counts == {"train": 20, "test": 10}
    assert report.n_classes == {"train": 10, "test": 10}
    assert set(report.checksums.values()) == {"ok"}
    assert len(report.checksums) == 4


def test_the_check_decodes_every_file_once(tmp_path, save_image, monkeypatch):
    for i in (1, 2):
        for part in ("train", "test"):
            save_image(f"{part}/00{i}.Bird/{part}.jpg")
    entry = dataclasses.replace(ENTRIES["cub200"], counts={"train": 2, "test": 2}, n_classes={})
    monkeypatch.setattr(catalogue, "ENTRIES", {"cub200": entry})
    report = check("cub200", tmp_path)
    assert report.ok
    assert (report.decoded, report.found_by) == (4, "train/001.*")
    assert report.compared == ("examples",)
    bad = tmp_path / "test" / "002.Bird" / "test.jpg"
    bad.write_bytes(bad.read_bytes()[:-40])
    assert check("cub200", tmp_path, decode=False).ok
    report = check("cub200", tmp_path)
    assert report.decoded == 4
    assert len(report.problems) == 1
    assert str(bad) in report.problems[0]


def test_the_check_names_what_is_wrong(small):
    write_idx(small / "mnist", "t10k", 5)
    (small / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    (small / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    report = check("mnist", small)
    assert not report.ok
    assert report.counts == {"test": 5}
    assert report.checksums["t10k-images-idx3-ubyte.gz"] == "differs"
    told = "\n".join(report.problems)
    assert "t10k-images-idx3-ubyte.gz is not the published file: its SHA-256 differs" in told
    assert "part 'test' has 5 examples where 10 are published" in told
    assert "part 'test' has 5 classes where 10 are published" in told
    assert "part 'train' is not there (20 examples)" in told


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - {"digits"}))
def test_a_missing_set_is_answered_in_one_sentence(tmp_path, monkeypatch, name):
    entry = dataclasses.replace(ENTRIES[name], system=())
    monkeypatch.setattr(catalogue, "ENTRIES", {name: entry})
    with pytest.raises(sf.InputError) as error:
        load(name, tmp_path)
    message = str(error.value)
    assert message.startswith(f"{entry.title} is not in {tmp_path}; get ")
    assert message.endswith(f"put it in {tmp_path / name}.")
    with pytest.raises(sf.InputError, match=r"no folder was given; get .* give that folder"):
        load(name)


def test_an_unknown_name_is_answered_with_the_known_ones():
    for ask in (load, check, find):
        with pytest.raises(
            sf.InputError, match=r"name must be one of 'fashion-mnist', 'mnist', .*"
        ):
            ask("imagenet")
    assert "digits" in ENTRIES


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("mnist", "train-images-idx3-ubyte", b"junk"),
        ("mnist", "train-images-idx3-ubyte.gz", b"\x1f\x8bjunk"),
        ("cifar10", "test_batch", b"junk"),
        ("cifar10", "labels.npz", b"junk"),
        ("cifar100", "train/apple/0.png", b"junk"),
        ("svhn", "test_32x32.mat", b"junk"),
        ("svhn", "svhn_test.webp", b"junk"),
        ("omniglot", "omniglot.npz", b"junk"),
        ("cub200", "images.txt", b"1 one.jpg\n2"),
        ("cub200", "train/001.Auk/0.jpg", b"junk"),
        ("cars196", "cars_annos.mat", b"junk"),
        ("cars196", "train/AM General Hummer SUV 2000/first.jpg", b"junk"),
        ("lfw", "people.txt", b"1\n3\nA 1"),
        ("msls", "cph/database/postprocessed.csv", b"junk"),
        ("gardens-point", "GardensPointWalking/night_right/1.jpg", b"junk"),
    ],
)
def test_a_set_that_cannot_be_read_is_refused_by_its_folder(tmp_path, name, file, content):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(sf.InputError):
        load(name, tmp_path).train.verify()
