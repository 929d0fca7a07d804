"""Search over HTTP returns what the gallery returns, one query at a time or many."""

from pathlib import Path

import numpy as np
import pytest
from service.world import blurred, png
from strange import strange_images

from surefind.decisions import decision
from surefind.gallery.gallery import Gallery
from surefind.service import search, wire

FIELDS = {"vectors": "mean", "kappa": "kappa", "novelty": "novelty"}


def body_of(world, image, **more):
    """What to send for an image that one's own program has embedded."""
    found = world.learner.embed(image[None])
    return {name: getattr(found, to).tolist() for name, to in FIELDS.items()} | more


def test_image_and_vector_give_the_answer_of_the_gallery(world, client, ask, tmp_path):
    gallery = Gallery.open(tmp_path / "gallery", mode="r")
    expected = gallery.search(world.learner.embed(world.known[:20]), k=5)
    for row, image in enumerate(world.known[:20]):
        found = client.post("/v1/search/vector", json=body_of(world, image, k=5))
        by_vector = found.json()["answers"][0]
        by_image = ask(client, png(image), k=5, keep=False).json()["answers"][0]
        for answer in (by_vector, by_image):
            assert [n["id"] for n in answer["neighbours"]] == expected.ids[row].tolist()
            assert answer["decision"] == expected.decision[row]
            assert answer["probability"] == pytest.approx(expected.probability[row], abs=1e-3)
            assert tuple(answer["reasons"]) == expected.reasons[row]


def test_answers_are_what_openapi_says_and_the_gallery_records(world, client, ask, tmp_path):
    embedded = world.learner.embed(world.known[:5])
    body = {name: getattr(embedded, to).tolist() for name, to in FIELDS.items()} | {"k": 4}
    found = client.post("/v1/search/vector", json=body).json()
    assert set(found) == set(wire.SearchAnswer.model_fields)
    with Gallery.open(tmp_path / "gallery", mode="r") as gallery:
        records = gallery.search(embedded, k=4).records()
    for answer, record in zip(found["answers"], records, strict=True):
        assert set(answer) == set(wire.Answer.model_fields)
        assert wire.Answer.model_validate(answer).model_dump() == answer
        assert set(record) < set(answer)
        assert answer["label"] == record["label"]
        chances = [c["probability"] for c in answer["label_probability"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) + answer["none"] <= 1 + 1e-9
    assert (
        ask(client, png(world.known[0])).json()["answers"][0].keys() == found["answers"][0].keys()
    )


def test_the_page_has_a_sentence_for_each_reason():
    source = (Path(search.__file__).parent / "page" / "answer.js").read_text()
    for reason in (
        decision.UNLIKE,
        decision.UNUSUAL,
        decision.UNTESTED,
        decision.UNCLEAR,
        decision.COMPETE,
        decision.NOT_ENROLLED,
        decision.TARGET_NOT_REACHED,
    ):
        assert f'"{reason}":' in source


def test_most_known_digits_match_and_hardly_an_unknown_one(world, client, ask):
    def matches(images):
        found = [ask(client, png(x)).json()["answers"][0] for x in images]
        return np.array([a["decision"] == "match" for a in found]), [a["label"] for a in found]

    known, labels = matches(world.known[::2])
    unknown, _ = matches(world.unknown[::2])
    assert known.mean() > 0.75  # 0.83, of a tiny network
    assert unknown.mean() < 0.1  # 0.06
    wrong = (known & (labels != world.known_labels[::2])).sum() + unknown.sum()
    assert wrong / (known.sum() + unknown.sum()) <= 0.1  # what the calibration promised: 0.05


def test_what_is_no_digit_at_all_is_unlike_anything_seen(world, client, ask):
    for image in (*strange_images().values(), *blurred(world.known)[:50]):
        answer = ask(client, png(image)).json()["answers"][0]
        assert answer["decision"] == "no_match"
        assert [reason.split(" (")[0] for reason in answer["reasons"]] == [decision.UNLIKE]
        assert answer["novelty"] <= 0.01


def test_without_a_calibration_there_is_no_decision(serve):
    gallery = Gallery()
    gallery.add(np.eye(4), ids=list("abcd"))
    client = serve(gallery=gallery, learner=None)
    answer = client.post("/v1/search/vector", json={"vectors": [[1, 0, 0, 0]]}).json()
    assert answer["answers"][0]["decision"] is None
    assert answer["answers"][0]["kappa"] is None
    assert answer["answers"][0]["neighbours"][0]["id"] == "a"
    assert client.get("/v1/calibration").json()["calibrated"] is False


def test_a_gallery_that_rescales_takes_vectors_of_any_length(serve):
    gallery = Gallery(normalize=True)
    gallery.add(np.eye(3) * 5, ids=list("abc"))
    client = serve(gallery=gallery, learner=None)
    answer = client.post("/v1/search/vector", json={"vectors": [[0, 9, 0]]}).json()["answers"][0]
    assert answer["neighbours"][0]["id"] == "b"
    assert answer["vector"] is None


def test_after_a_change_answers_are_marked_as_stale(client, world):
    client.app.state.service._workers["renew"].close()  # or it would be renewed soon
    body = body_of(world, world.known[0])
    assert not client.post("/v1/search/vector", json=body).json()["stale"]
    client.post("/v1/items", json={"items": [{"vector": body["vectors"][0]}]})
    assert client.post("/v1/search/vector", json=body).json()["stale"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"vectors": [[1.0, 0.0]]}, "columns"),
        ({"vectors": [[2.0, 0.0, 0.0]]}, "length"),
        ({"vectors": [[0.0, 0.0, 0.0]]}, "zero"),
        ({"vectors": [[1e308, 1e308, 0.0]]}, "length"),
        ({"vectors": [[1.0, 0.0, 0.0], [1.0, 0.0]]}, "vectors"),
        ({"vectors": [[1.0, 0.0, 0.0]], "kappa": [1.0, 2.0]}, "kappa"),
        ({"vectors": [[1.0, 0.0, 0.0]], "kappa": [-1.0]}, "kappa"),
        ({"vectors": []}, "vectors"),
        ({"vectors": [[1.0, 0.0, 0.0]] * 300}, "vectors"),
        ({"vectors": [[1.0, 0.0, 0.0]], "k": 0}, "k:"),
        ({"vectors": [[1.0, 0.0, 0.0]], "kk": 1}, "kk:"),
    ],
)
def test_what_cannot_be_searched_is_refused(client, body, field):
    answer = client.post("/v1/search/vector", json=body)
    assert answer.status_code == 422
    assert field in answer.json()["error"]


def test_an_empty_gallery_refuses(serve):
    client = serve(gallery=Gallery(), learner=None)
    assert client.post("/v1/search/vector", json={"vectors": [[1, 0]]}).status_code == 422


def test_without_a_model_images_cannot_be_searched(serve, ask, world):
    client = serve(learner=None)
    answer = ask(client, png(world.known[0]))
    assert answer.status_code == 409
    assert client.get("/v1/gallery").json()["images"] is False
