"""Large bodies are read in pieces: as they would be in one, and nobody waits meanwhile."""

import json

import numpy as np
import pytest

from surefind.service import bodies, wire
from surefind.service.wire import RefusedError

ITEMS = [
    {"vector": [1, 0.0], "id": 'a"]}[{\\', "payload": {"x": [[1], {"y": "]"}], "\\": '\\"'}},
    {"id": 2**53 - 1, "vector": [0, -1e-3], "label": None, "kappa": 3},
    {"vector": [0.5, 0.5], "payload": {}},
]


def in_pieces(kind, text):
    return bodies.read_large(kind, text if isinstance(text, bytes) else json.dumps(text).encode())


@pytest.mark.parametrize("indent", [None, 3])
def test_what_is_read_in_pieces_is_what_is_read_in_one(indent):
    body = json.dumps({"items": ITEMS}, indent=indent).encode()
    assert in_pieces(wire.NewItems, body) == wire.NewItems.model_validate_json(body)
    body = json.dumps({"k": 3, "vectors": [[1, 2], [3.5, -4]], "kappa": [1, None]}, indent=indent)
    whole = wire.VectorSearch.model_validate_json(body)
    read = in_pieces(wire.VectorSearch, body.encode())
    assert (read.k, read.kappa, read.keep) == (3, [1, None], whole.keep)
    np.testing.assert_array_equal(read.vectors, whole.vectors)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b'{"items": [',
        b'{"items": []}',
        b'{"items": [1, 2]}',
        b'{"items": [{"vector": [1, 0]}, 2]}',
        b'{"items": [{"vector": [1, 0]} {"vector": [1, 0]}]}',
        b'{"items": [{"vector": [1, 0]},]}',
        b'{"items": [,{"vector": [1, 0]}]}',
        b'{"items": [{"vector": [1, 0]}, {"vector": [1, 0]]}',
        b'{"items": [{"vector": [1, 0]}, {"vector": [1, 0}]]}',
        b'{"items": [{"vector": [1, 0]}], "more": 1}',
        b'{"items": [{"vector": [1, 0]}]} {}',
        b'x {"items": [{"vector": [1, 0]}]}',
        b'{"items" [{"vector": [1, 0]}]}',
        b'{"other": [{"vector": [1, 0]}]}',
        b'{"items": {"vector": [1, 0]}}',
        b'{"items": [{"vector": [1, 0]}, {"vector": [1, 0], "id": "}]}',
        b'{"items": [{"vector": [1, 0]}, {"vector": [1, NaN]}]}',
        b'{"items": [{"vector": [1, 0]}, {"vector": [1, 0], "id": "\\ud800"}]}',
        b'{"items": [[1, 0]]}',
        b'{"items": ' + b"[" * 10_000,
        b'{"items": [' + b"[" * 500 + b"]" * 500 + b"]}",
        b'{"items": [' + b",".join([b'{"vector": [1, 0]}'] * 1001) + b"]}",
        b"{" + b",".join(b'"a%d": []' % n for n in range(1000)) + b"}",
    ],
    ids=range(27),
)
def test_what_is_refused_in_one_is_refused_in_pieces(body):
    for read in (bodies._read, bodies.read_large):
        with pytest.raises(RefusedError) as refused:
            read(wire.NewItems, body)
        assert refused.value.status == 422


def test_a_list_that_comes_twice_is_not_cut():
    with pytest.raises(RefusedError):
        in_pieces(wire.NewItems, b'{"items": [{"vector": [1, 0]}], "items": [{"vector": [1, 0]}]}')


def test_a_fault_is_found_where_it_is():
    items = [*ITEMS, {"vector": [1]}]
    with pytest.raises(RefusedError, match=r"^items\.3\.vector"):
        in_pieces(wire.NewItems, {"items": items})


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.NewItems, {"items": [{"vector": [1, 0], "payload": {"x": "y" * bodies.PIECE}}]}),
        (wire.ItemChange, {"payload": {"x": "y" * bodies.PIECE}}),
        (wire.VectorSearch, {"vectors": [[1, 0]], "kappa": [1.0] * bodies.PIECE}),
    ],
)
def test_what_cannot_be_cut_may_not_be_large(kind, body):
    with pytest.raises(RefusedError) as refused:
        in_pieces(kind, body)
    assert refused.value.status == 413


def test_the_longest_vector_with_all_its_digits_fits():
    vector = np.random.default_rng(0).normal(size=16384).tolist()
    (item,) = in_pieces(wire.NewItems, {"items": [{"vector": vector}]}).items
    assert item.vector == vector


def test_only_large_bodies_leave_the_event_loop(serve, monkeypatch):
    from surefind.gallery.gallery import Gallery

    client, large = serve(gallery=Gallery(), learner=None), []

    def seen(kind, body):
        large.append(len(body))
        return read_large(kind, body)

    read_large = bodies.read_large
    monkeypatch.setattr(bodies, "read_large", seen)
    for count in (10, 300):
        vectors = np.eye(100)[:1].repeat(count, 0).tolist()
        items = [{"id": f"{count}-{n}", "vector": vector} for n, vector in enumerate(vectors)]
        assert client.post("/v1/items", json={"items": items}).status_code == 201
        answer = client.post("/v1/search/vector", json={"vectors": vectors[:200], "keep": False})
        assert len(answer.json()["answers"]) == min(count, 200)
    assert len(large) == 2
    assert min(large) > bodies.SMALL
