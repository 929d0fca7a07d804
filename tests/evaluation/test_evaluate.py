import numpy as np
import pytest
import small_learners
import torch
from sklearn.metrics import roc_auc_score

import surefind as sf
from surefind.evaluation import best_detector, best_detectors
from surefind.evaluation import evaluate as evaluation
from surefind.evaluation.evaluate import (
    evaluate,
    judge,
    kappa_histogram,
    measure,
    sampled_neighbours,
)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(evaluation, "RESAMPLES", 20)


@pytest.fixture(scope="module")
def fitted():
    return small_learners.learner("laplace-online", epochs=4).fit(small_learners.digits()[0])


@pytest.fixture(scope="module")
def noise():
    generator = torch.Generator().manual_seed(0)
    return sf.Dataset(torch.randint(256, (50, 8, 8), dtype=torch.uint8, generator=generator))


def test_numbers_equal_what_other_libraries_compute(fitted, noise, generator):
    _, test = small_learners.digits()
    result = evaluate(fitted, test, noise, generator=generator, ece_samples=10)
    known, ood = fitted.embed(test), fitted.embed(noise)
    assert result.values["recall@1"] == pytest.approx(
        small_learners.recall_at_1(known, test.labels)
    )
    truth = np.r_[np.zeros(len(known)), np.ones(len(ood))]
    scores = np.r_[known.uncertainty, ood.uncertainty]
    assert result.values["auroc"] == pytest.approx(roc_auc_score(truth, scores))
    for name in ("auroc", "ausc", "r_auroc"):
        low, high = result.intervals[name]
        assert low <= result.values[name] <= high
    assert "ece" in result.intervals
    assert set(result.curves) == {"roc", "precision-recall", "sparsification", "calibration"}
    assert 0 <= result.values["ece"] <= 1
    assert result.uncertainty["ood"].shape == (50,)


def test_agreement_is_the_share_of_samples_that_find_the_most_frequent_class(fitted, generator):
    _, test = small_learners.digits()
    test = test[:40]
    state = generator.get_state()
    # Without resampling before it, the samples are the first thing that is drawn.
    result = evaluation.Evaluation({}, {}, {})
    mean = fitted.embed(test).mean
    judged = judge(mean, test)
    found = sampled_neighbours(fitted, test, n_samples=7, generator=generator)
    evaluation._add_agreement(result, found, judged, test, test, np.random.default_rng(0))
    generator.set_state(state)
    samples = fitted.sample(test, 7, joint=True, generator=generator)
    disagreement = []
    for i in range(len(test)):
        votes = []
        for sample in samples:
            cosines = sample @ sample[i]
            cosines[i] = -2
            votes.append(int(test.labels[cosines.argmax()]))
        disagreement.append(1 - max(votes.count(v) for v in votes) / 7)
    nearest = (mean @ mean.T).fill_diagonal_(-2).argmax(1)
    wrong = (test.labels[nearest] != test.labels).numpy()
    assert result.values["agreement_r_auroc"] == pytest.approx(roc_auc_score(wrong, disagreement))


def test_queries_are_looked_up_in_a_gallery(fitted, generator, monkeypatch):
    _, test = small_learners.digits()
    queries, gallery = test[:30], test[30:90]
    result = evaluate(fitted, queries, gallery=gallery, generator=generator, ece_samples=20)
    cosine = fitted.embed(queries).mean @ fitted.embed(gallery).mean.T
    right = gallery.labels[cosine.argmax(1)] == queries.labels
    assert result.values["recall@1"] == pytest.approx(float(right.float().mean()))
    assert {"ece", "agreement_ausc"} <= set(result.values)
    # In passes of few samples the answer is of the same kind.
    monkeypatch.setattr("surefind.evaluation.evaluate.SAMPLE_BYTES", 4 * 90 * 3 * 12)
    passes = evaluate(fitted, queries, gallery=gallery, generator=generator, ece_samples=20)
    assert passes.values["recall@1"] == result.values["recall@1"]
    assert passes.values["ece"] == pytest.approx(result.values["ece"], abs=0.2)


