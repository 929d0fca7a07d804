"""The settings of a service, where they come from, and its tokens: who may read, who may write.

A setting is an option, a variable of the environment (``SUREFIND_MAX_BYTES``), a line of a TOML file, or
the default, in this order; all are validated together. In the environment, lists are separated by commas.
A path in the file begins at the file's folder.

    tokens         without a token   read token   write token
    none           everything, from this machine only
    some           nothing           reading      everything

A file of tokens is TOML, one table per name; the token itself is nowhere in it:

    [scanner-3]
    sha256 = "9f86d081884c7d65…"
    write = true

A token is 256 random bits, so one round of SHA-256 cannot be undone by guessing, and comparing the hashes
of all tokens takes the same time whichever is right. The service looks at the file before every request,
and so follows it without a restart. A file that cannot be read as such leaves the last good tokens in
force, and the log says so once; without the file none of its tokens is in force.
"""

import functools
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from surefind.errors import InputError
from surefind.files import write_atomically
from surefind.service.problems import invalid_sentence
from surefind.service.telemetry import log_event
from surefind.service.wire import ANONYMOUS

VARIABLE = "SUREFIND_"
"""What the name of a variable begins with."""
ELSEWHERE = ("SUREFIND_CONFIG", "SUREFIND_DATA")
"""Variables that are no settings: where the file is, and where data sets are."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What a browser on this machine may call a service without tokens."""
PATHS = ("folder", "images", "tokens")
TAKEN = (ANONYMOUS, "read", "write")
"""Names that no token of a file may have: the last two are those of the settings."""
PREFIX = "sf_"
"""What our tokens begin with, so that a scanner for leaked secrets can tell one."""

Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Secret = Annotated[str, Field(min_length=16)]
Network = Annotated[
    ipaddress.IPv4Network | ipaddress.IPv6Network,
    BeforeValidator(lambda name: ipaddress.ip_network(name, strict=False)),
]
Networks = Annotated[
    tuple[Network, ...],
    NoDecode,
    BeforeValidator(lambda x: [p.strip() for p in x.split(",")] if isinstance(x, str) else x),
]


