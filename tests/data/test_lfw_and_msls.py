import pytest
import torch

import surefind as sf
from surefind.data.lfw import load_lfw
from surefind.data.msls import CITY_STEP, load_msls

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


def test_lfw_folds_make_the_parts(faces):
    folds = [["Ann_A"], ["Bob_B", "Cyd_C"], ["Dan_D"]]
    (faces / "people.txt").write_text("3\n" + "".join(map(people, folds)))
    splits = load_lfw(faces, test_folds=(1, 3))
    assert splits.train.labels.unique().tolist() == [1, 2]
    assert splits.test.labels.unique().tolist() == [0, 3]
    for wrong in ((), (4,), (1, 2, 3)):
        with pytest.raises(sf.InputError, match="test_folds must name some of the folds 1 … 3"):
            load_lfw(faces, test_folds=wrong)


def test_lfw_without_lists_is_one_part(faces):
    data = load_lfw(faces)["all"]
    assert len(data) == 8
    assert data.classes == tuple(PEOPLE)


def test_lfw_labels_csv_may_hold_fewer_people(tmp_path, save_image):
    for name in ("Ann_A/1.jpg", "Ann_A/2.jpg", "Cyd_C/1.jpg"):
        save_image(f"images/{name}")
    (tmp_path / "labels.csv").write_text("file,label\nAnn_A/1.jpg,Ann_A\nCyd_C/1.jpg,Cyd_C\n")
    (tmp_path / "people.txt").write_text("2\n" + people(["Ann_A", "Bob_B"]) + people(["Cyd_C"]))
    splits = load_lfw(tmp_path, test_folds=[2])
    assert splits.train.names == ("Ann_A/1.jpg",)
    assert splits.test.classes == ("Ann_A", "Cyd_C")
    (tmp_path / "images" / "Ann_A" / "1.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 of 2 files that .*labels\.csv lists"):
        load_lfw(tmp_path, test_folds=[2])


def test_lfw_with_wrong_counts_is_refused(faces):
    (faces / "people.txt").write_text("2\n" + people(["Ann_A", "Bob_B"]) + people(["Cyd_C"]))
    (faces / "lfw" / "Bob_B" / "Bob_B_0001.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 people in .*: Bob_B has 0 of 1"):
        load_lfw(faces, test_folds=[2])


@pytest.mark.parametrize("text", ["", "2\n1\nAnn_A\t3\n", "1\n2\nAnn_A\t3\n", "1\n1\nAnn_A\n"])
def test_half_a_list_of_people_is_refused(faces, text):
    (faces / "people.txt").write_text(text)
    with pytest.raises(sf.InputError, match=r"people\.txt is not a whole list of people"):
        load_lfw(faces)


def test_lfw_without_images_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(sf.InputError, match="holds no LFW images"):
            load_lfw(folder)


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
    assert {p: len(splits[p]) for p in splits} == {"train": 8, "query": 2, "database": 2}
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


def test_msls_cities_can_be_chosen_and_raw_lists_left_out(cities):
    for path in cities.rglob("raw.csv"):
        path.unlink()
    splits = load_msls(cities / "train_val", validation_cities=["cph", "oslo", "tokyo"])
    assert {p: len(splits[p]) for p in splits} == {"query": 6, "database": 9}
    assert torch.isfinite(splits["query"].positions).all()


def test_msls_that_is_not_whole_is_refused(cities, tmp_path):
    side = cities / "train_val" / "cph" / "query"
    (side / "images" / "query0.jpg").unlink()
    with pytest.raises(sf.InputError, match=r"1 of 2 files that .*postprocessed\.csv lists"):
        load_msls(cities)
    (side / "raw.csv").write_text(",key,pano\n0,query0,False\n")
    with pytest.raises(sf.InputError, match=r"do not list the same images \(1 and 2\)"):
        load_msls(cities)
    (side / "postprocessed.csv").unlink()
    with pytest.raises(sf.InputError, match=r"postprocessed\.csv does not exist"):
        load_msls(cities)
    with pytest.raises(sf.InputError, match="holds no MSLS cities"):
        load_msls(side)
