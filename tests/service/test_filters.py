"""Labels and cursors."""

import numpy as np
import pytest
from service.test_searches import FIELDS
from service.world import png

from surefind.gallery.gallery import Gallery


@pytest.fixture
def small(serve):
    """A calibration-free gallery of 60 items."""

    def start(**settings):
        gallery = Gallery(normalize=True)
        x = np.random.default_rng(0).normal(size=(60, 4))
        labels = [None if i == 7 else f"l{i % 3}" for i in range(60)]
        gallery.add(x, ids=[*range(30), *map(str, range(30))], labels=labels)
        return serve(gallery=gallery, learner=None, **settings)

    return start


def listed(client, limit=1000, **params):
    page, found = client.get("/v1/items", params=params | {"limit": limit}), []
    while True:
        page.raise_for_status()
        found += page.json()["items"]
        after = page.json()["next"]
        if after is None:
            return found
        page = client.get("/v1/items", params=params | {"limit": limit, "after": after})


def test_items_are_found_by_label(small):
    client = small()
    assert {item["label"] for item in listed(client, label="l1")} == {"l1"}
    assert {item["label"] for item in listed(client, label=["l1", '"l2"'])} == {"l1", "l2"}
    assert [item["id"] for item in listed(client, label="null")] == [7]


def test_filters_and_cursors_that_are_none_are_refused(small):
    client = small()
    made_up = ["x", "eA==", "W10=", "W3RydWUsIG51bGwsIDEsIDIsIDNd", "[" * 2000]
    wrong = [{"after": text} for text in made_up]
    for params in wrong:
        assert client.get("/v1/items", params=params).status_code == 422, params


def test_items_are_listed_by_label_and_a_cursor_gives_the_whole_list(client):
    whole = client.get("/v1/items", params={"limit": 1000}).json()
    assert whole["next"] is None
    labels = [item["label"] for item in whole["items"]]
    assert labels == sorted(labels)
    parts = listed(client, limit=7)
    assert [item["id"] for item in parts] == [item["id"] for item in whole["items"]]


@pytest.mark.parametrize("label", [None, [3, 4]])
def test_a_cursor_holds_while_items_come_and_go(client, label):
    some = {} if label is None else {"label": label}
    page = client.get("/v1/items", params={"limit": 20} | some).json()
    seen = [item["id"] for item in page["items"]]
    client.app.state.service.gallery.delete(seen[10:])  # its own item too
    new = [{"id": f"new-{i}", "vector": [0, 0, 1], "label": x} for i, x in enumerate((3, None))]
    client.post("/v1/items", json={"items": new}).raise_for_status()
    params, rest = {"limit": 20, "after": page["next"]} | some, []
    while params["after"] is not None:
        page = client.get("/v1/items", params=params).json()
        rest += [item["id"] for item in page["items"]]
        params["after"] = page["next"]
    old = [id_ for id_ in rest if not id_.startswith("new-")]
    total = client.get("/v1/items", params=some).json()["total"]
    assert len({*seen, *old}) == len(seen + old) == total + 10 - (1 if label else 2)


def test_numbers_and_texts_of_one_label_are_each_listed_once(small):
    found = [(item["label"], item["id"]) for item in listed(small(), limit=7)]
    ids = [*range(30), *map(str, range(30))]
    labels = [None if i == 7 else f"l{i % 3}" for i in range(60)]
    expected = sorted(
        zip(labels, ids, strict=True), key=lambda x: (x[0] or "z", isinstance(x[1], str), x[1])
    )
    assert found == expected


@pytest.fixture
def asked(world):
    queries = world.learner.embed(world.known[:20])
    body = {name: getattr(queries, to).tolist() for name, to in FIELDS.items()}
    return queries, body | {"keep": True}


def test_labels_alone_decide_as_the_gallery_does(serve, asked, tmp_path):
    client, (queries, body) = serve(review_share=1), asked
    before = client.get("/v1/calibration").json()["watch"]["queries"]
    found = client.post("/v1/search/vector", json=body | {"labels": [2, 0, 1]}).json()
    with Gallery.open(tmp_path / "gallery", mode="r") as gallery:
        expected = gallery.search(queries, labels=[0, 1, 2])
    assert [a["decision"] for a in found["answers"]] == expected.decision.tolist()
    assert [a["label"] for a in found["answers"]] == expected.label.tolist()
    waiting = client.get("/v1/reviews").json()["pending"]
    assert len(waiting) == expected.decision.tolist().count("review")
    assert not any(entry["sampled"] for entry in waiting)
    for answer in found["answers"]:
        named = {near["label"] for near in answer["neighbours"] + answer["label_probability"]}
        assert named <= {0, 1, 2}
    assert client.get("/v1/calibration").json()["watch"]["queries"] == before
    refused = client.post("/v1/search/vector", json=body | {"labels": [0, "0"]})
    assert (refused.status_code, "'0'" in refused.json()["error"]) == (422, True)


def test_an_image_is_searched_with_a_filter(client, world, ask):
    found = ask(client, png(world.known[0]), label=["3", "4"], k=4).json()["answers"][0]
    assert {near["label"] for near in found["neighbours"]} <= {3, 4}
    assert found["label"] in (3, 4)
    assert (found["decision"] is not None, len(found["vector"])) == (True, 3)
