"""Features are computed once, by one process or several, also if these are killed; none is another's."""

import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import surefind as sf
from surefind.data.images import ImageFiles
from surefind.data.inputs import InputSpec
from surefind.learning import feature_cache
from surefind.learning.feature_cache import FeaturePass, as_kept

AUGMENTED = sf.Preprocessing(resize=10, crop=8, random_area=(0.2, 1.0), flip=True)


class Mean(nn.Module):
    """Images to the mean of each channel and the first pixel; counts the rows that pass."""

    passed = 0

    def __init__(self, factor=1.0, maps=False):
        super().__init__()
        self.relu = nn.ReLU()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.maps = maps

    def forward(self, images):
        Mean.passed += len(images)
        values = self.relu(images) * self.factor
        return values if self.maps else torch.cat([values.mean((2, 3)), values[:, :, 0, 0]], 1)


def write_images(folder, n=20, suffix="png", seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(n):
        pixels = rng.integers(0, 256, (12, 14, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:03}.{suffix}")
    files = ImageFiles([str(p) for p in sorted(folder.iterdir())])
    return sf.Dataset(files, torch.arange(n) % 2)


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(feature_cache, "BATCH", 4)
    Mean.passed = 0


def passed_by(network=None, how=AUGMENTED, views=0, dataset=None, **options):
    spec = InputSpec.of(dataset.inputs, how)
    network = (network or Mean()).eval()
    return FeaturePass(network, spec, {"relu": "relu"}, how, views, **options)


def arrays(made):
    return [made.inputs.values, made.inputs.statistics["relu"]]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(arrays(one), arrays(other), strict=True))


def test_features_are_those_of_the_network_under_each_view(images, tmp_path):
    made = passed_by(dataset=images, views=2, seed=5).run(images, tmp_path / "cache")
    network = Mean()
    plain = network(images.read(preprocessing=AUGMENTED)).detach().numpy()
    np.testing.assert_allclose(made.inputs.values[0], plain, rtol=1e-6)
    for view in (1, 2):
        cut = images.read(preprocessing=AUGMENTED, augment_seed=(5, view))
        np.testing.assert_allclose(made.inputs.values[view], network(cut).detach(), rtol=1e-6)
    assert isinstance(made.inputs.values, np.memmap)
    assert torch.equal(made.labels, images.labels)
    statistics = made.inputs.stage("relu", np.arange(20)).numpy()
    np.testing.assert_allclose(statistics[:, :3], plain[:, :3], rtol=1e-5)
    in_memory = passed_by(dataset=images, views=2, seed=5).run(images)
    assert equal(made, in_memory)


def test_a_pass_that_was_cut_off_computes_the_rows_that_are_missing(images, tmp_path):
    whole = passed_by(dataset=images, views=1).run(images, tmp_path / "whole")
    done = []

    def stop(count, total):
        done.append((count, total))
        if len(done) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        passed_by(dataset=images, views=1).run(images, tmp_path / "cut", stop)
    assert done[-1] == (28, 40)
    Mean.passed = 0
    seen = []
    again = passed_by(dataset=images, views=1).run(
        images, tmp_path / "cut", lambda *at: seen.append(at)
    )
    assert Mean.passed == 12 + 1  # one row tells the shapes
    assert seen[0] == (32, 40)
    assert equal(whole, again)
    Mean.passed = 0
    assert equal(whole, passed_by(dataset=images, views=1).run(images, tmp_path / "cut"))
    assert Mean.passed == 1


SCRIPT = """
import sys, time
sys.path.insert(0, {here!r})
import test_feature_cache as t
from surefind.learning import feature_cache
feature_cache.BATCH, feature_cache.SAVE_EVERY = 4, -1.0
files = t.ImageFiles([str(p) for p in sorted(t.Path("images").iterdir())])
data = t.sf.Dataset(files)
def slowly(count, total):
    print(count, flush=True)
    time.sleep(0.2)
t.passed_by(dataset=data).run(data, t.Path("cache"), slowly)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_loses_little(images, tmp_path):
    script = SCRIPT.format(here=str(Path(__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if int(line) >= 12:
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
    assert process.returncode == -signal.SIGKILL
    found = passed_by(dataset=images).run(images, tmp_path / "cache")
    assert Mean.passed <= 8 + 1
    assert equal(found, passed_by(dataset=images).run(images))


TWO = """
import sys
sys.path.insert(0, {here!r})
import numpy as np, torch, torch.distributed as dist
import test_feature_cache as t
torch.set_num_threads(1)
dist.init_process_group("gloo")
files = t.ImageFiles([str(p) for p in sorted(t.Path("images").iterdir())])
data = t.sf.Dataset(files)
for folder in (None, t.Path("cache")):
    made = t.passed_by(dataset=data, views=1).run(data, folder)
    np.savez(f"{{folder}}-{{dist.get_rank()}}.npz", *t.arrays(made))
t.Path(f"passed-{{dist.get_rank()}}").write_text(str(t.Mean.passed))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_two_processes_share_the_work_and_the_files(images, tmp_path):
    (tmp_path / "two.py").write_text(TWO.format(here=str(Path(__file__).parent)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, "two.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr
    passed = [(tmp_path / f"passed-{rank}").read_text() for rank in (0, 1)]
    assert passed == ["42", "42"]  # both halves, twice, and a row for the shapes
    one = arrays(passed_by(dataset=images, views=1).run(images))
    for folder in (None, "cache"):
        for rank in (0, 1):
            with np.load(tmp_path / f"{folder}-{rank}.npz") as kept:
                for name, array in zip(kept.files, one, strict=True):
                    np.testing.assert_allclose(kept[name], array, rtol=1e-6, atol=1e-6)
    Mean.passed = 0
    passed_by(dataset=images, views=1).run(images, tmp_path / "cache")
    assert Mean.passed == 1


def test_the_key_is_of_network_preprocessing_and_files(images, tmp_path):
    def key(network=None, how=AUGMENTED, dataset=images, **options):
        made = passed_by(network, how, dataset=dataset, **options).run(dataset, tmp_path / "c")
        return made.inputs.key

    first = key()
    assert key() == first
    about = json.loads((tmp_path / "c" / first / "about.json").read_text())
    assert about["examples"] == 20
    plain = replace(AUGMENTED, random_area=None, flip=False)
    assert key(how=plain) == first
    assert key(seed=3) == first
    changed = [
        key(Mean(2.0)),
        key(how=replace(AUGMENTED, interpolation="bicubic")),
        key(how=replace(AUGMENTED, mean=(0.5,) * 3, std=(0.5,) * 3)),
        key(dataset=images[:19]),
        key(dataset=images[torch.arange(19, -1, -1)]),
        key(views=1),
        key(views=1, seed=3),
        key(views=1, how=replace(AUGMENTED, random_area=(0.5, 1.0))),
    ]
    Image.new("RGB", (20, 20)).save(images.inputs.paths[1])
    changed.append(key())
    assert len({first, *changed}) == 1 + len(changed)
    moved = shutil.copytree(tmp_path / "images", tmp_path / "moved")
    there = sf.Dataset(ImageFiles([str(p) for p in sorted(moved.iterdir())]))
    assert key(dataset=there) == changed[-1]


def test_images_of_one_size_are_told_apart(tmp_path):
    """Formats without compression: the same names and sizes, and other pictures."""
    found = [
        passed_by(dataset=data).run(data, tmp_path / "cache").inputs.values
        for data in (write_images(tmp_path / str(s), suffix="bmp", seed=s) for s in (0, 1))
    ]
    assert not np.array_equal(*found)


def test_maps_are_kept_in_half_precision_within_its_range(images, tmp_path):
    made = passed_by(Mean(1e6, maps=True), dataset=images).run(images, tmp_path / "cache")
    values = made.inputs.values
    assert values.dtype == np.float16
    assert values.shape == (1, 20, 3, 8, 8)
    assert values.max() == np.finfo(np.float16).max
    x = torch.tensor([[[-1e9, 1e-3, 7e4]]])
    assert as_kept(x).tolist() == [[[-65504.0, pytest.approx(1e-3, rel=1e-3), 65504.0]]]
    assert as_kept(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_network_without_finite_features_is_refused(images):
    for maps in (False, True):
        with pytest.raises(sf.InputError, match="NaN or infinite"):
            passed_by(Mean(float("inf"), maps), dataset=images).run(images)


@pytest.mark.parametrize("name", ["features", "stage-0", "done"])
@pytest.mark.parametrize("damage", ["short", "noise", "gone"])
def test_damaged_files_are_noticed_and_missing_ones_computed_again(images, tmp_path, name, damage):
    one = passed_by(dataset=images)
    made = one.run(images, tmp_path / "cache")
    file = tmp_path / "cache" / made.inputs.key / f"{name}.npy"
    expected = [np.array(a) for a in arrays(made)]
    if damage == "gone":
        file.unlink()
        again = one.run(images, tmp_path / "cache")
        assert all(np.array_equal(a, b) for a, b in zip(arrays(again), expected, strict=True))
        return
    content = file.read_bytes()
    file.unlink()  # not in place: the arrays above are mapped from it
    file.write_bytes(content[:-8] if damage == "short" else b"noise" * 100)
    with pytest.raises(sf.InputError, match="is damaged: delete") as refusal:
        one.run(images, tmp_path / "cache")
    assert refusal.value.field == "cache"


def test_a_full_disk_gets_a_sentence(images, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(feature_cache.os, "posix_fallocate", full)
    with pytest.raises(sf.InputError, match="No space left on device") as refusal:
        passed_by(dataset=images).run(images, tmp_path / "cache")
    assert refusal.value.field == "cache"
    monkeypatch.undo()
    passed_by(dataset=images).run(images, tmp_path / "cache")


def test_a_cache_that_is_a_file_gets_a_sentence(images, tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(sf.InputError) as refusal:
        passed_by(dataset=images).run(images, tmp_path / "cache")
    assert refusal.value.field == "cache"


def test_marks_wait_until_rows_are_on_the_disk(images, tmp_path, monkeypatch):
    """Rows are marked now and then, not after each batch: a killed pass repeats some, and trusts none."""
    order = []
    monkeypatch.setattr(np.memmap, "flush", lambda self: order.append(Path(self.filename).name))
    begun = time.monotonic()
    passed_by(dataset=images).run(images, tmp_path / "cache")
    if time.monotonic() - begun < feature_cache.SAVE_EVERY:
        assert order == ["features.npy", "stage-0.npy", "done.npy"]
