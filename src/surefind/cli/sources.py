"""What a command reads: the digits of scikit-learn, a folder, an image, a list of images, or vectors.

`NAME:PART` picks a part. Without it each command says which part it prefers; one that prefers none takes
the only part there is. What `surefind embed` writes can be read again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import surefind as sf
from surefind.cli.console import say, warn
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.dataset import Splits


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors: NumPy's do, a Parquet file does if it lists no paths."""
    from surefind.data.sources import NUMPY, parquet_names

    suffix = path.suffix.lower()
    return suffix in NUMPY or (suffix in (".parquet", ".pq") and "path" not in parquet_names(path))


DIGITS = "digits"
"""The set that is there without a file."""
NO_LABEL = -1
"""The label of what has none in a file of numbers; in one of texts it is empty."""


def read_vectors(path: Path, labels: Path | None = None) -> "sf.Dataset":
    """Read vectors as a data set.

    Args:
        path: As `surefind.data.sources.read_vector_file` takes it.
        labels: A file with their labels, if these are not beside them.

    Raises:
        InputError: If the file holds no vectors, or labels cannot be used.
    """
    from surefind.checks import label_values
    from surefind.data.sources import LABELS, read_column, read_vector_file

    found = read_vector_file(path)
    column = found.labels if labels is None else read_column(labels, LABELS)
    known = None if column is None else label_values("labels", column)
    if known is not None:
        missing: str | int = "" if any(isinstance(label, str) for label in known) else NO_LABEL
        known = [missing if label is None else label for label in known]
    return sf.Dataset(found.vectors, known, names=found.ids, name=path.stem)


def labelled(dataset: "sf.Dataset", *, announce: Callable[[str], None] = say) -> "sf.Dataset":
    """Leave out the examples whose label says that they have none: empty, or -1."""
    if dataset.labels is None:
        return dataset
    names = dataset.classes or ()
    none = [code for code, name in enumerate(names) if name in ("", str(NO_LABEL))]
    none = none if names else [NO_LABEL]
    rows = [row for row, label in enumerate(dataset.labels.tolist()) if label not in none]
    left = len(dataset) - len(rows)
    if left:
        announce(f"{left} examples have no label (empty, or -1), and are left out.")
    return dataset[rows] if left else dataset


NAMED = 10
"""Images at most that are named when they are left out."""


def read_source(
    source: str, data: Path | None, *, prefer: str | None = None, mode: str | None = None
) -> "sf.Dataset":
    """Read one part of what a user named.

    Args:
        source: "digits", a folder or a file, perhaps with ``:PART``.
        data: Folder that holds the data sets.
        prefer: The part to take if none is named.
        mode: How images in files are read: "L" (grey) or "RGB", which is the default.

    Returns:
        The data.

    Raises:
        InputError: If there is no such thing, or it is not clear which part is meant.
    """
    where, part = split_part(source)
    parts = _parts(where, data, mode or "RGB")
    if part is None and prefer in parts.parts:
        part = prefer
    if part is None and len(parts) > 1:
        named = ", ".join(f"{where}:{p}" for p in parts)
        raise InputError(f"{where} has {len(parts)} parts; name one: {named}.", field="source")
    part = part or next(iter(parts))
    if part not in parts.parts:
        raise InputError(
            f"{where} has no part {part!r}; it has {', '.join(map(repr, parts))}. Name one of them as "
            f"{where}:PART, or other data.",
            field="source",
        )
    return parts[part]


def readable(
    dataset: "sf.Dataset", on_bad: str, *, announce: Callable[[str], None] = say
) -> "sf.Dataset":
    """Decode every image in files once, before anything long, and return the examples that can be read.

    Args:
        dataset: What was read.
        on_bad: "refuse" or "skip" what cannot be decoded.
        announce: Called with each line about what is left out.

    Raises:
        InputError: If images cannot be read and are not to be left out, or none is left.
    """
    good, report = dataset.verify(on_bad=on_bad)
    if report is None:
        return good
    warn_of_contradictions(good)
    if not report.bad:
        return good
    announce(f"Left out {len(report.bad)} images that cannot be read:")
    for name, reason in report.bad[:NAMED]:
        announce(f"  {name}: {reason}")
    if not len(good):
        raise InputError(f"no image of {dataset.name} can be read; give others.", field="source")
    return good


