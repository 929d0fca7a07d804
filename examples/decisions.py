"""Decide on vectors beside what a few lines of your own would do: digits, of which 8 and 9 are unknown."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import surefind as sf

LEAST_RIGHT, DIVISIONS = 0.95, 8


def division(seed: int) -> dict[str, tuple[float, float]]:
    """Return the share of queries that is answered, and that of wrong answers, by each of the rules."""
    vectors, digits = load_digits(return_X_y=True)
    truth = np.where(digits < 8, digits, -1)
    rng = np.random.default_rng(seed)
    known = rng.permutation(np.flatnonzero(digits < 8))[:600]
    tried, asked = np.split(rng.permutation(np.setdiff1d(np.arange(len(digits)), known)), [600])
    rows = {}

    def note(name: str, label: np.ndarray, taken: np.ndarray) -> None:
        rows[name] = taken.mean(), (label != truth[asked])[taken].mean()

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = units @ units[known].T
    nearest, score = digits[known][similarity.argmax(axis=1)], similarity.max(axis=1)
    order = tried[np.argsort(-score[tried])]
    right = np.cumsum(nearest[order] == truth[order]) / np.arange(1, len(order) + 1)
    least = score[order[np.flatnonzero(right >= LEAST_RIGHT)[-1]]]
    note("nearest neighbour", nearest[asked], score[asked] > -1)
    note("  from a tuned similarity on", nearest[asked], score[asked] >= least)

    rival = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    softmax = rival.fit(vectors[known], digits[known]).predict_proba(vectors)
    label, largest = softmax[asked].argmax(axis=1), softmax[asked].max(axis=1)
    note("logistic regression", label, largest > 0)
    note("  from a softmax of 0.95 on", label, largest >= LEAST_RIGHT)
    evidence = sf.LabelPosterior(rival.classes_, softmax)
    answers = sf.calibrate(evidence[tried], truth[tried], max_wrong=0.05).decide(evidence[asked])
    note("  calibrated by surefind", answers.label, answers.decision == "match")

    decider = sf.Decider(max_wrong=0.05).fit(vectors[known], digits[known])
    answers = decider.decide(vectors[asked])
    note("Decider, fitted alone", answers.label, answers.decision == "match")
    answers = decider.calibrate(vectors[tried], truth[tried]).decide(vectors[asked])
    note("  calibrated on queries", answers.label, answers.decision == "match")
    return rows


def main() -> None:
    found = [division(seed) for seed in range(DIVISIONS)]
    print(f"At most 5% wrong; means of {DIVISIONS} divisions of the digits:")
    for name in found[0]:
        answered, wrong = np.array([rows[name] for rows in found]).T
        print(
            f"{name}: {answered.mean():.0%} answered, {wrong.mean():.1%} of these wrong "
            f"(at most {wrong.max():.1%}; above 5% in {(wrong > 0.05).sum()})"
        )


if __name__ == "__main__":
    main()
