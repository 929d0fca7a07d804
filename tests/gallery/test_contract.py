"""What every engine must do, against a plain dict and a brute-force search."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery

DIM = 12
KEPT = ("folder", "hnsw", "milvus-lite", "milvus-server")
"""Galleries that outlive their process."""
NO_SERVER = (
    "SUREFIND_MILVUS is not set: give a server's address, or 'start' to start one (PyPI milvus)"
)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a real server: the one named by SUREFIND_MILVUS, or one started for the tests."""
    address = os.environ.get("SUREFIND_MILVUS")
    if not address:
        pytest.skip(NO_SERVER)
    if address != "start":
        yield address
        return
    from milvus import MilvusServer  # Only here: most machines have no server to start.

    started = MilvusServer()
    started.set_base_dir(str(tmp_path_factory.mktemp("server")))
    started.start()
    yield f"http://127.0.0.1:{started.listen_port}"
    started.stop()


@pytest.fixture(params=["memory", *KEPT])
def place(request, tmp_path):
    """Arguments that make a gallery, without the path; and the path."""
    if request.param == "milvus-server":
        name = f"t{abs(hash(request.node.name))}"
        return {"engine": "milvus", "collection": name}, request.getfixturevalue("server")
    if request.param == "milvus-lite":
        return {"engine": "milvus"}, str(tmp_path / "gallery.db")
    index = "hnsw" if request.param == "hnsw" else "auto"
    return {"index": index}, None if request.param == "memory" else tmp_path / "gallery"


@pytest.fixture
def gallery(place):
    options, path = place
    with Gallery(path=path, **options) as made:
        yield made


@pytest.fixture
def draw():
    rng = np.random.default_rng(5)

    def unit(n):
        x = rng.normal(size=(n, DIM))
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return unit


def expected_order(state, query, k):
    """Ids by falling cosine, each computed by itself."""
    cosine = {
        i: sum(float(a) * float(b) for a, b in zip(v, query, strict=True))
        for i, (v, _) in state.items()
    }
    return sorted(cosine, key=lambda i: -cosine[i])[:k], cosine


def check(gallery, state, queries):
    assert len(gallery) == len(state)
    assert set(gallery) == set(state)
    answers = gallery.search(queries, k=5)
    assert answers.ids.shape == (len(queries), min(5, len(state)))
    for row, query in enumerate(queries):
        order, cosine = expected_order(state, query, 5)
        assert answers.ids[row].tolist() == order
        np.testing.assert_allclose(answers.scores[row], [cosine[i] for i in order], atol=1e-6)
        assert answers.neighbour_labels[row].tolist() == [state[i][1] for i in order]


def test_random_changes_keep_up_with_a_dict(gallery, draw):
    rng, state, queries = np.random.default_rng(7), {}, draw(4)
    for round_ in range(12):
        fresh = [f"item {round_} \"{n}' \\ ü" if n % 2 else round_ * 100 + n for n in range(8)]
        x, labels = draw(8), [f"label {rng.integers(4)}" for _ in fresh]
        gallery.add(x, ids=fresh, labels=labels)
        state |= {i: (v, label) for i, v, label in zip(fresh, x, labels, strict=True)}
        known = sorted(state, key=str)
        changed = [known[n] for n in rng.choice(len(known), 3, replace=False)]
        x = draw(3)
        gallery.update(x, ids=changed, labels=[round_] * 3)
        state |= {i: (v, round_) for i, v in zip(changed, x, strict=True)}
        gone = [known[n] for n in rng.choice(len(known), 4, replace=False)]
        gallery.delete(gone)
        for i in gone:
            del state[i]
        if round_ % 4 == 3:
            check(gallery, state, queries)


def test_an_item_comes_back_as_it_was_given(gallery, draw):
    x, kappa = draw(3), np.array([2.5, 1e300, np.inf])
    payload = [{"name": 'Zoë "q" \\ \n', "tags": [1, 2.5, None]}, {}, None]
    given = {"ids": ["a", 1, "1"], "labels": ["A", 7, None], "groups": ["v", None, 3]}
    gallery.add(Embeddings(x, kappa), payload=payload, **given)
    items = [gallery.get(i) for i in ("a", 1, "1")]
    assert [i.id for i in items] == ["a", 1, "1"]
    assert [i.label for i in items] == ["A", 7, None]
    assert [i.group for i in items] == ["v", None, 3]
    assert [i.payload for i in items] == payload
    assert [i.kappa for i in items] == kappa.tolist()
    np.testing.assert_array_equal([i.vector for i in items], x.astype(np.float32))
    answers = gallery.search(x, k=1)
    assert answers.payload[:, 0].tolist() == payload
    assert "a" in gallery
    assert "b" not in gallery


