import shutil
from dataclasses import replace

import numpy as np
import pytest

import surefind as sf
from surefind.learning.seeds import seeded
from surefind.paper.custom import custom_problem
from surefind.paper.results import read_result
from surefind.paper.running import run_problem


def test_many_classes_are_divided_so_that_the_test_classes_are_new(folders):
    problem = custom_problem(folders("birds", range(24)), side=16)
    train, test = (set(p.labels.tolist()) for p in (problem.train, problem.test))
    assert len(test) == 12
    assert len(train) == 11  # and one validates
    assert not train & test
    assert problem.protocol.settings()["validation"] == "class"
    assert problem.name == "birds"
    assert problem.ood is None
    again = custom_problem(problem.test.inputs.paths[0].rsplit("/", 2)[0], side=16)
    assert again.test.names == problem.test.names


def test_few_classes_are_divided_by_image_and_run(folders, tmp_path):
    source, ood = folders("pets", range(3), images=15), folders("noise", [7], images=6)
    shutil.move(ood / "class7" / "0.png", ood / "0.png")
    problem = custom_problem(source, ood, side=16, epochs=1, batch_size=16)
    assert problem.examples == {"train": 27, "test": 15, "ood": 6}
    run_problem(problem, ["laplace-posthoc"], [0], results=tmp_path / "r", work=tmp_path / "w")
    result = read_result(tmp_path / "r" / "pets" / "laplace-posthoc-seed0.json")
    assert result.protocol["ood"] == ["noise", "all"]
    assert result.protocol["side"] == 16
    assert "auroc" in result.values


def test_other_images_of_the_same_name_are_not_taken_for_the_old_ones(folders, tmp_path):
    """Neither results nor checkpoints of the first ones are used."""
    source = folders("pets", range(3), images=15)
    how = {"side": 16, "epochs": 1, "batch_size": 16}
    work = {"results": tmp_path / "r", "work": tmp_path / "w"}
    run_problem(custom_problem(source, **how), ["norm"], [0], **work)
    shutil.rmtree(source)
    folders("pets", range(3), images=15)
    other = custom_problem(source, **how)
    with pytest.raises(sf.InputError, match="files: train"):
        run_problem(other, ["norm"], [0], **work)
    with pytest.raises(sf.InputError, match="files"):
        run_problem(other, ["norm"], [0], **work | {"results": tmp_path / "new"})


def test_ood_data_that_are_the_test_data_are_refused(folders):
    problem = custom_problem(folders("pets", range(3), images=15), side=16)
    with pytest.raises(sf.InputError, match="test data"):
        replace(problem, ood=problem.test)
    arrays = sf.Dataset(np.zeros((12, 2), np.float32), [0, 1] * 6)
    with pytest.raises(sf.InputError, match="test data"):
        replace(problem, test=arrays, ood=sf.Dataset(np.zeros((12, 2), np.float32)))


def test_parts_that_are_there_are_used(folders, tmp_path):
    source = folders("shop/train", range(3))
    for part, classes in (("query", [3, 4, 5]), ("gallery", [3, 4, 5, 6])):
        folders(f"shop/{part}", classes)
    problem = custom_problem(tmp_path / "shop", side=16)
    assert problem.examples == {"train": 12, "test": 12, "gallery": 16}
    shutil.rmtree(tmp_path / "shop" / "query")
    (tmp_path / "shop" / "gallery").rename(tmp_path / "shop" / "val")
    assert custom_problem(tmp_path / "shop", side=16).examples == {"train": 12, "test": 16}
    source.rename(tmp_path / "shop" / "database")
    with pytest.raises(sf.InputError, match="'database', 'val'"):
        custom_problem(tmp_path / "shop", side=16)


def test_a_backbone_brings_its_own_format(folders, backbone):
    source = folders("pets", range(3), images=12)
    problem = custom_problem(source, backbone=backbone)
    recorded = problem.protocol.settings()
    assert recorded["backbone"] == "tiny-resnet"
    assert recorded["learning_rate"] == 1e-5
    assert "side" not in recorded
    assert problem.preprocessing.crop == 16
    images = problem.test.read(slice(0, 2), preprocessing=problem.preprocessing)
    assert problem.build(seeded(0))(images).shape == (2, 8)
    assert custom_problem(source, learning_rate=0.1, side=16).protocol.learning_rate == 0.1


def test_a_manifest_and_its_ood_manifest(folders, tmp_path):
    def manifest(name, folder, label):
        rows = [f"{p},{label(p)}" for p in sorted(folder.rglob("*.png"))]
        (tmp_path / name).write_text("path,label\n" + "\n".join(rows))
        return tmp_path / name

    source = manifest("digits.csv", folders("a", range(3), images=12), lambda p: p.parent.name)
    other = manifest("other.csv", folders("b", [9]), lambda p: "x")
    problem = custom_problem(source, other, side=16)
    assert problem.examples["ood"] == 4
    assert problem.name == "digits-custom"  # not to be taken for the published set


def test_classes_of_a_single_image_are_noted(folders, tmp_path):
    source = folders("pets/train", range(3))
    folders("pets/test", range(3))
    folders("pets/test", [8], images=1)
    problem = custom_problem(source.parent, side=16)
    assert len(problem.notes) == 1
    assert problem.notes[0].startswith("1 of 4 test classes")


def test_data_that_cannot_be_used_are_refused(folders, tmp_path):
    with pytest.raises(sf.InputError, match="gone"):
        custom_problem(tmp_path / "gone")
    with pytest.raises(sf.DegenerateError, match="1 class"):
        custom_problem(folders("one", [1]))
    with pytest.raises(sf.DegenerateError, match="30 classes"):
        custom_problem(folders("lone", range(30), images=1))
    source = folders("pets", range(3), images=12)
    with pytest.raises(sf.InputError, match="missing"):
        custom_problem(source, tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(sf.InputError, match="empty"):
        custom_problem(source, tmp_path / "empty")
    with pytest.raises(sf.InputError, match="side"):
        custom_problem(source, side=1)
    broken = source / "class1" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(sf.InputError, match=r"3\.png"):
        custom_problem(source)


def test_places_without_parts_are_refused(folders, tmp_path):
    rows = [f"{p},{i},0" for i, p in enumerate(sorted(folders("p", range(3)).rglob("*.png")))]
    (tmp_path / "places.csv").write_text("path,easting,northing\n" + "\n".join(rows))
    with pytest.raises(sf.InputError, match="positions"):
        custom_problem(tmp_path / "places.csv")
