"""Limits that hold before anything is parsed: on requests, and on connections.

Rate: every client (by address) has a bucket of twice ``rate`` drops that fills at ``rate`` drops a second;
a request takes one, and a search one for each vector, of which it may owe some. Bytes: a body that says it
is too large is refused unread; one that does not say is refused when it has become too large.

Origin: a browser names the page that asks, or at least says that it is one of another site. Such a page
gets nothing but the page of this service itself, and without tokens the service answers only to this
machine's own names, so that no page elsewhere can make a browser speak for it.

A connection is *waiting* while no request of it is being worked on: it is silent, sends a header or a body
bit by bit, or does not read its answer. Waiting costs a caller nothing and the service a place, so

* a connection that has been waiting for longer than ``seconds`` is closed;
* where a newcomer finds no place, of the address that has the most connections the one that has been
  waiting longest gives up its own;
* where every place is being worked for, only the paths of `FREE` are answered.

A reverse proxy does this better, and more of it (``deploy``). uvicorn has none of it: its one limit counts
silent connections like others, and sends newcomers away; its fast parser keeps a header of any length. So a
`Connection` stands before uvicorn's protocol, and hears what asyncio tells it.
"""

import asyncio
import functools
import time
from collections import Counter, OrderedDict
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from surefind.service.problems import answer_to, problem
from surefind.service.settings import LOCAL_NAMES, Settings

HEADER = 2**15
"""Bytes of a request's first line and headers."""
SPARE = 16
"""Connections beyond the limit, for those who ask for a path of `FREE`."""
TURN = 1.0
"""Seconds between two looks at who has waited too long."""
GRACE = 2
"""Seconds that requests have to end when the service is stopped."""
MOST_CLIENTS = 10_000
"""Clients whose rate is remembered; the one that was away longest is forgotten first."""
FREE = ("/healthz", "/readyz")
"""Asked for by machines that watch, however busy the service is."""
LATER = {"Retry-After": "1", "Connection": "close"}
BODY = (b"content-length", b"transfer-encoding")
"""Headers of requests with a body."""
TOO_LARGE = b"HTTP/1.1 431 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Buckets:
    """How much each client may still ask."""

    def __init__(self, rate: float) -> None:
        self._rate, self._burst = rate, max(1.0, 2 * rate)
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float, drops: int = 1, *, owe: bool = False) -> float:
        """Take drops; return 0 if there was one, or if they may be owed, or else the seconds until then."""
        if not self._rate:
            return 0.0
        level, before = self._level.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - before) * self._rate)
        taken = owe or level >= 1
        self._level[client] = (level - drops if taken else level, now)
        if len(self._level) > MOST_CLIENTS:
            self._level.popitem(last=False)
        return 0.0 if taken else (1 - level) / self._rate


class Limits:
    """ASGI middleware that refuses early."""

    def __init__(self, app: ASGIApp, settings: Settings, buckets: Buckets) -> None:
        self._app, self._settings, self._buckets = app, settings, buckets

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
        path, pairs = scope["path"], scope["headers"]
        headers = {name: value.decode("latin-1") for name, value in pairs}
        if sum(name == b"host" for name, _ in pairs) > 1:
            raise HTTPException(400, "a request has one host.")
        _check_origin(headers, self._settings, page=path == "/" or path.startswith("/page/"))
        wait = 0.0 if path in FREE else self._buckets.wait(client_of(scope), time.monotonic())
        if wait:
            later = {"Retry-After": str(int(wait) + 1)}
            raise HTTPException(429, "too many requests; wait a moment.", later)
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._settings.max_bytes:
            raise self._too_large()

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
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> HTTPException:
        # What is left of the body is not read, so the connection cannot be used again.
        sentence = f"a request may have {self._settings.max_bytes:,} bytes at most."
        return HTTPException(413, sentence, {"Connection": "close"})


def client_of(scope: Scope) -> str:
    """Return the address of who asks."""
    return str((scope.get("client") or ("", 0))[0])


def _check_origin(headers: dict[bytes, str], settings: Settings, *, page: bool) -> None:
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    site = headers.get(b"sec-fetch-site", "none")
    foreign = site not in ("same-origin", "none") and not page
    if foreign or (origin is not None and origin.partition("://")[2] != host):
        raise HTTPException(403, "a page of another host may not use this service.")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not settings.has_token and name not in LOCAL_NAMES:
        names = ", ".join(LOCAL_NAMES)
        raise HTTPException(403, f"without a token this service answers as {names} only.")


