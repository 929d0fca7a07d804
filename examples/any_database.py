"""Decide on the neighbours that a search of your own returned; here it is one matrix product."""

import numpy as np
from sklearn.datasets import load_digits

import surefind as sf


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    unit = pixels[order] / np.linalg.norm(pixels[order], axis=1, keepdims=True)
    digits = digits[order]
    items = np.flatnonzero(digits < 8)[:600]  # 8 and 9 are not enrolled
    queries = np.setdiff1d(np.arange(len(digits)), items)

    cosines = unit[queries] @ unit[items].T
    near = np.argsort(-cosines, axis=1)[:, :20]
    similarities = np.take_along_axis(cosines, near, axis=1)
    labels = digits[items][near]
    truth = np.where(digits[queries] < 8, digits[queries], -1)

    decider = sf.Decider("cosine", max_wrong=0.05)
    print(decider.fit(similarities[:800], labels[:800], truth[:800]).calibration.summary)
    found = decider.decide(similarities[800:], labels[800:])
    for decision in ("match", "review", "no_match"):
        chosen = found.decision == decision
        right = (found.label[chosen] == truth[800:][chosen]).sum()
        print(f"{decision}: {chosen.sum()} queries, the label is right for {right}")


if __name__ == "__main__":
    main()
