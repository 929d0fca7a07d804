"""A gallery's folder: crashes, damage, two writers, readers beside one, a full disk."""

import itertools
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from surefind.errors import InputError, StorageError
from surefind.gallery import store
from surefind.gallery.gallery import Gallery


def unit(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 6))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def content(path, **options):
    with Gallery.open(path, mode="r", **options) as gallery:
        items = {i: (gallery.get(i).vector.tolist(), gallery.get(i).label) for i in gallery}
        return items, gallery.info["fingerprint"], gallery.info.get("images")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gallery"


@pytest.fixture
def history(path, tmp_path):
    """A folder as a kill would leave it after each of several changes, and its content then."""
    seen = []

    def left(name):
        place = tmp_path / "left" / name
        shutil.copytree(path, place)  # the writer still has it open: nothing was tidied up
        seen.append((place, content(path)))

    with Gallery(path=path) as gallery:
        left("empty")
        gallery.add(unit(3), ids=[1, 2, "c"], labels=["x", None, 3], payload=[{"n": 1}, None, {}])
        left("added")
        gallery.update(unit(1, 1), ids=[2])
        left("updated")
        gallery.info |= {"run": "runs/a"}
        left("described")
        gallery.delete([1])
        left("deleted")
    return seen


def test_a_folder_left_by_a_kill_holds_what_was_acknowledged(history):
    for place, expected in history:
        assert (place / "gallery.sqlite-wal").stat().st_size or "empty" in place.name
        assert content(place) == expected
        Gallery.open(place).close()
        assert content(place) == expected


def test_a_change_that_was_torn_is_dropped_wherever_it_was_torn(history, tmp_path):
    """The log ends anywhere within the change after the last one that was acknowledged."""
    name = "gallery.sqlite-wal"
    for (before, expected), (after, _) in itertools.pairwise(history):
        start = (before / name).stat().st_size if (before / name).exists() else 0
        whole = (after / name).read_bytes()
        assert len(whole) > start
        for size in range(start, len(whole), 1601):
            shutil.rmtree(tmp_path / "torn", ignore_errors=True)
            torn = shutil.copytree(before, tmp_path / "torn")
            (torn / name).write_bytes(whole[:size])
            with Gallery.open(torn) as gallery:
                gallery.add(unit(1, 2), ids=["new"])
            assert content(torn)[0].keys() == expected[0].keys() | {"new"}


def flipped(file, places):
    """Flip a bit at each place in turn, and put the file right again after each."""
    whole = file.read_bytes()
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 8)
        file.write_bytes(broken)
        yield place
    file.write_bytes(whole)


def refused_or_unchanged(place, expected):
    """Return whether a folder is refused; if it is not, it must hold everything."""
    (place / "gallery.sqlite-shm").unlink(missing_ok=True)
    before = {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()}
    try:
        found = content(place)
    except StorageError:
        with pytest.raises(StorageError):
            Gallery.open(place)
        assert all((place / name).read_bytes() == before[name] for name in before)
        return True
    assert found == expected
    return False


def test_a_flipped_bit_in_the_database_is_noticed(path, history):
    expected, file = history[-1][1], path / "gallery.sqlite"
    for _ in flipped(file, range(0, file.stat().st_size, 211)):
        refused_or_unchanged(path, expected)
    connection = sqlite3.connect(file)
    connection.execute("VACUUM")  # or a text could be found where it was before
    held = connection.execute("SELECT item, numbers FROM items").fetchall()
    held += connection.execute("SELECT value FROM state").fetchall()
    connection.close()
    whole, texts = file.read_bytes(), [text for row in held for text in row]
    places = [whole.index(text) + n for text in texts for n in range(len(text))]
    assert len(places) > 200
    assert all(refused_or_unchanged(path, expected) for _ in flipped(file, places))
    assert content(path) == expected


def test_a_flipped_bit_in_the_log_is_not_taken_for_its_end(history):
    place, expected = history[-1]
    file = place / "gallery.sqlite-wal"
    found = [refused_or_unchanged(place, expected) for _ in flipped(file, range(0, 20_000, 83))]
    assert len(found) == 241
    assert sum(found) > 230  # the rest is what SQLite does not look at: it changes nothing
    file.unlink()
    with pytest.raises(StorageError, match="lost changes: 4 were acknowledged"):
        content(place)
    (place / "lock").unlink()
    with Gallery.open(place) as gallery:
        assert len(gallery) == 0
        gallery.add(unit(1))


