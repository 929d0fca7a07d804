"""What a benchmark left behind, read and checked: cells of data set × row × seed.

A cell is the file ``{folder}/{set}/{row}-seed{seed}.json``. Refused, with the file's name: a cell that is
no whole JSON, lacks what a table needs, holds NaN or infinity, or says that it is another cell than its
file name says; and cells of one set that were measured by different protocols or on different data, since
their numbers do not compare. The former can also be left out, with a sentence about each. Cells of
different versions are read: the report says so over the table.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from surefind.errors import InputError
from surefind.evaluation.report.vocabulary import (
    METRICS,
    Kind,
    Metric,
    kind_of,
    metric_of,
    row_order,
)

Series = Mapping[str, Sequence[float | int]]
"""Lists of numbers by name."""
TABLES = ("values", "protocol", "examples", "versions")
NEEDED = ("set", "row", "seed", *TABLES)
MEASURED = ("values", "intervals", "curves", "kappa", "corruptions")
SAME = {"protocol": "by different protocols", "examples": "on different data"}
"""What the cells of one set must share, and what it means if they do not."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One row of one data set with one seed.

    Attributes:
        file: Where it was read.
        row: The method, free baseline or row of the ablation.
        seed: The seed.
        values: Each metric by name.
        intervals: Bootstrap intervals over queries, (low, high) by name.
        curves: Points to draw, x and y by name.
        kappa: Histogram of log10 κ: edges, id, ood; None if the row has no κ.
        corruptions: Uncertainty against strength by kind.
        protocol: How it was trained.
        examples: Sizes of the parts.
        versions: Of the libraries.
        ood: The out-of-distribution set: its name, and which part of it.
        left_out: Queries that no ranking metric counts.
    """

    file: Path
    row: str
    seed: int
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    curves: Mapping[str, Series]
    kappa: Series | None
    corruptions: Mapping[str, Series]
    protocol: Mapping[str, Any]
    examples: Mapping[str, int]
    versions: Mapping[str, str]
    ood: tuple[str, ...]
    left_out: int


@dataclass(frozen=True, eq=False)
class ResultSet:
    """All cells of one data set.

    Attributes:
        name: The data set.
        cells: Ordered by row, then seed.
    """

    name: str
    cells: tuple[Cell, ...]

    def rows(self, *kinds: Kind) -> dict[str, tuple[Cell, ...]]:
        """Give the cells of each row of some kinds, in the order of the tables."""
        return {
            row: tuple(cells)
            for row, cells in groupby(self.cells, lambda c: c.row)
            if kind_of(row) in kinds
        }

    def metrics(self, *kinds: Kind) -> list[Metric]:
        """Give the metrics that some cell of these kinds has, known ones first."""
        present = {m for cells in self.rows(*kinds).values() for c in cells for m in c.values}
        known = [m.name for m in METRICS]
        extra = sorted(present - set(known) - {"map@1"})
        return [metric_of(name) for name in [*(k for k in known if k in present), *extra]]

    @property
    def versions(self) -> dict[str, tuple[str, ...]]:
        """Give the files of each version of surefind."""
        found: dict[str, list[str]] = {}
        for cell in self.cells:
            found.setdefault(str(cell.versions.get("surefind", "unknown")), []).append(
                cell.file.name
            )
        return {version: tuple(files) for version, files in sorted(found.items())}


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a folder of results.

    Attributes:
        folder: Where it was read.
        sets: One entry per data set, ordered by name.
    """

    folder: Path
    sets: tuple[ResultSet, ...]


def read_results(folder: Path, *, on_bad: Callable[[str], None] | None = None) -> Results:
    """Read and check all cells of a folder.

    Args:
        folder: Holds ``{set}/{row}-seed{seed}.json``.
        on_bad: Called with a sentence for each cell that cannot be used and is left out; None refuses it.

    Returns:
        The results.

    Raises:
        InputError: If there is no cell, a cell cannot be used, or cells of one set do not compare.
    """
    files = sorted(p for p in folder.glob("*/*-seed*.json") if not p.name.startswith("."))
    if not files:
        raise InputError(
            f"{folder} holds no results ({{set}}/{{row}}-seed{{n}}.json). "
            f"Make some: surefind bench digits --out {folder}."
        )
    read: list[Cell] = []
    for file in files:
        try:
            read.append(_cell(file))
        except InputError as error:
            if on_bad is None:
                raise
            on_bad(f"left out: {error}")
    if not read:
        raise InputError(f"none of the {len(files)} cells in {folder} can be used.")
    sets = []
    for name, group in groupby(read, lambda c: c.file.parent.name):
        cells = tuple(sorted(group, key=lambda c: (row_order(c.row), c.seed)))
        for key, how in SAME.items():
            _check_same(name, cells, key, how)
        sets.append(ResultSet(name, cells))
    return Results(folder, tuple(sets))


