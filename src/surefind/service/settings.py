"""What a service is allowed to do, and who may do what: its places, limits and bearer tokens.

Every limit has a default that a small machine bears. Without any token, the service must stay on this
machine.

    tokens set     without a token   read token   write token
    none           everything
    read only      nothing           reading
    write only     nothing                        everything
    both           nothing           reading      everything

Tokens of a file count like these, each with its own leave (`surefind.service.tokens`).
"""

import functools
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from surefind.checks import check_int, check_positive
from surefind.errors import InputError
from surefind.service.tokens import ANONYMOUS, Keyring, Token
from surefind.service.wire import RefusedError

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What a browser on this machine may call a service without tokens."""


@dataclass(frozen=True)
class Settings:
    """The settings of one service.

    Attributes:
        folder: Where reviews and thumbnails are kept; made if need be.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        images: Where the paths of payloads begin; None shows no images but those added here.
        read_token: Lets its bearer search and look.
        write_token: Lets its bearer change things too.
        tokens: File of tokens with names, which is followed; `surefind token` writes it.
        max_bytes: Largest body of a request.
        max_pixels: Largest image, width times height.
        max_queries: Most vectors in a request.
        rate: Requests a second and client, on average; 0 for no limit.
        burst: Requests that may come at once.
        seconds: Time for a request, and for its body to arrive.
        max_connections: Most connections in all.
        max_connections_each: Most connections of an address.
        trusted_proxies: Addresses or networks of proxies, whose ``X-Forwarded-For`` names the client.
        max_batch: Most requests that are embedded or searched together.
        max_wait: Seconds that an image waits for others to be embedded with.
        max_waiting: Requests that may wait; later ones are sent away.
        max_reviews: Doubtful queries that may wait for a person, and as many random checks; later ones are
            not kept.
        read_only: Whether to change nothing and follow the process that does, so that several processes
            can answer queries of one gallery.
        review_share: Share of all queries that is sampled for review, whatever was decided.

    Raises:
        InputError: If a limit cannot be used, or a token is empty.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8765
    images: Path | None = None
    read_token: str | None = None
    write_token: str | None = None
    tokens: Path | None = None
    max_bytes: int = 10 * 2**20
    max_pixels: int = 25_000_000
    max_queries: int = 256
    rate: float | int = 200
    burst: int = 400
    seconds: float | int = 10
    max_connections: int = 512
    max_connections_each: int = 256
    trusted_proxies: tuple[str, ...] = ()
    max_batch: int = 64
    max_wait: float | int = 0.002
    max_waiting: int = 1024
    max_reviews: int = 1000
    read_only: bool = False
    review_share: float | int = 0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_queries", "burst", "max_batch", "max_waiting"):
            check_int(name, getattr(self, name), least=1)
        for name in ("max_connections", "max_connections_each"):
            check_int(name, getattr(self, name), least=1)
        networks(self.trusted_proxies)
        check_int("max_reviews", self.max_reviews, least=0)
        if not 0 <= self.port <= 65535:
            raise InputError(f"port must lie from 0 to 65535; got {self.port!r}.", field="port")
        check_positive("seconds", float(self.seconds))
        for name in ("rate", "max_wait"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative; got {getattr(self, name)!r}.")
        if not 0 <= self.review_share <= 1:
            raise InputError(
                f"review_share must lie from 0 to 1; got {self.review_share!r}.",
                field="review_share",
            )
        if self.read_only and self.review_share:
            raise InputError(
                "a service that only reads cannot keep queries for review: review_share must be 0.",
                field="review_share",
            )
        if "" in (self.read_token, self.write_token):
            raise InputError("a token must not be empty; leave it out to have none.")

    @property
    def has_token(self) -> bool:
        """Whether there is any token; a file without entries leaves nobody anything."""
        return any(x is not None for x in (self.read_token, self.write_token, self.tokens))

    @functools.cached_property
    def keyring(self) -> Keyring:
        """The tokens in force; it follows the file."""
        own = (("read", self.read_token, False), ("write", self.write_token, True))
        fixed = [Token.of(name, t, write=write) for name, t, write in own if t is not None]
        return Keyring(fixed, self.tokens)


def networks(proxies: tuple[str, ...]) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks of trusted proxies; an address is one of its own."""
    try:
        return [ipaddress.ip_network(name, strict=False) for name in proxies]
    except ValueError as error:
        raise InputError(
            f"a trusted proxy must be an address or a network: {error}.", field="trusted_proxies"
        ) from error


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listening(host: str, settings: Settings) -> None:
    """Require a token if the address to listen on can be reached from other machines."""
    if not settings.has_token and not is_loopback(host):
        raise InputError(
            f"{host} can be reached from other machines, and there is no token. Set "
            "SUREFIND_WRITE_TOKEN (and SUREFIND_READ_TOKEN), name a file of tokens with --tokens, or "
            "listen on 127.0.0.1."
        )


NOTHING, READ, WRITE = 0, 1, 2
CALLER = "surefind.caller"
"""Where a request's scope keeps the name of who asks."""


@dataclass(frozen=True)
class Caller:
    """Who asks, and what they may do: `NOTHING`, `READ` or `WRITE`."""

    name: str
    leave: int


def permission(settings: Settings, authorization: str | None) -> Caller:
    """Return who sends a request with this header, and what they may do."""
    most = READ if settings.read_only else WRITE
    if not settings.has_token:
        return Caller(ANONYMOUS, most)
    kind, _, given = (authorization or "").partition(" ")
    found = settings.keyring.find(given.strip()) if kind.lower() == "bearer" else None
    if found is None:
        return Caller(ANONYMOUS, NOTHING)
    return Caller(found.name, most if found.write else READ)


async def allowed(request: Request) -> Caller:
    """Require leave to read; return who asks, whom the log names too."""
    header = request.headers.get("authorization")
    found = permission(request.app.state.service.settings, header)
    if found.leave == NOTHING:
        raise RefusedError(
            401,
            "this service needs a token: send the header 'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )
    request.scope[CALLER] = found.name
    return found


Allowed = Annotated[Caller, Depends(allowed)]


async def may_write(found: Allowed, request: Request) -> None:
    """Require leave to write."""
    if found.leave < WRITE:
        if request.app.state.service.settings.read_only:
            raise RefusedError(403, "this service only reads; ask the one that writes.")
        raise RefusedError(403, "this token may read but not change anything.")
