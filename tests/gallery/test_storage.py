"""A gallery's folder: crashes, damage, two writers, a full disk."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

from surefind.errors import StorageError
from surefind.gallery import generation, journal, snapshot, storage
from surefind.gallery.gallery import Gallery


def unit(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 6))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def content(path, **options):
    with Gallery.open(path, mode="r", **options) as gallery:
        return {i: (gallery.get(i).vector.tolist(), gallery.get(i).label) for i in gallery}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gallery"


@pytest.fixture
def history(path):
    """A gallery after several changes, and its content and the journal's size after each."""
    seen = []
    with Gallery(path=path) as gallery:
        log = path / "journal-1.log"

        def note():
            seen.append((log.stat().st_size, content(path)))

        note()
        gallery.add(unit(3), ids=[1, 2, "c"], labels=["x", None, 3])
        note()
        gallery.update(unit(1, 1), ids=[2])
        note()
        gallery.delete([1])
        note()
    return seen


def test_a_torn_end_is_dropped_wherever_it_was_torn(path, history):
    log = path / "journal-1.log"
    whole = log.read_bytes()
    for size in {*range(history[0][0], len(whole), 7), *(end for end, _ in history)}:
        log.write_bytes(whole[:size])
        expected = [state for end, state in history if end <= size][-1]
        assert content(path) == expected
    log.write_bytes(whole[: history[2][0] + 5] + b"\0" * 100)
    with Gallery.open(path) as gallery:
        gallery.add(unit(1, 2), ids=["new"])
    assert content(path).keys() == history[2][1].keys() | {"new"}


def test_damage_before_the_end_is_not_taken_for_a_torn_end(path, history):
    log = path / "journal-1.log"
    whole = log.read_bytes()
    for place in range(history[0][0], history[2][0], 5):
        broken = bytearray(whole)
        broken[place] ^= 0x40
        log.write_bytes(broken)
        with pytest.raises(StorageError, match="damaged"):
            Gallery.open(path)
        assert log.read_bytes() == broken
    log.write_bytes(whole)
    assert content(path) == history[-1][1]


def test_journals_that_do_not_belong(path, history):
    log = path / "journal-1.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:10])
    with pytest.raises(StorageError, match="no preamble"):
        Gallery.open(path)
    journal.create_journal(log, 7)
    with pytest.raises(StorageError, match="belongs to snapshot 7, not to 1"):
        Gallery.open(path)
    log.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        Gallery.open(path)


def test_a_journal_of_another_version(path, history, monkeypatch):
    monkeypatch.setattr(journal, "VERSION", 9)
    journal.create_journal(path / "journal-1.log", 1)
    monkeypatch.undo()
    with pytest.raises(StorageError, match=r"version 9; this surefind reads version 1"):
        Gallery.open(path)


def test_a_damaged_snapshot_is_noticed(path, history):
    with Gallery.open(path) as gallery:
        gallery.save()
    place = path / "snapshot-2"
    for name in ("vectors.npy", "kappa.npy", "items.jsonl"):
        whole = (place / name).read_bytes()
        (place / name).write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        with pytest.raises(StorageError, match="checksums differ"):
            Gallery.open(path)
        (place / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(StorageError, match=r"cannot be read|checksums differ"):
            Gallery.open(path)
        (place / name).unlink()
        with pytest.raises(StorageError, match="cannot be read"):
            Gallery.open(path)
        (place / name).write_bytes(whole)
    assert content(path) == history[-1][1]


def test_a_damaged_or_foreign_index_is_noticed(path, history):
    index = path / "gallery.json"
    about = json.loads(index.read_text())
    index.write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        Gallery.open(path)
    index.write_text(json.dumps(about | {"version": 2}))
    with pytest.raises(StorageError, match="of version 2"):
        Gallery.open(path, mode="r")


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir", "rmtree", "unlink"])
def test_a_crash_at_any_step_of_a_snapshot_loses_nothing(path, history, call, monkeypatch):
    """Snapshots are interrupted before each call that touches the disk, until one gets through."""
    owner = {"rmtree": shutil, "mkdir": snapshot.Path, "unlink": snapshot.Path}.get(call, os)
    original = getattr(owner, call)
    for step in range(20):
        gallery = Gallery.open(path)
        left = [step]

        def crash(*arguments, left=left, **options):
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, call, crash)
        try:
            gallery.save()
        except Crash:
            pass
        else:
            break
        finally:
            monkeypatch.setattr(owner, call, original)
            gallery.close()
        assert content(path) == history[-1][1]
    else:
        pytest.fail("no snapshot got through")
    assert step > 0
    assert content(path) == history[-1][1]
    with Gallery.open(path) as gallery:
        gallery.add(unit(1, 3), ids=["later"])
    assert content(path).keys() == history[-1][1].keys() | {"later"}
    assert len(list(path.iterdir())) == 4


def test_a_crash_while_a_gallery_is_made_leaves_room_for_another_try(path, monkeypatch):
    def crash(*_):
        raise Crash

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(Crash):
        Gallery(path=path)
    monkeypatch.undo()
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
    assert set(content(path)) == {1, 2}


