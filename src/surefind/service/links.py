"""Which answers hold what other requests need, as links of OpenAPI: programs can follow them, and tests do.

A search that waits for a person leads to the decision about it, a decision to taking it back, an item that
was added or listed to reading, changing and deleting it.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

ITEM = "/v1/items/{id}"
LISTED = "$response.body#/items/0/id"
ADDED = "$response.body#/ids/0"
ASKED = "$response.body#/answers/0/review"
WAITING = "$response.body#/pending/0/id"
DECIDED = "$response.body#/id"


def install(app: FastAPI) -> None:
    """Let the description of an application have the links."""
    describe: Callable[[], dict[str, Any]] = app.openapi

    def linked() -> dict[str, Any]:
        found = describe()
        for (method, path, status), links in LINKS.items():
            found["paths"][path][method]["responses"][status]["links"] = links
        return found

    app.openapi = linked  # type: ignore[method-assign]


def _link(method: str, path: str, **parameters: str) -> dict[str, Any]:
    # A pointer into the document, in which a slash of an address is ~1.
    pointer = path.replace("/", "~1")
    return {"operationRef": f"#/paths/{pointer}/{method}", "parameters": parameters}


def _of_item(id_: str) -> dict[str, Any]:
    return {
        "read": _link("get", ITEM, id=id_),
        "change": _link("put", ITEM, id=id_),
        "delete": _link("delete", ITEM, id=id_),
        "picture": _link("get", f"{ITEM}/image", id=id_),
    }


def _of_review(id_: str) -> dict[str, Any]:
    decision = _link("post", "/v1/reviews")
    return {
        "decide": decision | {"requestBody": {"id": id_, "verdict": "reject"}},
        "picture": _link("get", "/v1/reviews/{id}/image", id=id_),
    }


LINKS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("post", "/v1/items", "201"): _of_item(ADDED),
    ("post", "/v1/items/image", "201"): _of_item(ADDED),
    ("put", ITEM, "200"): _of_item(ADDED),
    ("get", "/v1/items", "200"): _of_item(LISTED)
    | {"next": _link("get", "/v1/items", after="$response.body#/next")},
    ("post", "/v1/search/vector", "200"): _of_review(ASKED),
    ("post", "/v1/search/image", "200"): _of_review(ASKED),
    ("get", "/v1/reviews", "200"): _of_review(WAITING),
    ("post", "/v1/reviews", "201"): {
        "undo": _link("delete", "/v1/reviews/{id}/decision", id=DECIDED)
    },
    ("delete", "/v1/reviews/{id}/decision", "200"): _of_review(DECIDED),
}
"""By the method, the path and the status of the answer."""
