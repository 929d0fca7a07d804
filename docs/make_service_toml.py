"""Write docs/reference/service.toml, an example of settings: python docs/make_service_toml.py."""

import json
import textwrap
from pathlib import Path
from typing import Any

from surefind.service.settings import PATHS, Settings

FILE = Path(__file__).parent / "reference" / "service.toml"


def example() -> str:
    """Return a file of settings that names all of them, each explained and set to its default."""
    lines = [
        "# Settings of `surefind serve`: surefind serve GALLERY --config service.toml",
        "# Every line is the default; those without one show what may stand there. A variable of the",
        "# environment (SUREFIND_MAX_BYTES) goes before the file, and an option before both.",
        "# Paths begin at this file's folder.",
    ]
    for name, field in Settings.model_fields.items():
        meaning = field.description or ""
        lines += ["", *textwrap.wrap(meaning, 98, initial_indent="# ", subsequent_indent="# ")]
        lines += [f"# {name} = {_sample(name, field.default)}"]
    return "\n".join(lines) + "\n"


def _sample(name: str, value: Any) -> str:
    if value is None or name == "folder":
        return '"FOLDER-OR-FILE"' if name in PATHS else f'"A-SECRET-{name.upper()}"'
    return json.dumps(value)


if __name__ == "__main__":
    FILE.write_text(example(), encoding="utf-8")
