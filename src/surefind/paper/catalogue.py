"""The sets that can be asked for by name: load one, or check that it is whole.

Nothing is downloaded. A set that is not there is answered by one sentence: what to get, and where to
put it. `check` compares what is there with what the publisher announces: examples and classes of each
part, and SHA-256 sums of those files whose bytes are fixed and were seen by the authors. It decodes every
image file once.

`ENTRIES` is the one list of the sets' names, read from ``catalogue.toml``; it needs no PyTorch until a set
is loaded.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from surefind.errors import InputError, SurefindError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset, Splits


@dataclass(frozen=True, eq=False)
class Entry:
    """One set of the catalogue.

    Attributes:
        title: Its name as its publisher writes it.
        short: Its name in tables and figures.
        loader: The function that loads it from a folder, by its dotted name.
        markers: Patterns of files of which one must be there.
        get: What to get, to complete "get …".
        counts: Examples of each part as published.
        n_classes: Classes of each part as published, where that is fixed.
        checksums: SHA-256 of files, by name.
        system: Folders where a package manager puts it.
        classes: Names of its classes by label, where its files do not hold them.
    """

    title: str
    short: str
    loader: str
    markers: Sequence[str]
    get: str
    counts: Mapping[str, int]
    n_classes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    system: Sequence[str] = ()
    classes: Sequence[str] = ()


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENTRIES: Mapping[str, Entry] = {name: Entry(**fields) for name, fields in _TABLE.items()}
"""Every set by the name that `load` takes."""


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
        found_by: The marker of the layout that was found; empty if it comes with a library.
        published: What the catalogue knows of the set.
        decoded: Image files that were decoded, good or bad; 0 if it has none or they were not to be.
    """

    title: str
    folder: Path | None
    counts: Mapping[str, int]
    n_classes: Mapping[str, int]
    checksums: Mapping[str, str]
    problems: tuple[str, ...]
    found_by: str
    published: Entry
    decoded: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything is as published."""
        return not self.problems

    @property
    def compared(self) -> tuple[str, ...]:
        """What was compared with what is published, in words."""
        kinds = {
            "examples": self.published.counts.keys() & self.counts.keys(),
            "classes": self.published.n_classes.keys() & self.n_classes.keys(),
            "checksums": self.checksums,
        }
        return tuple(kind for kind, found in kinds.items() if found)


def load(name: str, folder: str | Path | None = None) -> "Splits":
    """Load a set by its name.

    Args:
        name: One of `ENTRIES`.
        folder: The set's folder, or the folder that holds it under its name. None looks only where
            a package manager may have put it.

    Returns:
        The parts.
    """
    return _load(_entry(name), find(name, folder))


def check(name: str, folder: str | Path | None = None, *, decode: bool = True) -> CheckReport:
    """Compare a set with what its publisher announces.

    Args:
        name: One of `ENTRIES`.
        folder: As for `load`.
        decode: Whether every image file is decoded once.

    Returns:
        Counts, checksums, and what is wrong with them. A part that is not there is a problem too, and so is
        a file that cannot be decoded.
    """
    entry, place = _entry(name), find(name, folder)
    # Sums first: they say of a damaged file that it is damaged, also when it cannot be loaded.
    sums, problems = _checked_sums(entry, place)
    found_by = next((m for m in entry.markers if place and next(place.glob(m), None)), "")
    try:
        parts = _load(entry, place).parts
    except InputError as error:
        problems.append(str(error))
        return CheckReport(entry.title, place, {}, {}, sums, tuple(problems), found_by, entry)
    counts = {name: len(part) for name, part in parts.items()}
    labels = {name: part.labels for name, part in parts.items() if part.labels is not None}
    n_classes = {name: len(values.unique()) for name, values in labels.items()}
    compared = (("examples", entry.counts, counts), ("classes", entry.n_classes, n_classes))
    problems += [
        f"part {part!r} has {found[part]} {what} where {n} are published."
        for what, expected, found in compared
        for part, n in expected.items()
        if part in found and found[part] != n
    ]
    problems += [
        f"part {p!r} is not there ({n} examples)."
        for p, n in entry.counts.items()
        if p not in counts
    ]
    decoded = 0
    if decode:
        decoded, unreadable = _decoded(parts.values())
        problems += unreadable
    told = (entry.title, place, counts, n_classes, sums, tuple(problems))
    return CheckReport(*told, found_by, entry, decoded)


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """Return the folder of a set, found as `load` finds it; None for a set that comes with a library."""
    entry = _entry(name)
    if not entry.markers:
        return None
    given = [] if folder is None else [Path(folder) / name, Path(folder)]
    for place in (*given, *map(Path, entry.system)):
        if any(next(place.glob(pattern), None) for pattern in entry.markers):
            return place
    target = "a folder of your choice, and give that folder" if folder is None else str(given[0])
    where = "is not there: no folder was given" if folder is None else f"is not in {folder}"
    raise InputError(
        f"{entry.title} {where}; get {entry.get} and put it in {target}.",
        field="folder",
        hint="Get it, and set data to that folder." if folder is None else None,
    )


def _entry(name: str) -> Entry:
    from surefind.checks import check_choice

    check_choice("name", name, ENTRIES)
    return ENTRIES[name]


def _load(entry: Entry, place: Path | None) -> "Splits":
    module, _, name = entry.loader.rpartition(".")
    loader = getattr(import_module(module), name)
    try:
        loaded: Splits = loader() if place is None else loader(place)
    except SurefindError:
        raise
    except Exception as error:  # a loader of broken files raises whatever it trips over
        raise InputError(
            f"{entry.title} in {place} is damaged, half copied or not as published "
            f"({type(error).__name__}: {error}). Get {entry.get} again.",
            field="folder",
        ) from error
    return loaded


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


def _decoded(parts: "Iterable[Dataset]") -> tuple[int, list[str]]:
    """Decode the files of all parts once; return how many there are, and a sentence for each bad one."""
    from surefind.data.images import ImageFiles, verify_images

    files = [p.inputs for p in parts if isinstance(p.inputs, ImageFiles)]
    paths = dict.fromkeys(path for inputs in files for path in inputs.paths)
    bad = verify_images(ImageFiles(paths), on_bad="skip")
    return len(paths), [*bad.values()]
