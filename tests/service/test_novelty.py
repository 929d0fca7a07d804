"""Novelty over HTTP: sent, answered, kept with items and reviews; a gate refuses who leaves it out."""

from types import SimpleNamespace

import numpy as np
import pytest
from service.test_batching import asked
from service.world import png

from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery
from surefind.service.batching import Query
from surefind.service.review_store import Reviews, read_reviews

AXES = np.eye(4)


def near(rng, who, spread=0.1):
    x = AXES[who] + spread * rng.normal(size=(len(who), 4))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture
def gated():
    """A gallery of four labels, one at each axis, whose calibration has a gate at 0.02."""
    rng = np.random.default_rng(0)
    gallery = Gallery()
    who = np.arange(40) % 4
    kappa, p = np.full(40, 50.0), np.linspace(0, 1, 40)
    gallery.add(Embeddings(near(rng, who), kappa, p), labels=who.tolist())
    who = np.arange(400) % 4
    queries = Embeddings(near(rng, who), rng.uniform(20, 60, 400), rng.random(400))
    gallery.calibrate(queries, who.tolist(), max_wrong=0.05, max_false_alarms=0.02)
    assert gallery.calibration.reached
    return gallery


def asking(novelty, n=1, **more):
    body = {"vectors": AXES[:n].tolist(), "kappa": [50.0] * n, "k": 2} | more
    return body | ({} if novelty is None else {"novelty": novelty})


def test_vectors_are_answered_with_their_novelty(serve, gated):
    client = serve(gallery=gated, learner=None)
    found = client.post("/v1/search/vector", json=asking([0.5, 0.1, 0.0004], 3)).json()["answers"]
    assert [answer["novelty"] for answer in found] == [0.5, 0.1, 0.0004]
    assert [answer["decision"] for answer in found] == ["match", "review", "no_match"]
    assert found[1]["reasons"] == ["unusual input (p = 0.1)"]
    assert found[2]["reasons"] == ["unlike anything seen (p = 0.0004)"]
    assert client.get("/v1/calibration").json()["max_false_alarms"] == 0.02


def test_a_gate_wants_novelty(serve, gated):
    client = serve(gallery=gated, learner=None)
    refused = client.post("/v1/search/vector", json=asking(None))
    assert refused.status_code == 422
    assert "novelty" in refused.json()["error"]


@pytest.mark.parametrize("novelty", [[], [0.1, 0.2], [-0.1], [1.1], [None], "a", [float("1e400")]])
def test_what_is_no_p_value_is_refused(serve, gated, novelty):
    client = serve(gallery=gated, learner=None)
    body = str(asking(novelty)).replace("'", '"').replace("None", "null").replace("inf", "1e400")
    refused = client.post("/v1/search/vector", content=body)
    assert refused.status_code == 422


def test_where_no_query_had_a_novelty_that_of_the_label_model_counts(serve, gated):
    rng, who = np.random.default_rng(1), np.arange(400) % 4
    gated.calibrate(near(rng, who), who.tolist(), max_wrong=0.05)
    client = serve(gallery=gated, learner=None)
    plain = client.post("/v1/search/vector", json=asking(None)).json()["answers"][0]
    novel = client.post("/v1/search/vector", json=asking([0.0])).json()["answers"][0]
    assert plain["novelty"] > 0.02
    assert plain == novel
    assert client.get("/v1/calibration").json()["max_false_alarms"] == 0.01


def test_a_batch_of_queries_with_and_without_is_taken_apart(gated):
    def query(row, p):
        return Query([AXES[row].tolist()], [50.0], 1, None if p is None else [p])

    queries = [query(0, 0.5), query(1, None), query(2, 0.001), query(3, None)]
    with_, without, stopped, again = asked(gated, queries)
    assert (with_.answers[0]["label"], with_.answers[0]["decision"]) == (0, "match")
    assert (stopped.answers[0]["label"], stopped.answers[0]["decision"]) == (2, "no_match")
    for error in (without, again):
        assert isinstance(error, InputError)
        assert error.field == "novelty"


def test_items_over_http_keep_their_novelty(serve, gated):
    client = serve(gallery=gated, learner=None)
    new = {"id": "new", "vector": AXES[0].tolist(), "kappa": 7.5, "novelty": 0.25}
    assert client.post("/v1/items", json={"items": [new]}).status_code == 201
    assert client.get("/v1/items/new").json()["novelty"] == 0.25
    client.put("/v1/items/new", json={"label": 3}).raise_for_status()
    assert client.get("/v1/items/new").json()["novelty"] == 0.25
    change = {"vector": AXES[1].tolist(), "novelty": 0.5}
    client.put("/v1/items/new", json=change).raise_for_status()
    assert client.get("/v1/items/new").json()["novelty"] == 0.5
    client.put("/v1/items/new", json={"vector": AXES[1].tolist()}).raise_for_status()
    assert client.get("/v1/items/new").json()["novelty"] is None
    assert client.put("/v1/items/new", json={"novelty": 0.5}).status_code == 422
    mixed = [{"vector": AXES[0].tolist(), "novelty": 0.5}, {"vector": AXES[0].tolist()}]
    assert client.post("/v1/items", json={"items": mixed}).status_code == 422


def test_an_image_is_searched_and_added_with_its_novelty(serve, world, ask):
    def embed_batch(batch):
        found = world.learner.fitted.embed(batch)
        return Embeddings(found.mean, found.kappa, found.kappa.new_full((len(found),), 0.125))

    learner = SimpleNamespace(
        encoder=world.learner.encoder,
        input_spec_=world.learner.input_spec_,
        embed_batch=embed_batch,
    )
    client = serve(learner=learner)
    assert ask(client, png(world.known[0])).json()["answers"][0]["novelty"] == 0.125
    files = {"file": ("x.png", png(world.known[0]))}
    client.post("/v1/items/image", data={"id": "mine"}, files=files).raise_for_status()
    assert client.get("/v1/items/mine").json()["novelty"] == 0.125


def test_reviews_keep_the_novelty_of_their_queries(serve, gated, tmp_path):
    client = serve(gallery=gated, learner=None, review_share=1)
    found = client.post("/v1/search/vector", json=asking([0.1], keep=True)).json()["answers"][0]
    (entry,) = client.get("/v1/reviews").json()["pending"]
    assert (entry["id"], entry["novelty"]) == (found["review"], 0.1)
    body = {"id": found["review"], "verdict": "accept"}
    client.post("/v1/reviews", json=body).raise_for_status()
    assert read_reviews(tmp_path / "gallery.service").queries.novelty.tolist() == [0.1]


def test_reviews_of_which_one_has_no_novelty_have_none(tmp_path):
    reviews = Reviews(tmp_path / "r.sqlite")
    for novelty in (0.5, None):
        question = {"vector": [1.0, 0.0], "kappa": None, "label": "x", "novelty": novelty}
        question |= {"sampled": True, "u": 0.5, "share": 1.0, "model": None}
        reviews.decide(reviews.ask(question), "accept")
    reviews.close()
    assert read_reviews(tmp_path / "r.sqlite").queries.novelty is None
