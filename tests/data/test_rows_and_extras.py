import numpy as np
import pytest
import torch

import surefind as sf
from surefind import checks as extras
from surefind.checks import check_int
from surefind.data.images import row_numbers


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(None), [0, 1, 2, 3, 4]),
        (slice(-2, None), [3, 4]),
        (slice(4, None, -2), [4, 2, 0]),
        (2, [2]),
        (-1, [4]),
        (np.int64(3), [3]),
        ([0, -5, 4, 4], [0, 0, 4, 4]),
        (range(1, 3), [1, 2]),
        ([], []),
        (torch.tensor([3, 1]), [3, 1]),
        (torch.tensor([], dtype=torch.int64), []),
        (np.array([True, False, False, True, False]), [0, 3]),
        (torch.zeros(5, dtype=torch.bool), []),
        (np.array([2, 0], dtype=np.uint8), [2, 0]),
    ],
)
def test_an_index_is_resolved(index, rows):
    found = row_numbers(index, 5)
    assert found.dtype == np.int64
    assert found.tolist() == rows


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (5, "rows must be integers from -5 to 4"),
        ([0, -6], "-6"),
        ([0.5], "rows must be integers"),
        ("a", "rows must be integers"),
        ([[1]], r"of shape \(1, 1\)"),
        ([True], "a boolean mask of 5"),
    ],
)
def test_what_is_no_index_is_refused(index, message):
    with pytest.raises(sf.InputError, match=message):
        row_numbers(index, 5)


@pytest.mark.parametrize("value", [1, 2.0, True, "3", None])
def test_a_count_must_be_whole_and_large_enough(value):
    with pytest.raises(sf.InputError, match="n must be a whole number of at least 2; got"):
        check_int("n", value, least=2)


def test_a_missing_library_is_answered_with_the_extra(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(extras, "import_module", absent)
    with pytest.raises(
        sf.InputError, match=r"pyarrow is needed to read Parquet .* pip install pyarrow .*'torch'"
    ):
        extras.require("pyarrow.parquet", "read Parquet files")
