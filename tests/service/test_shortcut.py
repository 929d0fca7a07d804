"""One endpoint is called directly; everything else goes to the application."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from surefind.apps.service.shortcut import Shortcut
from surefind.errors import InputError, RefusedError

PATH = "/v1/search"


async def application(scope, receive, send):
    await PlainTextResponse("the application")(scope, receive, send)


def call(endpoint, method="POST", path=PATH, **options):
    """Send one request through a shortcut."""

    async def send():
        transport = httpx.ASGITransport(Shortcut(application, PATH, endpoint))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


async def echo(request):
    return PlainTextResponse(b"the endpoint: " + await request.body())


def raising(error):
    async def endpoint(request):
        raise error

    return endpoint


def test_the_endpoint_gets_the_request_and_gives_the_answer():
    assert call(echo, content=b"body").text == "the endpoint: body"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[(method, PATH) for method in ("GET", "PUT", "DELETE", "OPTIONS")],
        *[("POST", path) for path in ("/v1/items", f"{PATH}/", f"{PATH}/image", "/")],
    ],
)
def test_other_methods_and_paths_go_to_the_application(method, path):
    assert call(raising(AssertionError("called")), method, path).text == "the application"


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_goes_to_the_application(kind):
    passed = []

    async def heard(scope, receive, send):
        passed.append(scope)

    scope = {"type": kind} if kind == "lifespan" else {"type": kind, "path": PATH}
    asyncio.run(Shortcut(heard, PATH, echo)(scope, None, None))
    assert passed == [scope]


def test_the_log_can_name_the_path():
    seen = []

    async def endpoint(request):
        seen.append(request.scope["route"].path)
        return PlainTextResponse("")

    call(endpoint, path=f"{PATH}?token=secret")
    assert seen == [PATH]


@pytest.mark.parametrize(
    ("error", "status"),
    [(InputError("k must be 1 or more."), 422), (RefusedError(429, "k must be 1 or more."), 429)],
    ids=["input", "refused"],
)
def test_a_known_error_is_answered(error, status):
    answer = call(raising(error))
    assert answer.status_code == status
    assert answer.json() == {"error": "k must be 1 or more."}


def test_an_unexpected_error_is_not_swallowed():
    with pytest.raises(ZeroDivisionError, match="a defect"):
        call(raising(ZeroDivisionError("a defect")))
