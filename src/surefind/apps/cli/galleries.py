"""The gallery that a command names: whether it is there, how it is made, and what fits into it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefind.apps.cli.run_folder import open_run
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.gallery.gallery import Gallery


def existing_gallery(place: str, normalize: bool) -> "Gallery | None":
    """Open a gallery for writing, if it is there.

    Args:
        place: A folder, milvus-lite's NAME.db, or http://host:port.
        normalize: Whether it rescales vectors.

    Returns:
        The gallery; None if one can be made there.

    Raises:
        InputError: If something else is there.
    """
    from surefind.gallery.gallery import Gallery
    from surefind.gallery.store import check_free, holds_gallery

    path = Path(place)
    if not _on_milvus(place) and path.exists() and not holds_gallery(path):
        check_free(path)
        return None
    try:
        return Gallery.open(place, normalize=normalize)
    except InputError:  # there is none
        return None


def new_gallery(place: str, run: Path | None, normalize: bool) -> "Gallery":
    """Make a gallery.

    Args:
        place: A folder, milvus-lite's NAME.db, or http://host:port.
        run: What embeds its items; None if that is not known.
        normalize: Whether it rescales vectors.

    Returns:
        The gallery, empty.
    """
    from surefind.gallery.gallery import Gallery

    engine = "milvus" if _on_milvus(place) else "faiss"
    model = None if run is None else open_run(run).fingerprint
    return Gallery(engine, place, model=model, normalize=normalize)


def check_model(gallery: "Gallery", run: Path | None) -> None:
    """Require that a gallery's items were embedded by the same run.

    Args:
        gallery: It remembers the model of the run that it was made with.
        run: What embeds the vectors at hand; None if that is not known.

    Raises:
        InputError: If they differ.
    """
    model = None if run is None else open_run(run).fingerprint
    if None not in (model, gallery.model) and model != gallery.model:
        raise InputError(
            f"the gallery was made with another run ({gallery.model}, this one is {model}), and vectors "
            "of two models cannot be compared. Give that run, or index everything into a new gallery."
        )


def labels_like(gallery: "Gallery", labels: Sequence[str | None]) -> list[Any]:
    """Turn labels into whole numbers if those of the gallery are.

    Args:
        gallery: One that may have been made with other labels than texts.
        labels: Texts or None.

    Returns:
        The labels, of the gallery's kind.
    """
    first = next(
        (label for label in (gallery.get(i).label for i in gallery) if label is not None), ""
    )
    if isinstance(first, str):
        return list(labels)
    return [int(x) if x is not None and x.removeprefix("-").isdecimal() else x for x in labels]


def _on_milvus(place: str) -> bool:
    return "://" in place or place.endswith(".db")
