"""Bearer tokens with names: who may read, who may write, and the file that keeps them.

A file of tokens is TOML, a table for each name; the token itself is nowhere in it:

    [scanner-3]
    sha256 = "9f86d081884c7d65…"
    write = true

A token is 256 random bits, so one round of SHA-256 cannot be undone by guessing, and comparing the hashes
of all tokens takes the same time whichever is right. `make_token` makes one, and replaces that of the same
name; the service looks at the file before every request, and so follows it without a restart. A file that
cannot be read or used any more leaves the last good tokens in force, and says so once in the log.
"""

import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefind.errors import InputError
from surefind.files import write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
ANONYMOUS = "anonymous"
"""Who asks a service that has no tokens."""
TAKEN = (ANONYMOUS, "read", "write")
"""Names that no token of a file may have: the last two are those of the settings."""
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
PREFIX = "sf_"
"""What our tokens begin with, so that a scanner for leaked secrets can tell one."""


@dataclass(frozen=True)
class Token:
    """A token that a service knows.

    Attributes:
        name: Whose it is; it stands in logs and beside decisions.
        digest: SHA-256 of the token.
        write: Whether its bearer may change things.
    """

    name: str
    digest: bytes
    write: bool

    @classmethod
    def of(cls, name: str, secret: str, *, write: bool) -> "Token":
        """Return what is kept of a token."""
        return cls(name, hashlib.sha256(secret.encode()).digest(), write)


class Keyring:
    """The tokens in force: some that stay, and those of a file that is followed.

    Args:
        fixed: Tokens that stay.
        file: The file of tokens, or None.

    Raises:
        InputError: If the file cannot be used.
    """

    def __init__(self, fixed: Iterable[Token], file: Path | None = None) -> None:
        self._fixed, self._file = tuple(fixed), file
        self._seen = None if file is None else _version(file)
        self._tokens = (*self._fixed, *(() if file is None else read_tokens(file)))
        self.reloaded: Callable[[int], None] = lambda _count: None
        self.failed: Callable[[Exception], None] = lambda _error: None

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, secret: str) -> Token | None:
        """Return the token that a bearer has shown; None if there is no such one."""
        self._follow()
        given, found = hashlib.sha256(secret.encode(errors="replace")).digest(), None
        for token in self._tokens:  # to the end, so that the time does not tell which one it was
            if hmac.compare_digest(token.digest, given):
                found = token
        return found

    def _follow(self) -> None:
        if self._file is None or (now := _version(self._file)) == self._seen:
            return
        self._seen = now
        try:
            self._tokens = (*self._fixed, *read_tokens(self._file))
        except InputError as error:
            self.failed(error)
        else:
            self.reloaded(len(self._tokens))


def read_tokens(file: Path) -> list[Token]:
    """Read a file of tokens.

    Args:
        file: The file.

    Returns:
        Its tokens.

    Raises:
        InputError: If it is missing, or an entry cannot be used.
    """
    tables = _read(file)
    return [_token(file, name, entry) for name, entry in tables.items()]


def make_token(file: Path, name: str, *, write: bool) -> str:
    """Make a token, keep its hash in a file, in place of an earlier one of this name, and return it.

    Args:
        file: The file of tokens; made if it is not there.
        name: Whose token.
        write: Whether its bearer may change things.

    Returns:
        The token, which is kept nowhere.
    """
    check_name(name)
    secret = PREFIX + secrets.token_urlsafe(32)
    entry = {"sha256": hashlib.sha256(secret.encode()).hexdigest(), "write": write}
    tables = _read(file) if file.exists() else {}
    for known, table in tables.items():
        _token(file, known, table)
    _write(file, tables | {name: entry})
    return secret


def remove_token(file: Path, name: str) -> None:
    """Forget a token; its bearer is refused from the next request on."""
    tables = _read(file)
    if name not in tables:
        raise InputError(f"{file} has no token of the name {name!r}.", field="name")
    _write(file, {known: table for known, table in tables.items() if known != name})


def check_name(name: str) -> None:
    """Require a name that a token may have."""
    if name in TAKEN or NAME.fullmatch(name) is None:
        raise InputError(
            f"a token cannot be called {name!r}: use up to 64 letters, digits, dots, hyphens and "
            f"underscores, and none of {', '.join(TAKEN)}.",
            field="name",
        )


def _token(file: Path, name: str, entry: Any) -> Token:
    def refuse(sentence: str) -> InputError:
        return InputError(f"{file}: {name}: {sentence}", field="tokens")

    try:
        check_name(name)
    except InputError as error:
        raise refuse(str(error)) from error
    if not isinstance(entry, dict):
        raise refuse("expected a table with sha256, and write if it may change things.")
    if unknown := entry.keys() - {"sha256", "write"}:
        raise refuse(f"{min(unknown)} is not known; a token has sha256 and write.")
    digest, write = entry.get("sha256"), entry.get("write", False)
    if not isinstance(digest, str) or DIGEST.fullmatch(digest) is None:
        raise refuse("sha256 must be 64 hexadecimal digits in lower case.")
    if not isinstance(write, bool):
        raise refuse("write must be true or false.")
    return Token(name, bytes.fromhex(digest), write)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"the file of tokens {file} cannot be read: {reason}. `surefind token` writes one.",
            field="tokens",
        ) from error


def _write(file: Path, tables: dict[str, Any]) -> None:
    lines = ["# Made by `surefind token`. Hashes of tokens; the tokens themselves are nowhere.\n"]
    for name, entry in sorted(tables.items()):
        write = str(entry.get("write", False)).lower()
        lines.append(f'["{name}"]\nsha256 = "{entry["sha256"]}"\nwrite = {write}\n')
    write_atomically(file, "\n".join(lines), durable=True, private=True)


def _version(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns
