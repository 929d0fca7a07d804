"""Find labels that are wrong, enrol a new one, and see the calibration renewed and queries change."""

import numpy as np
from sklearn.datasets import load_digits

import surefind as sf


def main() -> None:
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    vectors, digits = pixels[order], digits[order]
    head = sf.LaplaceHead().fit(vectors[:400], digits[:400])
    items = 400 + np.flatnonzero(digits[400:1000] != 9)

    labels = digits[items].copy()
    labels[:5] = (labels[:5] + 1) % 9  # five mistakes
    gallery = sf.Gallery()
    gallery.add(head.embed(vectors[items]), ids=items, labels=labels)
    for suspect in gallery.audit().of("mislabelled")[:6]:
        seen = digits[suspect.id]  # what a person sees who looks at it
        print(f"item {suspect.id}: {suspect.label}, rather {suspect.suggested}; it is a {seen}")
        gallery.update(ids=[suspect.id], labels=[seen])

    # The 9s among the queries are unknown, until they are enrolled.
    gallery.calibrate(head.embed(vectors[1000:1500]), digits[1000:1500], max_wrong=0.05)
    queries = head.embed(vectors[1500:])
    nine = digits[1500:] == 9
    before = gallery.search(queries)
    enrolled = np.flatnonzero(digits[:1000] == 9)
    gallery.add(head.embed(vectors[enrolled]), ids=enrolled, labels=digits[enrolled])
    gallery.renew()
    after = gallery.search(queries)
    for when, answers in (("before", before), ("after", after)):
        match = nine & (answers.label == 9) & (answers.decision == "match")
        print(f"{when} they were enrolled, {match.sum()} of {nine.sum()} nines are a match")
    print(f"renewed {gallery.calibration.renewals} time(s)")

    print(gallery.watch().sentence)
    for _ in range(2):
        gallery.search(head.embed(16 - vectors[1500:]))  # inverted images: a new camera, say
    alarm = gallery.watch().alarm
    print(
        f"inverted images: an alarm, by {alarm.stream}: {alarm.direction}" if alarm else "no alarm"
    )


if __name__ == "__main__":
    main()