def test_places_are_right_within_a_radius(fitted, generator):
    _, test = small_learners.digits()
    spots = torch.stack([test.labels * 100.0, torch.zeros(len(test))], dim=1)
    placed = sf.Dataset(test.inputs, positions=spots)
    by_label = evaluate(fitted, test, generator=generator, ece_samples=0)
    by_place = evaluate(fitted, placed, generator=generator, ece_samples=5)
    assert by_place.values["recall@1"] == by_label.values["recall@1"]
    assert by_place.values["map@10"] == pytest.approx(by_label.values["map@10"])
    assert "agreement_ausc" in by_place.values
    assert not {"ece", "agreement_ausc"} & set(by_label.values)
    assert "ece" not in by_place.values
    everywhere = evaluate(fitted, placed, radius=1000.0, generator=generator, ece_samples=0)
    assert everywhere.values["recall@1"] == 1
    assert "r_auroc" not in everywhere.values  # nothing is wrong


def test_queries_without_an_answer_are_left_out(fitted, generator):
    _, test = small_learners.digits()
    lone = test.labels.clone()
    lone[:3] = torch.tensor([101, 102, 103])
    odd = sf.Dataset(test.inputs, lone)
    result = evaluate(fitted, odd, generator=generator, ece_samples=5)
    assert result.left_out == 3
    uncertainty = fitted.embed(odd).uncertainty.double().numpy()
    judged = judge(fitted.embed(odd).mean, odd)
    right = judged.hits[3:, 0]
    assert result.values["r_auroc"] == pytest.approx(roc_auc_score(~right, uncertainty[3:]))


def test_any_score_can_be_measured(fitted, generator):
    _, test = small_learners.digits()
    judged = judge(fitted.embed(test).mean, test)
    perfect = measure(judged, np.random.default_rng(0), uncertainty=1.0 - judged.hits[:, 0])
    assert perfect.values["r_auroc"] == 1
    assert "auroc" not in perfect.values


def test_kappa_is_counted_in_common_bins():
    rng = np.random.default_rng(0)
    kappa = {"id": 10 ** rng.uniform(1, 2, 5000), "ood": 10 ** rng.uniform(0, 1, 5000)}
    edges, counts = kappa_histogram({part: 1 / k for part, k in kappa.items()}, bins=20)
    assert len(edges) == 21
    assert np.allclose([edges[0], edges[-1]], [0, 2], atol=0.01)
    for part, k in kappa.items():
        assert abs(sum(counts[part]) - 5000) <= 10
        expected = np.histogram(np.log10(k), edges)[0]
        np.testing.assert_allclose(counts[part], expected, atol=3)
    edges, counts = kappa_histogram({"id": np.array([0.0, np.inf, 1.0])})
    assert edges[0] < 0 < edges[-1]


def test_test_data_that_cannot_be_searched_are_refused(fitted, noise, generator):
    _, test = small_learners.digits()
    with pytest.raises(sf.InputError, match="labels or positions"):
        evaluate(fitted, noise, generator=generator)
    with pytest.raises(sf.InputError, match="labels"):
        evaluate(fitted, test, gallery=noise, generator=generator)
    with pytest.raises(sf.InputError, match="11 examples"):
        evaluate(fitted, test[:5], generator=generator)
    with pytest.raises(sf.InputError, match="10 examples"):
        evaluate(fitted, test[:30], gallery=test[:9], generator=generator)
    singles = sf.Dataset(test.inputs[:12], range(12))
    with pytest.raises(sf.DegenerateError, match="class"):
        evaluate(fitted, singles, generator=generator)


def test_each_sample_is_searched_by_itself(fitted, generator, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 16)
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
        monkeypatch.setattr(evaluation, "SAMPLE_BYTES", room * one)
        generator = torch.Generator().manual_seed(0)
        found = sampled_neighbours(fitted, test, n_samples=33, generator=generator)
        assert counts == expected
        assert found.shape == (33, len(test))


def chord_to_nearest(queries, items, *, closed=False):
    d = torch.cdist(queries.double(), items.double())
    return (d.fill_diagonal_(9) if closed else d).amin(1)


def auroc(known, ood):
    truth = np.r_[np.zeros(len(known)), np.ones(len(ood))]
    return roc_auc_score(truth, np.r_[known, ood])


