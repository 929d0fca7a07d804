"""Decide on the neighbours that a search of your own returned; here it is one matrix product."""

import numpy as np
from sklearn.datasets import load_digits

import surefind as sf


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    unit = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    rng = np.random.default_rng(0)
    items = rng.permutation(np.flatnonzero(digits < 8))[:600]  # 8 and 9 are not enrolled
    queries = rng.permutation(np.setdiff1d(np.arange(len(digits)), items))

    cosines = unit[queries] @ unit[items].T
    near = np.argsort(-cosines, axis=1)[:, :20]
    similarities = np.take_along_axis(cosines, near, axis=1)
    labels = digits[items][near]
    truth = np.where(digits[queries] < 8, digits[queries], -1)

    first, second, later = slice(0, 300), slice(300, 800), slice(800, None)
    evidence = sf.NeighbourModel("cosine").fit(similarities[first], labels[first], truth[first])
    posterior = evidence.posterior(similarities[second], labels[second])
    calibration = sf.calibrate(posterior, truth[second], max_wrong=0.05)
    print(calibration.summary)
    found = calibration.decide(evidence.posterior(similarities[later], labels[later]))
    for decision in ("match", "review", "no_match"):
        chosen = found.decision == decision
        right = (found.label[chosen] == truth[later][chosen]).sum()
        print(f"{decision}: {chosen.sum()} queries, the label is right for {right}")


if __name__ == "__main__":
    main()
