import pytest

import surefind as sf
from surefind.paper import photographs
from surefind.paper.catalogue import load
from surefind.paper.photographs import CITY_STEP, load_cars, load_cub, load_lfw, load_msls

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


@pytest.fixture
def bird_folders(tmp_path, save_image):
    """Four birds, one image each of training and test, in a folder per part and class."""
    for i, c in enumerate(CLASSES):
        for part in ("train", "test"):
            save_image(f"{part}/{c}/{part}{i}.jpg")
    (tmp_path / "README.md").touch()
    return tmp_path


def test_cub_in_a_folder_per_part_and_class(bird_folders):
    splits = load_cub(bird_folders)
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.labels.tolist() == [2, 2, 3, 3]
    assert splits.test.classes == tuple(CLASSES)
    assert splits.test.names[:2] == ("train/003.Crow/train2.jpg", "test/003.Crow/test2.jpg")
    assert load("cub200", bird_folders).test.names == splits.test.names


def test_cars_in_folders_are_ordered_by_the_numbers_of_their_files(tmp_path, save_image):
    # Not alphabetical; and the third has numbers behind the fourth, as one class of the publisher has.
    numbers = {"Zonda": [1, 2], "Acura": [3, 4], "GMC Van": [5, 9], "Buick": [6, 7, 8]}
    for name, (*train, last) in numbers.items():
        for i in train:
            save_image(f"train/{name}/{i:06}.jpg")
        save_image(f"test/{name}/{last:06}.jpg")
    splits = load_cars(tmp_path)
    assert splits.train.classes == tuple(numbers)
    assert splits.train.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.labels.tolist() == [2, 2, 3, 3, 3]
    save_image("test/Zonda/front.jpg")
    with pytest.raises(ValueError, match="front"):
        load_cars(tmp_path)


PEOPLE = {"Ann_A": 3, "Bob_B": 1, "Cyd_C": 2, "Dan_D": 2}


@pytest.fixture
def faces(tmp_path, save_image):
    for person, n in PEOPLE.items():
        for i in range(1, n + 1):
            save_image(f"lfw/{person}/{person}_{i:04}.jpg")
    return tmp_path


def people(names):
    return f"{len(names)}\n" + "".join(f"{n}\t{PEOPLE[n]}\n" for n in names)


def test_lfw_development_lists_split_the_people(faces):
    (faces / "peopleDevTrain.txt").write_text(people(["Ann_A", "Dan_D"]))
    (faces / "peopleDevTest.txt").write_text(people(["Bob_B", "Cyd_C"]))
    splits = load_lfw(faces)
    assert splits.train.labels.tolist() == [0, 0, 0, 3, 3]
    assert splits.test.labels.tolist() == [1, 2, 2]
    assert splits.test.classes == tuple(PEOPLE)
    assert splits.test.names[0] == "Bob_B/Bob_B_0001.jpg"
    assert splits.test.read().shape == (3, 3, 16, 20)


def test_lfw_folds_make_the_parts(faces, monkeypatch):
    monkeypatch.setattr(photographs, "TEST_FOLDS", (1, 3))
    folds = [["Ann_A"], ["Bob_B", "Cyd_C"], ["Dan_D"]]
    (faces / "people.txt").write_text("3\n" + "".join(map(people, folds)))
    splits = load_lfw(faces)
    assert splits.train.labels.unique().tolist() == [1, 2]
    assert splits.test.labels.unique().tolist() == [0, 3]


def test_lfw_without_lists_is_one_part(faces):
    data = load_lfw(faces)["all"]
    assert len(data) == 8
    assert data.classes == tuple(PEOPLE)


def test_lfw_labels_csv_may_hold_fewer_people(tmp_path, save_image, monkeypatch):
    monkeypatch.setattr(photographs, "TEST_FOLDS", (2,))
    for name in ("Ann_A/1.jpg", "Ann_A/2.jpg", "Cyd_C/1.jpg"):
        save_image(f"images/{name}")
    (tmp_path / "labels.csv").write_text("file,label\nAnn_A/1.jpg,Ann_A\nCyd_C/1.jpg,Cyd_C\n")
    (tmp_path / "people.txt").write_text("2\n" + people(["Ann_A", "Bob_B"]) + people(["Cyd_C"]))
    splits = load_lfw(tmp_path)
    assert splits.train.names == ("Ann_A/1.jpg",)
    assert splits.test.classes == ("Ann_A", "Cyd_C")
    (tmp_path / "images" / "Ann_A" / "1.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 of 2 files that .*labels\.csv lists"):
        load_lfw(tmp_path)


def test_lfw_with_wrong_counts_is_refused(faces):
    (faces / "people.txt").write_text("2\n" + people(["Ann_A", "Bob_B"]) + people(["Cyd_C"]))
    (faces / "lfw" / "Bob_B" / "Bob_B_0001.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 people in .*: Bob_B has 0 of 1"):
        load_lfw(faces)


@pytest.fixture
def cities(tmp_path, save_image):
    for city in ("cph", "oslo", "tokyo"):
        for side, n in (("query", 2), ("database", 3)):
            folder = f"train_val/{city}/{side}"
            for i in range(n):
                save_image(f"{folder}/images/{side}{i}.jpg")
            rows = [f"{i},{side}{i},{500000 + 10 * i}.5,{6000000 + i}" for i in range(n)]
            header = ",key,easting,northing\n"
            (tmp_path / folder / "postprocessed.csv").write_text(header + "\n".join(rows))
            raw = [f"{i},{side}{i},{i == 1 and side == 'database'}" for i in range(n)]
            (tmp_path / folder / "raw.csv").write_text(",key,pano\n" + "\n".join(raw))
    return tmp_path


def test_msls_cities_give_training_queries_and_database(cities):
    splits = load_msls(cities)
    assert {p: len(splits[p]) for p in splits} == {
        "train": 8,
        "train-query": 4,
        "train-database": 4,
        "query": 2,
        "database": 2,
    }
    assert {n.split("/")[1] for n in splits["train-query"].names} == {"query"}
    assert splits["query"].names[0] == "cph/query/images/query0.jpg"
    assert splits["database"].positions.tolist() == [[500000.5, 6000000], [500020.5, 6000002]]
    assert splits["query"].labels is None
    assert splits["query"].read().shape == (2, 3, 16, 20)


def test_msls_cities_lie_apart_although_their_numbers_agree(cities):
    train = load_msls(cities)["train"]
    assert sorted((train.positions[:, 0] // CITY_STEP).long().tolist()) == [1] * 4 + [2] * 4
    same, different = train.relation().block(slice(0, 4), slice(4, 8))
    assert not same.any()
    assert different.all()
