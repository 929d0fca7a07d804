"""How requests reach their endpoints: the token is checked before the body is read, ids are decoded last.

**Token first.** FastAPI reads and parses a form before it solves dependencies. A `GuardedRoute` asks those
that look at the token before anything of the body is read, so that nobody without one costs more than a
header.

**Ids last.** An id may hold a slash, a newline, or end in ``/image``. So what follows `ITEMS` is matched as
it was sent, percent-encoded, and decoded afterwards: ``x%2Fimage`` is an id, ``x/image`` the picture of
``x``. Clients take ``.`` and ``..`` out of addresses, encoded or not, so that no item may be called so.

**JSON** is read by pydantic from the bytes, which is stricter than Python's reader: no NaN, no lone
surrogate.
"""

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from surefind.errors import SurefindError
from surefind.service.problems import answer_to, described, invalid_sentence
from surefind.service.settings import NOTHING, WRITE, Caller, permission
from surefind.service.state import AppState
from surefind.service.wire import CALLER, Message, RefusedError

M = TypeVar("M", bound=Message)
ITEMS = "/v1/items/"
"""Where addresses begin that hold an item's id."""
LONGEST_JSON = 4 * 2**20
"""Bytes of a JSON body. It is read on the event loop, where 4 MB take some ten milliseconds."""

PathId = Annotated[str, BeforeValidator(unquote), Path(max_length=4096)]


async def state_of(request: Request) -> AppState:
    """Return the state of the application that got a request."""
    state: AppState = request.app.state.service
    return state


State = Annotated[AppState, Depends(state_of)]


async def allowed(request: Request) -> Caller:
    """Require the scope to read; return who asks, whom the log names too."""
    state = await state_of(request)
    found = permission(state.settings, request.headers.get("authorization"))
    if found.scope == NOTHING:
        raise RefusedError(
            401,
            "this service needs a token: send the header 'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )
    request.scope[CALLER] = found.name
    return found


Allowed = Annotated[Caller, Depends(allowed)]


async def may_write(found: Allowed, state: State) -> None:
    """Require the scope to write."""
    if found.scope < WRITE:
        reads = "this service only reads; ask the one that writes."
        sentence = "this token may read but not change anything."
        raise RefusedError(403, reads if state.settings.read_only else sentence)


class GuardedRoute(APIRoute):
    """A route that reads nothing of a body before the token was checked."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return what answers a request."""
        answer = super().get_route_handler()
        asked = {depends.dependency for depends in self.dependencies}

        async def guarded(request: Request) -> Response:
            found = await allowed(request)
            if may_write in asked:
                await may_write(found, await state_of(request))
            await request.body()  # a request is worked on when all of it is there
            response: Response = await answer(request)
            return response

        return guarded


class EncodedIds:
    """ASGI middleware that lets addresses of items be matched as they were sent.

    Args:
        app: Answers all requests but those of ``busiest``.
        busiest: A route that is answered here, because solving its dependencies and passing it through the
            layers of FastAPI would cost as much as a search. Its endpoint takes the request.
    """

    def __init__(self, app: ASGIApp, busiest: APIRoute) -> None:
        self._app, self._busiest = app, busiest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].startswith(ITEMS):
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            scope["path"] = raw.decode("ascii")
        asked = (scope["path"], scope["method"]) if scope["type"] == "http" else None
        if asked != (self._busiest.path, "POST"):
            await self._app(scope, receive, send)
            return
        scope["route"] = self._busiest
        try:
            answer: Response = await self._busiest.endpoint(Request(scope, receive))
        except (HTTPException, SurefindError) as error:
            answer = answer_to(error)
        await answer(scope, receive, send)


def json_body(kind: type[M]) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """Return a dependency that reads a message of a kind from a request's body."""

    async def read(request: Request) -> M:
        body = await request.body()
        if len(body) > LONGEST_JSON:
            raise RefusedError(413, f"a JSON body may have {LONGEST_JSON:,} bytes at most.")
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False)
            raise RefusedError(422, invalid_sentence(found)) from error

    return read


def as_json(found: BaseModel, status: int = 200) -> Response:
    """Return an answer that is written already; to be called in a thread, if it may be long."""
    return Response(found.model_dump_json(), status, media_type="application/json")


def guarded_router(prefix: str, tag: str, *statuses: int) -> APIRouter:
    """Return a router of requests that need a token, if there are any."""
    common = (400, 401, 403, 408, 409, 413, 422, 429, 503, 504, *statuses)
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        dependencies=[Depends(allowed)],
        responses=described(*sorted(common)),
        route_class=GuardedRoute,
    )


def writes(kind: type[Message] | None = None) -> dict[str, Any]:
    """Return the options of a route that changes something, and takes a body of a kind."""
    body = {} if kind is None else {"openapi_extra": body_described(kind)}
    return {"dependencies": [Depends(may_write)], **body}


def body_described(kind: type[Message]) -> dict[str, Any]:
    """Describe a body for OpenAPI."""
    schema = kind.model_json_schema()
    inner = schema.pop("$defs", {})
    text = json.dumps(schema)
    for name, definition in inner.items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    content = {"application/json": {"schema": json.loads(text)}}
    return {"requestBody": {"required": True, "content": content}}