class Settings(BaseSettings):
    """The settings of one service."""

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    folder: Path = Field(
        description="Where reviews and thumbnails are kept; made if need be. By default beside the gallery."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8765, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    images: Path | None = Field(
        None, description="Where the paths of payloads begin, to show them."
    )
    read_token: Secret | None = Field(None, repr=False, description="Lets its bearer look.")
    write_token: Secret | None = Field(None, repr=False, description="Lets its bearer change, too.")
    tokens: Path | None = Field(None, description="File of tokens with names, which is followed.")
    max_bytes: Count = Field(10 * 2**20, description="Largest body; of JSON 4 MiB in any case.")
    max_pixels: Count = Field(25_000_000, description="Largest image, width times height.")
    rate: Number = Field(
        200,
        description="Requests a second and client, on average, and twice as many at once; 0 for no limit.",
    )
    seconds: Annotated[Number, Field(gt=0)] = Field(
        10, description="Time for a request, and for its body to arrive."
    )
    max_connections: Count = Field(512, description="Most connections.")
    trusted_proxies: Networks = Field(
        (), description="Addresses or networks of proxies, whose X-Forwarded-For names the client."
    )
    max_reviews: Annotated[int, Field(ge=0)] = Field(
        1000,
        description="Doubtful queries that may wait for a person, and as many random checks; later ones "
        "are not kept.",
    )
    read_only: bool = Field(
        False,
        description="Whether to change nothing and follow the process that does, so that several processes "
        "can answer queries of one gallery.",
    )
    review_share: Annotated[Number, Field(le=1)] = Field(
        0, description="Share of all queries that is sampled for review, whatever was decided."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        if self.read_only and self.review_share:
            raise PydanticCustomError(
                "review_share", "it must be 0, because a service that only reads keeps no queries"
            )
        if self.read_token is not None and self.read_token == self.write_token:
            raise PydanticCustomError("read_token", "it must not be the token that may write")
        return self

    @classmethod
    def settings_customise_sources(  # type: ignore[override]
        cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where settings come from, the first one first."""
        return sources["init_settings"], sources["env_settings"], _Toml(settings_cls)

    @property
    def has_token(self) -> bool:
        """Whether there is any token; a file without entries lets nobody do anything."""
        return any(x is not None for x in (self.read_token, self.write_token, self.tokens))

    @functools.cached_property
    def keyring(self) -> "Keyring":
        """The tokens in force; it follows the file."""
        own = (("read", self.read_token, False), ("write", self.write_token, True))
        fixed = [Token(name, _digest(t), write) for name, t, write in own if t is not None]
        return Keyring(fixed, self.tokens)


class _Toml(TomlConfigSettingsSource):
    """A file of settings, whose paths begin at its folder."""

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        folder = Path(str(self.toml_file_path)).parent
        return {n: folder / x if n in PATHS and isinstance(x, str) else x for n, x in found.items()}


def configure(
    folder: Path, options: Mapping[str, Any], file: Path | None = None
) -> tuple[Settings, dict[str, str]]:
    """Return the settings in effect, and where each of them comes from.

    Args:
        folder: The default of this setting.
        options: Values that go before all others, by name; None where there is none.
        file: A TOML file, or None.

    Raises:
        InputError: If a setting is unknown or cannot be used; ``field`` is its name.
    """
    given = {name: value for name, value in options.items() if value is not None}
    written = {} if file is None else _read_toml(file, "config")
    places = dict.fromkeys(Settings.model_fields, "default") | dict.fromkeys(written, str(file))
    places |= {n: v for n in places if (v := f"{VARIABLE}{n.upper()}") in os.environ}
    places |= dict.fromkeys(given, "option")
    made = type("Settings", (Settings,), {"model_config": SettingsConfigDict(toml_file=file)})
    if places["folder"] == "default":
        given["folder"] = folder
    try:
        return made(**given), places
    except ValidationError as error:
        found = error.errors(include_input=False)[0]
        name = str(found["loc"][0]) if found["loc"] else found["type"]
        reason = f"cannot be used: {found['msg'].removeprefix('Value error, ')}"
        if found["type"] == "extra_forbidden":
            reason = f"is no setting; there are {', '.join(Settings.model_fields)}"
        raise InputError(f"{places[name]}: {name} {reason}.", field=name) from error


def unknown_variables() -> list[str]:
    """Return variables that look like settings and are none."""
    known = {f"{VARIABLE}{name.upper()}" for name in Settings.model_fields} | {*ELSEWHERE}
    return sorted(v for v in os.environ if v.startswith(VARIABLE) and v not in known)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listening(settings: Settings) -> None:
    """Require a token if the address to listen on can be reached from other machines."""
    if not settings.has_token and not is_loopback(settings.host):
        raise InputError(
            f"{settings.host} can be reached from other machines, and there is no token. Set "
            "SUREFIND_WRITE_TOKEN (and SUREFIND_READ_TOKEN), name a file of tokens with --tokens, or "
            "listen on 127.0.0.1.",
            field="host",
        )


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

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, secret: str) -> Token | None:
        """Return the token that a bearer has shown; None if there is no such one."""
        self._follow()
        given, found = _digest(secret), None
        for token in self._tokens:  # to the end, so that the time does not tell which one it was
            if hmac.compare_digest(token.digest, given):
                found = token
        return found

    def _follow(self) -> None:
        if self._file is None or (now := _version(self._file)) == self._seen:
            return
        self._seen = now
        try:
            self._tokens = (*self._fixed, *(read_tokens(self._file) if now else ()))
        except InputError as error:  # it names no token
            kept = {"reason": str(error), "effect": "the tokens before stay in force"}
            log_event("tokens not reloaded", logging.ERROR, **kept)
        else:
            log_event("tokens reloaded", tokens=len(self._tokens))


def _untaken(name: str) -> str:
    if name in TAKEN:
        raise ValueError(f"it must not be one of {', '.join(TAKEN)}")
    return name


Letters = StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
TokenName = Annotated[str, Letters, AfterValidator(_untaken)]


class TokenEntry(BaseModel, extra="forbid", hide_input_in_errors=True):
    """A table of the file of tokens."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    write: StrictBool = False


def read_tokens(file: Path) -> list[Token]:
    """Read a file of tokens; refused if it is missing, or an entry cannot be used."""
    entries = _read_entries(file).items()
    return [Token(name, bytes.fromhex(entry.sha256), entry.write) for name, entry in entries]


def make_token(file: Path, name: str, *, write: bool) -> str:
    """Make a token, keep its hash in a file, in place of an earlier one of this name, and return it.

    Args:
        file: The file of tokens; made if it is not there.
        name: Whose token.
        write: Whether its bearer may change things.

    Returns:
        The token, which is kept nowhere.

    Raises:
        InputError: If nobody may be called so, or the file cannot be used.
    """
    try:
        TypeAdapter(TokenName).validate_python(name)
    except ValidationError as error:
        raise InputError(
            f"a token cannot be called {name!r}: use up to 64 letters, digits, dots, hyphens and "
            f"underscores, and none of {', '.join(TAKEN)}.",
            field="name",
        ) from error
    secret = PREFIX + secrets.token_urlsafe(32)
    entries = _read_entries(file) if file.exists() else {}
    _write_entries(file, entries | {name: TokenEntry(sha256=_digest(secret).hex(), write=write)})
    return secret


def _read_entries(file: Path) -> dict[str, TokenEntry]:
    try:
        return TypeAdapter(dict[TokenName, TokenEntry]).validate_python(_read_toml(file, "tokens"))
    except ValidationError as error:
        raise InputError(f"{file}: {invalid_sentence(error.errors())}", field="tokens") from error


def _write_entries(file: Path, entries: dict[str, TokenEntry]) -> None:
    lines = ["# Hashes of the tokens of `surefind serve`; the tokens themselves are nowhere.\n"]
    for name, entry in sorted(entries.items()):
        write = str(entry.write).lower()
        lines.append(f'["{name}"]\nsha256 = "{entry.sha256}"\nwrite = {write}\n')
    write_atomically(file, "\n".join(lines), durable=True, private=True)


def _read_toml(file: Path, field: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file} cannot be read as TOML: {reason}.", field=field) from error


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()


def _version(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


NOTHING, READ, WRITE = 0, 1, 2


@dataclass(frozen=True)
class Caller:
    """Who asks, and what they may do: `NOTHING`, `READ` or `WRITE`."""

    name: str
    scope: int


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
