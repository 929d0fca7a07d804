"""A folder with a folder per class, or with a folder per part and in each a folder per class.

    pets/cat/1.jpg  pets/dog/2.jpg                      one part, "all"
    pets/train/cat/1.jpg  pets/test/dog/2.jpg           the parts "train" and "test"

Files are found by their extension, at any depth below the class; hidden ones are left alone. Classes
are numbered by sorted name, over all parts together.
"""

from pathlib import Path

from surefind.data.dataset import Dataset
from surefind.data.images import MAX_PIXELS, ImageFiles
from surefind.data.splits import Splits
from surefind.errors import InputError

_FORMATS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jfif")
EXTENSIONS = frozenset(f".{name}" for name in _FORMATS)
PARTS = ("train", "val", "valid", "validation", "test", "query", "gallery", "database")


def load_folder(
    folder: str | Path, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Splits:
    """Load a folder per class.

    Args:
        folder: The folder that holds the classes, or the parts.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Width times height above which a file is refused.
        name: What to call the set; the folder's name by default.

    Returns:
        The parts by name, or the single part ``"all"``.

    Raises:
        InputError: If there is no folder, no class, or a class without images.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; expected one with a folder per class.")
    inner = _subfolders(root)
    split = bool(inner) and all(p.name.lower() in PARTS for p in inner)
    trees = {p.name.lower(): p for p in inner} if split else {"all": root}
    found = {part: images_by_class(tree) for part, tree in trees.items()}
    classes = sorted({c for by_class in found.values() for c in by_class})
    parts = {}
    for part, by_class in found.items():
        paths = [path for c in sorted(by_class) for path in by_class[c]]
        labels = [c for c in sorted(by_class) for _ in by_class[c]]
        parts[part] = Dataset(
            ImageFiles(paths, mode, max_pixels),
            labels,
            names=[p.relative_to(root).as_posix() for p in paths],
            classes=classes,
            name=name or root.name,
        )
    return Splits(parts)


def image_paths(folder: Path) -> list[Path]:
    """List the image files below a folder, sorted; hidden ones are left out."""
    return sorted(
        p
        for p in folder.rglob("*")
        if p.suffix.lower() in EXTENSIONS and not p.name.startswith(".") and p.is_file()
    )


def images_by_class(root: Path) -> dict[str, list[Path]]:
    """List the image files of each class folder, by its name; refuse one without any."""
    by_class = {p.name: image_paths(p) for p in _subfolders(root)} if root.is_dir() else {}
    if not by_class:
        loose = len(image_paths(root))
        raise InputError(
            f"{root} holds no class folders ({loose} images lie in it directly); "
            "expected a folder per class, with the class's images inside."
        )
    if empty := [c for c, paths in sorted(by_class.items()) if not paths]:
        raise InputError(
            f"{len(empty)} class folders of {root} hold no image, the first is {empty[0]!r}; "
            f"expected files ending in {', '.join(sorted(EXTENSIONS))}. Fill or remove them."
        )
    return by_class


def _subfolders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