def test_a_database_that_is_cut_or_foreign_is_noticed(path, history):
    file = path / "gallery.sqlite"
    whole = file.read_bytes()
    for size in (0, 10, 5000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(StorageError):
            Gallery.open(path, mode="r")
        with pytest.raises(StorageError):
            Gallery.open(path)
    file.write_bytes(whole)
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(StorageError, match="no gallery of version 7"):
        Gallery.open(path)


@pytest.mark.parametrize(
    "change",
    ["DELETE FROM items WHERE row = 0", "DELETE FROM items WHERE row = 1", "DELETE FROM state"],
)
def test_what_is_missing_is_noticed(path, history, change):
    with sqlite3.connect(path / "gallery.sqlite") as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(StorageError, match="cannot be read"):
        Gallery.open(path)


class Crash(BaseException):
    """The process ends here."""


def test_a_crash_while_a_gallery_is_made_leaves_room_for_another_try(path, monkeypatch):
    def crash(*_):
        raise Crash

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(Crash):
        Gallery(path=path)
    monkeypatch.undo()
    (path / store.TEMPORARY).write_bytes(b"half")
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
    assert set(content(path)[0]) == {1, 2}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_change_that_is_interrupted_leaves_disk_and_memory_alike(path, when, monkeypatch):
    """Before the commit nothing is kept; after it, memory is behind, and takes no more changes."""
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])

        def interrupted(*arguments):
            raise KeyboardInterrupt

        monkeypatch.setattr(store, "_write_state" if when == "before" else "_count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gallery.add(unit(2, 1), ids=[4, 5])
        monkeypatch.undo()
        assert set(gallery) == {1, 2, 3}
        if when == "before":
            gallery.add(unit(1, 2), ids=[6])
        else:
            with pytest.raises(StorageError, match="open the gallery again"):
                gallery.add(unit(1, 2), ids=[6])
    assert set(content(path)[0]) == ({1, 2, 3, 6} if when == "before" else {1, 2, 3, 4, 5})


def test_compacting_gives_room_back(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(2000), ids=range(2000))
        gallery.delete(list(range(1900)))
        gallery.save()
        small = sum(p.stat().st_size for p in path.iterdir())
        told = gallery.info["fingerprint"]
    assert small < 100_000
    with Gallery.open(path) as gallery:
        assert set(gallery) == set(range(1900, 2000))
        assert gallery.info["fingerprint"] == told


def test_one_writer_at_a_time(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
        with pytest.raises(StorageError, match=r"one writer at a time.*for reading"):
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
        gallery.add(unit(1, 1), ids=[3])
    Gallery.open(path).close()


def test_a_reader_changes_nothing(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(2), ids=[1, 2])
        reader = Gallery.open(path, mode="r")
        gallery.add(unit(1, 3), ids=[3])
        for call in (
            lambda: reader.add(unit(1)),
            lambda: reader.delete(1),
            lambda: setattr(reader, "info", {"run": "x"}),
        ):
            with pytest.raises(InputError, match="only reads"):
                call()
        assert set(reader) == {1, 2}


def test_a_reader_sees_one_moment_while_a_writer_writes(path, monkeypatch):
    """The writer changes and compacts everything between two parts that the reader reads."""
    monkeypatch.setattr(store, "READ", 10)
    monkeypatch.setattr(store, "BUSY", 0.1)
    with Gallery(path=path) as gallery:
        gallery.add(unit(100), ids=range(100))
        before = content(path)
        original, left = store.zlib.crc32, [300]

        def late(*arguments):
            left[0] -= 1
            if left[0] == 200:
                gallery.delete(list(range(50)))
                gallery.update(unit(50, 5), ids=range(50, 100))
                gallery.save()
            return original(*arguments)

        monkeypatch.setattr(store.zlib, "crc32", late)
        assert content(path) == before
        monkeypatch.undo()
        assert left[0] < 200
        assert set(content(path)[0]) == set(range(50, 100))


def test_a_full_disk_loses_nothing_and_keeps_nothing_by_half(path):
    """The system itself refuses: files may not grow beyond a size, and take what fits before it."""
    with Gallery(path=path) as gallery:
        gallery.add(unit(3), ids=[1, 2, 3])
        told = gallery.info["fingerprint"]
        size = (path / "gallery.sqlite-wal").stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for room in (0, 50, 9000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
            try:
                with pytest.raises(StorageError, match="Nothing of this call was kept"):
                    gallery.add(unit(500, 1), ids=range(10, 510))
                with pytest.raises(StorageError, match="Nothing of this call was kept"):
                    gallery.delete([1])
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert gallery.info["fingerprint"] == told
            assert set(gallery) == set(content(path)[0]) == {1, 2, 3}
        gallery.add(unit(5, 1), ids=range(10, 15))
    assert len(content(path)[0]) == 8


def test_a_change_that_failed_does_not_come_back(path):
    """Everything was written, and waiting for the disk failed: whoever opens it next must not find it."""
    with Gallery(path=path) as gallery:
        gallery.add(unit(1)[:, :3] / np.linalg.norm(unit(1)[:, :3]), ids=["first"])
    script = Path(__file__).with_name("failing_sync.py")
    run = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["refused", "refused"]
    assert set(content(path)[0]) == {"first", "acknowledged"}
    with Gallery.open(path) as gallery:
        gallery.add(np.eye(3)[:1], ids=["later"])
    assert set(content(path)[0]) == {"first", "acknowledged", "later"}


def test_a_folder_that_does_not_fit_when_compacted_loses_nothing(path):
    with Gallery(path=path) as gallery:
        gallery.add(unit(500), ids=range(500))
        gallery.delete(list(range(400)))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
        try:
            with pytest.raises(StorageError, match="Nothing is lost"):
                gallery.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        gallery.add(unit(1, 4), ids=["later"])
        gallery.save()
    assert set(content(path)[0]) == {*range(400, 500), "later"}


def test_a_gallery_that_cannot_be_made(path, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot make"):
        Gallery(path=tmp_path / "file" / "gallery")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(StorageError, match="Make room"):
            Gallery(path=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p.name for p in path.iterdir()} <= {"lock"}
    Gallery(path=path).close()


def test_a_folder_that_may_not_be_written_can_be_read():
    """In a process without rights of its own: root may write anywhere."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "gallery"
        with Gallery(path=path) as gallery:
            gallery.add(unit(3), ids=[1, 2, 3])
        os.chmod(place, 0o755)
        os.chmod(path, 0o555)
        for file in path.iterdir():
            os.chmod(file, 0o444)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                assert set(content(path)[0]) == {1, 2, 3}
                with pytest.raises(StorageError, match="open it for reading"):
                    Gallery.open(path)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        os.chmod(path, 0o755)


def test_ids_of_any_size_and_text_come_back(path):
    ids = [2**80, -(2**70), "", "\0", "x/image", "ü\n"]
    with Gallery(path=path) as gallery:
        gallery.add(unit(6), ids=ids, labels=[2**90, "", "\0", None, "\U0001f600", 0])
    with Gallery.open(path) as again:
        assert set(again) == set(ids)
        assert [again.get(i).label for i in ids] == [2**90, "", "\0", None, "\U0001f600", 0]


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


def test_a_gallery_whose_only_record_is_cut_off_is_not_called_empty(tmp_path):
    """Wherever its database or its log ends: it is damaged, or it is whole."""
    with Gallery(path=tmp_path / "open") as gallery:
        gallery.add(np.eye(4)[:1], ids=["only"])
        shutil.copytree(tmp_path / "open", tmp_path / "live")  # as a copy of a folder in use
    file, log = store.FILE, f"{store.FILE}-wal"
    for source, name in (("open", file), ("live", file), ("live", log)):
        size = (tmp_path / source / name).stat().st_size
        for keep in (0, 1, 100, size // 4, size // 2, size - 4096, size - 1):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(tmp_path / source, copy)
            os.truncate(copy / name, keep)
            with suppress(StorageError), Gallery.open(copy, mode="r") as found:
                assert list(found) == ["only"]
