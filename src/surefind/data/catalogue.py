"""The sets that can be asked for by name: load one, or check that it is whole.

Nothing is downloaded. A set that is not there is answered by one sentence: what to get, and where to
put it. `check` compares what is there with what the publisher announces: examples and classes of each
part, and SHA-256 sums of those files whose bytes are fixed and were seen by the authors.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefind.data.published import ENTRIES, Entry
from surefind.data.splits import Splits
from surefind.errors import InputError
from surefind.validation import check_choice


@dataclass(frozen=True, eq=False)
class CheckReport:
    """What `check` found.

    Attributes:
        title: The set.
        folder: Where it was found; None if it comes with a library.
        counts: Examples of each part that is there.
        n_classes: Classes that occur in each part that has labels.
        checksums: ``"ok"`` or ``"differs"`` for each file with a known sum that is there.
        problems: What is not as published, in sentences; empty if all is well.
    """

    title: str
    folder: Path | None
    counts: Mapping[str, int]
    n_classes: Mapping[str, int]
    checksums: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as published."""
        return not self.problems


def set_names() -> tuple[str, ...]:
    """List the sets that can be asked for."""
    return tuple(ENTRIES)


def load(name: str, folder: str | Path | None = None) -> Splits:
    """Load a set by name.

    Args:
        name: One of `set_names`.
        folder: The set's folder, or the folder that holds it under its name. None looks only where
            a package manager may have put it.

    Returns:
        Its parts.
    """
    return _load(_entry(name), find(name, folder))


def check(name: str, folder: str | Path | None = None) -> CheckReport:
    """Compare a set with what its publisher announces.

    Args:
        name: One of `set_names`.
        folder: As for `load`.

    Returns:
        Counts, checksums, and what is wrong with them. A part that is not there is a problem too.
    """
    entry, place = _entry(name), find(name, folder)
    # Sums first: they say of a damaged file that it is damaged, also when it cannot be loaded.
    sums, problems = _checked_sums(entry, place)
    counts: dict[str, int] = {}
    n_classes: dict[str, int] = {}
    try:
        parts = _load(entry, place)
    except InputError as error:
        problems.append(str(error))
        return CheckReport(entry.title, place, counts, n_classes, sums, tuple(problems))
    for part in parts:
        counts[part] = len(parts[part])
        if parts[part].labels is not None:
            n_classes[part] = len(parts[part].labels.unique())
    for what, expected, found in (
        ("examples", entry.counts, counts),
        ("classes", entry.n_classes, n_classes),
    ):
        problems += [
            f"part {part!r} has {found[part]} {what} where {n} are published."
            for part, n in expected.items()
            if part in found and found[part] != n
        ]
    problems += [
        f"part {p!r} is not there ({n} examples)."
        for p, n in entry.counts.items()
        if p not in counts
    ]
    return CheckReport(entry.title, place, counts, n_classes, sums, tuple(problems))


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """Say where a set is.

    Args:
        name: One of `set_names`.
        folder: As for `load`.

    Returns:
        Its folder; None for a set that comes with a library.

    Raises:
        InputError: If it is in none of the places.
    """
    entry = _entry(name)
    if not entry.markers:
        return None
    given = [] if folder is None else [Path(folder) / name, Path(folder)]
    for place in (*given, *map(Path, entry.system)):
        if any(next(place.glob(pattern), None) for pattern in entry.markers):
            return place
    target = "a folder of your choice, and give that folder" if folder is None else str(given[0])
    where = "is not there: no folder was given" if folder is None else f"is not in {folder}"
    raise InputError(f"{entry.title} {where}; get {entry.get} and put it in {target}.")


def _entry(name: str) -> Entry:
    check_choice("name", name, ENTRIES)
    return ENTRIES[name]


def _load(entry: Entry, place: Path | None) -> Splits:
    return entry.loader(place if place is not None else Path())


def _checked_sums(entry: Entry, place: Path | None) -> tuple[dict[str, str], list[str]]:
    sums, problems = {}, []
    for file, expected in entry.checksums.items():
        if place is None or not (place / file).is_file():
            continue
        with (place / file).open("rb") as stream:
            same = hashlib.file_digest(stream, "sha256").hexdigest() == expected
        sums[file] = "ok" if same else "differs"
        if not same:
            problems.append(f"{place / file} is not the published file: its SHA-256 differs.")
    return sums, problems
