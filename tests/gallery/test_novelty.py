"""Novelty: items keep it, answers have it, and a calibrated gallery stops what is unlike anything seen."""

import json

import numpy as np
import pytest

from surefind.decisions.decision import Gate
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery

DIM, PEOPLE = 16, 20
PLACES = {
    "memory": lambda _: {},
    "folder": lambda place: {"path": place / "g"},
    "milvus-lite": lambda place: {"engine": "milvus", "path": str(place / "g.db")},
}


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def embedded(n, seed, novelty=True):
    rng = np.random.default_rng(seed)
    mean, kappa, p = unit(rng.normal(size=(n, DIM))), rng.uniform(1, 9, n), rng.random(n)
    return Embeddings(mean, kappa, p if novelty else None)


@pytest.fixture(params=PLACES)
def made(request, tmp_path):
    with Gallery(**PLACES[request.param](tmp_path)) as gallery:
        yield gallery


def stored(gallery):
    return {id_: gallery.get(id_).novelty for id_ in gallery}


def test_items_keep_their_novelty(made, tmp_path):
    first, second = embedded(3, 0), embedded(2, 1, novelty=False)
    made.add(first, ids=list("abc"))
    made.add(second, ids=list("de"))
    expected = dict(zip("abc", first.novelty.tolist(), strict=True)) | {"d": None, "e": None}
    assert stored(made) == expected
    made.update(ids=["a"], labels=["x"])
    assert stored(made) == expected  # what is not given stays
    changed = embedded(2, 2)
    before = made.info["fingerprint"]
    made.update(Embeddings(first.mean[:1], first.kappa[:1]), ids=["a"])
    made.update(first[:1], ids=["a"])
    assert made.info["fingerprint"] == before  # novelty decides nothing
    made.update(changed, ids=["b", "d"])
    made.update(second[:1], ids=["c"])  # a new vector without novelty has none
    made.delete("e")
    expected |= {"b": changed.novelty[0], "d": changed.novelty[1], "c": None}
    del expected["e"]
    assert stored(made) == expected
    assert {i.id: i.novelty for i in made.items()} == expected
    copy = tmp_path / "copy"
    made.save(copy)
    if made._engine.place == str(copy):
        made.close()
    with Gallery.open(copy, mode="r") as again:
        assert stored(again) == expected


def test_answers_have_the_novelty_of_the_queries(made):
    made.add(embedded(8, 0), labels=list("aabbccdd"))
    asked = embedded(4, 3)
    answers = made.search(asked, k=2)
    np.testing.assert_array_equal(answers.novelty, asked.novelty)
    records = json.loads(json.dumps(answers.records(), allow_nan=False))
    assert [record["novelty"] for record in records] == asked.novelty.tolist()
    far = made.search(embedded(4, 3, novelty=False), k=2).novelty
    np.testing.assert_array_equal(far, made._learned.model.novelty(asked.mean))


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(2 * PEOPLE, DIM)))

    def faces(first, each):
        who = np.repeat(np.arange(first, first + PEOPLE), each)
        mean = unit(centres[who] + 0.08 * rng.normal(size=(len(who), DIM)))
        return Embeddings(mean, rng.uniform(50, 100, len(who)), rng.random(len(who))), who

    known, strange = faces(0, 20), faces(PEOPLE, 10)
    queries = Embeddings.concatenate([known[0], strange[0]])
    return faces(0, 3), (queries, [*known[1].tolist(), *[None] * len(strange[1])]), faces(0, 4)[0]


@pytest.fixture
def gallery(people):
    made = Gallery()
    made.add(people[0][0], labels=people[0][1].tolist())
    return made


def blind(embeddings):
    return Embeddings(embeddings.mean, embeddings.kappa)


def test_a_calibrated_gallery_stops_what_is_unlike(gallery, people, tmp_path):
    queries, labels = people[1]
    made = gallery.calibrate(queries, labels, max_wrong=0.05)
    assert made.gate == Gate(0.01)
    later = people[2]
    p = np.tile([0.5, 0.1, 0.01, 0.0004], len(later) // 4)
    asked = Embeddings(later.mean, later.kappa, p)
    answers = gallery.search(asked)
    usual = gallery.search(Embeddings(later.mean, later.kappa, np.ones(len(p))))
    assert (usual.decision == "match").mean() > 0.9
    np.testing.assert_array_equal(answers.probability, usual.probability)
    np.testing.assert_array_equal(answers.decision[p == 0.5], usual.decision[p == 0.5])
    assert "match" not in answers.decision[p == 0.1]
    assert set(answers.decision[p <= 0.01]) == {"no_match"}
    assert answers.reasons[3] == ("unlike anything seen (p = 0.0004)",)
    assert answers.reasons[1][0] == "unusual input (p = 0.1)"
    gallery.save(tmp_path / "g")
    gallery.close()
    with Gallery.open(tmp_path / "g", mode="r") as again:
        assert again.calibration == made
        assert again.search(asked).decision.tolist() == answers.decision.tolist()
    with Gallery.open(tmp_path / "g", index="hnsw") as again:
        assert not again.search(asked).stale


def test_without_novelty_a_gated_gallery_refuses(gallery, people):
    queries, labels = people[1]
    gallery.calibrate(queries, labels, max_wrong=0.05)
    for asked in (blind(people[2]), people[2].mean):
        with pytest.raises(InputError) as refused:
            gallery.search(asked)
        assert refused.value.field == "novelty"
        assert refused.value.hint
        assert gallery.search(asked, decide=False).decision is None


def test_groups_work_with_a_gate(gallery, people):
    queries, labels = people[1]
    groups = ["a" if n % 2 else "b" for n in range(len(labels))]
    made = gallery.calibrate(queries, labels, max_wrong=0.1, groups=groups)
    assert {g.name for g in made.groups} == {"a", "b"}
    answers = gallery.search(queries, groups=groups)
    assert "match" in answers.decision
    assert "match" not in answers.decision[queries.novelty <= 0.1]
