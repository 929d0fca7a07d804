"""Untrusted images, decoded and embedded within bounds, and small pictures beside the gallery.

What a file is decides its content, not its name: PNG, JPEG, WebP, GIF or BMP. Anything else is no image
here; SVG and HTML can hold programs and are never decoded. Width times height is read from the header and
refused before a pixel is decoded. The rest (upright, alpha over white, CMYK, 16 bits, first frame) is done
as for training, by `surefind.data.images`.

A small picture's name is a hash, so that an id can be any text. It is a comfort, not a record: nothing
depends on it. Where a payload has a ``"path"``, the picture can also come from a folder that the service
was given; a path that leads out of that folder leads nowhere.

An upload is prepared by itself, as for training (`surefind.data.inputs.InputSpec`); all that wait are
embedded in one pass.
"""

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from starlette.responses import Response

from surefind.data.batches import like_network
from surefind.data.images import Frame, decode_image, full_frame
from surefind.data.inputs import InputSpec
from surefind.embeddings import Embeddings
from surefind.errors import InputError, StorageError
from surefind.gallery.records import Id
from surefind.service.wire import RefusedError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
THUMBNAIL = 160
"""Longest side of a small picture."""
INSPECTED = 800
"""Longest side of the picture of a query that a person has to decide about."""
LOSSLESS = 64
"""Longest side up to which a small picture is kept exactly: in tiny images every pixel counts."""


def check_header(data: bytes, max_pixels: int) -> int:
    """Require an image of a known format, of at most ``max_pixels`` pixels; return how many it has."""
    if not data:
        raise RefusedError(422, "the file is empty; send an image.")
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width, height = max_pixels + 1, 1
    except Exception as error:  # decoders of broken files raise whatever their parsing trips over
        sentence = f"this is no image of a known format; send {', '.join(FORMATS)}."
        raise RefusedError(415, sentence) from error
    if width * height > max_pixels:
        raise RefusedError(413, f"an image may have {max_pixels:,} pixels at most; shrink it.")
    return width * height


@contextmanager
def refusing_broken() -> Iterator[None]:
    """Refuse what cannot be decoded with a sentence for whoever sent it."""
    try:
        yield
    except InputError as error:
        sentence = "the image cannot be decoded: it is damaged, cut off or of an unusual kind."
        raise RefusedError(422, sentence) from error


def small_picture(data: bytes, max_pixels: int, longest: int = THUMBNAIL) -> bytes:
    """Make a picture of an upload, a WebP file, for the page; its sides are ``longest`` at most."""
    check_header(data, max_pixels)
    with refusing_broken():
        framing = functools.partial(_fitted, longest)
        pixels = decode_image(data, max_pixels=max_pixels, framing=framing)
    out, exact = BytesIO(), max(pixels.shape[:2]) <= LOSSLESS
    Image.fromarray(pixels).save(out, "WEBP", lossless=exact, quality=85)
    return out.getvalue()


def _fitted(longest: int, width: int, height: int) -> Frame:
    scale = min(1.0, longest / max(width, height))
    return full_frame(max(1, round(width * scale)), max(1, round(height * scale)))