def _cell(file: Path) -> Cell:
    raw = read_cell(file)
    ood = raw["protocol"].get("ood", raw.get("ood", "")) or ""
    return Cell(
        file=file,
        row=raw["row"],
        seed=raw["seed"],
        values={k: float(v) for k, v in raw["values"].items()},
        intervals={
            k: (float(low), float(high)) for k, (low, high) in (raw.get("intervals") or {}).items()
        },
        curves=raw.get("curves") or {},
        kappa=raw.get("kappa") or None,
        corruptions=raw.get("corruptions") or {},
        protocol=raw["protocol"],
        examples=raw["examples"],
        versions=raw["versions"],
        ood=(ood,) if isinstance(ood, str) else tuple(map(str, ood)),
        left_out=raw.get("left_out") or 0,
    )


def read_cell(file: Path) -> dict[str, Any]:
    """Read and check a cell.

    Args:
        file: Its file.

    Returns:
        What it holds.

    Raises:
        InputError: If it is damaged, or another cell than its name says.
    """
    again = "Delete it, and the same surefind bench command makes it anew."
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is not a whole result ({error}). {again}") from error
    missing = [k for k in NEEDED if k not in raw] if isinstance(raw, dict) else list(NEEDED)
    if missing:
        raise InputError(f"{file} is not a whole result: it lacks {', '.join(missing)}. {again}")
    wrong = _misshapen(raw)
    if wrong:
        raise InputError(f"{file}: {', '.join(wrong)} has not the form of a result. {again}")
    for path, value in (pair for key in MEASURED for pair in _leaves(key, raw.get(key))):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise InputError(f"{file}: {path} is {value!r}, which is no finite number. {again}")
    says = f"{raw['set']}/{raw['row']}-seed{raw['seed']}.json"
    if says != f"{file.parent.name}/{file.name}":
        raise InputError(
            f"{file} says that it is {says}: it was moved or renamed. Put it back, or delete it."
        )
    return raw


def _misshapen(raw: dict[str, Any]) -> list[str]:
    """Name the parts of a cell that have another form than the benchmark writes."""
    kinds = {"row": str, "seed": int} | dict.fromkeys(TABLES, dict)
    kinds |= {k: dict for k in MEASURED if raw.get(k) is not None}
    kinds |= {"left_out": int} if "left_out" in raw else {}
    wrong = [k for k, kind in kinds.items() if type(raw[k]) is not kind]
    if wrong or not raw["values"]:
        return wrong or ["values"]
    kappa = raw.get("kappa") or {"edges": [0, 1], "id": [1]}
    bins = _lengths(kappa, "id", *(kappa.keys() - {"edges"}))
    damage = ("strength", "median", "low", "high")
    fit = {
        "intervals": all(isinstance(v, list) and len(v) == 2 for v in _inner(raw, "intervals")),
        "curves": all(_even(_lengths(c, "x", "y")) for c in _inner(raw, "curves")),
        "kappa": _even(bins) and _lengths(kappa, "edges") == {n + 1 for n in bins},
        "corruptions": all(_even(_lengths(c, *damage)) for c in _inner(raw, "corruptions")),
    }
    return [name for name, fits in fit.items() if not fits]


def _even(lengths: set[int]) -> bool:
    return len(lengths) == 1 and min(lengths) > 0


def _inner(raw: dict[str, Any], key: str) -> list[Any]:
    return list((raw.get(key) or {}).values())


def _lengths(series: Any, *names: str) -> set[int]:
    """Give the lengths of lists; -1 stands for what is no list."""
    found = (series.get(n) if isinstance(series, dict) else None for n in names)
    return {len(v) if isinstance(v, list) else -1 for v in found}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Walk down to the numbers, and say where each one is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(f"{path}[{i}]", inner)
    elif value is not None or "." in path:
        yield path, value


def _check_same(name: str, cells: tuple[Cell, ...], key: str, how: str) -> None:
    groups: dict[str, list[str]] = {}
    for cell in cells:
        groups.setdefault(json.dumps(getattr(cell, key), sort_keys=True), []).append(cell.file.name)
    if len(groups) > 1:
        # The smaller groups are the likely strangers: name those in full.
        most, *others = sorted(groups.items(), key=lambda g: -len(g[1]))
        named = "; ".join(f"{', '.join(files)} {value}" for value, files in others)
        raise InputError(
            f"the cells of {name} were measured {how}, and do not compare: {named}; "
            f"{len(most[1])} others such as {most[1][0]} {most[0]}. "
            "Move one kind to another folder, or delete it and run surefind bench again."
        )
