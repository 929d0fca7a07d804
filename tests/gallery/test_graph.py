import json
import os
import threading
import zlib

import numpy as np
import pytest

from surefind.gallery import graph, memory
from surefind.gallery.gallery import Gallery
from surefind.gallery.graph import Graph, near_rows


def unit(rng, n, z=16):
    x = rng.normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def nearest(x, q, count):
    return np.argsort(-(q @ x.T), axis=1)[:, :count]


def recall(found, truth):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)])


def test_the_graph_finds_almost_all_through_changes_and_removals():
    """The rows are those of a table: removed ones are filled with the last, changed ones in place."""
    rng = np.random.default_rng(1)
    x, followed, q = unit(rng, 2000), Graph(), unit(rng, 50)
    for round_ in range(6):
        assert followed.follow(x)
        rows = followed.search(x, q, 10)
        assert recall(rows, nearest(x, q, 10)) > 0.95
        assert rows.max() < len(x)
        for _ in range(3):
            gone, size = rng.choice(len(x), 50, replace=False), len(x) - 50
            filled, sources = gone[gone < size], np.setdiff1d(np.arange(size, len(x)), gone)
            x[filled] = x[sources]
            x = x[:size]
            followed.changed(filled)
        rows = rng.choice(len(x), 100, replace=False)
        x = np.concatenate([x, unit(rng, 40 * round_)])
        x[rows] = unit(rng, 100)
        followed.changed(rows)
        followed.changed(np.arange(len(x) - 40 * round_, len(x)))


def test_a_graph_of_dead_nodes_is_built_anew_and_answers():
    rng = np.random.default_rng(2)
    x, followed = unit(rng, 300), Graph()
    followed.follow(x)
    for _ in range(298):
        followed.changed(np.array([0]))
        x[0] = x[-1]
        x = x[:-1]
    assert followed.missing(2) == 2
    followed.follow(x)
    assert sorted(followed.search(x, x[:1], 2)[0].tolist()) == [0, 1]


def test_a_query_that_the_graph_answers_too_shortly_is_searched_exactly(monkeypatch):
    rng = np.random.default_rng(3)
    x, followed = unit(rng, 50), Graph()
    followed.follow(x)

    class Short:
        def search(self, queries, count, params):
            return None, np.full((len(queries), count), -1)

    followed._index = Short()
    assert recall(followed.search(x, x[:4], 3), nearest(x, x[:4], 3)) == 1
    assert recall(near_rows(x, x[:4], 50), nearest(x, x[:4], 50)) == 1


@pytest.mark.parametrize(("index", "now"), [("auto", "hnsw"), ("exact", "exact"), ("hnsw", "hnsw")])
def test_a_large_gallery_is_searched_through_a_graph(monkeypatch, tmp_path, index, now):
    monkeypatch.setattr(memory, "LARGE", 100)
    rng = np.random.default_rng(4)
    with Gallery(path=tmp_path / "g", index=index) as gallery:
        gallery.add(unit(rng, 100))
        assert ("hnsw" in repr(gallery)) == (index == "hnsw")
        gallery.add(unit(rng, 1))
        assert f", {now})" in repr(gallery)
    with Gallery.open(tmp_path / "g") as again:
        assert f", {now})" in repr(again)
    with Gallery.open(tmp_path / "g", index="exact") as again:
        assert ", exact)" in repr(again)


@pytest.fixture
def builds(monkeypatch):
    """Keep graphs of any size; the list grows with every graph that is built from nothing."""
    monkeypatch.setattr(graph, "WORTH_KEEPING", 1)
    made, build = [], graph.faiss.IndexHNSWFlat

    def counted(*arguments):
        made.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(graph.faiss, "IndexHNSWFlat", counted)
    return made


@pytest.fixture
def kept(builds, tmp_path):
    """A gallery whose graph is on the disk, with dead nodes, and changes since."""
    rng = np.random.default_rng(5)
    path = tmp_path / "kept"
    with Gallery(path=path, index="hnsw") as gallery:
        gallery.add(unit(rng, 300), ids=range(300))
        gallery.search(unit(rng, 1))
        gallery.delete(list(range(20, 60)))
        gallery.update(unit(rng, 60), ids=range(100, 160))
        gallery.search(unit(rng, 1))
        gallery.delete([0, 299])
        gallery.update(unit(rng, 1), ids=[200])
        gallery.add(unit(rng, 5), ids=range(400, 405))
    builds.clear()
    return path


def found(path, **options):
    q = unit(np.random.default_rng(6), 40)
    with Gallery.open(path, **options) as gallery:
        return gallery.search(q, k=10).ids


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_stored_graph_is_taken_over_with_the_changes_since(kept, builds, mode):
    answers = found(kept, mode=mode)
    assert not builds
    assert recall(answers, found(kept, index="exact")) > 0.95
    gone = set(range(20, 60)) | {0, 299}
    assert not gone & set(answers.ravel())
    with Gallery.open(kept, mode="r") as gallery:
        for own in (120, 200, 404, 298):  # updated before and after, added, moved to another row
            assert gallery.search(gallery.get(own).vector[None], k=1).ids[0, 0] == own
    assert not builds


