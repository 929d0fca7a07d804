"""Every request is counted, logged and numbered; what nobody foresaw becomes an answer without details."""

import time
import traceback
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefind.service.logs import note_request
from surefind.service.metrics import Metrics
from surefind.service.problems import problem

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""The page needs nothing of other hosts, so a browser is told to fetch nothing there."""
SAFE = [(name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS.items()]


class Recorder:
    """ASGI middleware around all others."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and write down what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number, start, status, defect = uuid.uuid4().hex[:12], time.perf_counter(), 0, None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *SAFE,
                    (b"x-request-id", number.encode()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            defect = _where(error)
            if not status:
                answer = problem(500, f"a defect of the service; its number is {number}.")
                await answer(scope, receive, watched)
        seconds = time.perf_counter() - start
        route = getattr(scope.get("route"), "path", "") or "none"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.request(method, route, status, seconds)
        note_request(number, method, route, status, seconds, defect)


def _where(error: Exception) -> str:
    """Name an error's kind and place; its text may hold what a user sent."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
