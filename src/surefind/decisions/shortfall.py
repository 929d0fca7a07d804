"""How many more calibration queries a target needs that was not reached.

An estimate to plan by, at the error rates that were seen; it promises nothing.
"""

import numpy as np

from surefind.decisions.risk import RiskCurve, least_accepted, lower_bound


def more_queries(
    curve: RiskCurve, queries: int, tested: int, *, max_wrong: float, confidence: float
) -> int | None:
    """Estimate how many more calibration queries are needed.

    Args:
        curve: What was measured.
        queries: Calibration queries so far.
        tested: Those of the testing part.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        A number of queries, 0 if the target is reached; None if more of the same would not help.
    """
    if curve.chosen is not None:
        return 0
    needed = queries_needed(curve, max_wrong=max_wrong, confidence=confidence)
    if needed is None:
        return None
    # If as many as there are should have done, luck was against it: as few as could ever help are asked.
    least = least_accepted(max_wrong, confidence)
    return max(int(np.ceil(needed * queries / tested)) - queries, least)


def queries_needed(curve: RiskCurve, *, max_wrong: float, confidence: float) -> int | None:
    """Estimate how large a testing part would pass, if its error rates stayed as they are.

    For each threshold the smallest n is sought that passes with the expected ⌈rate · n⌉ errors, in steps of
    5 %; then the threshold that needs the fewest queries in all counts. Thresholds that accepted a handful
    of queries say nothing and are left out. A rate that is too high, but by its exact lower bound may be so
    by chance, is taken as half of ``max_wrong``. With so many queries the chance to pass is about
    even.

    Args:
        curve: What was measured.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        A number of queries; None if at every threshold the rate is too high beyond doubt.
    """
    from scipy.special import bdtr  # type: ignore[import-untyped]

    # From n_0 up to 200,000 times that: beyond, nobody will collect queries.
    sizes = np.ceil(least_accepted(max_wrong, confidence) * 1.05 ** np.arange(251)).astype(int)
    lowest = lower_bound(curve.wrong, curve.accepted, confidence)
    best = None
    for i in curve.telling:
        if lowest[i] > max_wrong:
            continue
        rate = curve.wrong_rate[i] if curve.wrong_rate[i] < max_wrong else max_wrong / 2
        # P(so few errors | rate = max_wrong) is small enough: the same as the bound, but faster.
        passes = bdtr(np.ceil(rate * sizes), sizes, max_wrong) <= 1 - confidence
        if passes.any():
            total = int(np.ceil(sizes[passes.argmax()] / curve.coverage[i]))
            best = total if best is None else min(best, total)
    return best