def test_a_changed_label_leaves_the_graph_alone(kept):
    before = found(kept)
    with Gallery.open(kept) as gallery:
        gallery.search(unit(np.random.default_rng(0), 1))
        nodes = gallery._engine._graph._same.tolist()
        gallery.update(ids=range(100, 140), labels=["other"] * 40)
        assert (
            gallery.search(unit(np.random.default_rng(6), 40), k=10).ids.tolist() == before.tolist()
        )
        assert gallery._engine._graph._same.tolist() == nodes


def test_a_graph_is_written_again_only_when_it_has_grown(kept):
    file = kept / "graph.bin"
    before = file.read_bytes()
    found(kept)
    assert file.read_bytes() == before  # six new nodes of 366
    with Gallery.open(kept) as gallery:
        gallery.add(unit(np.random.default_rng(8), 100), ids=range(500, 600))
    found(kept)
    assert file.read_bytes() != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
        lambda whole: whole.replace(b'"version": 3', b'"version": 4'),
        lambda whole: rewritten(whole, lambda index: index[:40]),  # FAISS cannot read it
        lambda whole: b"[]\n",
    ],
)
def test_a_graph_that_cannot_be_used_is_built_anew(kept, builds, damage):
    file = kept / "graph.bin"
    whole = file.read_bytes()
    assert damage(whole) != whole
    file.write_bytes(damage(whole))
    assert recall(found(kept), found(kept, index="exact")) > 0.95
    assert len(builds) == 1
    builds.clear()
    found(kept)  # the search above has put a whole one there
    assert not builds


def rewritten(whole, change):
    """Change what a graph's file holds, with a checksum that fits."""
    head, _, body = whole.partition(b"\n")
    body = change(body)
    about = json.loads(head) | {"checksum": zlib.crc32(body)}
    return json.dumps(about).encode() + b"\n" + body


def test_a_graph_of_another_gallery_answers_nothing(kept, builds, tmp_path):
    rng = np.random.default_rng(11)
    with Gallery(path=tmp_path / "other", index="hnsw") as other:
        other.add(unit(rng, 300))
        other.search(unit(rng, 1))
    builds.clear()
    (tmp_path / "other" / "graph.bin").rename(kept / "graph.bin")
    assert recall(found(kept), found(kept, index="exact")) > 0.95
    assert len(builds) == 1


def test_a_disk_without_room_for_the_graph_fails_no_search(builds, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    rng = np.random.default_rng(10)
    with Gallery(path=tmp_path / "g", index="hnsw") as gallery:
        gallery.add(unit(rng, 100))
        monkeypatch.setattr(os, "replace", full)
        assert len(gallery.search(unit(rng, 3))) == 3
    assert not [p for p in (tmp_path / "g").iterdir() if "graph" in p.name]


def test_a_graph_that_takes_long_is_built_behind_the_searches(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "AT_ONCE", 10)
    go, follow, rng = threading.Event(), Graph.follow, np.random.default_rng(12)

    def later(*given):
        assert go.wait(60)
        return follow(*given)

    monkeypatch.setattr(Graph, "follow", later)
    x = unit(rng, 300)
    with Gallery(path=tmp_path / "g", index="hnsw") as gallery, Gallery(index="exact") as exact:
        gallery.add(x)
        exact.add(x)
        q = unit(rng, 20)
        assert gallery.search(q).ids.tolist() == exact.search(q).ids.tolist()
        assert gallery.info["faults"] == ["graph: it is being built, and searches are exact"]
        for one in (gallery, exact):  # while it is built
            one.delete([0, 5])
            one.add(-x[7:8], ids=[900])
            one.update(x[8:9], ids=[7])
        go.set()
        gallery._engine._builder.join()
        assert gallery.info["faults"] == []
        found = gallery.search(np.concatenate([q, -x[7:8], x[8:9]]), k=2).ids
        assert gallery._engine._graph._same.sum() > 290
        assert recall(found[:20], exact.search(q, k=2).ids) > 0.95
        assert found[20, 0] == 900
        assert {*found[21]} == {7, 8}


def test_a_graph_that_is_being_built_is_given_up_when_the_gallery_is_closed(monkeypatch):
    monkeypatch.setattr(memory, "AT_ONCE", 10)
    monkeypatch.setattr(graph, "BUILT", 1)
    with Gallery(index="hnsw") as gallery:
        gallery.add(unit(np.random.default_rng(13), 20_000))
        gallery.renew()
        builder = gallery._engine._builder
    assert not builder.is_alive()
    assert gallery._open_engine is None
