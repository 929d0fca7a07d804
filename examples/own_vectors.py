"""Give vectors an uncertainty, calibrate a gallery, and ask it about what it never saw."""

import numpy as np
from sklearn.datasets import load_digits

import surefind as sf


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    vectors, digits = pixels[order], digits[order]
    known = digits < 8  # 8 and 9 are nobody's
    learn, enrol = np.flatnonzero(known)[:500], np.flatnonzero(known)[500:800]
    rest = np.setdiff1d(np.arange(len(digits)), np.concatenate([learn, enrol]))
    held_out, asked = rest[::2], rest[1::2]

    head = sf.LaplaceHead().fit(vectors[learn], digits[learn])
    gallery = sf.Gallery()
    gallery.add(head.embed(vectors[enrol]), labels=digits[enrol])
    truth = np.where(known, digits, -1)  # -1: not in the gallery
    print(gallery.calibrate(head.embed(vectors[held_out]), truth[held_out], max_wrong=0.05).summary)

    answers = gallery.search(head.embed(vectors[asked]))
    match = answers.decision == "match"
    wrong = (answers.label != truth[asked]) & match
    print(f"{len(asked)} queries: {match.sum()} match, {wrong.sum()} of them wrong")
    noise = np.random.default_rng(1).uniform(0, 16, (100, 64))
    found = gallery.search(head.embed(noise))
    print(f"100 × noise: {(found.decision == 'match').sum()} match")


if __name__ == "__main__":
    main()
