"""The Python client: every operation of the service, waiting and not, and what it does about failures."""

import asyncio
import inspect
import json
import re

import httpx
import numpy as np
import pytest
from service.live import live
from service.world import copy, png

import surefind as sf
from surefind.service import client as client_module
from surefind.service import messages as wire
from surefind.service.tokens import make_token

EXCEPTIONS = {("DELETE", "/v1/items/{id}"): "delete sends one or many to /v1/items/delete"}
"""Operations without a method, and why."""


class Waiting:
    """An AsyncClient whose methods are called without await."""

    def __init__(self, inner, loop):
        self._inner, self._loop = inner, loop

    def __getattr__(self, name):
        def call(*arguments, **options):
            made = getattr(self._inner, name)(*arguments, **options)
            if inspect.isasyncgen(made):
                made = collect(made)
            return self._loop.run_until_complete(made)

        return call


async def collect(generator):
    return [one async for one in generator]


class Recording(httpx.HTTPTransport):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def handle_request(self, request):
        self.seen.append((request.method, request.url.path))
        return super().handle_request(request)


class AsyncRecording(httpx.AsyncHTTPTransport):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    async def handle_async_request(self, request):
        self.seen.append((request.method, request.url.path))
        return await super().handle_async_request(request)


@pytest.fixture(params=["sync", "async"])
def client(request, world, tmp_path):
    """A client of a real server, whose ``seen`` are the requests it made."""
    secret = make_token(tmp_path / "tokens.toml", "robot", write=True)
    options = {"tokens": tmp_path / "tokens.toml", "review_share": 1, "seconds": 300}
    seen = []
    with live(copy(world, tmp_path), world.learner, **options) as address:
        if request.param == "sync":
            with sf.Client(address, token=secret, transport=Recording(seen)) as made:
                made.seen = seen
                yield made
            return
        loop = asyncio.new_event_loop()
        made = sf.AsyncClient(address, token=secret, transport=AsyncRecording(seen))
        waiting = Waiting(made, loop)
        waiting.seen = seen
        yield waiting
        waiting.close()
        loop.close()


def test_every_operation_is_a_method_that_works(client, world, tmp_path):
    assert client.health().status == "ok"
    about = client.gallery()
    assert (about.items, about.may_write) == (240, True)
    assert client.calibration().calibrated
    assert "surefind_items 240.0" in client.metrics()
    assert client.audit(most=1).items == 240

    north = np.array([0.0, 0.0, 1.0], dtype=np.float32)
    new = {"id": 7, "vector": north, "kappa": np.inf, "label": "n", "payload": {"site": "a"}}
    typed = wire.NewItem(id="7", vector=[0, 1, 0], kappa=3.0, payload={"site": "b"})
    assert client.add([new, typed]) == [7, "7"]
    assert (client.item(7).label, client.item(7).kappa, client.item("7").kappa) == ("n", None, 3.0)
    assert (client.has(7), client.has("nowhere")) == (True, False)
    client.change(7, label=3, payload={"site": "c"})
    assert (client.item(7).label, client.item(7).payload) == (3, {"site": "c"})
    client.change(7, label=None, vector=np.array([1.0, 0, 0]), kappa=2.5)
    assert (client.item(7).label, client.item(7).kappa) == (None, 2.5)
    assert [item.id for item in client.items(where={"site": ["b", "c"]})] == ["7", 7]
    assert len([*client.items(labels=[0, 1], size=9)]) > 20
    assert client.page(limit=3, order="least-sure", vectors=True).total == 242

    file = tmp_path / "one.png"
    file.write_bytes(png(world.known[0]))
    added = client.add_image(file, id_="picture", label=5, payload={"a": 1}, group="g")
    assert added == "picture"
    item = client.item("picture")
    assert (item.label, item.payload, item.group, item.image) == (5, {"a": 1}, "g", True)
    before = client.item_image("picture")
    client.change_image("picture", png(world.known[1]))
    assert client.item_image("picture") != before
    assert (client.has_image("picture"), client.has_image(7)) == (True, False)
    client.delete([7, "7", "picture"])
    assert client.gallery().items == 240

    queries = world.learner.embed(world.known[:3])
    known = {"kappa": queries.kappa, "novelty": queries.novelty}
    found = client.search(queries.mean, k=2, **known)
    assert [len(answer.neighbours) for answer in found.answers] == [2, 2, 2]
    filtered = client.search(queries.mean, labels=[1], **known).answers[0]
    assert (filtered.decision, {n.label for n in filtered.neighbours}) == (None, {1})
    shown = client.search_image(file, k=3).answers[0]
    assert shown.decision in ("match", "review", "no_match")
    assert client.search_image(png(world.known[0]), labels=[2]).answers[0].decision is None

    waiting = client.reviews().pending
    assert len(waiting) == 4
    assert client.review_image(shown.review)[:4] == b"RIFF"
    assert client.decide(waiting[0].id, "relabel", 5).by == "robot"
    assert client.decide(waiting[1].id, "reject").label is None
    assert [(d.verdict, d.by) for d in client.reviews().decided] == [
        ("relabel", "robot"),
        ("reject", "robot"),
    ]
    assert client.review_sample().usable == 2
    assert client.recalibrate().reviewed == 2
    assert client.undo(waiting[1].id).id == waiting[1].id
    assert client.decide(waiting[1].id, "reject", reviewer="Ann").reviewer == "Ann"
    assert [d.by for d in client.history(limit=1).decided] == ["robot"]
    assert client.decisions().total == 2

    assert client.ready().ready in (True, False)  # a renewal may be under way
    assert client.labels("1").matching >= 1
    assert len(client.map().points) == 240
    assert client.recalibrate(from_items=True, max_wrong=0.2, unknown_share=0.2).queries > 100
    assert client.snapshot().items == 240
    assert len(client.snapshots()) == 1

    paths = httpx.get(f"{address_of(client)}/v1/openapi.json").json()["paths"]
    operations = {(m.upper(), path) for path, methods in paths.items() for m in methods}
    assert {operation(one, operations) for one in client.seen} == operations - EXCEPTIONS.keys()


