"""The Python client: its ten requests against a real server, and what it does about failures."""

import json
import subprocess
import sys

import httpx
import numpy as np
import pytest
from service.live import live
from service.world import copy, png

import surefind as sf
from surefind.service.settings import make_token
from surefind.service.wire import RefusedError


def test_every_method_works(world, tmp_path):
    secret = make_token(tmp_path / "tokens.toml", "robot", write=True)
    options = {"tokens": tmp_path / "tokens.toml", "review_share": 1, "seconds": 300}
    with (
        live(copy(world, tmp_path), world.learner, **options) as address,
        sf.Client(address, token=secret) as client,
    ):
        about = client.gallery()
        assert (about.items, about.may_write) == (240, True)

        north = np.array([0.0, 0.0, 1.0], dtype=np.float32)
        new = {"id": 7, "vector": north, "kappa": np.inf, "label": "n", "payload": {"site": "a"}}
        other = {"id": "7", "vector": [0, 1, 0], "kappa": 3.0, "payload": {"site": "b"}}
        assert client.add([new, other]) == [7, "7"]
        with pytest.raises(RefusedError) as refused:
            client.add([new])
        assert refused.value.status == 409
        assert (client.item(7).label, client.item(7).kappa) == ("n", None)
        assert client.item("7").kappa == 3.0
        client.update(7, label=None, vector=np.array([1.0, 0, 0]), kappa=2.5, payload={"site": "c"})
        assert (client.item(7).label, client.item(7).kappa) == (None, 2.5)
        assert len([*client.items(labels=[0, 1], size=9)]) > 20
        client.delete(7)
        client.delete("7")
        (made,) = client.add([{"vector": north}])
        client.delete(made)
        assert client.gallery().items == 240

        queries = world.learner.embed(world.known[:3])
        known = {"kappa": queries.kappa, "novelty": queries.novelty}
        found = client.search(queries.mean, k=2, **known)
        assert [len(answer.neighbours) for answer in found.answers] == [2, 2, 2]
        filtered = client.search(queries.mean, labels=[1], **known).answers[0]
        assert (filtered.label, {n.label for n in filtered.neighbours}) == (1, {1})
        file = tmp_path / "one.png"
        file.write_bytes(png(world.known[0]))
        assert client.search_image(file).answers[0].decision in ("match", "review", "no_match")
        assert client.search_image(file.read_bytes(), labels=[2], keep=False).answers[0].label == 2

        waiting = client.reviews().pending
        assert len(waiting) == 4
        assert client.decide(waiting[0].id, "relabel", 5).by == "robot"
        assert client.decide(waiting[1].id, "reject", reviewer="Ann").reviewer == "Ann"
        assert [d.verdict for d in client.reviews(limit=2).decided] == ["reject", "relabel"]


def scripted(answer, **options):
    """Return a client that always gets this answer, and what it sent."""
    sent = []

    def reply(request):
        sent.append(request)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return httpx.Response(status, json=body)

    return sf.Client("http://service", transport=httpx.MockTransport(reply), **options), sent


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        ((409, {"error": "there already"}), 409, "there already"),
        ((503, {"error": "full"}), 503, "full"),
        ((502, ["bad gateway"]), 502, "502"),
    ],
)
def test_a_refusal_has_the_sentence_of_the_service(answer, status, text):
    client, _ = scripted(answer)
    with pytest.raises(RefusedError, match=text) as refused:
        client.gallery()
    assert refused.value.status == status


def test_a_lost_answer_is_an_error_and_nothing_is_sent_again():
    client, sent = scripted(httpx.ReadError("lost"))
    with pytest.raises(sf.StorageError, match="lost"):
        client.delete(1)
    assert len(sent) == 1


def test_values_are_sent_as_json_holds_them_and_a_token_is_not_shown():
    client, sent = scripted((200, {"answers": [], "rank": "d", "stale": False}), token="hush")
    client.search(np.eye(2), kappa=np.array([np.inf, 2.0]))
    body = json.loads(sent[0].content)
    assert (body["vectors"], body["kappa"]) == ([[1, 0], [0, 1]], [None, 2])
    assert sent[0].headers["Authorization"] == "Bearer hush"
    assert "hush" not in repr(client)


def test_importing_the_client_imports_neither_server_nor_torch():
    code = "import sys, surefind; assert 'httpx' not in sys.modules; surefind.Client; "
    code += "assert 'torch' not in sys.modules and 'fastapi' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
