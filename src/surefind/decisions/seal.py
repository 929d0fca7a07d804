"""A checksum in what is kept of a calibration, in a gallery or a file: an edited number is noticed.

Files and servers have checksums of their own, against damage; whoever edits a value by their means leaves
these right. A lower threshold would then open as if it had been tested. The checksum here is of the
content: it says that a value is what was written, not who wrote it. A forger who knows it is not kept out.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from surefind.errors import InputError

CHECKSUM = "checksum"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value with its checksum."""
    return {**value, CHECKSUM: _checksum(value)}


def unsealed(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a value without its checksum.

    Args:
        value: What `sealed` returned, perhaps read from JSON.
        what: Its name in the message.

    Returns:
        The value.

    Raises:
        InputError: If it is not what was sealed.
    """
    plain = {name: part for name, part in value.items() if name != CHECKSUM}
    if value.get(CHECKSUM) != _checksum(plain):
        raise InputError(
            f"{what} was changed since it was made, or is of another version, so that it promises nothing; "
            "calibrate again.",
            field="stored",
        )
    return plain


def _checksum(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()
