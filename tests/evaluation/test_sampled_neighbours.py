import numpy as np
import pytest
import small_learners
import torch

from surefind.evaluation import evaluate as module
from surefind.evaluation.evaluate import sampled_neighbours


@pytest.fixture(scope="module")
def fitted():
    return small_learners.learner("laplace-online", epochs=1).fit(small_learners.digits()[0])


def test_each_sample_is_searched_by_itself(fitted, generator, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 16)
    test = small_learners.digits()[1][:40]
    state = generator.get_state()
    found = sampled_neighbours(fitted, test, n_samples=5, generator=generator)
    generator.set_state(state)
    samples = fitted.sample(test, 5, joint=True, generator=generator)
    expected = [(s @ s.T).fill_diagonal_(-2).argmax(1).numpy() for s in samples]
    np.testing.assert_array_equal(found, expected)


def test_queries_and_gallery_are_embedded_by_the_same_networks(fitted, generator):
    test = small_learners.digits()[1]
    queries, gallery = test[:30], test[:60]
    found = sampled_neighbours(fitted, queries, gallery, n_samples=5, generator=generator)
    # Each query is in the gallery too, so one network puts both at the same place.
    np.testing.assert_array_equal(found, np.arange(30)[None].repeat(5, axis=0))


def test_passes_are_whole_tens_where_memory_allows(fitted, monkeypatch):
    test = small_learners.digits()[1][:20]
    one = 4 * len(test) * fitted.encoder.embedding_dim
    counts = []
    sampler = fitted.fitted.sampler

    def counting(count, **options):
        counts.append(count)
        return sampler(count, **options)

    monkeypatch.setattr(type(fitted.fitted), "sampler", lambda _, *a, **o: counting(*a, **o))
    for room, expected in ((25, [20, 13]), (4, [4] * 8 + [1]), (0, [1] * 33)):
        counts.clear()
        monkeypatch.setattr(module, "SAMPLE_BYTES", room * one)
        generator = torch.Generator().manual_seed(0)
        found = sampled_neighbours(fitted, test, n_samples=33, generator=generator)
        assert counts == expected
        assert found.shape == (33, len(test))
