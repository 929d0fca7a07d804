import numpy as np
import pytest
import torch

import surefind as sf
from surefind.data.dataset import Dataset
from surefind.paper.artifacts import (
    Artifacts,
    SpherePoints,
    extreme_images,
    read_artifacts,
    sphere_points,
    write_artifacts,
)


@pytest.fixture
def points(directions):
    return lambda n, z=3: SpherePoints(
        directions(n, z).numpy(), np.arange(1, n + 1, dtype=np.float32), np.arange(n) % 4
    )


def test_strips_hold_the_extremes_in_order():
    images = torch.arange(5, dtype=torch.uint8)[:, None, None].expand(5, 4, 6).contiguous()
    data = Dataset(images * 10)
    strips = extreme_images("id", data.read, [0.3, 0.1, 0.5, 0.2, 0.4], count=2)
    assert set(strips) == {"id-lowest", "id-highest"}
    assert strips["id-lowest"].shape == (2, 4, 6)
    assert strips["id-lowest"][:, 0, 0].tolist() == [10, 30]
    assert strips["id-highest"][:, 0, 0].tolist() == [20, 40]


def test_colour_images_keep_their_colour_and_few_images_are_all_taken():
    data = Dataset(torch.randint(0, 256, (3, 3, 5, 5), dtype=torch.uint8))
    strips = extreme_images("ood", data.read, torch.tensor([1.0, 2.0, 3.0]))
    assert strips["ood-lowest"].shape == (3, 5, 5, 3)
    assert (strips["ood-highest"] == strips["ood-lowest"][::-1]).all()
    assert (strips["ood-lowest"].transpose(0, 3, 1, 2) == data.inputs.numpy()).all()


def test_points_are_thinned_and_stay_together(directions, generator):
    mean, kappa = directions(50, 3), torch.arange(50.0)
    kappa[7] = float("inf")
    found = sphere_points(mean, kappa, torch.arange(50), generator, at_most=20)
    assert found.mean.shape == (20, 3)
    assert (np.diff(found.labels) > 0).all()
    np.testing.assert_allclose(found.mean, mean.numpy()[found.labels], rtol=1e-6)
    assert np.isfinite(found.kappa).all()
    assert len(sphere_points(mean, kappa, None, generator).mean) == 50


def test_artifacts_are_written_and_read_back(tmp_path, points):
    file = tmp_path / "a" / "pfe-seed0.npz"
    strips = {"id-lowest": np.zeros((3, 4, 4), np.uint8)}
    write_artifacts(file, Artifacts(strips, {"id": points(5), "ood": points(2)}))
    found = read_artifacts(file)
    assert (found.strips["id-lowest"] == strips["id-lowest"]).all()
    assert list(found.sphere) == ["id", "ood"]
    assert (found.sphere["id"].labels == np.arange(5) % 4).all()
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_there_need_be_no_artifacts(tmp_path):
    assert read_artifacts(tmp_path / "nothing.npz") is None
    write_artifacts(tmp_path / "a.npz", Artifacts({}, {}))
    assert read_artifacts(tmp_path / "a.npz").sphere == {}


@pytest.mark.parametrize("content", [b"", b"PK nothing", b"\x93NUMPY"])
def test_a_damaged_file_is_named(tmp_path, content):
    file = tmp_path / "pfe-seed0.npz"
    file.write_bytes(content)
    with pytest.raises(sf.InputError, match=r"pfe-seed0\.npz"):
        read_artifacts(file)


def test_a_truncated_file_is_named(tmp_path):
    file = tmp_path / "pfe-seed0.npz"
    write_artifacts(file, Artifacts({"id-lowest": np.zeros((3, 4, 4), np.uint8)}, {}))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(sf.InputError, match=r"pfe-seed0\.npz"):
        read_artifacts(file)


def test_no_pickle_is_opened(tmp_path):
    file = tmp_path / "pfe-seed0.npz"
    np.savez(file, **{"strip/id-lowest": np.array([{}], dtype=object)})
    with pytest.raises(sf.InputError, match=r"pfe-seed0\.npz"):
        read_artifacts(file)


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("lowest", np.zeros((3, 4, 4), np.uint8)),
        ("id-lowest", np.zeros((3, 4, 4), np.float32)),
        ("id-lowest", np.zeros((3, 4, 4, 2), np.uint8)),
        ("id-lowest", np.zeros((0, 4, 4), np.uint8)),
    ],
)
def test_strips_are_checked_at_both_doors(tmp_path, name, images):
    with pytest.raises(sf.InputError, match="strip"):
        Artifacts({name: images}, {})
    np.savez(tmp_path / "b.npz", **{f"strip/{name}": images})
    with pytest.raises(sf.InputError, match="strip"):
        read_artifacts(tmp_path / "b.npz")


def test_points_are_checked(directions, points):
    with pytest.raises(sf.InputError, match="directions"):
        points(5, 4)
    with pytest.raises(sf.InputError, match="directions"):
        SpherePoints(directions(3, 3).numpy(), np.ones(2))
    with pytest.raises(sf.InputError, match="κ"):
        SpherePoints(directions(2, 3).numpy(), np.zeros(2))


def test_counts_are_checked(generator):
    with pytest.raises(sf.InputError, match="count"):
        extreme_images("id", lambda rows: rows, [1.0], count=0)
    with pytest.raises(sf.InputError, match="at_most"):
        sphere_points(np.eye(3), np.ones(3), None, generator, at_most=0)
