import json
import math
import shutil

import pytest
import torch

import surefind as sf
from surefind.paper.catalogue import load
from surefind.paper.photographs import CITY_STEP
from surefind.paper.places import (
    load_berlin_a100,
    load_berlin_halensee,
    load_berlin_kudamm,
    load_gardens_point,
    load_gardens_point_left,
    load_nordland,
    load_sped,
    load_st_lucia,
)

CHEN, BERLIN = "Chen_RAL_2018_Attention_dataset", "Berlin_datasets"


@pytest.fixture
def routes(tmp_path, save_image):
    """Write all sets of the repository, each of a few frames."""

    def write(folder, names):
        for name in names:
            save_image(f"VPR_datasets/{folder}/{name}.jpg", size=(4, 3))
        return tmp_path / "VPR_datasets" / folder

    for walk in ("day_left", "day_right", "night_right"):
        write(f"GardensPointWalking/{walk}", [f"Image{i:03}" for i in range(12)])
    for season in ("summer", "winter"):
        write(f"{CHEN}/nordland_noviewpointvariation/{season}_renamed", range(11))
    write(f"{CHEN}/nordland_noviewpointvariation/summer_renamed", ["3_resized", "4_square"])
    for side in ("refer_single_middle", "query_renamed"):
        write(f"{CHEN}/SPEDTEST/{side}", range(5))
    write(f"{CHEN}/stlucia/0845_ref", range(1950, 1990))
    lucia = write(f"{CHEN}/stlucia/1410_query", [1893, 1894, 1895, "1894_resized"]).parent
    lucia.joinpath("stlucia_groundtruth.csv").write_text(
        "Serial No,Query,Reference\n0,41,1\n1,42,20\n2,43,40\n"
    )
    write(f"{BERLIN}/ber_kud/berlin_kudamm_1_ref_renamed", range(9))
    write(f"{BERLIN}/ber_kud/berlin_kudamm_2_test_renamed", range(2))
    kudamm = tmp_path / "VPR_datasets" / BERLIN / "ber_kud" / "berlin_kudamm_2_test"
    kudamm.mkdir()
    kudamm.joinpath("groundTruth.csv").write_text(
        "Serial No,Query,Ref (Apply Range -2 to 2)\n0,64,2\n1,65,6\n"
    )
    write(f"{BERLIN}/ber_a100/berlin_A100_2_ref_renamed", range(9))
    a100 = write(f"{BERLIN}/ber_a100/berlin_A100_1_test_renamed", range(2))
    a100.joinpath("groundTruth.csv").write_text("0,268,2\n1,272,6\n")
    for side, key, count in (("1_test", "573Y_w", 2), ("2_ref", "HH_sE", 4)):
        names = [f"{key}-640-{i:05}" for i in range(count)]
        street = write(f"{BERLIN}/ber_hass/berlin_halenseestrasse_{side}", names)
        for i, name in enumerate(names):
            # A ten-thousandth of a degree of latitude is about 11 m.
            at = {"lat": 52.5 + 1e-4 * i, "lon": 13.28 + 1e-4 * (side == "1_test")}
            street.joinpath(f"{name}.jpg.json").write_text(json.dumps(at))
    write(f"{BERLIN}/ber_hass/berlin_halenseestrasse_2_ref", ["HH_sE-640-00001.jpg_300"])
    return tmp_path


def found(splits, radius=25.0):
    """Rows of the database that are relevant to each query, by the definition."""
    query, database = (splits[p].positions.tolist() for p in ("query", "database"))
    return [[i for i, d in enumerate(database) if math.dist(q, d) <= radius] for q in query]


def within(tolerance, frames, count):
    return [[i for i in range(count) if abs(i - f) <= tolerance] for f in frames]


def test_frames_of_one_number_are_one_place_within_the_tolerance(routes):
    for loader, tolerance, count in (
        (load_gardens_point, 2, 12),
        (load_gardens_point_left, 2, 12),
        (load_nordland, 2, 11),
        (load_sped, 0, 5),
    ):
        splits = loader(routes)
        assert found(splits) == within(tolerance, range(count), count)
        assert found(splits, 50.0) == within(2 * tolerance, range(count), count)


@pytest.mark.parametrize(
    ("loader", "tolerance", "frames", "count"),
    [
        (load_st_lucia, 10, [0, 19, 39], 40),
        (load_berlin_kudamm, 2, [2, 6], 9),
        (load_berlin_a100, 2, [2, 6], 9),
    ],
)
def test_the_ground_truth_names_the_frame_of_a_query(routes, loader, tolerance, frames, count):
    assert found(loader(routes)) == within(tolerance, frames, count)


def test_sides_are_the_folders_of_the_repository(routes):
    names = lambda splits, part: {n.rsplit("/", 1)[0].rsplit("/", 1)[1] for n in splits[part].names}
    for loader, query, database in (
        (load_gardens_point, "night_right", "day_right"),
        (load_gardens_point_left, "night_right", "day_left"),
        (load_nordland, "winter_renamed", "summer_renamed"),
        (load_sped, "query_renamed", "refer_single_middle"),
        (load_st_lucia, "1410_query", "0845_ref"),
        (load_berlin_halensee, "berlin_halenseestrasse_1_test", "berlin_halenseestrasse_2_ref"),
    ):
        splits = loader(routes)
        assert names(splits, "query") == {query}
        assert names(splits, "database") == {database}
    assert not [n for n in load_nordland(routes)["database"].names if "_re" in n[-12:]]


def test_frames_come_in_the_order_of_their_numbers(routes):
    names = load_nordland(routes)["query"].names
    assert [n.rsplit("/", 1)[1] for n in names] == [f"{i}.jpg" for i in range(11)]
    assert load_nordland(routes / "VPR_datasets")["query"].names == names


def test_degrees_become_metres(routes):
    splits = load_berlin_halensee(routes)
    assert len(splits["database"]) == 4
    north = 6371009 * math.radians(1e-4)
    east = north * math.cos(math.radians(52.5))
    expected = torch.tensor([[east, north * i] for i in range(2)], dtype=torch.float64)
    torch.testing.assert_close(splits["query"].positions, expected, rtol=1e-6, atol=1e-3)
    assert found(splits) == [[0, 1, 2], [0, 1, 2, 3]]


def test_training_data_are_both_sides_of_the_others_far_apart(routes):
    splits = load_gardens_point(routes)
    assert {p: len(splits[p]) for p in splits} == {
        "train": 32,
        "train-query": 16,
        "train-database": 16,
        "query": 12,
        "database": 12,
    }
    assert splits["train"].names == splits["train-query"].names + splits["train-database"].names
    assert not {p for p in splits["train"].names if "Gardens" in p}
    step = (splits["train"].positions[:, 0] // CITY_STEP).long()
    assert step.tolist() == ([1] * 11 + [2] * 5) * 2
    positive, negative = splits["train"].relation().block(slice(0, 16), slice(16, 32))
    rows = [(0, i) for i in range(11)] + [(1, i) for i in range(5)]
    for i, (one, a) in enumerate(rows):
        for j, (other, b) in enumerate(rows):
            near = one == other and abs(a - b) <= (2, 0)[one]
            far = one != other or abs(a - b) > (4, 0)[one]
            assert (bool(positive[i, j]), bool(negative[i, j])) == (near, far)


def test_without_the_others_there_is_nothing_to_train_on(routes):
    shutil.rmtree(routes / "VPR_datasets" / CHEN / "SPEDTEST")
    assert list(load("gardens-point", routes)) == ["query", "database"]
    with pytest.raises(sf.InputError, match="no part 'train' here"):
        _ = load("gardens-point", routes).train
