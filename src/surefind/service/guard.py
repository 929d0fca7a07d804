"""Limits that hold before anything is parsed: on requests, and on connections.

Rate: every client (by address) has a bucket of twice ``rate`` drops that fills at ``rate`` drops a second;
a request takes one. Bytes: a body that says it is too large is refused unread; one that does not say is
refused when it has become too large.

Origin: a browser names the page that asks. A page of another host is refused, and without tokens the
service answers only to this machine's own names, so that no page elsewhere can make a browser speak for it.

A connection is *waiting* while no request of it is being answered: it is silent, sends a header bit by bit,
or the rest of a body that was refused. Waiting costs a caller nothing and the service a place, so

* a connection that has been waiting for `IDLE` seconds is closed;
* where a newcomer finds no place, in all or for its address, the one that has been waiting longest gives up
  its own, or else one that does not read its answer. Only if every place is busy is the newcomer sent away.

A trusted proxy has as many connections as it likes, up to those in all. A request whose answer nobody reads
is cut off when the time of `PATIENCE` of them has passed; one that is worked on has the time that a
calibration or a snapshot may take on top.

uvicorn has none of this. Its one limit counts silent connections like others, and sends newcomers away; its
fast parser keeps a header of any length, and copies it at every packet; the time for a header is not
limited. So `GuardedProtocol` adds to it at the few moments that matter.
"""

import asyncio
import functools
import ipaddress
import time
from collections import Counter, OrderedDict
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from surefind.service.problems import answer_to
from surefind.service.settings import LOCAL_NAMES, Settings
from surefind.service.state import KEEPING

IDLE = 10.0
"""Seconds that a connection may wait; above uvicorn's 5 between two requests."""

HEADER = 2**15
"""Bytes of a request's first line and headers."""

PATIENCE = 6
"""Times the settings' ``seconds``: to come, to be decoded, embedded, searched, kept and sent."""

TURN = 1.0
"""Seconds between two looks at who has waited too long."""

GRACE = 3
"""Seconds that requests have to end when the service is stopped."""

TOO_LARGE, BUSY = (
    f"HTTP/1.1 {status}\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
    for status in ("431 Request Header Fields Too Large", "503 Service Unavailable")
)


MOST_CLIENTS = 10_000
"""Clients whose rate is remembered; the one that was away longest is forgotten first."""
FREE = ("/healthz", "/readyz")
"""Asked for by machines that watch, however busy the service is."""


class Buckets:
    """How much each client may still ask."""

    def __init__(self, rate: float) -> None:
        self._rate, self._burst = rate, max(1.0, 2 * rate)
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """Take a drop; return 0 if there was one, or else the seconds until there is."""
        if not self._rate:
            return 0.0
        level, before = self._level.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - before) * self._rate)
        self._level[client] = (max(level - 1, level if level < 1 else 0.0), now)
        if len(self._level) > MOST_CLIENTS:
            self._level.popitem(last=False)
        return 0.0 if level >= 1 else (1 - level) / self._rate


class Limits:
    """ASGI middleware that refuses early."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._buckets = Buckets(settings.rate)

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


def guarded_config(app: Any, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves an application within the limits of its settings."""
    guard = ConnectionGuard(settings)
    return uvicorn.Config(
        app,
        http=functools.partial(GuardedProtocol, guard),  # type: ignore[arg-type]
        ws="none",
        proxy_headers=False,  # `surefind.service.app` reads them, of trusted proxies
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )


class ConnectionGuard:
    """Who is connected, and which of them wait, the longest first.

    Args:
        settings: Have the limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._most, self._each = settings.max_connections, (settings.max_connections + 1) // 2
        self._proxies = settings.trusted_proxies
        self._patience = PATIENCE * settings.seconds
        self._count: Counter[str] = Counter()
        self._waiting: OrderedDict[GuardedProtocol, float] = OrderedDict()
        self._busy: OrderedDict[GuardedProtocol, float] = OrderedDict()
        self._turn: asyncio.TimerHandle | None = None

    def made(self, connection: "GuardedProtocol") -> bool:
        """Take in a connection, in the place of another one if need be; return whether there is room."""
        crowd = self._crowd(connection.address)
        if crowd is not None and not self._shed(crowd):
            return False
        self._count[connection.address] += 1
        self.waits(connection)
        if self._turn is None:
            self._turn = connection.loop.call_later(TURN, self._look, connection.loop)
        return True

    def lost(self, connection: "GuardedProtocol") -> None:
        """Forget a connection, if it had a place."""
        places = [held.pop(connection, None) for held in (self._waiting, self._busy)]
        if places != [None, None]:
            self._count[connection.address] -= 1
            if not self._count[connection.address]:
                del self._count[connection.address]

    def waits(self, connection: "GuardedProtocol") -> None:
        """Note that a connection has nothing to be answered, from now on."""
        self._busy.pop(connection, None)
        self._waiting[connection] = connection.loop.time()

    def works(self, connection: "GuardedProtocol") -> None:
        """Note that a request of a connection is being answered."""
        self._waiting.pop(connection, None)
        self._busy[connection] = connection.loop.time()

    def _crowd(self, address: str) -> "list[GuardedProtocol] | None":
        """Return whose places a newcomer may take, the first ones first; None if there is a free one."""
        own = self._count[address] >= self._each and not self._trusted(address)
        if not own and len(self._waiting) + len(self._busy) < self._most:
            return None
        idle = (*self._waiting, *(busy for busy in self._busy if busy.flow.write_paused))
        return [other for other in idle if other.address == address or not own]

    def _trusted(self, address: str) -> bool:
        return any(ipaddress.ip_address(address) in network for network in self._proxies)

    def _shed(self, crowd: "list[GuardedProtocol]") -> bool:
        for connection in crowd[:1]:
            self.lost(connection)
            connection.transport.abort()
        return bool(crowd)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = [c for c, since in self._waiting.items() if now - since > IDLE]
        for connection, since in self._busy.items():
            longer = 0.0 if connection.flow.write_paused else KEEPING
            if now - since > self._patience + longer:
                late.append(connection)
        for connection in late:
            self._shed([connection])
        some = self._waiting or self._busy
        self._turn = loop.call_later(TURN, self._look, loop) if some else None


class GuardedProtocol(HttpToolsProtocol):
    """A connection as uvicorn serves it, watched by a `ConnectionGuard`."""

    def __init__(self, guard: ConnectionGuard, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guard = guard
        self._refused = False
        self._received = self._body = self._header = 0
        self.address: str = ""

    def connection_made(self, transport: Any) -> None:
        """Take a place, if there is one."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self._guard.made(self):
            self._refuse(BUSY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._guard.lost(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless what is no body has become too long."""
        if self._refused:
            return
        self._received += len(data)
        super().data_received(data)
        # A body may come in chunks, each with a line of its own.
        if self._received - self._body > HEADER + self._body:
            self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        """Begin to count a header."""
        self._header = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the first line."""
        self._header += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._header += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request, unless its header was too long."""
        if self._header > HEADER:
            self._refuse(TOO_LARGE)
        if not self._refused:
            self._guard.works(self)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += len(body)
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Begin to count the next request."""
        self._received = self._body = 0
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or begin one that came already."""
        if not (self.pipeline or self.transport.is_closing()):
            self._guard.waits(self)
        super().on_response_complete()

    def _refuse(self, answer: bytes) -> None:
        """Close the connection, with an answer if none is under way."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(answer)
            self.transport.close()
        else:
            self.transport.abort()