def test_all_items_come_and_changes_in_between_are_seen(gallery, draw, monkeypatch):
    monkeypatch.setattr("surefind.gallery.gallery.SCAN", 10)
    assert list(gallery.items()) == []
    mean = draw(25)
    payload = [{"n": n} if n % 2 else None for n in range(25)]
    kappa = np.arange(1.0, 26.0)
    gallery.add(Embeddings(mean, kappa), ids=range(25), labels=range(25), payload=payload)
    items = {item.id: item for item in gallery.items()}
    assert sorted(items) == list(range(25))
    for n, item in items.items():
        np.testing.assert_allclose(item.vector, mean[n], atol=1e-6)
        assert (item.kappa, item.label, item.payload) == (kappa[n], n, payload[n])
    scan = gallery.items()
    seen = {next(scan).id for _ in range(10)}
    left = sorted(set(range(25)) - seen)
    gallery.delete(left[:14])
    gallery.add(draw(1), ids=[99])
    assert {item.id for item in scan} == {left[14]}


def test_facts_are_kept_and_decide_nothing(place, draw):
    options, path = place
    with Gallery(path=path, **options) as gallery:
        gallery.add(draw(3))
        before = gallery.info["fingerprint"]
        gallery.info |= {"images": "pictures", "run": "runs/a"}
        gallery.info |= {"run": None}
        assert (gallery.info["images"], gallery.info.get("run")) == ("pictures", None)
        assert gallery.info["fingerprint"] == before
        if path is None:
            return
    again = {key: value for key, value in options.items() if key == "collection"}
    with Gallery.open(path, **again) as gallery:
        assert (gallery.info["images"], gallery.info.get("run")) == ("pictures", None)


def test_a_part_of_an_item_can_be_updated(gallery, draw):
    x = draw(3)
    gallery.add(x[:2], ids=["a", "b"], labels=["A", "B"], payload=[{"n": 1}, {"n": 2}])
    gallery.update(x[2:], ids=["a"])
    gallery.update(ids=["b"], labels=["C"])
    gallery.update(ids="b", payload={"n": 3})
    a, b = gallery.get("a"), gallery.get("b")
    np.testing.assert_array_equal(a.vector, x[2].astype(np.float32))
    assert (a.label, a.payload, b.label, b.payload) == ("A", {"n": 1}, "C", {"n": 3})


def test_ids_are_given_out_above_the_highest(gallery, draw):
    assert gallery.add(draw(2)) == [0, 1]
    gallery.add(draw(2), ids=[41, "text"])
    assert gallery.add(draw(2)) == [42, 43]
    assert gallery.search(draw(2), k=10).ids.shape == (2, 6)  # all that there are


def test_equal_items_are_ordered_by_id(gallery, draw):
    x = draw(1)
    gallery.add(np.repeat(x, 6, axis=0), ids=["b", 10, "a", 2, "c", 1])
    assert gallery.search(x, k=6).ids[0].tolist() == [1, 2, 10, "a", "b", "c"]


def test_an_empty_gallery_cannot_be_searched(gallery, draw):
    with pytest.raises(DegenerateError, match="empty"):
        gallery.search(draw(1))
    gallery.add(draw(1), ids=["a"])
    gallery.delete("a")
    with pytest.raises(DegenerateError, match="add items first"):
        gallery.search(draw(1))
    assert list(gallery) == []


def test_refused_calls_change_nothing(gallery, draw):
    x = draw(4)
    gallery.add(x[:2], ids=["a", "b"])
    before = gallery.info["fingerprint"]
    gallery.update(ids=[])
    gallery.delete([])
    for call, field in (
        (lambda: gallery.add(x[2:], ids=["c", "b"]), "ids"),
        (lambda: gallery.update(x[2:], ids=["a", "z"]), "ids"),
        (lambda: gallery.delete(["a", "z"]), "ids"),
        (lambda: gallery.get("z"), "ids"),
        (lambda: gallery.add(np.eye(3), ids=[1, 2, 3]), "embeddings"),
    ):
        with pytest.raises(InputError) as refused:
            call()
        assert refused.value.field == field
    assert gallery.info["fingerprint"] == before
    assert set(gallery) == {"a", "b"}


