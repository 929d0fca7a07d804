import numpy as np
import pytest
import scipy.io

import surefind as sf
from surefind.data.fine_grained import load_cars, load_cub

CLASSES = ["001.Auk", "002.Bee-eater", "003.Crow", "004.Duck"]


@pytest.fixture(params=["", "CUB_200_2011"])
def cub(tmp_path, save_image, request):
    root = tmp_path / request.param
    lists = {"images": [], "image_class_labels": [], "train_test_split": []}
    for i in range(8):
        name = f"{CLASSES[i // 2]}/{i}.jpg"
        save_image(root.relative_to(tmp_path) / "images" / name)
        lists["images"].append(f"{i + 1} {name}")
        lists["image_class_labels"].append(f"{i + 1} {i // 2 + 1}")
        lists["train_test_split"].append(f"{i + 1} {i % 2}")
    lists["classes"] = [f"{i + 1} {c}" for i, c in enumerate(CLASSES)]
    for name, lines in lists.items():
        (root / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path, root


def test_cub_trains_on_the_first_half_of_the_classes(cub):
    splits = load_cub(cub[0])
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.labels.tolist() == [2, 2, 3, 3]
    assert splits.test.classes == tuple(CLASSES)
    assert splits.test.names[0] == "003.Crow/4.jpg"
    assert splits.test.read().shape == (4, 3, 16, 20)


def test_cub_can_be_split_as_published(cub):
    splits = load_cub(cub[0], protocol="published")
    assert splits.train.names == (
        "001.Auk/1.jpg",
        "002.Bee-eater/3.jpg",
        "003.Crow/5.jpg",
        "004.Duck/7.jpg",
    )
    assert len(splits.test) == 4
    with pytest.raises(sf.InputError, match="protocol must be one of 'zero-shot', 'published'"):
        load_cub(cub[0], protocol="one-shot")


def test_cub_that_is_not_whole_is_refused(cub):
    folder, root = cub
    (root / "images" / "001.Auk" / "0.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 of 8 files that .*images\.txt lists .*0\.jpg"):
        load_cub(folder)
    classes = (root / "classes.txt").read_text().splitlines()
    labels = (root / "image_class_labels.txt").read_text().splitlines()
    (root / "image_class_labels.txt").write_text("\n".join(labels[:-1]))
    with pytest.raises(sf.InputError, match=r"images\.txt has 8, image_class_labels\.txt 7"):
        load_cub(folder)
    (root / "image_class_labels.txt").write_text("\n".join([*labels[:-1], "8"]))
    with pytest.raises(sf.InputError, match="line 8: expected a number and a value; got '8'"):
        load_cub(folder)
    (root / "image_class_labels.txt").write_text("\n".join(labels))
    (root / "images" / "001.Auk" / "0.jpg").touch()
    (root / "classes.txt").write_text("\n".join(classes[:-1]))
    with pytest.raises(sf.InputError, match=r"classes\.txt does not name class 4"):
        load_cub(folder)
    (root / "classes.txt").unlink()
    with pytest.raises(sf.InputError, match=r"classes\.txt does not exist"):
        load_cub(folder)


def structures(**fields):
    """A MATLAB array of structures, a field per column."""
    n = len(next(iter(fields.values())))
    array = np.zeros((1, n), dtype=[(k, object) for k in fields])
    for name, values in fields.items():
        for i, value in enumerate(values):
            array[0, i][name] = value
    return array


def cell(texts):
    array = np.zeros((1, len(texts)), dtype=object)
    array[0, :] = texts
    return array


MODELS = ["Acura", "BMW", "Chevrolet", "Dodge"]


@pytest.fixture
def one_list(tmp_path, save_image):
    names = [f"car_ims/{i:06}.jpg" for i in range(8)]
    for name in names:
        save_image(name)
    content = {
        "annotations": structures(
            relative_im_path=names,
            **{"class": [float(i // 2 + 1) for i in range(8)]},
            test=[float(i % 2) for i in range(8)],
        ),
        "class_names": cell(MODELS),
    }
    scipy.io.savemat(tmp_path / "cars_annos.mat", content)
    return tmp_path


@pytest.fixture(params=[".", "devkit"])
def devkit(tmp_path, save_image, request):
    (tmp_path / "devkit").mkdir()
    for part, lists in (
        ("train", "devkit/cars_train_annos.mat"),
        ("test", f"{request.param}/cars_test_annos_withlabels.mat"),
    ):
        names = [f"{i:05}.jpg" for i in range(4)]
        for name in names:
            save_image(f"cars_{part}/{name}")
        content = structures(fname=names, **{"class": np.array([1, 2, 3, 4], np.uint8)})
        scipy.io.savemat(tmp_path / lists, {"annotations": content})
    scipy.io.savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": cell(MODELS)})
    return tmp_path


def test_cars_in_one_list(one_list):
    splits = load_cars(one_list)
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.labels.tolist() == [2, 2, 3, 3]
    assert splits.test.classes == tuple(MODELS)
    published = load_cars(one_list, protocol="published")
    assert published.train.names == tuple(f"car_ims/{i:06}.jpg" for i in (0, 2, 4, 6))


def test_cars_in_two_lists(devkit):
    splits = load_cars(devkit)
    assert sorted(splits.train.labels.tolist()) == [0, 0, 1, 1]
    assert splits.test.read().shape == (4, 3, 16, 20)
    published = load_cars(devkit, protocol="published")
    assert all(n.startswith("cars_test/") for n in published.test.names)


def test_cars_that_are_not_whole_are_refused(devkit):
    (devkit / "cars_train" / "00002.jpg").unlink()
    with pytest.raises(
        sf.InputError, match=r"1 of 8 files that the annotations lists .*00002\.jpg"
    ):
        load_cars(devkit)
    (devkit / "cars_train" / "00002.jpg").touch()
    scipy.io.savemat(devkit / "devkit" / "cars_meta.mat", {"class_names": cell(MODELS[:3])})
    with pytest.raises(sf.InputError, match="classes 1 … 4, but 3 class names"):
        load_cars(devkit)
    no_class = structures(fname=["00000.jpg"])
    scipy.io.savemat(devkit / "devkit" / "cars_train_annos.mat", {"annotations": no_class})
    with pytest.raises(sf.InputError, match="have no field 'class'; they have fname"):
        load_cars(devkit)
    scipy.io.savemat(devkit / "devkit" / "cars_train_annos.mat", {"annotations": np.ones(3)})
    with pytest.raises(sf.InputError, match="have no field 'fname'"):
        load_cars(devkit)


def test_missing_annotations_are_named(tmp_path):
    with pytest.raises(sf.InputError, match=r"cars_train_annos\.mat does not exist"):
        load_cars(tmp_path)
