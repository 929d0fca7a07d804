"""Decisions looked back at: undone, listed, written to a file; repeated and dropped queries."""

import csv
from io import StringIO

import pytest
from service.test_reviews import drawn, question, searched
from service.world import png

from surefind.service.review_store import FILE, Reviews
from surefind.service.wire import RefusedError


def asked(label="x", **more):
    """A question as a search asks it, with what the page shows."""
    shown = {"label_probability": [], "none": 0.5, "decision": "review", "probability": 0.4}
    rest = {"surer_than": 0.5, "reasons": [], "neighbours": [], "evidence": [], "image": False}
    return question(label) | shown | rest | more


def test_a_decision_is_taken_back(client):
    reviews = client.app.state.service.reviews
    first, second = (
        reviews.ask(asked(vector=[1.0, 0.0])),
        reviews.ask(asked(vector=[0.0, 1.0])),
    )
    for id_ in (first, second):
        client.post("/v1/reviews", json={"id": id_, "verdict": "reject"}).raise_for_status()
    back = client.delete(f"/v1/reviews/{first}/decision")
    assert (back.status_code, back.json()["id"]) == (200, first)
    after = client.get("/v1/reviews").json()
    assert [entry["id"] for entry in after["pending"]] == [first]
    assert [entry["id"] for entry in after["decided"]] == [second]
    assert client.post("/v1/reviews", json={"id": first, "verdict": "accept"}).status_code == 201


@pytest.mark.parametrize(("id_", "status"), [("nobody", 404), (None, 409)])
def test_what_was_not_decided_cannot_be_taken_back(client, id_, status):
    waits = client.app.state.service.reviews.ask(asked())
    assert client.delete(f"/v1/reviews/{id_ or waits}/decision").status_code == status


def test_taking_back_needs_leave(serve):
    client = serve(read_token="r", write_token="w")
    reviews = client.app.state.service.reviews
    id_ = reviews.ask(asked())
    reviews.decide(id_, "reject")
    for token, status in (("r", 403), ("w", 200)):
        headers = {"Authorization": f"Bearer {token}"}
        assert client.delete(f"/v1/reviews/{id_}/decision", headers=headers).status_code == status


def test_undoing_survives_a_restart_and_counts(tmp_path):
    reviews = Reviews(tmp_path / FILE)
    id_ = reviews.ask(question(**drawn()))
    reviews.decide(id_, "accept")
    assert reviews.counts().usable == 1
    reviews.undo(id_)
    assert (reviews.counts().usable, reviews.counts().waiting) == (0, 1)
    reviews.close()
    again = Reviews(tmp_path / FILE)
    assert again.waiting(sampled=True) == 1
    with pytest.raises(RefusedError) as refused:
        again.undo(id_)
    assert refused.value.status == 409
    again.close()


def test_who_decided_is_kept(client):
    id_ = client.app.state.service.reviews.ask(asked())
    body = {"id": id_, "verdict": "reject", "reviewer": "Ada"}
    assert client.post("/v1/reviews", json=body).json()["reviewer"] == "Ada"
    found = client.get("/v1/reviews", params={"decided": True}).json()
    assert (found["decisions"], found["decided"][0]["reviewer"]) == (1, "Ada")
    assert found["decided"][0]["answered"] == "x"


def test_decisions_are_exported(client):
    reviews = client.app.state.service.reviews
    for label in ("a", 'b "c", d', 7):
        reviews.decide(reviews.ask(asked(label)), "accept", reviewer="Ada")
    rows = list(csv.DictReader(StringIO(client.get("/v1/reviews?format=csv").text)))
    assert [row["label"] for row in rows] == ["7", 'b "c", d', "a"]
    assert {row["reviewer"] for row in rows} == {"Ada"}
    file = client.get("/v1/reviews", params={"format": "csv"})
    assert "attachment" in file.headers["content-disposition"]
    page = client.get("/v1/reviews", params={"decided": True, "offset": 1, "limit": 1}).json()
    assert (page["pending"], page["decisions"]) == ([], 3)
    assert [entry["label"] for entry in page["decided"]] == ['b "c", d']


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_label_or_name_is_a_formula_of_a_spreadsheet(client, text):
    reviews = client.app.state.service.reviews
    reviews.decide(reviews.ask(asked(text)), "accept", reviewer=text)
    reviews.decide(reviews.ask(asked(-1)), "accept")
    rows = list(csv.DictReader(StringIO(client.get("/v1/reviews?format=csv").text, newline="")))
    assert [row["label"] for row in rows] == ["-1", f"'{text}"]
    assert [row["reviewer"] for row in rows] == ["", f"'{text}"]
    whole = client.get("/v1/reviews").json()["decided"]
    assert [entry["label"] for entry in whole] == [-1, text]


