"""Reviews: what people decided is kept, survives a kill, and feeds the next calibration."""

import csv
import signal
import subprocess
import sys
from io import StringIO

import numpy as np
import pytest
from service.world import outvoted, png

from surefind.errors import DegenerateError, InputError, StorageError
from surefind.service.review_store import FILE, Reviews, read_reviews
from surefind.service.wire import RefusedError


def question(label="x", kappa=3.0, **drawn):
    return {"vector": [1.0, 0.0], "kappa": kappa, "label": label} | drawn


def drawn(u=0.1, share=1.0, model=None):
    return {"sampled": True, "u": u, "share": share, "model": model}


def test_unsure_queries_wait_and_are_decided(client, world, ask):
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
    assert [d["label"] for d in after["decided"]] == [5, None, first["label"]]


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
    assert entry["label_probability"][0]["label"] == "a"
    body = {"id": id_, "verdict": "accept"}
    assert client.post("/v1/reviews", json=body).json()["label"] == "a"


def searched(client, queries, **options):
    known = {"kappa": queries.kappa.tolist(), "novelty": queries.novelty.tolist()}
    body = {"vectors": queries.mean.tolist(), "k": 1} | known | options
    return client.post("/v1/search/vector", json=body).json()["answers"]


def test_random_checks_are_asked_about_whatever_was_decided(serve, world, tmp_path):
    client = serve(review_share=1)
    queries = world.learner.embed(np.concatenate([world.known[:40], world.unknown[:40]]))
    answers = searched(client, queries)
    assert {answer["decision"] for answer in answers} == {"match", "review", "no_match"}
    pending = client.get("/v1/reviews", params={"limit": 200}).json()["pending"]
    assert [entry["id"] for entry in pending] == [answer["review"] for answer in answers]
    assert all(entry["sampled"] for entry in pending)
    verdicts = ["accept", "reject", "relabel"] * 25
    for entry, verdict in zip(pending, verdicts, strict=False):
        body = {"id": entry["id"], "verdict": verdict, "label": 5 if verdict == "relabel" else None}
        client.post("/v1/reviews", json=body).raise_for_status()
    found = read_reviews(tmp_path / "gallery.service")
    assert (len(found), found.counts.waiting, found.model) == (75, 5, "digits")
    assert found.labels[:3] == [pending[0]["label"], None, 5]
    assert found.queries.mean == pytest.approx(queries.mean[:75], abs=1e-6)


def test_the_draw_knows_nothing_about_the_query(serve, world):
    """Of each decision about the share is sampled; the doubtful ones that are not wait all the same."""
    client = serve(review_share=0.25, max_reviews=10_000)
    state = client.app.state.service
    state.draws = np.random.default_rng(0)
    queries = world.learner.embed(np.concatenate([world.known[:100], world.unknown[:100]]))
    answers = [answer for _ in range(5) for answer in searched(client, queries, keep=True)]
    waiting = {entry["id"]: entry["sampled"] for entry in map(dict, state.reviews.pending())}
    for decision in ("match", "review", "no_match"):
        own = [waiting.get(a["review"]) for a in answers if a["decision"] == decision]
        share = sum(sampled is True for sampled in own) / len(own)
        assert share == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / len(own)) ** 0.5)
        assert (None in own) == (decision != "review")


def test_who_may_be_asked_about(serve, world):
    """Sampled queries of readers too, for whom nothing else is kept; none if the caller says so."""
    client = serve(review_share=1, read_token="r" * 16, write_token="w" * 16)
    queries = world.learner.embed(world.known[:5])
    client.headers["Authorization"] = f"Bearer {'r' * 16}"
    assert all(answer["review"] for answer in searched(client, queries))
    client.headers["Authorization"] = f"Bearer {'w' * 16}"
    assert not any(answer["review"] for answer in searched(client, queries, keep=False))


def test_random_checks_have_room_of_their_own(serve, world):
    client = serve(review_share=1, max_reviews=3)
    reviews = client.app.state.service.reviews
    for _ in range(3):
        reviews.ask(question())
    answers = searched(client, world.learner.embed(world.known[:5]))
    assert [answer["review"] is not None for answer in answers] == [True] * 3 + [False] * 2
    assert (reviews.waiting(sampled=True), reviews.waiting(sampled=False)) == (3, 3)


