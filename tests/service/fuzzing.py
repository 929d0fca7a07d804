"""Requests made up from a service's own description, sent to it; what it may not do is fail.

Each function counts the answers by status, and raises an AssertionError for one that is a defect (`check`).
"""

import zlib
from collections import Counter
from contextlib import suppress
from io import BytesIO

import httpx
import numpy as np
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from PIL import Image

SECONDS = 120
"""For an answer; the machine may be busy."""
STEPS = 12
"""Requests of a walk along the links."""


def fuzz(address: str, cases: int) -> Counter:
    """Send at least so many cases, about the same to every operation; count the answers by status."""
    schema = schemathesis.openapi.from_url(f"{address}/v1/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses: Counter = Counter()
    turn = 0
    # Some operations have few different cases, so one turn may not be enough.
    while sum(statuses.values()) < cases:
        for operation in operations:
            _send_cases(operation, address, -(-cases // len(operations)), turn, statuses)
        turn += 1
    return statuses


def follow_links(
    address: str, cases: int, wanted: tuple[str, ...] = (), most: int = 1500
) -> tuple[Counter, Counter]:
    """Walk along the links; count the answers by status, and those with success by request.

    It goes on until the wanted requests have succeeded, which is up to chance, or ``most`` were sent.
    Vectors and images are made usable, which made-up ones never are; otherwise there was nothing to follow.
    """
    described = httpx.get(f"{address}/v1/openapi.json").json()
    schema = schemathesis.openapi.from_dict(linked(described))
    dim = httpx.get(f"{address}/v1/gallery").json()["dim"]
    statuses: Counter = Counter()
    followed: Counter = Counter()

    class Walk(schema.as_state_machine()):
        def get_call_kwargs(self, case):
            return {"base_url": address, "timeout": SECONDS}

        def before_call(self, case):
            make_usable(case.body, dim)

        def validate_response(self, response, case, **_):
            statuses[response.status_code] += 1
            name = f"{case.operation.method.upper()} {case.operation.path}"
            followed[name] += response.status_code < 300
            check(case.as_curl_command(), response)

    turn = 0
    while (sent := sum(statuses.values())) < cases or (
        sent < most and not all(followed[name] for name in wanted)
    ):
        left = max(cases - sent, 5 * STEPS)
        # A walk that is taken again finds another gallery, which hypothesis objects to.
        with suppress(FlakyStrategyDefinition):
            run_state_machine_as_test(
                seed(turn)(Walk),
                settings=hypothesis_settings(
                    max_examples=min(-(-left // STEPS), 100),
                    stateful_step_count=STEPS,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        turn += 1
    return statuses, followed


def check(request, answer) -> None:
    """Require an answer that is no defect; one that took too long, on a busy machine, is none."""
    assert answer.status_code < 500 or answer.status_code == 504, (request, answer.text)


def make_usable(body, dim):
    """Put vectors of the gallery's dimension, and images, in the place of those that were made up."""
    if not isinstance(body, dict):
        return

    def unit(x):
        # What was made up decides the direction, so that they differ.
        drawn = np.random.default_rng(zlib.crc32(repr(x).encode())).normal(size=dim)
        return (drawn / np.linalg.norm(drawn)).tolist()

    for holder in (body, *(one for one in body.get("items") or () if isinstance(one, dict))):
        if holder.get("vector"):
            holder["vector"] = unit(holder["vector"])
    if isinstance(body.get("vectors"), list):
        body["vectors"] = [unit(x) for x in body["vectors"]]
        body |= {"kappa": [9.0] * len(body["vectors"]), "novelty": None}
    if "file" in body:
        out = BytesIO()
        Image.new("L", (8, 8), zlib.crc32(repr(body["file"]).encode()) % 256).save(out, "PNG")
        body["file"] = out.getvalue()


def _send_cases(operation, address, count, turn, statuses):
    @seed(turn)
    @hypothesis_settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def send(case):
        answer = case.call(base_url=address, timeout=SECONDS)
        statuses[answer.status_code] += 1
        check(case.as_curl_command(), answer)

    send()


ITEM = "/v1/items/{id}"
LISTED = "$response.body#/items/0/id"
ADDED = "$response.body#/ids/0"
ASKED = "$response.body#/answers/0/review"
WAITING = "$response.body#/pending/0/id"
DECIDED = "$response.body#/id"


def linked(described: dict) -> dict:
    """Return a description with the links."""
    for (method, path, status), links in LINKS.items():
        described["paths"][path][method]["responses"][status]["links"] = links
    return described


def _link(method: str, path: str, **parameters: str) -> dict:
    # A pointer into the document, in which a slash of an address is ~1.
    pointer = path.replace("/", "~1")
    return {"operationRef": f"#/paths/{pointer}/{method}", "parameters": parameters}


def _of_item(id_: str) -> dict:
    return {
        "read": _link("get", ITEM, id=id_),
        "change": _link("put", ITEM, id=id_),
        "delete": _link("delete", ITEM, id=id_),
        "picture": _link("get", f"{ITEM}/image", id=id_),
    }


def _of_review(id_: str) -> dict:
    decision = _link("post", "/v1/reviews")
    return {
        "decide": decision | {"requestBody": {"id": id_, "verdict": "reject"}},
        "picture": _link("get", "/v1/reviews/{id}/image", id=id_),
    }


LINKS: dict[tuple[str, str, str], dict] = {
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
