"""Files of results: the name's suffix decides the format, and a file is written whole or not at all."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from surefind.checks import require
from surefind.cli.preflight import check_file
from surefind.files import write_atomically

PARQUET = ".parquet"


def check_out(file: Path | None, suffixes: Sequence[str]) -> None:
    """Require a file that can be written, if there is to be one, before anything long."""
    if file is None:
        return
    check_file(file, suffixes)
    if file.suffix.lower() == PARQUET:
        require("pyarrow.parquet", "write Parquet files")


def write_out(file: Path, formats: Mapping[str, Callable[[], Any]]) -> None:
    """Write a file in the format that its suffix says, and make its folder if need be.

    Args:
        file: Its suffix is one of the formats.
        formats: By suffix, what makes the content: text, or for ``.parquet`` a table of Arrow.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    suffix = file.suffix.lower()
    content = formats[suffix]()
    if suffix == PARQUET:
        write = require("pyarrow.parquet", "write Parquet files").write_table
        write_atomically(file, lambda beside: write(content, beside))
    else:
        write_atomically(file, content)


def csv_lines(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table as CSV; what is None is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()