class Thumbnails:
    """The pictures of one service.

    Args:
        folder: Where they are kept; made when the first one is.
        images: Where the paths of payloads begin, or None.
        max_pixels: Largest image that is made small.
    """

    def __init__(self, folder: Path, images: Path | None, max_pixels: int) -> None:
        self._folder, self._max_pixels = folder, max_pixels
        self._images = None if images is None else images.resolve()
        # Paths of payloads; a file that goes later is missed when read.
        self._seen: set[str] = set()
        self._known: set[str] = set()
        self.look_again()

    def look_again(self) -> None:
        """Find the pictures that are there, which another process may have kept or dropped."""
        self._known = {path.stem for path in self._folder.glob("*.webp")}

    def has(self, id_: Id, payload: Any = None) -> bool:
        """Return whether there is a picture of an item."""
        # Every neighbour of every search is asked for, so what is cheap comes first.
        if self._known and _name(id_) in self._known:
            return True
        named = payload.get("path") if isinstance(payload, dict) else None
        if self._images is None or not isinstance(named, str):
            return False
        if named not in self._seen and self._source(payload) is not None:
            self._seen.add(named)
        return named in self._seen

    @contextmanager
    def staged(self, picture: bytes) -> Iterator[Callable[[Id], None]]:
        """Write a picture that gets its place when what it shows has been kept, and goes if that fails.

        Yields:
            What gives it its place, and cannot fail: rather than another picture, there is none then.

        Raises:
            StorageError: If it cannot be written.
        """
        beside = self._folder / f".{uuid.uuid4().hex}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside.write_bytes(picture)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise StorageError(f"a picture cannot be kept: {error}. Make room.") from error

        def place(id_: Id) -> None:
            try:
                os.replace(beside, self._path(_name(id_)))
                self._known.add(_name(id_))
            except OSError:
                self.drop(id_)

        try:
            yield place
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def keep(self, id_: Id, picture: bytes) -> None:
        """Keep the picture of an item or a query."""
        with self.staged(picture) as place:
            place(id_)

    def drop(self, id_: Id) -> None:
        """Forget the picture of an item."""
        self._known.discard(_name(id_))
        with suppress(OSError):
            self._path(_name(id_)).unlink(missing_ok=True)

    def read(self, id_: Id, payload: Any = None) -> bytes:
        """Read the picture of an item, a WebP file; its payload may name the image."""
        name, source = _name(id_), self._source(payload)
        try:
            if name in self._known:
                return self._path(name).read_bytes()
            if source is not None:
                return small_picture(source.read_bytes(), self._max_pixels)
        except OSError:
            pass
        raise RefusedError(404, "there is no picture of this.")

    def _source(self, payload: Any) -> Path | None:
        named = payload.get("path") if isinstance(payload, dict) else None
        if self._images is None or not isinstance(named, str):
            return None
        try:
            path = (self._images / named).resolve()
            return path if path.is_relative_to(self._images) and path.is_file() else None
        except (OSError, ValueError, RuntimeError):
            # Too long, not to be encoded, a loop of links: nothing that could be a file.
            return None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.webp"


def picture_response(picture: bytes) -> Response:
    """Return an answer that is a small picture."""
    return Response(picture, media_type="image/webp", headers={"Cache-Control": "no-cache"})


@functools.lru_cache(maxsize=2**16)
def _name(id_: Id) -> str:
    return hashlib.blake2b(json.dumps(id_).encode(), digest_size=16).hexdigest()


@runtime_checkable
class Learner(Protocol):
    """What is needed of `surefind.MetricLearner`."""

    encoder: Any
    input_spec_: InputSpec

    def embed_batch(self, batch: torch.Tensor) -> Embeddings:
        """Embed a batch as the network takes it."""


class ImageEmbedder:
    """A fitted learner for uploads of at most ``max_pixels`` pixels."""

    def __init__(self, learner: Learner, max_pixels: int) -> None:
        self._learner, self._max_pixels = learner, max_pixels

    def read(self, data: bytes) -> np.ndarray:
        """Check an upload and prepare it as the model wants it: float32 (c, h, w)."""
        spec = self._learner.input_spec_
        if spec.mode is None:
            raise RefusedError(422, "the model of this service does not take image files.")
        check_header(data, self._max_pixels)
        with refusing_broken():
            image: np.ndarray = spec.prepare(data, max_pixels=self._max_pixels)[0].numpy()
        return image

    def embed(self, images: list[np.ndarray]) -> Sequence[Embeddings | Exception]:
        """Embed what `read` returned, images of one size in one pass; one embedding or error for each."""
        results: list[Embeddings | Exception] = [RuntimeError()] * len(images)
        for shape in {image.shape for image in images}:
            rows = [i for i, image in enumerate(images) if image.shape == shape]
            for i, one in zip(rows, self._alike([images[i] for i in rows]), strict=True):
                results[i] = one
        return results

    def _alike(self, images: list[np.ndarray]) -> Iterable[Embeddings | Exception]:
        """Embed images of one size; one that the network cannot take does not fail the others."""
        try:
            return self._pass(np.stack(images))
        except (RuntimeError, InputError):
            if len(images) > 1:
                return [one for image in images for one in self._alike([image])]
        _, height, width = images[0].shape
        sentence = f"the network cannot take an image like this, of {width} × {height} pixels."
        return [RefusedError(422, sentence)]

    @torch.no_grad()
    def _pass(self, images: np.ndarray) -> Embeddings:
        batch = like_network(torch.from_numpy(images), self._learner.encoder)
        return self._learner.embed_batch(batch).numpy()
