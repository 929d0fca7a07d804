"""What a service is allowed to do, and who may do what: its places, limits and bearer tokens.

Every limit has a default that a small machine bears. Without any token, the service must stay on this
machine.

    tokens set     without a token   read token   write token
    none           everything
    read only      nothing           reading
    write only     nothing                        everything
    both           nothing           reading      everything

Comparison takes the same time wherever two tokens begin to differ.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from surefind.errors import InputError, RefusedError
from surefind.validation import check_int, check_positive

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What a browser on this machine may call a service without tokens."""


@dataclass(frozen=True)
class Settings:
    """The settings of one service.

    Attributes:
        folder: Where reviews and thumbnails are kept; made if need be.
        images: Where the paths of payloads begin; None shows no images but those added here.
        read_token: Lets its bearer search and look.
        write_token: Lets its bearer change things too.
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
        review_share: Share of all queries that is sampled for review, whatever was decided.

    Raises:
        InputError: If a limit cannot be used, or a token is empty.
    """

    folder: Path
    images: Path | None = None
    read_token: str | None = None
    write_token: str | None = None
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
    review_share: float | int = 0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_pixels", "max_queries", "burst", "max_batch", "max_waiting"):
            check_int(name, getattr(self, name), least=1)
        for name in ("max_connections", "max_connections_each"):
            check_int(name, getattr(self, name), least=1)
        networks(self.trusted_proxies)
        check_int("max_reviews", self.max_reviews, least=0)
        check_positive("seconds", float(self.seconds))
        for name in ("rate", "max_wait"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative; got {getattr(self, name)!r}.")
        if not 0 <= self.review_share <= 1:
            raise InputError(
                f"review_share must lie from 0 to 1; got {self.review_share!r}.",
                field="review_share",
            )
        if "" in (self.read_token, self.write_token):
            raise InputError("a token must not be empty; leave it out to have none.")

    @property
    def has_token(self) -> bool:
        """Whether there is any token."""
        return self.read_token is not None or self.write_token is not None


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
            "SUREFIND_WRITE_TOKEN (and SUREFIND_READ_TOKEN), or listen on 127.0.0.1."
        )


NOTHING, READ, WRITE = 0, 1, 2


def permission(settings: Settings, authorization: str | None) -> int:
    """Return what a request with this header may do: `NOTHING`, `READ` or `WRITE`."""
    if not settings.has_token:
        return WRITE
    kind, _, given = (authorization or "").partition(" ")
    if kind.lower() != "bearer":
        return NOTHING
    # Both are always compared.
    reads, writes = _same(settings.read_token, given), _same(settings.write_token, given)
    return WRITE if writes else READ if reads else NOTHING


def _same(token: str | None, given: str) -> bool:
    return token is not None and hmac.compare_digest(token.encode(), given.strip().encode())


async def allowed(request: Request) -> int:
    """Require leave to read; return `READ` or `WRITE`."""
    found = permission(request.app.state.service.settings, request.headers.get("authorization"))
    if found == NOTHING:
        raise RefusedError(
            401,
            "this service needs a token: send the header 'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )
    return found


Allowed = Annotated[int, Depends(allowed)]


async def may_write(found: Allowed) -> None:
    """Require leave to write."""
    if found < WRITE:
        raise RefusedError(403, "this token may read but not change anything.")
