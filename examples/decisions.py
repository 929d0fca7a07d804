"""Decide on vectors, some of them of nothing that is known, beside what a few lines of your own would do."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import surefind as sf


def main() -> None:
    vectors, digits = load_digits(return_X_y=True)
    truth = np.where(digits < 8, digits, -1)  # 8 and 9 are unknown
    rng = np.random.default_rng(0)
    known = rng.permutation(np.flatnonzero(digits < 8))[:600]
    tried, asked = np.split(rng.permutation(np.setdiff1d(np.arange(len(digits)), known)), [600])

    def show(name: str, label: np.ndarray, taken: np.ndarray) -> None:
        wrong = (label != truth[asked])[taken].mean()
        print(f"{name}: {taken.mean():.0%} of {len(asked)} answered, {wrong:.1%} of these wrong")

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = units @ units[known].T
    nearest, score = digits[known][similarity.argmax(axis=1)], similarity.max(axis=1)
    by_score = tried[np.argsort(-score[tried])]
    wrong = np.cumsum(nearest[by_score] != truth[by_score]) / np.arange(1, len(by_score) + 1)
    least = score[by_score[np.flatnonzero(wrong <= 0.05)[-1]]]
    show("nearest neighbour", nearest[asked], score[asked] > -1)
    show("  above a tuned similarity", nearest[asked], score[asked] >= least)

    rival = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    softmax = rival.fit(vectors[known], digits[known]).predict_proba(vectors)
    show("logistic regression", softmax[asked].argmax(axis=1), score[asked] > -1)
    show("  softmax from 0.95 on", softmax[asked].argmax(axis=1), softmax[asked].max(axis=1) >= 0.95)
    evidence = sf.LabelPosterior(rival.classes_, softmax)
    calibration = sf.calibrate(evidence[tried], truth[tried], max_wrong=0.05)
    answers = calibration.decide(evidence[asked])
    show("  calibrated by surefind", answers.label, answers.decision == "match")

    decider = sf.Decider(max_wrong=0.05).fit(vectors[known], digits[known])
    answers = decider.decide(vectors[asked])
    show("Decider, fitted alone", answers.label, answers.decision == "match")
    answers = decider.calibrate(vectors[tried], truth[tried]).decide(vectors[asked])
    show("  calibrated on queries", answers.label, answers.decision == "match")
    print(decider.calibration.summary)


if __name__ == "__main__":
    main()
