"""Limits that hold before anything is parsed: where a request comes from, how often, how large, how slow.

Rate: every client (by address) has a bucket of ``burst`` drops that fills at ``rate`` drops a second; a
request takes one. Bytes: a body that says it is too large is refused unread; one that does not say is
refused when it has become too large.

Origin: a browser names the page that asks. A page of another host is refused, and without tokens the
service answers only to this machine's own names, so that no page elsewhere can make a browser speak for it.
"""

import asyncio
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefind.service.problems import answer_to
from surefind.service.settings import LOCAL_NAMES, Settings

MOST_CLIENTS = 10_000
"""Clients whose rate is remembered; the one that was away longest is forgotten first."""
FREE = ("/healthz", "/readyz")
"""Asked for by machines that watch, however busy the service is."""


class Buckets:
    """How much each client may still ask."""

    def __init__(self, rate: float | int, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Take a drop; return 0 if there was one, or else the seconds until there is."""
        if not self._rate:
            return 0.0
        level, before = self._level.pop(client, (float(self._burst), now))
        level = min(self._burst, level + (now - before) * self._rate)
        self._level[client] = (max(level - 1, level if level < 1 else 0.0), now)
        if len(self._level) > MOST_CLIENTS:
            self._level.popitem(last=False)
        return 0.0 if level >= 1 else (1 - level) / self._rate


class Limits:
    """ASGI middleware that refuses early."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._buckets = Buckets(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except HTTPException as refused:
            await answer_to(refused)(scope, receive, send)
        else:
            await self._app(scope, self._bounded(receive), send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        _check_origin(headers, self._settings)
        client = (scope.get("client") or ("", 0))[0]
        wait = 0.0 if scope["path"] in FREE else self._buckets.wait(client, time.monotonic())
        if wait:
            later = {"Retry-After": str(int(wait) + 1)}
            raise HTTPException(429, "too many requests; wait a moment.", later)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._settings.max_bytes:
            raise _too_large(self._settings)

    def _bounded(self, receive: Receive) -> Receive:
        # Raised below while a body is read, where FastAPI passes on nothing but an HTTPException.
        seen, deadline, complete = 0, time.monotonic() + self._settings.seconds, False

        async def bounded() -> Message:
            nonlocal seen, complete
            if complete:  # what comes after the body is the client's leaving, which has no deadline
                return await receive()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(408, "the request took too long to arrive.") from error
            seen += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if seen > self._settings.max_bytes:
                raise _too_large(self._settings)
            return message

        return bounded


def _too_large(settings: Settings) -> HTTPException:
    # What is left of the body is not read, so the connection cannot be used again.
    sentence = f"a request may have {settings.max_bytes:,} bytes at most."
    return HTTPException(413, sentence, {"Connection": "close"})


def _check_origin(headers: Headers, settings: Settings) -> None:
    host, origin = headers.get("host", ""), headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise HTTPException(403, "a page of another host may not use this service.")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not settings.has_token and name not in LOCAL_NAMES:
        names = ", ".join(LOCAL_NAMES)
        raise HTTPException(403, f"without a token this service answers as {names} only.")