def warn_of_contradictions(dataset: "sf.Dataset") -> None:
    """Warn of an image that is there under several labels: its file is listed twice, or is a copy."""
    from surefind.data.images import equal_files

    if dataset.labels is None:
        return
    labels = dataset.labels.tolist()
    names = dataset.names or dataset.inputs.paths
    called = dataset.classes or {label: label for label in labels}
    found = [
        rows for rows in equal_files(dataset.inputs.paths) if len({labels[r] for r in rows}) > 1
    ]
    if not found:
        return
    shown = [
        " = ".join(f"{names[r]} ({called[labels[r]]})" for r in rows[:NAMED])
        for rows in found[:NAMED]
    ]
    more = [f"… and {len(found) - NAMED} more"] if len(found) > NAMED else []
    warn(
        f"{len(found)} images of {dataset.name} are there under several labels, of which one at most is "
        "right. Delete the others, and start again:\n  " + "\n  ".join([*shown, *more])
    )


def read_for(
    learner: "sf.MetricLearner",
    source: str,
    data: Path | None,
    on_bad: str,
    prefer: str | None = None,
) -> "sf.Dataset":
    """Read what a fitted learner is to embed; refuse what it cannot take, or a source that is empty."""
    dataset = read_source(source, data, prefer=prefer, mode=learner.input_spec_.mode)
    dataset = readable(dataset, on_bad)
    if not len(dataset):
        raise InputError(f"{source} holds nothing.", field="source")
    check_fits(learner, dataset)
    return dataset


def split_part(source: str) -> tuple[str, str | None]:
    """Split ``NAME:PART`` into the name and the part, or None.

    Raises:
        InputError: If the name is no set, no folder and no file.
    """
    if source == DIGITS or Path(source).exists():
        return source, None
    where, colon, part = source.rpartition(":")
    if colon and (where == DIGITS or Path(where).exists()):
        return where, part
    raise InputError(
        f"{source!r} is neither a folder nor a file, nor {DIGITS!r}, the set that comes with scikit-learn.",
        field="source",
    )


def part_names(where: str, data: Path | None) -> tuple[str, ...]:
    """List the parts of the digits, a folder or a file."""
    if Path(where).is_file() and holds_vectors(Path(where)):
        return ("all",)
    return tuple(_parts(where, data, "RGB"))


def check_fits(learner: "sf.MetricLearner", dataset: "sf.Dataset") -> None:
    """Embed two examples before anything long, to see that the network takes them.

    Args:
        learner: Its network is left as it is; if it is fitted, it knows what inputs it takes.
        dataset: What will be embedded.

    Raises:
        InputError: If it refuses them.
    """
    from surefind.data.batches import like_network
    from surefind.data.inputs import describe_shape

    network, training = learner.encoder, learner.encoder.training
    wanted = getattr(learner, "input_spec_", learner.preprocessing)
    name = dataset.name
    try:
        rows = dataset.read(slice(0, 2), preprocessing=wanted)
        name = f"{name}, {describe_shape(rows.shape[1:])}"
        network.eval()(like_network(rows, network))
    except (RuntimeError, InputError) as error:
        raise InputError(
            f"the encoder cannot take {name}: {str(error).rstrip('.')}. Give other data, or train another "
            "with --encoder."
        ) from error
    finally:
        network.train(training)


def _parts(where: str, data: Path | None, mode: str) -> "Splits":
    from surefind.data.dataset import Splits
    from surefind.data.sources import (
        EXTENSIONS,
        image_paths,
        load_digits,
        load_folder,
        load_manifest,
    )

    path = Path(where)
    if where == DIGITS:
        return load_digits()
    if path.is_dir():
        nested = any(p.is_dir() and not p.name.startswith(".") for p in path.iterdir())
        if nested or not (images := image_paths(path)):
            return load_folder(path, mode=mode)
        return Splits({"all": _unlabelled(images, mode, path.name)})
    if path.suffix.lower() in EXTENSIONS:
        return Splits({"all": _unlabelled([path], mode, path.name)})
    if holds_vectors(path):
        return Splits({"all": read_vectors(path)})
    return load_manifest(path, mode=mode)


def _unlabelled(images: Sequence[Path], mode: str, name: str) -> "sf.Dataset":
    """Return images that no class folder or list gives a label."""
    from surefind.data.images import ImageFiles

    return sf.Dataset(ImageFiles(images, mode), names=[p.name for p in images], name=name)
