import pytest
import torch

from surefind.curvature.pair_scan import entries_above


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 64, 131])
@pytest.mark.parametrize("threshold", [-9.0, 0.5, 9.0])
def test_lists_what_a_comparison_finds(columns, threshold, generator):
    scores = torch.randn(7, columns, generator=generator)
    i, j = entries_above(scores, threshold)
    found = sorted(zip(i.tolist(), j.tolist(), strict=True))
    assert found == [(a, b) for a in range(7) for b in range(columns) if scores[a, b] >= threshold]