def test_the_same_image_waits_once_and_is_counted(client, world, ask):
    data = next(
        data
        for data in map(png, world.unknown)
        if ask(client, data, keep=False).json()["answers"][0]["decision"] == "review"
    )
    ids = {ask(client, data).json()["answers"][0]["review"] for _ in range(3)}
    assert len(ids) == 1
    queue = client.get("/v1/reviews").json()
    assert (queue["total"], queue["pending"][0]["count"]) == (1, 3)
    client.post("/v1/reviews", json={"id": ids.pop(), "verdict": "reject"}).raise_for_status()
    again = ask(client, data).json()["answers"][0]["review"]
    assert client.get("/v1/reviews").json()["pending"][0]["id"] == again


def test_random_checks_are_never_folded(serve, world):
    """Each is a draw of its own: a sample of different queries would be another one."""
    client = serve(review_share=1)
    queries = world.learner.embed(world.known[:1])
    ids = [searched(client, queries, keep=True)[0]["review"] for _ in range(3)]
    assert len(set(ids)) == 3
    reviews = client.app.state.service.reviews
    doubtful = {"vector": queries.mean[0].tolist()}
    assert reviews.fold(question() | doubtful) is None
    pending = client.get("/v1/reviews").json()["pending"]
    assert [entry["count"] for entry in pending] == [1, 1, 1]


def test_a_repeated_query_is_folded_after_a_restart(tmp_path):
    reviews = Reviews(tmp_path / FILE)
    id_ = reviews.ask(question())
    reviews.close()
    again = Reviews(tmp_path / FILE)
    assert again.fold(question()) == id_
    assert again.fold(question() | {"vector": [0.0, 1.0]}) is None
    assert [q["count"] for q in again.pending()] == [2]
    again.close()


def test_what_finds_no_room_is_told(serve, world, ask):
    client = serve(max_reviews=2)
    answers = [ask(client, png(image)).json()["answers"][0] for image in world.unknown[:30]]
    unsure = [answer for answer in answers if answer["decision"] == "review"]
    lost = [answer for answer in unsure if answer["dropped"]]
    assert len(lost) == len(unsure) - 2 > 0
    assert all(answer["review"] is None for answer in lost)
    queue = client.get("/v1/reviews").json()
    assert (queue["total"], queue["dropped"], queue["room"]) == (2, len(lost), 0)
    assert f"surefind_reviews_dropped {float(len(lost))}" in client.get("/metrics").text


def test_the_queue_is_filtered_and_paged(client):
    reviews = client.app.state.service.reviews
    for i in range(6):
        why = ["split neighbourhood: 0.55 a, 0.41 b"] if i % 2 else ["unusual input (p = 0.03)"]
        more = {"vector": [1.0, float(i)], "probability": i / 10, "reasons": why}
        reviews.ask(asked(**more) | (drawn() if i == 5 else {}))

    def listed(**params):
        found = client.get("/v1/reviews", params=params).json()
        assert found["total"] == 6
        return found["matching"], [entry["probability"] for entry in found["pending"]]

    assert listed(reason="split neighbourhood") == (3, [0.1, 0.3, 0.5])
    assert listed(least=0.2, most=0.4) == (3, [0.2, 0.3, 0.4])
    assert listed(sampled=True) == (1, [0.5])
    assert listed(sampled=False, offset=1, limit=2) == (5, [0.1, 0.2])
    reasons = client.get("/v1/reviews").json()["reasons"]
    assert reasons == {"split neighbourhood": 3, "unusual input": 3}
