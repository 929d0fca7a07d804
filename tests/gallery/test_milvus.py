"""What is particular to Milvus: other processes, servers that go away, texts of limited length."""

import copy
import subprocess
import sys
import threading

import numpy as np
import pytest

from surefind.errors import InputError, StorageError
from surefind.gallery.gallery import Gallery
from surefind.gallery.milvus_engine import PART, MilvusEngine

pytestmark = pytest.mark.slow

X = np.eye(4)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "gallery.db")


def test_texts_longer_than_milvus_keeps_are_refused(path):
    with Gallery(path, "milvus") as gallery:
        for arguments, name in (
            ({"ids": ["x" * 5000]}, "an id"),
            ({"labels": ["x" * 70_000]}, "a label"),
        ):
            with pytest.raises(InputError, match=rf"bytes of {name}"):
                gallery.add(X[:1], **arguments)
        assert len(gallery) == 0
        assert list(gallery) == []


def test_long_metadata_come_back_in_one_piece(path):
    engine = MilvusEngine(path, "g")
    for length in (3 * PART, 5, PART + 1):
        metadata = {"text": "ü" * length}
        engine.set_metadata(metadata)
        engine.close()
        engine = MilvusEngine(path, "g")
        assert engine.metadata == metadata
    engine.close()


def test_a_collection_of_something_else_is_left_alone(path):
    engine = MilvusEngine(path, "other")
    engine._milvus.make("foreign", 4, ["title"])
    with pytest.raises(InputError, match="is not a gallery"):
        MilvusEngine(path, "foreign")
    with pytest.raises(InputError) as refused:
        Gallery.open(path, collection="absent")
    assert refused.value.field == "path"
    engine.close()


def test_two_galleries_share_a_place(path):
    with Gallery(path, "milvus", collection="a") as a, Gallery(path, "milvus", collection="b") as b:
        a.add(X, ids=range(4))
        b.add(X[:2], ids=range(2))
        assert (len(a), len(b)) == (4, 2)


def test_a_graph_is_remembered(path):
    with Gallery(path, "milvus", index="hnsw") as gallery:
        gallery.add(X, ids=range(4))
        assert gallery.search(X, k=2).ids[:, 0].tolist() == [0, 1, 2, 3]
    with Gallery.open(path) as again:
        assert ", hnsw)" in repr(again)


def test_another_process_is_refused(path):
    with Gallery(path, "milvus") as gallery:
        gallery.add(X, ids=range(4))
        script = (
            "import sys\n"
            "from surefind.gallery.gallery import Gallery\n"
            "from surefind.errors import SurefindError\n"
            "try: Gallery.open(sys.argv[1])\n"
            "except SurefindError as error: print(error)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
        )
        assert "no other process has a milvus-lite folder open" in run.stdout
        assert len(gallery) == 4


def test_a_server_that_is_not_there():
    with pytest.raises(StorageError, match="Check that it runs"):
        Gallery("http://127.0.0.1:1", "milvus", timeout=2)


def test_a_server_that_goes_away_says_so_and_counts_again(path, monkeypatch):
    from pymilvus import MilvusException

    with Gallery(path, "milvus") as gallery:
        gallery.add(X[:3], ids=range(3))
        told = gallery.info["fingerprint"]
        client = gallery._engine._milvus._client

        def gone(*_, **__):
            raise MilvusException(message="server unavailable")

        for method in ("upsert", "search", "delete"):
            monkeypatch.setattr(client, method, gone)
        for call in (
            lambda: gallery.add(X[3:]),
            lambda: gallery.search(X),
            lambda: gallery.delete([0]),
        ):
            with pytest.raises(StorageError, match=r"server unavailable.*repeat the call"):
                call()
        monkeypatch.undo()
        assert gallery.info["fingerprint"] == told
        assert set(gallery) == {0, 1, 2}


def test_what_is_added_while_records_are_counted_is_counted(path, monkeypatch):
    with Gallery(path, "milvus") as gallery:
        gallery.add(X[:3], ids=range(3))
        begun, go, scan = threading.Event(), threading.Event(), gallery._engine.scan

        def slow(size):
            for records in scan(size):
                begun.set()
                assert go.wait(30)
                yield records

        monkeypatch.setattr(gallery._engine, "scan", slow)
        asking = threading.Thread(target=lambda: gallery.info)
        asking.start()
        assert begun.wait(30)
        adding = threading.Thread(target=gallery.add, args=(X[3:],), kwargs={"ids": [3]})
        adding.start()
        adding.join(0.5)
        go.set()
        asking.join()
        adding.join()
        other = Gallery()
        other.add(X, ids=range(4))
        assert gallery.info["fingerprint"] == other.info["fingerprint"]


def test_more_than_a_batch(path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2300, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with Gallery(path, "milvus") as gallery:
        gallery.add(x, ids=[f"{n}" for n in range(2300)])
        assert len(gallery) == 2300
        assert set(gallery) == {f"{n}" for n in range(2300)}
        gallery.delete([f"{n}" for n in range(2200)])
        assert len(gallery) == 100
        other = Gallery()
        other.add(x[2200:], ids=[f"{n}" for n in range(2200, 2300)])
        assert gallery.info["fingerprint"] == other.info["fingerprint"]


def test_an_edited_calibration_is_refused(path):
    rng = np.random.default_rng(0)
    x = np.repeat(np.eye(4), 60, axis=0) + 0.1 * rng.normal(size=(240, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.repeat(list("abcd"), 60).tolist()
    with Gallery(path, "milvus") as gallery:
        gallery.add(x[::2], labels=labels[::2])
        made = gallery.calibrate(x[1::2], labels[1::2], max_wrong=0.2)
    with Gallery.open(path) as gallery:
        assert gallery.calibration == made
        assert not gallery.search(x[:1]).stale
        edited = copy.deepcopy(gallery._engine.metadata)
        edited["calibration"]["value"]["calibration"]["floor"] = 0.0
        gallery._engine.set_metadata(edited)
    with pytest.warns(RuntimeWarning, match="Calibrate again"):
        gallery = Gallery.open(path)
    with gallery:
        assert gallery.calibration is None
        assert gallery.search(x[:3]).decision is None


def test_a_gallery_with_metadata_is_opened_by_another_process(path):
    """milvus-lite forgets with the process which collections were loaded."""
    script = (
        "import sys\n"
        "import numpy as np\n"
        "from surefind.gallery.gallery import Gallery\n"
        "if sys.argv[2] == 'make':\n"
        "    with Gallery(sys.argv[1], 'milvus', model='net') as made:\n"
        "        made.add(np.eye(4), labels=list('abcd'))\n"
        "        made.info |= {'run': 'runs/net'}\n"
        "else:\n"
        "    with Gallery.open(sys.argv[1]) as found:\n"
        "        print(found.model, found.info['run'], found.search(np.eye(4), k=1).label.tolist())\n"
    )
    for step in ("make", "open"):
        run = subprocess.run(
            [sys.executable, "-c", script, path, step], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "net runs/net ['a', 'b', 'c', 'd']"
