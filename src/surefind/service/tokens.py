"""Who may do what, by a bearer token.

    tokens set     without a token   read token   write token
    none           everything
    read only      nothing           reading
    write only     nothing                        everything
    both           nothing           reading      everything

Comparison takes the same time wherever two tokens begin to differ.
"""

import hmac
from typing import Annotated

from fastapi import Depends, Request

from surefind.service.problems import RefusedError
from surefind.service.settings import Settings

NOTHING, READ, WRITE = 0, 1, 2


def permission(settings: Settings, authorization: str | None) -> int:
    """Say what a request may do.

    Args:
        settings: They hold the tokens.
        authorization: The request's header, if it has one.

    Returns:
        `NOTHING`, `READ` or `WRITE`.
    """
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
    """Require leave to read.

    Args:
        request: Its header holds the token.

    Returns:
        `READ` or `WRITE`.

    Raises:
        RefusedError: If there is no good token.
    """
    found = permission(request.app.state.desk.settings, request.headers.get("authorization"))
    if found == NOTHING:
        raise RefusedError(
            401,
            "this service needs a token: send the header 'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )
    return found


Allowed = Annotated[int, Depends(allowed)]


async def may_write(found: Allowed) -> None:
    """Require leave to write.

    Args:
        found: What the request may do.

    Raises:
        RefusedError: If it may only read.
    """
    if found < WRITE:
        raise RefusedError(403, "this token may read but not change anything.")
