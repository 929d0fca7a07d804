"""What is not known is never taken for certain."""

import numpy as np
import pytest

from surefind.embeddings import Embeddings
from surefind.gallery.gallery import Gallery


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(20, 16)))

    def faces(each):
        who = np.repeat(np.arange(20), each)
        mean = unit(centres[who] + 0.08 * rng.normal(size=(len(who), 16)))
        return Embeddings(mean, rng.uniform(50, 100, len(who))), who.tolist()

    return faces(3), faces(30), faces(1)


def calibrated(people, plain):
    (items, labels), (queries, truth), _ = people
    gallery = Gallery()
    gallery.add(items.mean if plain else items, labels=labels)
    gallery.calibrate(
        queries.mean if plain else queries, truth, contributions=False, max_wrong=0.05
    )
    return gallery


def ask(client, queries, **more):
    return client.post("/v1/search/vector", json={"vectors": queries.mean.tolist()} | more)


def test_vectors_without_kappa_are_refused_where_the_calibration_had_it(serve, people):
    client, queries = serve(gallery=calibrated(people, plain=False), learner=None), people[2][0]
    kappa = queries.kappa.tolist()
    assert ask(client, queries).status_code == 422
    assert ask(client, queries, kappa=[None, *kappa[1:]]).status_code == 422
    answers = ask(client, queries, kappa=kappa).json()["answers"]
    assert {answer["decision"] for answer in answers} >= {"match"}


def test_where_nothing_has_kappa_vectors_need_none(serve, people):
    client = serve(gallery=calibrated(people, plain=True), learner=None)
    answers = ask(client, people[2][0]).json()["answers"]
    assert {answer["decision"] for answer in answers} >= {"match"}