def test_the_journal_is_folded_into_snapshots(path, monkeypatch):
    monkeypatch.setattr(storage, "SMALLEST_JOURNAL", 2_000)
    with Gallery(path=path) as gallery:
        for n in range(60):
            gallery.add(unit(1, n), ids=[n])
            if n % 3 == 0:
                gallery.delete([n])
        told = gallery.fingerprint
    assert json.loads((path / "gallery.json").read_text())["generation"] > 2
    assert len(list(path.iterdir())) == 4
    with Gallery.open(path) as gallery:
        assert set(gallery) == {n for n in range(60) if n % 3}
        assert gallery.fingerprint == told


def test_one_writer_at_a_time(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
        with pytest.raises(StorageError, match=r"one writer at a time.*mode='r'"):
            Gallery.open(path)
        script = (
            "import sys\n"
            "from surefind.gallery.gallery import Gallery\n"
            "from surefind.errors import SurefindError\n"
            "with Gallery.open(sys.argv[1], mode='r') as g: print(len(g))\n"
            "try: Gallery.open(sys.argv[1])\n"
            "except SurefindError as error: print(error)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
        )
        count, message = run.stdout.splitlines()
        assert count == "2"
        assert "open for writing elsewhere" in message
    Gallery.open(path).close()


def test_a_reader_changes_nothing(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
        reader = Gallery.open(path, mode="r")
        gallery.add(unit(1, 3), ids=[3])
        for call in (lambda: reader.add(unit(1)), lambda: reader.delete(1)):
            with pytest.raises(ValueError, match="only reads"):
                call()
        assert set(reader) == {1, 2}


def test_a_reader_starts_over_when_the_snapshot_is_replaced(path, history, monkeypatch):
    original, writer = generation.read_snapshot, Gallery.open(path)
    left = [2]

    def late(place, summary):
        if left[0]:
            left[0] -= 1
            writer.save()
        return original(place, summary)

    monkeypatch.setattr(generation, "read_snapshot", late)
    assert content(path) == history[-1][1]
    left[0] = 100
    with pytest.raises(StorageError, match="changed faster"):
        Gallery.open(path, mode="r")
    writer.close()


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_loses_nothing_and_keeps_nothing_by_half(path):
    """The system itself refuses: files may not grow beyond a size, and take what fits before it."""
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        told, size = gallery.fingerprint, (path / "journal-1.log").stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))
        try:
            with pytest.raises(StorageError, match="Nothing of this call was kept"):
                gallery.add(unit(5, 1), ids=range(10, 15))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert gallery.fingerprint == told
        assert (path / "journal-1.log").stat().st_size == size
        assert set(content(path)) == {1, 2, 3}
        gallery.add(unit(5, 1), ids=range(10, 15))
    assert len(content(path)) == 8


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_write_leaves_memory_and_disk_alike(path, call, monkeypatch):
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        original, left = getattr(os, call), [1]

        def once(*arguments):
            if left[0]:
                left[0] -= 1
                full()
            return original(*arguments)

        monkeypatch.setattr(os, call, once)
        with pytest.raises(StorageError, match="No space left on device"):
            gallery.delete([1])
        assert set(gallery) == set(content(path)) == {1, 2, 3}
        gallery.delete([1])
    assert set(content(path)) == {2, 3}


def test_a_disk_that_cannot_be_repaired_takes_no_more(path, monkeypatch):
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        monkeypatch.setattr(os, "write", full)
        monkeypatch.setattr(os, "ftruncate", full)
        with pytest.raises(StorageError, match="cannot write"):
            gallery.delete([1])
        monkeypatch.undo()
        with pytest.raises(StorageError, match="open the gallery again"):
            gallery.delete([1])
    with Gallery.open(path) as gallery:
        gallery.delete([1])


def test_a_snapshot_that_does_not_fit_is_given_up(path, monkeypatch):
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        monkeypatch.setattr(np, "save", full)
        with pytest.raises(StorageError, match="Nothing is lost"):
            gallery.save()
        monkeypatch.setattr(storage, "SMALLEST_JOURNAL", 10)
        gallery._engine._storage._worthwhile = 10
        with pytest.warns(RuntimeWarning, match="Nothing is lost"):
            gallery.delete([1])
        monkeypatch.undo()
        gallery.add(unit(1, 4), ids=[4])
    assert set(content(path)) == {2, 3, 4}


def test_a_rename_that_fails_ends_the_writing(path, monkeypatch):
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match="open the gallery again"):
            gallery.save()
        monkeypatch.undo()
        with pytest.raises(StorageError, match="open the gallery again"):
            gallery.delete([1])
    assert set(content(path)) == {1, 2, 3}


def test_a_gallery_that_cannot_be_made(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot make"):
        Gallery(path=tmp_path / "file" / "gallery")
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(StorageError, match="Make room"):
        Gallery(path=path)
    monkeypatch.undo()
    Gallery(path=path).close()


def test_a_folder_that_may_not_be_written(path, history, monkeypatch):
    (path / "lock").unlink()
    (path / "lock").mkdir()
    with pytest.raises(StorageError, match="open it with mode='r'"):
        Gallery.open(path)
    assert content(path) == history[-1][1]


def test_memory_moves_into_a_folder_and_stays_there(path):
    gallery = Gallery(model="m")
    gallery.add(unit(3), ids=[1, 2, 3])
    gallery.save(path)
    gallery.delete([1])
    gallery.close()
    with Gallery.open(path) as again:
        assert set(again) == {2, 3}
        assert again.model == "m"
        assert str(path) in repr(again)
