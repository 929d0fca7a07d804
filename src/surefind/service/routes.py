"""How requests reach their endpoints: the token is looked at before the body, ids are decoded last.

**Token first.** FastAPI reads and parses a form before it solves dependencies. A `GuardedRoute` asks those
that look at the token before anything of the body is read, so that nobody without one costs more than a
header.

**Ids last.** An id may hold a slash, a newline, or end in ``/image``. So what follows `ITEMS` is matched as
it was sent, percent-encoded, and decoded afterwards: ``x%2Fimage`` is an id, ``x/image`` the picture of
``x``. Clients take ``.`` and ``..`` out of addresses, encoded or not, so that no item may be called so.
"""

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote, unquote

from fastapi import Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from surefind.service.settings import allowed, may_write

ITEMS = "/v1/items/"
"""Where addresses begin that hold an item's id."""

PathId = Annotated[str, BeforeValidator(unquote), Path(max_length=4096)]


class GuardedRoute(APIRoute):
    """A route that reads nothing of a body before the token was looked at."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return what answers a request."""
        answer = super().get_route_handler()
        asked = {depends.dependency for depends in self.dependencies}

        async def guarded(request: Request) -> Response:
            found = await allowed(request) if asked & {allowed, may_write} else None
            if found is not None and may_write in asked:
                await may_write(found, request)
            response: Response = await answer(request)
            return response

        return guarded


class EncodedIds:
    """ASGI middleware that lets addresses of items be matched as they were sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http" and scope["path"].startswith(ITEMS):
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            scope["path"] = raw.decode("ascii")
        await self._app(scope, receive, send)
