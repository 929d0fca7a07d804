import numpy as np
import pytest

from surefind.gallery import faiss_engine, graph, graph_file
from surefind.gallery.gallery import Gallery
from surefind.gallery.graph import Graph
from surefind.gallery.graph_file import GraphState
from surefind.retrieval.search import nearest_rows


def unit(rng, n, z=16):
    x = rng.normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def recall(found, truth):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)])


def test_the_graph_finds_almost_all_through_changes_and_removals():
    """The rows are those of a table: removed ones are filled with the last, changed ones in place."""
    rng = np.random.default_rng(1)
    x, followed, q = unit(rng, 2000), Graph(), unit(rng, 50)
    for round_ in range(6):
        rows = followed.search(x, q, 10)
        assert recall(rows, nearest_rows(x, q, 10)) > 0.95
        assert rows.max() < len(x)
        for row in rng.choice(len(x) - 150, 150, replace=False):
            followed.moved(int(row), len(x) - 1)
            x[row] = x[-1]
            x = x[:-1]
        rows = rng.choice(len(x), 100, replace=False)
        x = np.concatenate([x, unit(rng, 40 * round_)])
        x[rows] = unit(rng, 100)
        followed.changed(rows)
        followed.changed(np.arange(len(x) - 40 * round_, len(x)))


def test_a_graph_of_dead_nodes_is_built_anew_and_answers():
    rng = np.random.default_rng(2)
    x, followed = unit(rng, 300), Graph()
    followed.search(x, x[:1], 1)
    for _ in range(298):
        followed.moved(0, len(x) - 1)
        x[0] = x[-1]
        x = x[:-1]
    assert sorted(followed.search(x, x[:1], 2)[0].tolist()) == [0, 1]


def test_a_query_that_the_graph_answers_too_shortly_is_searched_exactly(monkeypatch):
    rng = np.random.default_rng(3)
    x, followed = unit(rng, 50), Graph()
    followed.search(x, x[:1], 1)

    class Short:
        def search(self, queries, count, params):
            return None, np.full((len(queries), count), -1)

    followed._index = Short()
    assert followed.search(x, x[:4], 3).tolist() == nearest_rows(x, x[:4], 3).tolist()


@pytest.mark.parametrize(("index", "now"), [("auto", "hnsw"), ("exact", "exact"), ("hnsw", "hnsw")])
def test_a_large_gallery_is_searched_through_a_graph(monkeypatch, tmp_path, index, now):
    monkeypatch.setattr(faiss_engine, "LARGE", 100)
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


def test_a_new_snapshot_takes_its_graph_along(kept, builds):
    with Gallery.open(kept) as gallery:
        gallery.save()
    assert sorted(p.name for p in kept.iterdir() if "graph" in p.name) == ["graph-2.bin"]
    assert recall(found(kept), found(kept, index="exact")) > 0.95
    assert not builds


def test_a_gallery_that_moves_to_a_folder_takes_its_graph_along(builds, tmp_path):
    rng = np.random.default_rng(7)
    with Gallery(index="hnsw") as gallery:
        gallery.add(unit(rng, 100))
        gallery.search(unit(rng, 1))
        gallery.save(tmp_path / "g")
    assert (tmp_path / "g" / "graph-1.bin").is_file()


def test_a_graph_is_written_again_only_when_it_has_grown(kept):
    file = kept / "graph-1.bin"
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
        lambda whole: whole.replace(b'"version": 1', b'"version": 2'),
        lambda whole: whole.replace(b'"changes": 4', b'"changes": 3'),
        lambda whole: b"[]\n",
    ],
)
def test_a_damaged_graph_is_built_anew(kept, builds, damage):
    file = kept / "graph-1.bin"
    whole = file.read_bytes()
    assert b'"changes": 4' in whole
    file.write_bytes(damage(whole))
    assert recall(found(kept), found(kept, index="exact")) > 0.95
    assert len(builds) == 1
    builds.clear()
    found(kept)  # the search above has put a whole one there
    assert not builds


@pytest.mark.parametrize(
    "change",
    [
        lambda s: GraphState(np.where(s.rows == 1, 2, s.rows), s.dead, s.links),  # one row twice
        lambda s: GraphState(s.rows + 5, s.dead, s.links),  # rows that are not there
        lambda s: GraphState(s.rows[:-1], s.dead, s.links),  # a node too few
        lambda s: GraphState(s.rows, unit(np.random.default_rng(0), 1), s.links),
        lambda s: GraphState(s.rows, s.dead, s.links[:40]),  # what FAISS cannot read
    ],
)
def test_a_graph_that_does_not_fit_is_left_alone(builds, change):
    x = unit(np.random.default_rng(9), 50)
    one, other = Graph(), Graph()
    one.search(x, x[:1], 1)
    other.adopt(change(one.state()), x)
    assert other.search(x, x, 1)[:, 0].tolist() == list(range(50))
    assert len(builds) == 2


def test_a_disk_without_room_for_the_graph_fails_no_search(builds, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    rng = np.random.default_rng(10)
    with Gallery(path=tmp_path / "g", index="hnsw") as gallery:
        gallery.add(unit(rng, 100))
        monkeypatch.setattr(graph_file.os, "replace", full)
        assert len(gallery.search(unit(rng, 3))) == 3
    assert not [p for p in (tmp_path / "g").iterdir() if "graph" in p.name]
