"""A fitted head in a file: safetensors with JSON, no pickle (`surefind.models.checkpoint`).

Beside the posterior and what it rests on, the file holds the options of the estimator that made it, so that
it can be fitted again, and the names of the columns, if there were any. All comes back bit for bit; the
evidence of the posterior is not kept.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from surefind.errors import InputError
from surefind.models.checkpoint import load_tensors, save_tensors
from surefind.posterior.diagonal import HeadPosterior
from surefind.vectors.fitted import FittedHead

KIND = "laplace-head"
"""What a file says that it holds."""


def write_head(
    path: str | Path, fitted: FittedHead, options: Mapping[str, Any], columns: list[str]
) -> None:
    """Write a fitted head.

    Args:
        path: The file; its folder must exist.
        fitted: What was learnt.
        options: Of the estimator, by name.
        columns: Names of the columns; empty if they have none.

    Raises:
        InputError: If ``random_state`` is a generator, which JSON cannot hold.
    """
    if not isinstance(options["random_state"], int | np.integer | None):
        raise InputError(
            "random_state is a generator, which cannot be saved; "
            "set_params(random_state=None) or a number first."
        )
    metadata = {
        "kind": KIND,
        "parameters": {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()},
        "prior_precision": fitted.prior_precision,
        "scale": fitted.scale,
        "clipped": fitted.posterior.clipped,
        "pair_scan_error": fitted.pair_scan_error,
        "feature_names": columns,
    }
    tensors = {"mean": fitted.posterior.mean, "precision": fitted.posterior.precision}
    save_tensors(path, tensors, metadata)


def read_head(path: str | Path) -> tuple[FittedHead, dict[str, Any], list[str]]:
    """Read what `write_head` wrote.

    Args:
        path: The file.

    Returns:
        What was learnt, the estimator's options, and the names of the columns.

    Raises:
        InputError: If the file holds something else.
    """
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != KIND:
        raise InputError(
            f"{path} does not hold a LaplaceHead; load a trained model with surefind.load."
        )
    posterior = HeadPosterior(tensors["mean"], tensors["precision"], metadata["clipped"])
    fitted = FittedHead(
        posterior, metadata["prior_precision"], metadata["scale"], metadata["pair_scan_error"]
    )
    return fitted, metadata["parameters"], metadata["feature_names"]