def guarded_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves an application within the limits of its settings."""
    connections = Connections(app, settings)
    return uvicorn.Config(
        connections,
        http=functools.partial(Connection, connections),  # type: ignore[arg-type]
        ws="none",
        proxy_headers=False,  # `surefind.service.app` reads them, of trusted proxies
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
    )


class Connections:
    """Who is connected and who of them waits; and ASGI middleware that learns of it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._most = app, settings.max_connections
        self._patience = settings.seconds + TURN  # so that who is too slow may still be told so
        self.body = 2 * settings.max_bytes + HEADER  # chunks have lines of their own
        self._held: dict[Any, Connection] = {}
        self._waiting: OrderedDict[Connection, float] = OrderedDict()
        self._turn: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note when it is worked on."""
        own = self._held.get(scope.get("client")) if scope["type"] == "http" else None
        if own is None:
            await self._app(scope, receive, send)
            return
        complete, own.asked, own.room = False, True, self.body

        async def watched() -> Message:
            nonlocal complete
            message = await receive()
            if not complete and not message.get("more_body", False):
                complete = True
                self.works(own)
            return message

        try:
            if _length(scope) > HEADER:
                await problem(431, "the header is too long.", LATER)(scope, receive, send)
            elif len(self._held) - len(self._waiting) >= self._most and scope["path"] not in FREE:
                await problem(503, "the service is busy; try again.", LATER)(scope, receive, send)
            else:
                complete = not any(name in BODY and size != b"0" for name, size in scope["headers"])
                if complete:
                    self.works(own)
                await self._app(scope, watched, send)
        finally:
            own.begun = own.asked = False
            own.room = HEADER if complete else own.room  # what was refused still comes
            self.waits(own)

    def made(self, own: "Connection") -> bool:
        """Take in a connection, in the place of another one if need be; return whether there is room."""
        if len(self._held) >= self._most and self._waiting:
            crowd = Counter(other.peer[0] for other in self._held.values())
            self.abort(max(self._waiting, key=lambda other: crowd[other.peer[0]]))
        if len(self._held) >= self._most + SPARE:
            return False
        self._held[own.peer] = own
        self.waits(own)
        if self._turn is None:
            self._look(asyncio.get_running_loop())
        return True

    def waits(self, own: "Connection") -> None:
        """Note that nothing of a connection is worked on, from now on."""
        if own.peer in self._held:
            self._waiting.setdefault(own, time.monotonic())

    def works(self, own: "Connection") -> None:
        """Note that a request of a connection is worked on."""
        self._waiting.pop(own, None)
        own.room = HEADER

    def lost(self, own: "Connection") -> None:
        """Forget a connection."""
        self._waiting.pop(own, None)
        if self._held.get(own.peer) is own:
            del self._held[own.peer]

    def abort(self, own: "Connection") -> None:
        """Close a connection at once."""
        self.lost(own)
        own.transport.abort()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        for own in [c for c, since in self._waiting.items() if now - since > self._patience]:
            self.abort(own)
        self._turn = loop.call_later(TURN, self._look, loop) if self._held else None


def _length(scope: Scope) -> int:
    """Return how long the first line and the headers of a request are, separators included."""
    lines = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + lines


class Connection(asyncio.Protocol):
    """A connection, which passes on to uvicorn what asyncio tells it.

    Attributes:
        transport: Where it writes.
        peer: The address and the port of who is connected.
        begun: Whether the whole header of a request has come.
        asked: Whether the application has the request.
        room: Bytes that may still come.
    """

    transport: Any
    peer: Any

    def __init__(self, connections: Connections, **options: Any) -> None:
        self._all, self._uvicorn = connections, HttpToolsProtocol(**options)
        self.begun = self.asked = False
        self.room, self._tail = HEADER, b""

    def connection_made(self, transport: Any) -> None:
        """Take a place, if there is one."""
        self.transport, self.peer = transport, transport.get_extra_info("peername")[:2]
        self._uvicorn.connection_made(transport)
        if not self._all.made(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._all.lost(self)
        self._uvicorn.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what has come, unless it is too much of a header or of a body."""
        if not self.begun and b"\r\n\r\n" in self._tail + data:
            self.begun, self.room = True, self._all.body
        else:
            self.room -= len(data)
        self._tail = data[-3:]
        if self.room < 0:
            if self.begun:
                self.transport.abort()
            elif not self.transport.is_closing():
                self.transport.write(TOO_LARGE)
                self.transport.close()
        elif not self.transport.is_closing():
            self._uvicorn.data_received(data)

    def pause_writing(self) -> None:
        """Wait for who does not read the answer."""
        self._uvicorn.pause_writing()
        self._all.waits(self)

    def resume_writing(self) -> None:
        """Go on."""
        self._uvicorn.resume_writing()
        if self.asked:
            self._all.works(self)