def test_the_fingerprint_follows_the_content_not_the_way_there(gallery, draw):
    x = draw(4)
    other = Gallery()
    other.add(x[[2, 0]], ids=["c", "a"], labels=[3, 1])
    gallery.add(x[[0, 1]], ids=["a", "b"], labels=[1, 2])
    gallery.info["fingerprint"]
    gallery.add(x[[3]], ids=["c"], labels=[0])
    gallery.update(x[[2]], ids=["c"], labels=[3])
    gallery.delete("b")
    assert gallery.info["fingerprint"] == other.info["fingerprint"]
    gallery.update(ids="a", payload={"no": "matter"})
    assert gallery.info["fingerprint"] == other.info["fingerprint"]
    gallery.update(ids="a", labels=["other"])
    assert gallery.info["fingerprint"] != other.info["fingerprint"]


@pytest.mark.parametrize("place", KEPT, indirect=True)
def test_what_was_acknowledged_is_there_after_opening(place, draw):
    options, path = place
    x, state = draw(20), {}
    with Gallery(path=path, model="m", **options) as gallery:
        gallery.add(x, ids=range(20), labels=[n % 3 for n in range(20)])
        gallery.delete([3, 4])
        state = {n: (x[n], n % 3) for n in range(20) if n not in {3, 4}}
        told = gallery.info["fingerprint"]
    collection = {"collection": options["collection"]} if "collection" in options else {}
    with Gallery.open(path, **collection) as again:
        check(again, state, draw(3))
        assert (again.info["fingerprint"], again.model, again.info["dim"]) == (told, "m", DIM)
        assert again.add(draw(1)) == [20]
        again.delete(20)
        with pytest.raises(InputError, match="holds a gallery already"):
            Gallery(path=path, **options)


def test_only_items_with_some_labels_are_found(gallery, draw):
    x, names = draw(30), ["a", 7, "7", 'quote " \\ ü', None]
    gallery.add(x, ids=range(30), labels=[names[n % 5] for n in range(30)])
    for some in (["a"], [7, 'quote " \\ ü'], "7"):
        wanted = [some] if isinstance(some, str) else some
        state = {n: (x[n], names[n % 5]) for n in range(30) if names[n % 5] in wanted}
        answers = gallery.search(x[:6], k=10, labels=some)
        assert answers.ids.shape == (6, min(10, len(state)))
        assert set(answers.label) <= set(wanted)
        for row in range(6):
            assert answers.ids[row].tolist() == expected_order(state, x[row], 10)[0]
    for wrong in (["b"], [None], []):
        with pytest.raises(InputError) as refused:
            gallery.search(x[:1], labels=wrong)
        assert refused.value.field == "labels"


def test_many_queries_are_answered_block_by_block(gallery, draw, monkeypatch):
    monkeypatch.setattr("surefind.gallery.engine.BLOCK", 16)
    x = draw(40)
    gallery.add(x, ids=range(40))
    assert gallery.search(x, k=1).ids[:, 0].tolist() == list(range(40))


def test_a_copy_holds_everything(gallery, draw, tmp_path):
    gallery.add(draw(5), ids=range(5), payload=[{"n": n} for n in range(5)])
    gallery.save(tmp_path / "copy")
    with Gallery.open(tmp_path / "copy", mode="r") as copy:
        assert copy.info["fingerprint"] == gallery.info["fingerprint"]
        assert copy.get(3).payload == {"n": 3}


def test_threads_may_share_a_gallery(gallery, draw):
    x = draw(40)

    def work(first):
        for n in range(first, first + 10):
            gallery.add(x[n : n + 1], ids=[n])
            assert gallery.search(x[n : n + 1], k=1).ids[0, 0] == n

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(0, 40, 10)))
    assert set(gallery) == set(range(40))


def test_labels_are_counted(gallery):
    gallery.add(np.eye(DIM)[:4], ids=list("abcd"), labels=["x", 7, "7", None])
    gallery.update(ids=["a"], labels=[7])
    assert gallery.labels() == {7: 2, "7": 1}
    gallery.delete(["c"])
    assert gallery.labels() == {7: 2}
