"""Small pictures of items and queries, beside the gallery.

A picture's name is a hash, so that an id can be any text. A picture is written beside its place and moved
there. It is a comfort, not a record: nothing depends on it.

Where a payload has a ``"path"``, the picture can also come from a folder that the service was given; a path
that leads out of that folder leads nowhere.
"""

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from surefind.gallery.engine import Id
from surefind.service.images import check_header, small_picture
from surefind.service.problems import RefusedError


class Thumbnails:
    """The pictures of one service.

    Args:
        folder: Where they are kept; made if need be.
        images: Where the paths of payloads begin, or None.
        max_pixels: Largest image that is made small.
    """

    def __init__(self, folder: Path, images: Path | None, max_pixels: int) -> None:
        self._folder, self._max_pixels = folder, max_pixels
        self._images = None if images is None else images.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        self._seen: set[str] = (
            set()
        )  # paths of payloads; a file that goes later is missed when read
        self._known = {path.stem for path in folder.glob("*.webp")}

    def has(self, id_: Id, payload: Any = None) -> bool:
        """Tell whether there is a picture of an item."""
        # Every neighbour of every search is asked for, so what is cheap comes first.
        if self._known and _name(id_) in self._known:
            return True
        named = payload.get("path") if isinstance(payload, dict) else None
        if self._images is None or not isinstance(named, str):
            return False
        if named not in self._seen and self._source(payload) is not None:
            self._seen.add(named)
        return named in self._seen

    def keep(self, id_: Id, picture: bytes) -> None:
        """Keep the picture of an item or a query."""
        name = _name(id_)
        beside = self._folder / f".{name}.tmp"
        beside.write_bytes(picture)
        os.replace(beside, self._path(name))
        self._known.add(name)

    def drop(self, id_: Id) -> None:
        """Forget the picture of an item."""
        self._known.discard(_name(id_))
        self._path(_name(id_)).unlink(missing_ok=True)

    def read(self, id_: Id, payload: Any = None) -> bytes:
        """Read the picture of an item.

        Args:
            id_: The item's id.
            payload: Its payload, which may name a file.

        Returns:
            A WebP file.

        Raises:
            RefusedError: If there is none.
        """
        name, source = _name(id_), self._source(payload)
        try:
            if name in self._known:
                return self._path(name).read_bytes()
            if source is not None:
                check_header(source.read_bytes(), self._max_pixels)
                return small_picture(source, self._max_pixels)
        except OSError:
            pass
        raise RefusedError(404, "there is no picture of this.")

    def _source(self, payload: Any) -> Path | None:
        named = payload.get("path") if isinstance(payload, dict) else None
        if self._images is None or not isinstance(named, str) or "\0" in named:
            return None
        path = (self._images / named).resolve()
        return path if path.is_relative_to(self._images) and path.is_file() else None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.webp"


@functools.lru_cache(maxsize=2**16)
def _name(id_: Id) -> str:
    return hashlib.blake2b(json.dumps(id_).encode(), digest_size=16).hexdigest()
