"""Requests made up from the service's own description never make it fail."""

from urllib.parse import unquote

import pytest
from service.live import live
from service.world import copy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CASES, WALKED = 200, 150


def test_no_request_of_the_description_is_a_server_error(world, tmp_path):
    from service.fuzzing import fuzz

    with live(copy(world, tmp_path), world.learner) as address:
        statuses = fuzz(address, CASES)
    assert sum(statuses.values()) >= CASES
    assert statuses[200] > 0


def test_no_walk_along_the_descriptions_links_is_a_server_error(world, tmp_path):
    from service.fuzzing import follow_links

    with live(copy(world, tmp_path), world.learner, review_share=0.5) as address:
        wanted = ("POST /v1/items", "GET /v1/items/{id}")
        statuses, succeeded = follow_links(address, WALKED, wanted)
    assert sum(statuses.values()) >= WALKED
    assert all(succeeded[name] for name in wanted)


def test_links_name_requests_and_values_that_are_there(client):
    described = client.get("/v1/openapi.json").json()
    paths = described["paths"]
    links = [
        (path, method, answer, link)
        for path, methods in paths.items()
        for method, about in methods.items()
        for answer in about["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert len(links) > 20
    for path, method, answer, link in links:
        _, _, name, verb = link["operationRef"].split("/")
        asked = paths[unquote(name).replace("~1", "/")][verb]
        taken = {one["name"] for one in asked["parameters"]} if "parameters" in asked else set()
        assert link["parameters"].keys() <= taken
        given = [
            *link["parameters"].values(),
            *filter(is_pointer, link.get("requestBody", {}).values()),
        ]
        schema = answer["content"]["application/json"]["schema"]
        for pointer in given:
            assert holds(described, schema, pointer.partition("#/")[2].split("/")), (path, method)


def is_pointer(value):
    return value.startswith("$response.body#")


def holds(described, schema, parts):
    """Return whether a value of the schema has what a pointer names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = described["components"]["schemas"][name]
    if not parts:
        return True
    if schema.get("type") == "array":
        return holds(described, schema["items"], parts[1:])
    inner = schema.get("properties", {}).get(parts[0])
    return inner is not None and holds(described, inner, parts[1:])
