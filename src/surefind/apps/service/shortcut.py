"""The busiest endpoint, without the general machinery.

A router tries routes, solves dependencies and keeps stacks of what is to be closed, which costs more than
to answer. An endpoint that takes a bare request and checks everything itself needs none of it. It stays a
route of the application as well: there it is described, and there other methods are refused.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from surefind.apps.service.problems import answer_to


class Shortcut:
    """ASGI middleware, inside all others, that calls one endpoint directly.

    Args:
        app: It gets all other requests.
        path: The endpoint's address; the method is POST.
        endpoint: Takes a request.
    """

    def __init__(
        self, app: ASGIApp, path: str, endpoint: Callable[[Request], Awaitable[Response]]
    ) -> None:
        self._app, self._endpoint, self.path = app, endpoint, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = self  # whose path the log names
        try:
            answer = await self._endpoint(Request(scope, receive, send))
        except Exception as error:
            answer = answer_to(error)
        await answer(scope, receive, send)