def test_distance_and_novelty_stand_beside_kappa(fitted, noise, generator, novel):
    train, test = small_learners.digits()
    options = {"generator": generator, "ece_samples": 0}
    near = evaluate(fitted, test, noise, more_ood={"again": noise}, **options)
    to_train = evaluate(fitted, test, noise, train=train, **options)
    known, ood = fitted.embed(test), fitted.embed(noise)
    closed = chord_to_nearest(known.mean, known.mean, closed=True)
    outside = chord_to_nearest(ood.mean, known.mean)
    assert near.values["nearest_distance_auroc"] == pytest.approx(auroc(closed, outside))
    assert near.values["novelty_auroc"] == pytest.approx(auroc(-known.novelty, -ood.novelty))
    items = fitted.embed(train).mean
    distances = (chord_to_nearest(e.mean, items) for e in (known, ood))
    assert to_train.values["nearest_distance_auroc"] == pytest.approx(auroc(*distances))
    nearest = (known.mean @ known.mean.T).fill_diagonal_(-2).argmax(1)
    wrong = (test.labels[nearest] != test.labels).numpy()
    for result in (near, to_train):
        found = result.values["nearest_distance_r_auroc"]
        assert found == pytest.approx(roc_auc_score(wrong, closed))
        found = result.values["novelty_r_auroc"]
        assert found == pytest.approx(roc_auc_score(wrong, -known.novelty))
    names = ("auroc", "nearest_distance_auroc", "novelty_auroc")
    assert near.more_ood == {"again": {name: near.values[name] for name in names}}
    assert set(names) <= set(near.intervals)


def test_rivals_change_no_other_number(fitted, noise):
    train, test = small_learners.digits()
    seeded = lambda: torch.Generator().manual_seed(0)
    one = evaluate(fitted, test[:80], noise, generator=seeded(), ece_samples=3)
    two = evaluate(fitted, test[:80], noise, generator=seeded(), ece_samples=3, train=train)
    other = "nearest_distance_auroc"
    for a, b in ((one.values, two.values), (one.intervals, two.intervals)):
        assert {k: v for k, v in a.items() if k != other} == {
            k: v for k, v in b.items() if k != other
        }


def test_queries_in_a_gallery_are_as_far_as_its_nearest_item(fitted, generator, plain):
    _, test = small_learners.digits()
    queries, gallery = test[:60], test[60:]
    result = evaluate(fitted, queries, gallery=gallery, generator=generator, ece_samples=0)
    q, g = fitted.embed(queries).mean, fitted.embed(gallery).mean
    wrong = (gallery.labels[(q @ g.T).argmax(1)] != queries.labels).numpy()
    expected = roc_auc_score(wrong, chord_to_nearest(q, g))
    assert result.values["nearest_distance_r_auroc"] == pytest.approx(expected)
    assert "novelty_r_auroc" not in result.values


def test_a_point_estimate_has_its_distances_and_nothing_that_needs_uncertainty(noise, generator):
    train, test = small_learners.digits()
    point = small_learners.learner("deterministic", epochs=1).fit(train)
    result = evaluate(point, test, noise, generator=generator, more_ood={"again": noise})
    found = {"recall@1", "nearest_distance_auroc", "nearest_distance_r_auroc"}
    assert found <= set(result.values)
    assert not {"auroc", "ausc", "ece", "agreement_ausc"} & set(result.values)
    assert "auroc" not in result.more_ood["again"]
    assert "nearest_distance_auroc" in result.more_ood["again"]


def test_the_best_detector_is_named_with_what_the_others_reach():
    values = {"auroc": 0.55, "nearest_distance_auroc": 0.86, "novelty_auroc": 0.95}
    assert best_detector(values) == (
        "OOD inputs: novelty detects them best (0.950); nearest distance 0.860, κ 0.550."
    )
    same = {"r_auroc": 0.8, "novelty_r_auroc": 0.8001}
    assert best_detectors(values | same)[1] == (
        "Wrong retrievals: novelty and κ detect them best (0.800)."
    )
    chance = {"auroc": 0.37, "nearest_distance_auroc": 0.4}
    assert best_detector(chance) == (
        "OOD inputs: nothing detects them better than chance; nearest distance 0.400, κ 0.370."
    )
    assert best_detector({"auroc": 0.9}) == ""
    close = {
        "novelty_auroc": (0.94, 0.96),
        "nearest_distance_auroc": (0.8, 0.94),
        "auroc": (0.5, 0.6),
    }
    assert best_detector(values, intervals=close).endswith(
        "κ 0.550. The 95 % intervals of novelty and nearest distance overlap."
    )
    apart = close | {"nearest_distance_auroc": (0.8, 0.93)}
    assert best_detector(values, intervals=apart) == best_detector(values)
    assert best_detector(values, intervals={}) == best_detector(values)
    assert best_detectors({"recall@1": 0.9}) == []
