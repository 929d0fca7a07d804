"""Reviews: what people decided is kept, survives a kill, and feeds the next calibration."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from service.world import outvoted, png

from surefind.apps.service.reviews import FILE, Reviews, read_reviews
from surefind.errors import DegenerateError, InputError, StorageError


def question(label="x", kappa=3.0):
    return {"vector": [1.0, 0.0], "kappa": kappa, "label": label}


def test_unsure_queries_wait_and_are_decided(client, world, ask, tmp_path):
    for image in world.unknown[:30]:
        ask(client, png(image))
    queue = client.get("/v1/reviews").json()
    assert queue["total"] >= 3
    first, second, third = queue["pending"][:3]
    assert client.get(f"/v1/reviews/{first['id']}/image").status_code == 200
    for id_, verdict, label in (
        (first["id"], "accept", None),
        (second["id"], "reject", None),
        (third["id"], "relabel", 5),
    ):
        body = {"id": id_, "verdict": verdict, "label": label}
        client.post("/v1/reviews", json=body).raise_for_status()
    after = client.get("/v1/reviews").json()
    assert after["total"] == queue["total"] - 3
    assert [d["label"] for d in after["decided"]] == [first["label"], None, 5]
    queries, labels = read_reviews(tmp_path / "gallery.service")
    assert len(queries) == 3
    assert labels == [first["label"], None, 5]
    assert queries.kappa[0] == pytest.approx(first["kappa"])


def test_accepting_keeps_the_answered_label_and_not_the_nearest_items(serve):
    client = serve(gallery=outvoted(), learner=None)
    body = {"vectors": [[1, 0, 0, 0]], "k": 3}
    answer = client.post("/v1/search/vector", json=body).json()["answers"][0]
    assert (answer["label"], answer["neighbours"][0]["label"]) == ("a", "b")
    reviews = client.app.state.service.reviews
    shown = {"vector": [1.0, 0, 0, 0], "image": False, "decision": "review"}
    id_ = reviews.ask(answer | shown)
    (entry,) = client.get("/v1/reviews").json()["pending"]
    assert entry["label"] == "a"
    assert entry["evidence"][0]["label"] == "a"
    body = {"id": id_, "verdict": "accept"}
    assert client.post("/v1/reviews", json=body).json()["label"] == "a"


def test_what_was_decided_feeds_a_calibration(client, world, ask, tmp_path):
    for image in np.concatenate([world.known, world.unknown]):
        ask(client, png(image))
    for entry in client.get("/v1/reviews", params={"limit": 200}).json()["pending"]:
        body = {"id": entry["id"], "verdict": "reject" if entry["probability"] < 0.5 else "accept"}
        client.post("/v1/reviews", json=body).raise_for_status()
    queries, labels = read_reviews(tmp_path / "gallery.service" / FILE)
    gallery = client.app.state.service.gallery
    assert gallery.calibrate(queries, labels, max_wrong=0.3, contributions=False).queries == len(
        labels
    )


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"id": "nobody", "verdict": "accept"}, 404, "no such query"),
        ({"verdict": "relabel", "label": "nothing"}, 422, "no item of the gallery"),
        ({"verdict": "relabel"}, 422, "needs a label"),
        ({"verdict": "perhaps"}, 422, "verdict"),
    ],
)
def test_what_cannot_be_decided_is_told(client, body, status, told):
    id_ = client.app.state.service.reviews.ask(question())
    answer = client.post("/v1/reviews", json={"id": id_} | body)
    assert answer.status_code == status
    assert told in answer.json()["error"]


def test_a_query_is_decided_once(client):
    id_ = client.app.state.service.reviews.ask(question())
    body = {"id": id_, "verdict": "accept"}
    assert client.post("/v1/reviews", json=body).status_code == 201
    assert client.post("/v1/reviews", json=body).status_code == 409


def test_the_queue_does_not_grow_without_bound(serve, world, ask):
    client = serve(max_reviews=2)
    for image in world.unknown[:30]:
        ask(client, png(image))
    assert client.get("/v1/reviews").json()["total"] == 2


def test_reviews_survive_a_restart(tmp_path):
    path = tmp_path / FILE
    reviews = Reviews(path)
    first, second = reviews.ask(question()), reviews.ask(question("y", None))
    reviews.decide(second, "accept")
    reviews.close()
    again = Reviews(path)
    assert len(again) == 1
    assert [q["id"] for q in again.pending()] == [first]
    again.decide(first, "reject")
    assert [d["id"] for d in again.decided()] == [second, first]
    again.close()
    queries, labels = read_reviews(path)
    assert labels == ["y", None]
    assert queries.kappa.tolist() == [np.inf, 3.0]


def test_questions_about_the_nearest_item_wait_no_more(client):
    """Earlier code asked them; what was decided about them stays."""
    reviews = client.app.state.service.reviews
    old = {"vector": [1.0, 0.0], "kappa": 3.0, "top": {"id": 1, "label": "x"}}
    id_ = reviews.ask(old)
    assert client.get("/v1/reviews").json()["total"] == 0
    answer = client.post("/v1/reviews", json={"id": id_, "verdict": "accept"})
    assert answer.status_code == 409


def test_killed_at_any_moment_no_acknowledged_review_is_lost(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from surefind.apps.service.reviews import Reviews\n"
        "reviews = Reviews(Path(sys.argv[1]))\n"
        "while True:\n"
        "    ids = [reviews.ask({'vector': [1.0, 0.0], 'kappa': 3.0, 'label': 1}) for _ in range(2)]\n"
        "    reviews.decide(ids[1], 'reject')\n"
        "    print(*ids, flush=True)\n"
    )
    path = tmp_path / FILE
    asked, rejected = set(), set()
    for lines in (5, 40):
        command = [sys.executable, "-c", script, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            said = [writer.stdout.readline() for _ in range(lines)]
            writer.send_signal(signal.SIGKILL)
            said += writer.stdout.readlines()
        for line in said:
            first, second = line.split()
            asked |= {first, second}
            rejected.add(second)
    reviews = Reviews(path)
    decided = {d["id"] for d in reviews.decided()}
    assert rejected <= decided
    assert asked <= decided | {q["id"] for q in reviews.pending()}
    reviews.close()


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / FILE
    path.write_bytes(b"nonsense " * 1000)
    with pytest.raises(StorageError, match="damaged"):
        read_reviews(path)
    with pytest.raises(StorageError, match="damaged"):
        Reviews(path)


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    path = tmp_path / FILE
    reviews = Reviews(path)
    first = reviews.ask(question())
    (pages,) = reviews._connection.execute("PRAGMA page_count").fetchone()
    reviews._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StorageError, match="disk is full"):
        reviews.ask(question() | {"neighbours": ["x" * 100_000]})
    reviews._connection.execute("PRAGMA max_page_count=1000000")
    assert [q["id"] for q in reviews.pending()] == [first]
    reviews.ask(question())
    reviews.close()
    again = Reviews(path)
    assert len(again) == len(again.pending()) == 2
    again.close()


def test_reading_needs_reviews(tmp_path):
    with pytest.raises(InputError, match="surefind serve"):
        read_reviews(tmp_path)
    reviews = Reviews(tmp_path / FILE)
    reviews.ask(question())
    reviews.close()
    with pytest.raises(DegenerateError, match="nothing"):
        read_reviews(tmp_path)


def test_wrong_verdicts_are_refused(tmp_path):
    reviews = Reviews(tmp_path / FILE)
    id_ = reviews.ask(question())
    with pytest.raises(InputError, match="verdict"):
        reviews.decide(id_, "maybe")
    with pytest.raises(InputError, match="does not wait"):
        reviews.decide("nobody", "accept")
    with pytest.raises(InputError, match="needs a label"):
        reviews.decide(id_, "relabel")
    with pytest.raises(InputError, match="no label to accept"):
        reviews.decide(reviews.ask(question(label=None)), "accept")
    reviews.close()
