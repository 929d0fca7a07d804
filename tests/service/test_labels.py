"""The labels in use, with their type and how many items have each."""


def test_labels_come_with_counts_and_types(client):
    items = [
        {"id": f"n{i}", "vector": [0, 0, 1], "label": label}
        for i, label in enumerate(["7", "7", "Seventy", None])
    ]
    client.post("/v1/items", json={"items": items}).raise_for_status()
    found = client.get("/v1/labels").json()
    assert found["total"] == found["matching"] == 10
    counts = {(entry["label"], entry["kind"]): entry["items"] for entry in found["labels"]}
    assert counts["7", "text"] == 2
    assert counts[7, "number"] > 2
    assert sum(counts.values()) == 243
    assert [entry["items"] for entry in found["labels"]] == sorted(counts.values(), reverse=True)


def test_labels_are_sought(client):
    items = [
        {"id": f"n{i}", "vector": [0, 0, 1], "label": label}
        for i, label in enumerate(["anna", "Ann", "ann marie"])
    ]
    client.post("/v1/items", json={"items": items}).raise_for_status()
    found = client.get("/v1/labels", params={"contains": "ANN", "limit": 2}).json()
    assert (found["total"], found["matching"]) == (11, 3)
    assert [entry["label"] for entry in found["labels"]] == ["Ann", "ann marie"]