def address_of(client):
    inner = getattr(client, "_inner", client) if isinstance(client, Waiting) else client
    return str(inner._http.base_url).rstrip("/")


def operation(request, operations):
    """Return the operation that a request was; words go before what may be anything."""
    method, path = request
    fitting = [
        (m, template)
        for m, template in operations
        if m == method and re.fullmatch(re.sub(r"\\{\w+\\}", ".+", re.escape(template)), path)
    ]
    return min(fitting, key=lambda one: (one[1].count("{"), -len(one[1])))


def test_both_clients_have_the_same_methods():
    def methods(kind):
        public = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: [*inspect.signature(f).parameters.values()]
            for name, f in public
            if not name.startswith("_")
        }

    assert methods(sf.Client) == methods(sf.AsyncClient)


class Script(httpx.BaseTransport):
    """Answers or fails as it is told, and remembers what was sent."""

    def __init__(self, *steps):
        self.steps, self.sent = list(steps), []

    def handle_request(self, request):
        self.sent.append(request)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        status, body, headers = step
        return httpx.Response(status, json=body, headers=headers)


IDS = (201, {"ids": [1]}, {})
BUSY = (429, {"error": "too much"}, {})
FULL = (503, {"error": "full"}, {})
LATER = (409, {"error": "under way"}, {"Retry-After": "0"})
TAKEN = (409, {"error": "there already"}, {})
LOST = httpx.ReadError("lost")
CLOSED = httpx.ConnectError("closed")
ITEM = {"vector": [1.0, 0.0]}


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(client_module, "SHORTEST", 0.0)

    def start(*steps, **options):
        transport = Script(*steps)
        return sf.Client("http://service", transport=transport, **options), transport

    return start


@pytest.mark.parametrize("steps", [(BUSY, FULL, IDS), (LOST, CLOSED, IDS), (LATER, IDS)])
def test_an_addition_is_sent_again_with_the_same_key(scripted, steps):
    client, transport = scripted(*steps)
    assert client.add([ITEM]) == [1]
    keys = [request.headers["Idempotency-Key"] for request in transport.sent]
    assert (len(keys), len(set(keys))) == (len(steps), 1)
    assert len({request.content for request in transport.sent}) == 1


def test_two_additions_have_two_keys(scripted):
    client, transport = scripted(IDS, IDS, IDS)
    client.add([ITEM])
    client.add([ITEM])
    client.add([ITEM], key="mine")
    keys = [request.headers["Idempotency-Key"] for request in transport.sent]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


@pytest.mark.parametrize("act", [lambda c: c.delete([1]), lambda c: c.decide("x", "reject")])
def test_what_must_not_be_done_twice_is_not_sent_again_after_a_lost_answer(scripted, act):
    client, transport = scripted(CLOSED, BUSY, LOST)
    with pytest.raises(sf.StorageError):
        act(client)
    assert len(transport.sent) == 3


def test_it_gives_up_with_the_sentence_of_the_service(scripted):
    client, transport = scripted(*[FULL] * 3, retries=2)
    with pytest.raises(sf.RefusedError, match="full") as refused:
        client.health()
    assert (refused.value.status, len(transport.sent)) == (503, 3)
    client, transport = scripted(*[CLOSED] * 3, retries=2)
    with pytest.raises(sf.StorageError):
        client.health()
    assert len(transport.sent) == 3


@pytest.mark.parametrize(
    "answer", [TAKEN, (422, {"error": "no"}, {}), (429, {"error": "no"}, {"Retry-After": "9999"})]
)
def test_other_refusals_are_raised_at_once(scripted, answer):
    client, transport = scripted(answer)
    with pytest.raises(sf.RefusedError) as refused:
        client.add([ITEM])
    assert (refused.value.status, len(transport.sent)) == (answer[0], 1)
    assert answer[1]["error"] in str(refused.value)


def test_an_answer_that_is_no_json_is_a_refusal_too(scripted):
    client, _ = scripted((502, ["bad gateway"], {}))
    with pytest.raises(sf.RefusedError, match="502"):
        client.health()


def test_a_token_is_sent_and_not_shown(scripted):
    client, transport = scripted((200, {"status": "ok", "items": 4}, {}), token="hush")
    client.health()
    assert transport.sent[0].headers["Authorization"] == "Bearer hush"
    assert "hush" not in repr(client)


def test_values_are_sent_as_json_holds_them(scripted):
    client, transport = scripted((200, {"answers": [], "rank": "distance", "stale": False}, {}))
    client.search(np.eye(2), kappa=np.array([np.inf, 2.0]))
    sent = json.loads(transport.sent[0].content)
    assert (sent["vectors"], sent["kappa"]) == ([[1, 0], [0, 1]], [None, 2])


def test_importing_surefind_does_not_import_httpx():
    import subprocess
    import sys

    code = "import sys, surefind; assert 'httpx' not in sys.modules; surefind.Client; "
    code += "assert 'torch' not in sys.modules and 'fastapi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
