"""Connections: how many, how slow, how large their headers; and the server that holds them to it.

A connection is *waiting* while no request of it is being answered: it is silent, sends a header bit by bit,
or the rest of a body that was refused. Waiting costs a caller nothing and the service a place, so

* a connection that has been waiting for `IDLE` seconds is closed;
* where a newcomer finds no place, in all or for its address, the one that has been waiting longest gives up
  its own, or else one that does not read its answer. Only if every place is busy is the newcomer sent away.

A trusted proxy has as many connections as it likes, up to those in all. A request whose answer nobody reads
is cut off when the time of `PATIENCE` of them has passed; one that is worked on has the time that a
calibration or a snapshot may take on top. A body has a deadline of its own
(`surefind.service.limits`).

uvicorn has none of this. Its one limit counts silent connections like others, and sends newcomers away; its
fast parser keeps a header of any length, and copies it at every packet; the time for a header is not
limited. So `GuardedProtocol` adds to it at the few moments that matter.
"""

import asyncio
import functools
import ipaddress
from collections import Counter, OrderedDict
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from surefind.service.settings import Settings, networks
from surefind.service.state import KEEPING

IDLE = 10.0
"""Seconds that a connection may wait; above uvicorn's 5 between two requests."""

HEADER = 2**15
"""Bytes of a request's first line and headers."""

PATIENCE = 6
"""Times the settings' ``seconds``: to come, to be decoded, embedded, searched, kept and sent."""

TURN = 1.0
"""Seconds between two looks at who has waited too long."""

HELD = 2**16
"""Bytes of a connection that are held back until a turn of the loop is over."""

GRACE = 3
"""Seconds that requests have to end when the service is stopped."""

TOO_LARGE, BUSY = (
    f"HTTP/1.1 {status}\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
    for status in ("431 Request Header Fields Too Large", "503 Service Unavailable")
)


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
        self._most, self._each = settings.max_connections, settings.max_connections_each
        self._proxies = networks(settings.trusted_proxies)
        self._patience = PATIENCE * float(settings.seconds)
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


class JoinedWrites:
    """A transport that sends what is written in one turn of the loop at once.

    uvicorn writes a header and a body one after the other. uvloop would send each of them by itself: two
    calls of the system, two packets, and a client that wakes up twice.

    Args:
        transport: Sends it; it has everything else that a transport has.
        loop: The loop that it belongs to.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self._size = 0
        # These are asked at every request, and most of all others once a connection.
        self.is_closing, self.abort = transport.is_closing, transport.abort

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes when this turn is over, or when there are many: then a writer may have to wait."""
        if not self._held:
            self._loop.call_soon(self._send)
        self._held.append(data)
        self._size += len(data)
        if self._size > HELD:
            self._send()

    def close(self) -> None:
        """Send what is left, and close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._transport.write(b"".join(held))


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
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)
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
