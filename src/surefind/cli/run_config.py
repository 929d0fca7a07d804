"""What was asked for when a run was made, in its config.toml: a flat table of settings.

A number, a text, a truth value and a list of them are written in TOML as in JSON.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefind.errors import InputError
from surefind.files import write_whole

FORMAT = 1
CONFIG = "config.toml"


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.toml.

    Args:
        folder: The run.

    Returns:
        Its settings.

    Raises:
        InputError: If it is damaged, or of another format.
    """
    file = folder / CONFIG
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is damaged ({error}). Take the run from a backup.") from error
    if config.get("format") != FORMAT:
        raise InputError(
            f"the run in {folder} is of format {config.get('format')!r}; this version of surefind reads "
            f"{FORMAT}. Use the version that wrote it: {config.get('surefind', 'unknown')}."
        )
    return config


def write_config(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write a run's config.toml.

    Args:
        folder: The run.
        settings: Numbers, texts, truth values, and lists of them.

    Returns:
        What is written: the settings, after the format.
    """
    config = {"format": FORMAT, **settings}
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in config.items()]
    write_whole(folder / CONFIG, "".join(lines))
    return config
