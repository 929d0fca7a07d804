"""Use the core where nothing else is installed: galleries, deciders, calibration and metrics."""

import sys
import tempfile
from pathlib import Path

import numpy as np

import surefind as sf


def draw(rng, count):
    """Return unit vectors near one of eight directions, and which; those of 6 and 7 are nobody's."""
    labels = rng.integers(0, 8, count)
    vectors = np.eye(16)[labels] + 0.1 * rng.normal(size=(count, 16))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def main():
    """Fill, calibrate, search, store and open a gallery; decide on neighbours; measure."""
    rng = np.random.default_rng(0)
    x, y = draw(rng, 600)
    x, y = x[y < 6], y[y < 6]
    queries, truth = draw(rng, 800)
    truth = np.where(truth < 6, truth, -1)
    with tempfile.TemporaryDirectory() as folder:
        gallery = sf.Gallery()
        gallery.add(x, labels=y)
        gallery.calibrate(queries[:600], truth[:600], max_wrong=0.1)
        gallery.save(Path(folder) / "gallery")
        gallery.close()
        with sf.Gallery.open(Path(folder) / "gallery") as opened:
            answers = opened.search(queries[600:], k=5)
            assert isinstance(opened.audit(), sf.Audit)
    assert isinstance(answers, sf.Answers)
    assert "match" in set(answers.decision)
    assert "match" in set(sf.Decider(max_wrong=0.1).fit(x, y).decide(queries).decision)

    near = np.argsort(-queries @ x.T, axis=1)[:, :20]
    cosines, labels = np.take_along_axis(queries @ x.T, near, axis=1), y[near]
    evidence = sf.NeighbourModel("cosine").fit(cosines[:200], labels[:200], truth[:200])
    posterior = evidence.posterior(cosines[200:], labels[200:])
    calibration = sf.calibrate(posterior[:400], truth[200:600], max_wrong=0.1)
    assert "match" in set(calibration.decide(posterior[400:]).decision)

    known = truth >= 0
    assert sf.metrics.recall_at_k(near[known], truth[known], y, 1) > 0.9
    assert sf.metrics.auroc(1 - cosines[known, 0], 1 - cosines[~known, 0]) > 0.9
    assert len(sf.Embeddings(x, np.full(len(x), 9.0))[:3]) == 3
    assert sys.modules.get("torch") is None
    try:
        _ = sf.MetricLearner
    except ImportError as error:
        assert "extra 'all'" in str(error), error
    else:
        raise AssertionError("a learner needs PyTorch, which is not among the core's dependencies")


if __name__ == "__main__":
    main()
