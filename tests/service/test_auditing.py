"""An audit over HTTP: what is wrong is found, mended by the usual requests, and looked for again."""

import pytest

from surefind.gallery.gallery import Gallery


@pytest.fixture
def planted(client):
    """Two items get the label of others far away."""
    items = client.get("/v1/items", params={"limit": 1000}).json()["items"]
    wrong = [item for item in items if item["label"] == 0][:2]
    for item in wrong:
        client.put(f"/v1/items/{item['id']}", json={"label": 1}).raise_for_status()
    return {item["id"] for item in wrong}


def suspects(client):
    found = client.get("/v1/audit", params={"most": 200})
    found.raise_for_status()
    return {f["id"] for f in found.json()["findings"] if f["kind"] == "mislabelled"}


def test_wrong_labels_are_found_and_mended(client, planted):
    found = client.get("/v1/audit").json()
    assert any("were judged" in sentence for sentence in found["sentences"])
    named = [f for f in found["findings"] if f["id"] in planted and f["kind"] == "mislabelled"]
    assert {f["id"] for f in named} == planted
    assert {(f["label"], f["suggested"]) for f in named} == {(1, 0)}
    for id_ in planted:
        client.put(f"/v1/items/{id_}", json={"label": 0}).raise_for_status()
    assert not suspects(client) & planted


def test_an_audit_is_kept_until_the_gallery_changes(client):
    state = client.app.state.service
    first = state.current(Gallery.audit)
    assert state.current(Gallery.audit) is first
    id_ = client.get("/v1/items", params={"limit": 1}).json()["items"][0]["id"]
    client.delete(f"/v1/items/{id_}").raise_for_status()
    assert state.current(Gallery.audit) is not first


def test_who_may_only_read_cannot_make_it(serve):
    client = serve(read_token="r" * 16, write_token="w" * 16)
    for token, status in (("r", 403), ("w", 200)):
        headers = {"Authorization": f"Bearer {token * 16}"}
        assert client.get("/v1/audit", headers=headers).status_code == status


def test_what_is_asked_wrongly_is_refused(client):
    assert client.get("/v1/audit", params={"most": 0}).status_code == 422
    gallery = client.app.state.service.gallery
    gallery.delete(list(gallery))
    answer = client.get("/v1/audit")
    assert answer.status_code == 409
    assert "empty" in answer.json()["error"]
