"""What is refused: a sentence with what was at fault, an exit code, and nothing left behind."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.conftest import unit
from command_line import command
from journeys.conftest import listing

import surefind as sf


def save_vectors(folder):
    good = unit(12)
    arrays = {
        "good": good,
        "labels": np.arange(12) % 3,
        "few-labels": np.arange(11) % 3,
        "nan": np.where(np.arange(4) == 3, np.nan, good),
        "zero": good * (np.arange(12) != 5)[:, None],
        "text": np.array([["a", "b"]]),
        "objects": np.array([{"a": 1}], dtype=object),
        "flat": good[0],
        "none": good[:0],
        "wide": unit(12, z=5),
        "images": np.zeros((3, 8, 8), np.uint8),
        "big-images": np.zeros((2, 1, 16, 16), np.float32),
        "no-images": np.zeros((0, 8, 8), np.uint8),
    }
    for name, rows in arrays.items():
        np.save(folder / f"{name}.npy", rows, allow_pickle=True)
    (folder / "half.npy").write_bytes((folder / "good.npy").read_bytes()[:150])
    (folder / "words.npy").write_text("these are no vectors")
    labels = np.arange(12) % 3
    np.savez(folder / "both.npz", features=good, labels=labels)
    np.savez(folder / "sure.npz", mean=good, kappa=np.ones(12))
    np.savez(folder / "strangers.npz", features=good, labels=[f"nobody {i}" for i in range(12)])
    np.savez(folder / "twice.npz", features=good[:2], ids=["a", "a"])
    np.savez(folder / "unnamed.npz", features=good[:2], ids=["a", ""])
    np.savez(folder / "unsure.npz", features=good[:2], kappa=np.array([1, -1.0]))
    np.savez(folder / "two.npz", x=np.zeros(2), z=np.zeros(2))
    np.savez(folder / "few.npz", inputs=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(3, int))
    pq.write_table(pa.table({"features": [[1.0, 0.0], [1.0]]}), folder / "ragged.parquet")
    for name, rows in (("twice", "a,x\na,y\n"), ("gone", "a,x\nz,y\n")):
        (folder / f"{name}.csv").write_text(f"id,label\n{rows}")


@pytest.fixture(scope="module")
def world(trained, tmp_path_factory):
    """Files that one might give by mistake, a gallery and a run; not to be changed."""
    folder = tmp_path_factory.mktemp("world")
    save_vectors(folder)
    with sf.Gallery(path=folder / "g") as made:
        made.add(unit(6), ids=["a", "b", "c", "7", 7, "d"], labels=["x", "x", "y", "1", 1, None])
    sf.Gallery(path=folder / "empty-gallery").close()
    for name in ("empty", "folder.csv", "folder.npz", "letters"):
        (folder / name).mkdir()
    (folder / "letters" / "letter.txt").touch()
    shutil.copytree(trained, folder / "plain")
    sf.load(trained).save(folder / "bare")
    tested = shutil.copytree(trained, folder / "tested") / "config.toml"
    tested.write_text(tested.read_text().replace('"digits"', '"digits:test"', 1))
    return folder


REFUSED = [
    ("trian digits", 2, "trian"),
    ("train digits", 2, "--out"),
    ("train digits --out plain", 1, "--resume"),
    ("train digits --out new --set gain=1", 1, "--set"),
    ("train digits --out new --set views=2", 1, "--set"),
    ("train digits --out new --set margin=-1", 1, "margin"),
    ("train digits --out new --learning-rate -1", 1, "--learning-rate"),
    ("train digits --out new --encoder cifar10", 1, "--encoder"),
    ("train good.npy --out new", 1, "--labels"),
    ("train both.npz --out new", 1, "surefind fit"),
    ("train digits:night --out new", 1, "night"),
    ("train [/x] --out new", 1, "[/x]"),
    ("train nowhere --out new", 1, "nowhere"),
    ("fit good.npy --out new", 1, "--labels"),
    ("fit good.npy --labels few-labels.npy --out new", 1, "labels"),
    ("fit both.npz --out new --set prior_precision=best", 1, "prior_precision"),
    ("fit flat.npy --out new", 1, "of shape (4,)"),
    ("fit both.npz --out new --on digits", 1, "--on"),
    ("fit digits --out new", 1, "surefind train"),
    ("fit plain --out new --set epochs=3", 1, "--set"),
    ("fit bare --out new", 1, "--on"),
    ("embed plain digits --out new.npz", 1, "digits:test"),
    ("embed plain digits:test --out new.csv", 1, "--out"),
    ("embed plain digits:test --out folder.npz", 1, "--out"),
    ("embed plain --out new.npz", 1, "name what to embed"),
    ("embed plain big-images.npy --out new.npz", 1, "(1, 16, 16)"),
    ("embed plain good.npy --out new.npz", 1, "good"),
    ("embed plain no-images.npy --out new.npz", 1, "no-images"),
    ("embed nowhere digits:test --out new.npz", 1, "nowhere"),
    ("evaluate empty", 1, "empty"),
    ("evaluate bare", 1, "name the test data"),
    ("evaluate tested", 1, "was trained on digits:test"),
    ("evaluate plain few.npz", 1, "needs 11 examples"),
    ("index good.npy --out letters", 1, "letters"),
    ("index good.npy --out letters/letter.txt", 1, "letter.txt"),
    ("index digits:test --out new", 1, "--run"),
    ("index images.npy --out new", 1, "--run"),
    ("index good.npy --run nowhere --out new", 1, "nowhere"),
    ("index good.npy --labels few-labels.npy --out new", 1, "labels"),
    ("index good.npy --labels two.npz --out new", 1, "two.npz"),
    ("index good.npy --groups few-labels.npy --out new", 1, "--groups"),
    ("index wide.npy --out g", 1, "5"),
    ("index twice.npz --out new", 1, "ids"),
    ("index unnamed.npz --out new", 1, "row 1 has no id"),
    ("index unsure.npz --out new", 1, "kappa"),
    ("index two.npz --out new", 1, "two.npz"),
    ("index ragged.parquet --out new", 1, "ragged.parquet"),
    ("calibrate nowhere both.npz", 1, "surefind index SOURCE --out nowhere"),
    ("calibrate g good.npy", 1, "--labels"),
    ("calibrate g --unknown good.npy", 1, "--unknown"),
    ("calibrate g --unknown-share 1", 1, "--unknown-share"),
    ("calibrate g --max-wrong 2", 2, "--max-wrong"),
    ("calibrate g --confidence 1", 2, "--confidence"),
    ("calibrate g both.npz --unknown wide.npy", 1, "--unknown"),
    ("calibrate g both.npz --unknown sure.npz", 1, "--unknown"),
    ("calibrate g both.npz --unknown good.npy --groups labels.npy", 1, "--groups"),
    ("calibrate g strangers.npz", 1, "label"),
    ("calibrate g --with-reviews nowhere", 1, "surefind serve"),
    ("search g", 2, "queries"),
    ("search g good.npy -k 0", 2, "-k"),
    ("search g good.npy --out a.txt", 1, "--out"),
    ("search g good.npy --out folder.csv", 1, "--out"),
    ("search g wide.npy", 1, "5"),
    ("search g good.npy --run nowhere", 1, "nowhere"),
    ("search g - --out a.csv", 1, "--out"),
    ("search nowhere good.npy", 1, "surefind index SOURCE --out nowhere"),
    ("search letters good.npy", 1, "letters"),
    ("search empty-gallery good.npy", 1, "empty"),
    ("items nowhere", 1, "nowhere"),
    ("items g gone", 1, "gone"),
    ("items g --label gone", 1, "--label"),
    ("items g --out a.txt", 1, "--out"),
    ("items g --delete", 1, "--label"),
    ("items g a gone --delete", 1, "gone"),
    ("items g a --label y --delete", 1, "no item is chosen"),
    ("items g --relabel x", 1, "no item is chosen"),
    ("items g a --relabel x --delete", 1, "--delete"),
    ("items g a --relabel gone.csv", 1, "--label"),
    ("items g --relabel twice.csv", 1, "--relabel"),
    ("search g good.npy --label gone", 1, "--label"),
    ("index letters --out new", 1, "class folders"),
    ("items g --relabel gone.csv", 1, "'z'"),
    ("items g 7 --delete", 1, "in Python"),
    ("items g --label 1 --delete", 1, "--label"),
    ("audit g --out audit.txt", 1, "--out"),
    ("audit nowhere", 1, "surefind index SOURCE --out nowhere"),
    ("audit empty-gallery", 1, "add items first"),
    ("serve nowhere", 1, "nowhere"),
    ("serve letters", 1, "letters"),
    ("demo --out letters/letter.txt/new", 1, "--out"),
]
BAD = ("nan", "zero", "text", "objects", "flat", "none", "half", "words", "missing")
REFUSED += [
    (line.format(name), 1, "NaN" if name == "nan" else name)
    for name in BAD
    for line in ("search g {}.npy", "index {}.npy --out new", "fit {}.npy --out new")
    if line[:3] != "fit" or name not in ("zero", "flat")  # zeros are left out there
]


@pytest.mark.parametrize(("line", "code", "word"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_a_mistake_is_named_and_changes_nothing(world, monkeypatch, line, code, word):
    monkeypatch.chdir(world)
    before = listing(world)
    found, out, err = command(*line.split(" "))
    assert found == code, out + err
    assert word in err
    assert "Traceback" not in err
    assert len(err) < 700 or code == 2
    assert listing(world) == before
    with sf.Gallery.open("g", mode="r") as opened:
        assert (len(opened), opened.calibration) == (6, None)


def test_two_trained_runs_do_not_share_a_gallery(refused, surefind, trained, sure, broken):
    dogs = "pets/dog"
    assert surefind("index", dogs, "--run", sure, "--out", "g")[0] == 0
    assert refused("index", dogs, "--run", trained, "--out", "g").field == "run"
    assert refused("search", "g", dogs, "--run", trained).field == "run"


@pytest.mark.parametrize("command", ["train", "embed", "evaluate", "index", "search", "calibrate"])
def test_images_that_cannot_be_read_are_refused_or_left_out(
    surefind, refused, run, broken, command
):
    """Without ``--on-bad skip`` nothing is made of the others either."""
    if command in ("search", "calibrate"):
        assert surefind("index", "pets/dog", "--run", run, "--out", "g")[0] == 0
    line = {
        "train": ("train", "pets", "--out", "new", "--epochs", 0, "--method", "deterministic"),
        "embed": ("embed", run, "pets", "--out", "new.npz"),
        "evaluate": ("evaluate", run, "pets"),
        "index": ("index", "pets", "--run", run, "--out", "g"),
        "search": ("search", "g", "pets", "--run", run),
        "calibrate": ("calibrate", "g", "pets", "--run", run),
    }[command]
    before = listing(broken.parent)
    error = refused(*line)
    assert error.field == "on_bad"
    assert "broken.png" in error.message
    assert listing(broken.parent) == before
    _, out, _ = surefind(*line, "--on-bad", "skip")
    assert "Left out 1 images that cannot be read: pets/cat/broken.png cannot be decoded" in out
