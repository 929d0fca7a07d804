import csv
import json
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cli.conftest import unit
from command_line import command, faces
from PIL import Image

import surefind as sf
from surefind.cli import galleries, learn
from surefind.gallery.gallery import Gallery


def content(path="g"):
    with Gallery.open(path, mode="r") as gallery:
        return {i: gallery.get(i) for i in gallery}


def test_images_are_embedded_by_a_run_and_named_by_their_files(surefind, sure, tmp_path):
    for label in ("one", "two"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(2):
            pixels = np.full((8, 8), 100 * i, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    code, out, err = surefind("index", "images", "--run", sure, "--out", "g")
    assert code == 0, err
    assert "Added 4 items and updated 0; g holds 4 of 64 dimensions." in out
    assert "Nothing is decided yet: only 4 items have a label that others have too" in out
    assert out.endswith("With labelled queries of your own: surefind calibrate g QUERIES")
    found = content()
    assert {i: item.label for i, item in found.items()} == {
        "one/0.png": "one",
        "one/1.png": "one",
        "two/0.png": "two",
        "two/1.png": "two",
    }
    assert all(np.isfinite(item.kappa) for item in found.values())


def test_items_are_added_and_updated(surefind):
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"], labels=[1, 2, 3])
    np.savez("b.npz", features=unit(2, 1), ids=["c", "d"], labels=["x", ""])
    surefind("index", "a.npz", "--out", "g")
    code, out, err = surefind("index", "b.npz", "--out", "g")
    assert code == 0, err
    assert "Added 1 items and updated 1; g holds 4" in out
    found = content()
    assert {i: item.label for i, item in found.items()} == {"a": "1", "b": "2", "c": "x", "d": None}
    np.testing.assert_allclose(found["c"].vector, unit(2, 1)[0], atol=1e-6)
    surefind("index", "b.npz", "--out", "g", "--prefix", "new-")
    assert {"new-c", "new-d"} < content().keys()


def test_sources_without_ids_do_not_meet_and_labels_may_come_from_a_file(surefind, tmp_path):
    np.save("a.npy", unit(1))
    np.save("b.npy", unit(2, 1))
    (tmp_path / "b.csv").write_text('label\nx\n""\n')
    surefind("index", "a.npy", "--out", "g")
    code, _, err = surefind("index", "b.npy", "--out", "g", "--labels", "b.csv")
    assert code == 0, err
    labels = {i: item.label for i, item in content().items()}
    assert labels == {"a/0": None, "b/0": "x", "b/1": None}
    assert all(np.isinf(item.kappa) for item in content().values())


def test_a_calibration_is_renewed(surefind):
    with Gallery(path="g") as gallery:
        gallery.add(unit(30), labels=["x"] * 30)
        gallery.calibrate(unit(30, 1), ["x"] * 30)
    np.save("a.npy", unit(1, 2))
    code, out, err = surefind("index", "a.npy", "--out", "g")
    assert code == 0, err
    assert "Recalibrated for the changed items; the target is not reached any more." in out
    with Gallery.open("g", mode="r") as again:
        assert not again.search(unit(1, 3)).stale


def test_vectors_of_any_length_are_rescaled(surefind):
    np.save("long.npy", 2 * unit(3))
    code, out, err = surefind("index", "long.npy", "--out", "g")
    assert code == 0, err
    assert "3 of 3 vectors did not have length 1, and were rescaled." in out
    np.testing.assert_allclose(content()["long/0"].vector, unit(3)[0], atol=1e-6)


def test_groups_are_kept_with_the_items(surefind, refused):
    np.savez("a.npz", features=unit(3), ids=["a", "b", "c"])
    with open("shots.csv", "w") as file:
        file.write('group\nmonday\n""\nmonday\n')
    code, _, err = surefind("index", "a.npz", "--out", "g", "--groups", "shots.csv")
    assert code == 0, err
    groups = {"a": "monday", "b": None, "c": "monday"}
    assert {i: item.group for i, item in content().items()} == groups
    surefind("index", "a.npz", "--out", "g")  # without groups, they stay
    assert {i: item.group for i, item in content().items()} == groups
    np.save("short.npy", np.array(["x"]))
    assert refused("index", "a.npz", "--out", "h", "--groups", "short.npy").field == "groups"


def killed_after(blocks, line):
    """Run a command in another process, which is killed once so many blocks of four are added."""
    child, calls, add = os.fork(), [], Gallery.add
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def killed(self, *arguments, **options):
        calls.append(add(self, *arguments, **options))
        if len(calls) == blocks:
            os.kill(os.getpid(), signal.SIGKILL)
        return calls[-1]

    try:
        galleries.BLOCK = galleries.EMBEDDED = 4
        Gallery.add = killed
        command(*line)
    finally:
        os._exit(1)


@pytest.mark.parametrize("source", ["vectors", "images"])
def test_killed_half_way_it_continues(surefind, sure, broken, monkeypatch, source):
    """Killed after its second block was written, before that was noted: the first is not done again."""
    np.savez("a.npz", features=unit(11), ids=[f"i{n}" for n in range(11)], labels=[1, 2] * 5 + [3])
    (broken / "cat" / "broken.png").unlink()
    (broken / "cat" / "0.png").unlink()
    own = ("a.npz",) if source == "vectors" else ("pets", "--run", str(sure))
    line = ("index", *own, "--out", "g")
    assert killed_after(2, line) == -signal.SIGKILL
    assert len(content()) == 8
    for name in ("BLOCK", "EMBEDDED"):
        monkeypatch.setattr(f"surefind.cli.galleries.{name}", 4)
    embedded = []
    embed = sf.MetricLearner.embed
    monkeypatch.setattr(
        sf.MetricLearner, "embed", lambda s, x, **o: (embedded.append(len(x)), embed(s, x, **o))[1]
    )
    code, out, err = surefind(*line)
    assert code == 0, err
    assert "Continuing: 4 of 11 items were indexed before it was cut off." in out
    assert "Added 3 items and updated 4; g holds 11" in out
    assert embedded == ([] if source == "vectors" else [1, 4, 3])  # the first shows the dimension
    whole = content()
    assert surefind(*own_line(line, "h"))[0] == 0
    assert {i: item.label for i, item in content("h").items()} == {
        i: item.label for i, item in whole.items()
    }
    with Gallery.open("g", mode="r") as one, Gallery.open("h", mode="r") as other:
        assert one.info["fingerprint"] == other.info["fingerprint"]
        assert "indexing" not in one.info
    code, out, _ = surefind(*line, "--json")
    assert json.loads(out) | {"renewed": False} == {
        "gallery": "g",
        "added": 0,
        "updated": 11,
        "continued": 0,
        "items": 11,
        "dim": json.loads(out)["dim"],
        "renewed": False,
        "max_wrong": None,
        "run": None if source == "vectors" else str(sure),
    }


def own_line(line, gallery):
    return (*line[:-1], gallery)


def test_another_source_starts_from_the_beginning(surefind, monkeypatch):
    monkeypatch.setattr("surefind.cli.galleries.BLOCK", 2)
    np.savez("a.npz", features=unit(5), ids=list("abcde"))
    add, calls = Gallery.add, []

    def interrupted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return add(self, *arguments, **options)

    monkeypatch.setattr(Gallery, "add", interrupted)
    code, _, err = surefind("index", "a.npz", "--out", "g")
    assert code == 1
    assert "2 of 5 items are in g. Continue with: surefind index a.npz --out g" in err
    with Gallery.open("g") as gallery:
        gallery.delete(["b"])
        assert galleries.done_before(gallery, json.loads(gallery.info["indexing"])["key"]) == 2
    calls[:] = [1, 1]
    code, out, err = surefind("index", "a.npz", "--out", "g")
    assert code == 0, err
    assert "Continuing" not in out  # or else it would stay deleted
    assert len(content()) == 5
    np.savez("a.npz", features=unit(5, 1), ids=list("abcde"))
    code, out, err = surefind("index", "a.npz", "--out", "g")
    assert code == 0, err
    assert "Continuing" not in out
    np.testing.assert_allclose(content()["a"].vector, unit(5, 1)[0], atol=1e-6)
    assert len(content()) == 5


@pytest.fixture
def photos(surefind, monkeypatch):
    """Forty pictures of each of three digits, and a training of them that is quick."""
    digits = sf.data.sources.load_digits().train
    for label in range(3):
        Path(f"photos/{label}").mkdir(parents=True)
        for row in np.flatnonzero(digits.labels.numpy() == label)[:40]:
            Image.fromarray(digits.inputs[row]).save(f"photos/{label}/{row}.png")
    quick = {"method": "deterministic", "epochs": 1}
    monkeypatch.setattr(learn, "train", partial(learn.train, **quick))
    return "photos"


def test_a_folder_alone_makes_a_gallery_that_decides(surefind, refused, photos, monkeypatch):
    """One picture of five is not learnt and not indexed, whenever, but calibrates."""
    with monkeypatch.context() as patch:

        def stopped(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(sf.MetricLearner, "fit", stopped)
        code, _, err = surefind("index", photos)
        assert code == 1
        assert err.endswith("a checkpoint in gallery.run. Continue with: surefind index photos")
    code, out, err = surefind("index", photos)
    assert code == 0, err
    assert "Training one in gallery.run, on four images of five:" in out
    assert "Training deterministic on 96 examples" in out
    assert "Added 96 items and updated 0; gallery holds 96" in out
    assert "Calibrated with the 24 images that the model has not seen" in out
    assert out.count("Next") == 1
    assert out.endswith("Next: surefind search gallery gallery.run/images.csv:test")
    with open("gallery.run/images.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    apart = {row["name"] for row in rows if row["split"] == "test"}
    assert {row["label"] for row in rows if row["name"] in apart} == {"0", "1", "2"}
    assert set(content("gallery")) == {row["name"] for row in rows} - apart
    with Gallery.open("gallery", mode="r") as opened:
        assert opened.calibration.queries == 24
        assert opened.info["faults"] == []
    os.rename("gallery", "kept")
    os.rename("photos/0", "photos/zero")
    assert "other images than photos" in refused("index", photos).message
    os.rename("photos/zero", "photos/0")
    os.rename("kept", "gallery")
    code, out, err = surefind("index", photos, "--json")  # takes the run that the gallery remembers
    assert code == 0, err
    assert (json.loads(out)["updated"], json.loads(out)["added"]) == (96, 0)
    code, out, err = surefind("search", "gallery", photos, "--json")
    assert code == 0, err
    assert all(row["decision"] for row in json.loads(out))


def test_a_flat_folder_needs_labels(surefind, refused, photos, monkeypatch):
    for row, file in enumerate(sorted(Path(photos).rglob("*.png"))):
        file.rename(f"photos/{row:03}.png")
    for label in range(3):
        Path(f"photos/{label}").rmdir()
    assert "has images but no class folders" in refused("index", photos).message
    assert not Path("gallery.run").exists()
    np.save("labels.npy", np.repeat(["a", "b", "c"], 40))

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(learn, "train", stopped)
    assert surefind("index", photos, "--labels", "labels.npy")[0] == 1
    with open("gallery.run/images.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["label"] == "abc"[int(row["name"][:3]) // 40] for row in rows)
    assert [row["split"] for row in rows].count("test") == 24


def test_the_strictest_guarantee_that_holds_is_taken(surefind):
    """From the loosest on, until one fails: all that were reached hold together."""
    x, y = faces(400, 1)
    np.savez("people.npz", features=x, labels=y)
    code, out, err = surefind("index", "people.npz", "--out", "g", "--json")
    assert code == 0, err
    taken = json.loads(out)["max_wrong"]
    assert f"g, each left out: at most {100 * taken:g} % of matches are wrong (95 % conf" in err
    reached = {}
    for target in galleries.TARGETS:
        code, out, _ = surefind("calibrate", "g", "--max-wrong", target, "--json")
        reached[target] = json.loads(out)["reached"]
    assert taken == min(target for target, there in reached.items() if there)
    assert not reached[min(reached)]  # so that something was chosen


def test_what_a_model_was_trained_on_is_no_calibration(surefind, sure):
    code, out, err = surefind("index", "digits:train", "--run", sure)
    assert code == 0, err
    assert "The model has seen 1,198 of these items: they play no queries." in out
    assert out.endswith("With labelled queries of your own: surefind calibrate gallery QUERIES")
    with Gallery.open("gallery", mode="r") as opened:
        assert opened.calibration is None
    # The gallery remembers the run that embeds.
    options = ("--unknown", "digits:ood", "--max-wrong", 0.3)
    code, _, err = surefind("calibrate", "gallery", "digits:test", *options)
    assert code == 0, err
    code, out, err = surefind("search", "gallery", "digits:test", "--json")
    assert code == 0, err
    assert all(row["kappa"] > 0 and row["decision"] for row in json.loads(out))
