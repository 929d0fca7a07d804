"""What the options of a head on frozen vectors may be.

scikit-learn's rules forbid a constructor to look at its arguments, so they are checked when `fit` begins.
Numbers of any kind count, NumPy's too.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from surefind.curvature.outputs import DISTANCES
from surefind.errors import InputError
from surefind.validation import check_choice, check_positive, check_whole

POSITIVE = (
    "margin",
    "prior_precision",
    "scale",
    "learning_rate",
    "same_within",
    "different_beyond",
)
"""Options that are finite numbers above zero."""

SPECIAL = {"prior_precision": (None, "evidence"), "scale": (None,)}
"""What some of them may be instead."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are out of range.

    Args:
        options: All of them by name, as ``LaplaceHead.get_params`` gives them.

    Raises:
        InputError: If one is none of what it may be.
    """
    if options["embedding_dim"] is not None:
        check_whole("embedding_dim", options["embedding_dim"], least=2)
    check_whole("epochs", options["epochs"], least=0)
    check_choice("distance", options["distance"], DISTANCES)
    check_whole("batch_size", options["batch_size"], least=2)
    for name in POSITIVE:
        value = options[name]
        if isinstance(value, Real):
            check_positive(name, float(value))
        elif not isinstance(value, str | None) or value not in SPECIAL.get(name, ()):
            raise InputError(f"{name} must be a finite number above 0; got {value!r}.")
    if isinstance(options["scan_columns"], str):
        check_choice("scan_columns", options["scan_columns"], ("auto", "all"))
    else:
        check_whole("scan_columns", options["scan_columns"], least=1)
