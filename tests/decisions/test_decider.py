"""Decisions on neighbours from any database: one promise, whatever the numbers are called."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.decisions.tables import METRICS

ENROLLED, LABELS, K = 60, 80, 30


def world(queries, seed=0, *, spread=0.8, dim=24):
    """Return cosines, labels and truth of queries, a quarter of them of labels that are not enrolled."""
    rng = np.random.default_rng([7, seed])
    means = np.random.default_rng(3).normal(size=(LABELS, dim))
    own = np.repeat(np.arange(ENROLLED), 15)
    items = unit(means[own] + spread * np.random.default_rng(4).normal(size=(len(own), dim)))
    asked = rng.integers(LABELS, size=queries)
    vectors = unit(means[asked] + spread * rng.normal(size=(queries, dim)))
    cosines = vectors @ items.T
    near = np.argsort(-cosines, axis=1)[:, :K]
    truth = [f"p{a}" if a < ENROLLED else None for a in asked.tolist()]
    names = np.array([f"p{label}" for label in own], dtype=object)
    return np.take_along_axis(cosines, near, axis=1), names[near], truth


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def decider():
    return sf.Decider(max_wrong=0.05).fit(*world(900))


def returned(metric, cosines):
    """What a database of that metric returns for unit vectors."""
    return {
        "cosine": cosines,
        "cosine-distance": 1 - cosines,
        "negative-cosine": -cosines,
        "euclidean": np.sqrt(2 - 2 * cosines),
        "squared-euclidean": 2 - 2 * cosines,
        "elasticsearch": (1 + cosines) / 2,
    }[metric]


@pytest.mark.parametrize("metric", [name for name in METRICS if name != "distance"])
def test_unit_vectors_get_the_same_decisions_whatever_the_metric(metric, decider):
    cosines, labels, truth = world(900)
    other = sf.Decider(metric, max_wrong=0.05).fit(returned(metric, cosines), labels, truth)
    later, names, _ = world(200, 1)
    expected, found = decider.decide(later, names), other.decide(returned(metric, later), names)
    assert (found.decision == expected.decision).all()
    assert (found.label == expected.label).all()
    np.testing.assert_allclose(found.probability, expected.probability, atol=1e-6)


def test_distances_of_vectors_of_any_length_are_decided_in_their_own_unit():
    cosines, labels, truth = world(900)
    far = 130 * np.sqrt(2 - 2 * cosines)
    made = sf.Decider("distance", max_wrong=0.05).fit(far, labels, truth)
    later, names, real = world(600, 1)
    found = made.decide(130 * np.sqrt(2 - 2 * later), names)
    match = found.decision == "match"
    assert match.mean() > 0.4
    assert (found.label[match] != np.array(real, dtype=object)[match]).mean() < 0.05


@pytest.mark.parametrize(
    "runs", [pytest.param(5, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]
)
def test_the_promise_is_kept_for_the_mixture_that_was_told(runs):
    """A quarter of the checked queries is unknown, and six tenths of those to come."""
    population, names, truth = world(6000, 5, spread=1.0)
    real = np.array(truth, dtype=object)
    strange = np.array([name is None for name in truth])
    weight = np.where(strange, 0.6 / strange.mean(), 0.4 / (~strange).mean())
    broken = {None: 0, 0.6: 0}
    for seed in range(runs):
        rows = np.random.default_rng(seed).integers(6000, size=900)
        for share in broken:
            made = sf.Decider(max_wrong=0.1, seed=seed)
            near = population[rows], names[rows], [truth[row] for row in rows]
            found = made.fit(*near, unknown_share=share).decide(population[::3], names[::3])
            match = weight[::3] * (found.decision == "match")
            wrong = (match * (found.label != real[::3])).sum() / max(match.sum(), 1e-9)
            broken[share] += wrong > 0.1
    assert broken[0.6] <= runs // 4  # more than 5 of 20 at 5 % has a probability of 0.03 %
    assert broken[None] > runs // 2


def test_the_order_and_the_length_of_rows_do_not_matter(decider):
    cosines, labels, _ = world(50, 1)
    order = np.argsort(np.random.default_rng(0).random(cosines.shape), axis=1)
    shuffled = [np.take_along_axis(x, order, axis=1) for x in (cosines, labels)]
    expected, found = decider.decide(cosines, labels), decider.decide(*shuffled)
    np.testing.assert_allclose(found.probability, expected.probability)
    longer = (
        [[*row, 0.0, None] for row in cosines.tolist()],
        [[*row, "p0", None] for row in labels.tolist()],
    )
    np.testing.assert_allclose(decider.decide(*longer).probability, expected.probability)


def test_integers_and_tensors_are_labels_and_distances_too():
    cosines, labels, truth = world(300)
    numbers = np.vectorize(lambda name: int(name[1:]))(labels)
    real = np.array([-1 if name is None else int(name[1:]) for name in truth])
    plain = sf.Decider(max_wrong=0.1).fit(cosines, labels, truth)
    made = sf.Decider(max_wrong=0.1).fit(
        torch.from_numpy(cosines), torch.from_numpy(numbers), torch.from_numpy(real)
    )
    assert made.calibration == plain.calibration
    found = made.decide(cosines[:5], numbers[:5])
    assert all(type(label) is int for label in found.label)


def test_who_is_far_from_everybody_or_among_the_nameless_is_no_match(decider):
    cosines, labels, _ = world(20, 1)
    lost = decider.decide(np.sort(0.1 * np.random.default_rng(0).random((20, K)))[:, ::-1], labels)
    assert (lost.decision == "no_match").all()
    assert (lost.none > 0.9).all()
    nameless = decider.decide(cosines, np.full(labels.shape, None, dtype=object))
    assert (nameless.decision != "match").all()
    assert all(label is None for label in nameless.label)


def uneven(queries, seed):
    """Queries of labels that overlap and come as often as they have items, from 1 to 40 each."""
    rng = np.random.default_rng([8, seed])
    means = np.random.default_rng(5).normal(size=(40, 8))
    own = np.repeat(np.arange(40), np.arange(1, 41))
    items = unit(means[own] + np.random.default_rng(6).normal(size=(len(own), 8)))
    asked = rng.choice(own, size=queries)
    cosines = unit(means[asked] + rng.normal(size=(queries, 8))) @ items.T
    near = np.argsort(-cosines, axis=1)[:, :100]
    return np.take_along_axis(cosines, near, axis=1), own[near], asked


def test_how_often_labels_are_asked_for_is_learnt_where_items_are_counted():
    counts = {label: label + 1 for label in range(40)}
    learned = sf.Decider(max_wrong=0.3).fit(*uneven(900, 0), counts=counts)
    rule = learned._state.rule
    assert 0.5 < rule.labels.prior < 1.5
    equal = replace(rule, labels=replace(rule.labels, prior=0.0))
    cosines, labels, asked = uneven(2000, 1)
    right = [(learned.decide(cosines, labels).label == asked).mean()]
    learned._state = replace(learned._state, rule=equal)
    right.append((learned.decide(cosines, labels).label == asked).mean())
    nearest = (labels[:, 0] == asked).mean()
    assert right[0] > right[1]
    assert right[0] > nearest


def test_a_gate_stops_what_is_unlike_anything_seen():
    cosines, labels, truth = world(900)
    p = np.random.default_rng(0).random(900)
    made = sf.Decider(max_wrong=0.05).fit(cosines, labels, truth, novelty=p)
    assert made.calibration.gate is not None
    found = made.decide(cosines[:2], labels[:2], novelty=[0.0001, 0.9])
    assert found.decision[0] == "no_match"
    assert found.gate.tolist() == ["unlike", "pass"]
    with pytest.raises(sf.InputError) as refused:
        made.decide(cosines[:2], labels[:2])
    assert refused.value.field == "novelty"


def test_renewal_keeps_the_promise_and_lets_queries_change_sides(decider):
    cosines, labels, truth = world(900)
    gone = [label in {"p0", "p1", "p2"} for label in labels.ravel()]
    fewer = np.where(np.array(gone).reshape(labels.shape), None, labels)
    left = np.where(fewer == None, -np.inf, cosines)  # noqa: E711
    made = sf.Decider(max_wrong=0.05).fit(cosines, labels, truth)
    before = made.calibration.unknown
    made.renew(left, fewer)
    assert made.calibration.renewals == 1
    assert made.calibration.unknown == before + sum(t in {"p0", "p1", "p2"} for t in truth)
    assert made.calibration.max_wrong == 0.05
    assert made._state.rule.labels == decider._state.rule.labels
    with pytest.raises(sf.InputError) as refused:
        made.renew(cosines[:10], labels[:10])
    assert refused.value.field == "distances"


def test_a_saved_decider_decides_alike(decider, tmp_path):
    file = tmp_path / "faces.json"
    decider.save(file)
    again = sf.Decider.load(file)
    cosines, labels, _ = world(50, 1)
    one, two = decider.decide(cosines, labels), again.decide(cosines, labels)
    assert (one.decision == two.decision).all()
    assert one.reasons == two.reasons
    assert repr(again) == repr(decider)
    again.renew(*world(900)[:2])
    counted = sf.Decider(max_wrong=0.1).fit(
        [[0.9, 0.2]] * 30, [[1, 2]] * 30, [1] * 30, counts={1: 3, 2: 4}, kappa=np.full(30, 5.0)
    )
    counted.save(file)
    found = sf.Decider.load(file).decide([[0.9, 0.2]], [[1, 2]], kappa=[5.0])
    assert found.label.tolist() == [1]


@pytest.mark.parametrize("edit", ["threshold", "cut", "format", "gone"])
def test_a_changed_file_is_refused(decider, tmp_path, edit):
    file = tmp_path / "faces.json"
    decider.save(file)
    text = file.read_text()
    whole = json.loads(text)
    if edit == "threshold":
        whole["value"]["rule"]["calibration"]["floor"] = 0.0
    if edit == "format":
        whole = {"format": 99}
    file.write_text(text[: len(text) // 2] if edit == "cut" else json.dumps(whole))
    if edit == "gone":
        file.unlink()
    with pytest.raises(sf.InputError) as refused:
        sf.Decider.load(file)
    assert refused.value.field == ("path" if edit in ("cut", "gone") else "stored")


@pytest.mark.parametrize(
    ("distances", "labels", "options", "field"),
    [
        ([[0.9, 0.1]], [["a", "b"]], {}, "distances"),  # fewer neighbours than were learned from
        ([[5.0] * K], [["p1"] * K], {}, "distances"),  # no cosine
        ([[np.nan] * K], [["p1"] * K], {}, "distances"),
        ([["x"] * K], [["p1"] * K], {}, "distances"),
        (np.zeros(K), ["p1"] * K, {}, "distances"),
        ([[0.5] * K], [["p1"] * (K - 1)], {}, "labels"),
        ([[0.5] * K], [[-1] * K], {}, "labels"),
        ([[0.5] * K], [["p1"] * K], {"kappa": [3.0]}, "kappa"),
        ([[0.5] * K], [["p1"] * K], {"kappa": [-3.0]}, "kappa"),
        ([[0.5] * K], [[1] * K], {}, "labels"),  # strings were learned from
        ([[0.5] * K], [[2.5] * K], {}, "labels"),
        ([[0.5] * K], [[True] * K], {}, "labels"),
        ([[0.5] * K, [0.5] * 3], [["p1"] * K, ["p1"] * 3], {}, "distances"),  # one has too few
        ([[0.5] * (K - 1) + [np.nan]], [["p1"] * K], {}, "distances"),  # a label without a number
        ([np.linspace(0.1, 0.9, K)], [["p1"] * K], {}, "distances"),  # distances, called cosines
        (np.empty((0, K)), np.empty((0, K), dtype=object), {}, "distances"),
    ],
)
def test_what_cannot_be_decided_is_refused(decider, distances, labels, options, field):
    with pytest.raises(sf.InputError) as refused:
        decider.decide(distances, labels, **options)
    assert refused.value.field == field


SIMILARITIES = ("cosine", "elasticsearch")


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("distance", [x for x in METRICS if x not in (*SIMILARITIES, "distance")])
def test_similarities_called_distances_are_refused_and_the_other_way_round(similarity, distance):
    cosines, labels, truth = world(30)
    for metric, real in ((similarity, distance), (distance, similarity)):
        with pytest.raises(sf.InputError) as refused:
            sf.Decider(metric, max_wrong=0.05).fit(returned(real, cosines), labels, truth)
        assert refused.value.field == "distances"


def test_items_as_their_own_queries_are_refused_and_a_few_are_told():
    cosines, labels, truth = world(300)
    own = np.array([name or "p0" for name in truth], dtype=object)
    found = np.concatenate([np.ones((300, 1)), cosines], axis=1)
    names = np.concatenate([own[:, None], labels], axis=1)
    with pytest.raises(sf.InputError) as refused:
        sf.Decider(max_wrong=0.05).fit(found, names, truth)
    assert refused.value.field == "distances"
    found[20:, 0] = found[20:, 1]
    names[20:, 0] = names[20:, 1]
    summary = sf.Decider(max_wrong=0.1).fit(found, names, truth).calibration.summary
    assert "at distance 0" in summary
    assert "at distance 0" not in sf.Decider(max_wrong=0.1).fit(*world(300)).calibration.summary


def test_queries_that_are_given_twice_are_told(decider):
    cosines, labels, truth = world(300)
    twice = [np.concatenate([x, x]) for x in (cosines, labels)]
    assert "300 of the queries found just what another one found" in (
        sf.Decider(max_wrong=0.1).fit(*twice, truth * 2).calibration.summary
    )
    assert "found just what" not in decider.calibration.summary


def test_a_label_that_was_never_seen_can_be_the_answer(decider):
    """The rule is about votes, not about names: who was enrolled since is found too."""
    cosines, labels, _ = world(50, 1)
    renamed = np.where(labels == "p7", "newcomer", labels)
    expected, found = decider.decide(cosines, labels), decider.decide(cosines, renamed)
    assert (found.decision == expected.decision).all()
    assert set(found.label) == {"newcomer" if x == "p7" else x for x in expected.label}


def test_numbers_of_other_libraries_can_be_saved(tmp_path):
    near = [[np.float32(0.9), np.float32(0.5)]] * 40, [[np.int64(1), np.int64(2)]] * 40
    made = sf.Decider(max_wrong=0.2).fit(*near, [np.int64(1)] * 40, counts={1: np.int64(3), 2: 4})
    made.save(tmp_path / "d.json")
    found = sf.Decider.load(tmp_path / "d.json").decide(*near)
    assert [type(label) for label in found.label[:1]] == [int]


def test_a_promise_is_made_for_the_share_of_strangers_that_is_expected(tmp_path):
    cosines, labels, truth = world(1200)
    made = sf.Decider(max_wrong=0.1).fit(cosines, labels, truth, unknown_share=0.6)
    found, all_unknown = made.calibration, truth.count(None)
    assert found.unknown == all_unknown
    assert found.unknown / found.queries == pytest.approx(0.6, abs=0.002)
    fewer = sf.Decider(max_wrong=0.1).fit(cosines, labels, truth, unknown_share=0.0)
    assert (fewer.calibration.unknown, fewer.calibration.queries) == (0, 1200 - all_unknown)
    made.save(tmp_path / "d.json")
    again = sf.Decider.load(tmp_path / "d.json").renew(
        cosines, labels
    )  # all that were given to fit
    assert replace(again.calibration, contributions=None) == found
    with pytest.raises(sf.InputError) as refused:
        made.renew(cosines[:100], labels[:100])
    assert refused.value.field == "distances"


NEAR = [[0.9, 0.5]] * 40
COUNTS = {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda fit: sf.Decider().decide(NEAR, [["a", "b"]] * 40), None),
        (lambda fit: sf.Decider("hamming"), "metric"),
        (lambda fit: fit(["a"]), "truth"),
        (lambda fit: fit([3] * 40), "truth"),
        (lambda fit: fit([2.5] * 40), "truth"),
        (lambda fit: fit(["c"] * 40), "truth"),
        (lambda fit: fit(counts={"a": 3}), "counts"),
        (lambda fit: fit(counts={"a": 3, "b": -1}), "counts"),
        (lambda fit: fit(counts={"a": 3, "b": 0.5}), "counts"),
        (lambda fit: fit(counts={1: 3, 2: 3}), "counts"),
        (lambda fit: fit(counts=COUNTS).renew(NEAR, [["a", "b"]] * 40), "counts"),
        (lambda fit: fit(kappa=np.full(40, 9.0)).decide(NEAR, [["a", "b"]] * 40), "kappa"),
        (lambda fit: fit(unknown_share=1.0), "unknown_share"),
        (lambda fit: fit(unknown_share=-0.1), "unknown_share"),
        (lambda fit: fit(unknown_share=0.5), "unknown_share"),  # all are enrolled
        (lambda fit: fit(metric="euclidean", sign=-1), "distances"),
        (lambda fit: fit(metric="squared-euclidean", sign=-1), "distances"),
        (lambda fit: fit(metric="distance", sign=-1), "distances"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(call, field):
    def fit(truth=("a",) * 40, metric="cosine", sign=1, **options):
        decider = sf.Decider(metric, max_wrong=0.2)
        return decider.fit(sign * np.array(NEAR), [["a", "b"]] * 40, list(truth), **options)

    with pytest.raises(sf.SurefindError) as refused:
        call(fit)
    assert refused.value.field == field
