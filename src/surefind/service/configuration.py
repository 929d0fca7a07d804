"""Where a service's settings come from: an option, the environment, a file, or the default, in this order.

The table of names is `Settings`: its field ``max_bytes`` is the same in the file, ``SUREFIND_MAX_BYTES``
in the environment and ``--set max_bytes=…`` at the command line, where the common ones have an option of
their own. What is unknown, or cannot be used, is refused with its place and its name.

The file is flat TOML. A path in it begins at the file's folder, others at the working directory. In the
environment, lists are separated by commas.
"""

import dataclasses
import inspect
import json
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from surefind.errors import InputError
from surefind.service.settings import Settings

VARIABLE = "SUREFIND_"
"""What the name of a variable begins with."""
ELSEWHERE = ("SUREFIND_CONFIG", "SUREFIND_DATA")
"""Variables that are no settings: where the file is, and where data sets are."""
DEFAULT = "default"
FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
HINTS = get_type_hints(Settings)


@dataclass(frozen=True)
class Given:
    """A value that was given for a setting, and where."""

    name: str
    value: Any
    place: str


@dataclass(frozen=True)
class Configured:
    """Settings in effect.

    Attributes:
        settings: They.
        places: Where each came from, by name.
    """

    settings: Settings
    places: Mapping[str, str]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return name, value and place of each setting; tokens are hidden."""
        return [
            (name, shown(name, getattr(self.settings, name)), self.places[name]) for name in FIELDS
        ]


def shown(name: str, value: Any) -> str:
    """Return the value of a setting for people; a token is hidden."""
    if value is None:
        return "none"
    if is_secret(name):
        return "hidden"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def is_secret(name: str) -> bool:
    """Return whether nobody may see the value of a setting."""
    return name.endswith("_token")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{VARIABLE}{name.upper()}"


def configure(
    defaults: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    assigned: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Configured:
    """Find the settings in effect.

    Args:
        defaults: In place of the usual ones, by name; at least ``folder``.
        options: Of the command line, by name; None where one was not given.
        assigned: More of them, each ``NAME=VALUE``.
        environment: Variables; those of settings are used.
        file: A file of settings, or None.

    Returns:
        The settings, and where each came from.

    Raises:
        InputError: If something is unknown or cannot be used; it names the place and the setting.
    """
    given = [
        *([] if file is None else _from_file(file)),
        *_from_environment(environment or {}),
        *(
            Given(name, value, f"option --{name.replace('_', '-')}")
            for name, value in (options or {}).items()
            if value is not None
        ),
        *map(_from_assignment, assigned),
    ]
    settings = Settings(**defaults)
    places = dict.fromkeys(FIELDS, DEFAULT)
    for one in given:  # the last one counts
        try:
            settings = dataclasses.replace(settings, **{one.name: one.value})
        except InputError as error:
            raise InputError(f"{one.place}: {one.name}: {error}", field=one.name) from error
        places[one.name] = one.place
    return Configured(settings, places)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return variables that look like settings and are none: perhaps misspelt."""
    known = {variable(name) for name in FIELDS} | {*ELSEWHERE}
    return sorted(v for v in environment if v.startswith(VARIABLE) and v not in known)


def example() -> str:
    """Return a file of settings that names all of them, each explained and set to its default."""
    lines = [
        "# Settings of `surefind serve`: surefind serve GALLERY --config service.toml",
        "# Every line is the default; those without one show what may stand there. A variable of the",
        "# environment (SUREFIND_MAX_BYTES) goes before the file, and an option before both.",
        "# Paths begin at this file's folder.",
    ]
    for name, meaning in meanings().items():
        lines += ["", *textwrap.wrap(meaning, 98, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"# {name} = {_sample(name)}"]
    return "\n".join(lines) + "\n"


def meanings() -> dict[str, str]:
    """Return what each setting means, from the docstring of `Settings`."""
    section = (inspect.getdoc(Settings) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): ((?:.|\n(?= {8}))*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _sample(name: str) -> str:
    value = FIELDS[name].default
    if value is None or value is dataclasses.MISSING:
        return '"FOLDER-OR-FILE"' if Path in _kinds(name) else '"…"'
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _kinds(name: str) -> tuple[Any, ...]:
    return get_args(HINTS[name]) or (HINTS[name],)


def _from_file(file: Path) -> list[Given]:
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file} cannot be read as TOML: {reason}.", field="config") from error
    found = []
    for name, value in entries.items():
        _check_known(name, str(file))
        try:
            # JSON, because in it a path is a string and a list a tuple, and nothing else is converted.
            text = json.dumps(value, allow_nan=False)
            read = TypeAdapter(HINTS[name]).validate_json(text, strict=True)
        except (TypeError, ValueError) as error:
            raise _unusable(name, str(file), error) from error
        found.append(Given(name, _within(file.parent, read), str(file)))
    return found


def _within(folder: Path, value: Any) -> Any:
    return folder / value if isinstance(value, Path) else value


def _from_environment(environment: Mapping[str, str]) -> list[Given]:
    there = [name for name in FIELDS if variable(name) in environment]
    return [_from_text(name, environment[variable(name)], variable(name)) for name in there]


def _from_assignment(text: str) -> Given:
    name, equals, value = text.partition("=")
    place = "option --set"
    if not equals:
        raise InputError(f"{place} needs NAME=VALUE; got {text!r}.", field="set")
    _check_known(name, place)
    return _from_text(name, value, place)


def _from_text(name: str, text: str, place: str) -> Given:
    kind = TypeAdapter(HINTS[name])
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        read = kind.validate_python(parts) if _is_list(name) else kind.validate_strings(text)
    except ValueError as error:
        raise _unusable(name, place, error) from error
    if isinstance(read, float) and not math.isfinite(read):
        raise _unusable(name, place, ValueError("it is no finite number"))
    return Given(name, read, place)


def _is_list(name: str) -> bool:
    return get_origin(HINTS[name]) is tuple


def _check_known(name: str, place: str) -> None:
    if name not in FIELDS:
        raise InputError(
            f"{place}: {name} is no setting; there are {', '.join(FIELDS)}.", field=name
        )


def _unusable(name: str, place: str, error: Exception) -> InputError:
    # pydantic's own text would repeat the value, which may be a token.
    reason = error.errors()[-1]["msg"] if isinstance(error, ValidationError) else str(error)
    return InputError(f"{place}: {name} cannot be used: {reason}.", field=name)
