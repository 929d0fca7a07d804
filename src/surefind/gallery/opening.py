"""Which engine a name or a place means, and how a gallery moves from one place to another.

faiss     in memory, or a folder
milvus    ``PLACE.db``, a milvus-lite folder, or ``http://host:port``, a server or cluster
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefind.checks import check_choice, install_command
from surefind.errors import InputError
from surefind.gallery.engine import Engine
from surefind.gallery.milvus_engine import MilvusEngine
from surefind.gallery.store import holds_gallery

if TYPE_CHECKING:
    from surefind.gallery.faiss_engine import FaissEngine

ENGINES = ("faiss", "milvus")
INDICES = ("auto", "exact", "hnsw")
MODES = ("w", "r")
COPY = 10_000
"""Records copied at a time."""


def make_engine(engine: str, path: str | Path | None, *, index: str, **milvus: Any) -> Engine:
    """Make an engine for a new gallery; the arguments are those of `surefind.Gallery`."""
    check_choice("engine", engine, ENGINES)
    check_choice("index", index, INDICES)
    if engine == "faiss":
        made = _faiss()(index)
        if path is not None:
            made.persist(Path(path))
        return made
    if path is None or not _is_milvus(path):
        raise InputError(
            "engine='milvus' needs a path: 'NAME.db' for milvus-lite on this machine, or "
            f"'http://host:port' for a server; got {path!r}."
        )
    found = MilvusEngine(str(path), index=index, **milvus)
    if found.dim is not None:
        found.close()
        raise InputError(
            f"{found.place} holds a gallery already; open it with Gallery.open({str(path)!r})."
        )
    return found


def open_engine(path: str | Path, *, mode: str, index: str | None, **milvus: Any) -> Engine:
    """Open the engine of a gallery that exists; the arguments are those of `surefind.Gallery.open`."""
    check_choice("mode", mode, MODES)
    if index is not None:
        check_choice("index", index, INDICES)
    if not _is_milvus(path):
        return _faiss().open(Path(path), index=index, read_only=mode == "r")
    if "://" not in str(path) and not Path(path).exists():
        raise _missing(f"there is no gallery at {path}.", path)
    found = MilvusEngine(str(path), index=index or "auto", **milvus)
    if found.dim is None:
        found.close()
        raise _missing(f"{found.place} holds no gallery yet.", path)
    return found


def save_engine(engine: Engine, path: Path | None) -> None:
    """Move an engine from memory into a folder, copy one that has a place, or compact its folder."""
    kind = _faiss()
    if isinstance(engine, kind) and engine.place == "memory":
        if path is None:
            raise InputError("this gallery is in memory; give save a folder.")
        engine.persist(path)
    elif path is None:
        if isinstance(engine, kind):
            engine.compact()
    else:
        copy = kind()
        for records in engine.scan(COPY):
            copy.put(records)
        copy.set_metadata(engine.metadata)
        copy.persist(path)
        copy.close()


def _missing(message: str, path: str | Path) -> InputError:
    hint = (
        f"Make one: surefind.Gallery(path={str(path)!r}), or `surefind index SOURCE --out {path}`."
    )
    return InputError(message, field="path", hint=hint)


def _is_milvus(path: str | Path) -> bool:
    text = str(path)
    return "://" in text or (text.endswith(".db") and not holds_gallery(Path(text)))


def _faiss() -> "type[FaissEngine]":
    try:
        kind: type[FaissEngine] = import_module("surefind.gallery.faiss_engine").FaissEngine
    except ModuleNotFoundError as error:
        raise InputError(
            f"a gallery needs FAISS ({error}): {install_command('faiss-cpu')}.", field="engine"
        ) from error
    return kind