def test_calibrating_again_from_reviews(serve, world):
    client = serve(review_share=0.5)
    state = client.app.state.service
    before = client.get("/v1/calibration").json()
    refused = client.post("/v1/calibration", json={"with_reviews": True})
    assert refused.status_code == 409
    assert "--review-share" in refused.json()["error"]
    queries = world.learner.embed(world.known[:60])
    for vector, label in zip(queries.mean.tolist(), world.known_labels.tolist(), strict=False):
        known = question(label) | drawn(share=0.5, model="digits")
        known |= {"vector": vector, "novelty": 0.5}
        state.reviews.decide(state.reviews.ask(known), "accept")
    told = client.get("/v1/calibration").json()["reviews"]
    assert (told["share"], told["usable"], told["waiting"], told["needed"]) == (0.5, 60, 0, 1)
    found = client.post("/v1/calibration", json={"with_reviews": True}).json()
    assert (found["reviewed"], found["queries"]) == (60, before["queries"] + 60)
    after = client.get("/v1/calibration").json()
    assert after["summary"] == found["summary"]
    assert after["max_wrong"] == before["max_wrong"]
    assert searched(client, queries)[0]["decision"] is not None


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


def test_reviews_survive_a_restart(tmp_path):
    path = tmp_path / FILE
    reviews = Reviews(path)
    first, second = (reviews.ask(question(*some, **drawn())) for some in ((), ("y", None)))
    reviews.decide(second, "accept")
    reviews.close()
    again = Reviews(path)
    assert len(again) == again.waiting(sampled=True) == 1
    assert [q["id"] for q in again.pending()] == [first]
    again.decide(first, "reject")
    assert [d["id"] for d in again.history()] == [first, second]
    again.close()
    found = read_reviews(path)
    assert found.labels == [None, "y"]
    assert found.queries.kappa.tolist() == [3.0, np.inf]


def test_killed_at_any_moment_no_acknowledged_review_is_lost(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from surefind.service.review_store import Reviews\n"
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
    decided = {d["id"] for d in reviews.history()}
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
    reviews.decide(reviews.ask(question()), "accept")
    reviews.ask(question(**drawn()))
    reviews.close()
    with pytest.raises(DegenerateError, match=r"1 wait.* doubtful.*--review-share"):
        read_reviews(tmp_path)


def test_an_answer_without_a_label_cannot_be_accepted(tmp_path):
    reviews = Reviews(tmp_path / FILE)
    id_ = reviews.ask(question(label=None))
    with pytest.raises(RefusedError) as refused:
        reviews.decide(id_, "accept")
    assert refused.value.status == 409
    assert [q["id"] for q in reviews.pending()] == [id_]
    reviews.close()


def asked(label="x", **more):
    """A question as a search asks it, with what the page shows."""
    likely = [] if label is None else [{"label": label, "probability": 0.5}]
    shown = {"label_probability": likely, "none": 0.5, "decision": "review", "probability": 0.4}
    return question(label) | shown | {"reasons": [], "neighbours": [], "image": False} | more


def test_a_decision_is_taken_back(client):
    reviews = client.app.state.service.reviews
    first, second = (reviews.ask(asked(vector=[1.0, 0.0])), reviews.ask(asked(vector=[0.0, 1.0])))
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


def test_no_label_or_name_is_a_formula_of_a_spreadsheet(client):
    reviews = client.app.state.service.reviews
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "＋1", "－1", "＠SUM(A1)"]
    for label in (*texts, -1):
        reviews.decide(reviews.ask(asked(label)), "accept", reviewer=str(label))
    rows = list(csv.DictReader(StringIO(client.get("/v1/reviews?format=csv").text, newline="")))
    assert [row["label"] for row in rows] == ["-1", *(f"'{text}" for text in reversed(texts))]
    assert {row["reviewer"][0] for row in rows} == {"'"}
    whole = client.get("/v1/reviews").json()["decided"]
    assert [entry["label"] for entry in whole] == [-1, *reversed(texts)]


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
        why = ["labels compete: 0.55 a, 0.41 b"] if i % 2 else ["unusual input (p = 0.03)"]
        more = {"vector": [1.0, float(i)], "probability": i / 10, "reasons": why}
        reviews.ask(asked(**more) | (drawn() if i == 5 else {}))

    def listed(**params):
        found = client.get("/v1/reviews", params=params).json()
        assert found["total"] == 6
        return found["matching"], [entry["probability"] for entry in found["pending"]]

    assert listed(reason="labels compete") == (3, [0.1, 0.3, 0.5])
    assert listed(least=0.2, most=0.4) == (3, [0.2, 0.3, 0.4])
    assert listed(sampled=True) == (1, [0.5])
    assert listed(sampled=False, offset=1, limit=2) == (5, [0.1, 0.2])
    reasons = client.get("/v1/reviews").json()["reasons"]
    assert reasons == {"labels compete": 3, "unusual input": 3}
