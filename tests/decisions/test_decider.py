"""A Decider on vectors: calibrates itself, is calibrated, changes, and is saved."""

import json
import threading

import numpy as np
import pytest

from surefind import Decider, LabelModel
from surefind.decisions.decider import hashes
from surefind.errors import InputError

NAMES = [f"bird {i}" for i in range(12)]


def blobs(n, rng, names=NAMES, spread=0.5):
    """Vectors around a direction for each name, the same in every call."""
    codes = rng.integers(len(names), size=n)
    centres = np.random.default_rng(5).normal(size=(len(NAMES), 16))
    own = np.array([NAMES.index(name) for name in names])
    vectors = centres[own[codes]] + spread * rng.normal(size=(n, 16))
    return vectors.astype(np.float32), [names[code] for code in codes]


def queries(n, seed=1):
    """A sixth of the queries is of the last two labels, which are not enrolled."""
    vectors, labels = blobs(n, np.random.default_rng(seed))
    return vectors, labels


def fitted(**options):
    vectors, labels = blobs(600, np.random.default_rng(0), NAMES[:10])
    return Decider(**{"max_wrong": 0.05, **options}).fit(vectors, labels)


@pytest.fixture(scope="module")
def itself():
    return fitted()


@pytest.fixture
def calibrated():
    return fitted().calibrate(*queries(900))


def wrong_share(answers, labels):
    match = answers.decision == "match"
    return np.mean([
        a != b for a, b in zip(answers.label[match], np.array(labels)[match], strict=True)
    ])


def test_it_calibrates_itself_on_items_left_out(itself):
    made = itself.calibration
    assert made.reached
    assert made.queries == 600
    assert made.unknown == 300
    assert made.left_out_queries == 600 - made.unknown
    assert made.gate_counts.enrolled_unlike < 0.05 * 600
    assert "Note: Items played the queries" in made.summary
    vectors, labels = queries(2000)
    answers = itself.decide(vectors)
    assert (answers.decision == "match").mean() > 0.5
    assert wrong_share(answers, labels) < 0.1
    assert itself.target == made.target


def test_the_same_items_are_calibrated_the_same(itself):
    assert fitted().calibration == itself.calibration
    assert fitted(seed=3).calibration != itself.calibration


def test_answers_are_those_of_the_model_and_the_calibration(itself):
    vectors, _ = queries(50)
    model, answers = itself.model, itself.decide(vectors)
    expected = itself.calibration.decide(model.posterior(vectors), novelty=model.novelty(vectors))
    np.testing.assert_array_equal(answers.decision, expected.decision)
    np.testing.assert_array_equal(answers.probability, expected.probability)
    some = itself.decide(vectors, labels=NAMES[:2])
    assert {*some.label} <= {*NAMES[:2]}


def test_labelled_queries_are_calibrated_with(calibrated):
    made = calibrated.calibration
    assert made.queries == 900
    assert made.unknown == sum(label in NAMES[10:] for label in queries(900)[1])
    assert made.left_out_queries == 600
    vectors, labels = queries(3000, seed=2)
    assert wrong_share(calibrated.decide(vectors), labels) < 0.05
    told = fitted().calibrate(*queries(900), unknown_share=0.3)
    assert told.calibration.target.unknown_share == 0.3
    assert told.calibration.queries == 900
    kappa = fitted().calibrate(*queries(900), kappa=np.ones(900), groups=["a"] * 900)
    assert kappa.decide(vectors, kappa=np.ones(3000), groups=["a"] * 3000).kappa[0] == 1


def test_items_are_no_queries(itself):
    vectors, labels = blobs(600, np.random.default_rng(0), NAMES[:10])
    with pytest.raises(InputError) as refused:
        itself.calibrate(vectors.astype(np.float64), labels)
    assert refused.value.field == "queries"
    more, theirs = queries(700)
    decider = fitted().calibrate(np.concatenate([more, vectors[:9]]), [*theirs, *labels[:9]])
    assert "9 of the queries are items" in decider.calibration.summary


def test_items_that_were_rescaled_are_items_still():
    vectors, _ = blobs(500, np.random.default_rng(2))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (hashes(units) == hashes(vectors)).mean() > 0.99
    assert len(np.unique(hashes(vectors))) == 500


def test_a_new_label_is_a_review_until_it_was_tested(calibrated):
    vectors, labels = queries(900)
    enrolled, theirs = blobs(100, np.random.default_rng(4), NAMES[10:11])
    before = calibrated.model
    calibrated.add(enrolled, theirs)
    assert len(before.labels) == 10
    assert calibrated.calibration.stale
    answers = calibrated.decide(vectors)
    new = answers.label == NAMES[10]
    assert new.sum() > 40
    assert "match" not in answers.decision[new]
    assert any("label not tested" in reasons for reasons in answers.reasons[new])
    calibrated.renew()
    made = calibrated.calibration
    assert (made.stale, made.renewals) == (False, 1)
    assert made.unknown == labels.count(NAMES[11])
    assert "match" in calibrated.decide(vectors).decision[new]
    calibrated.remove(enrolled, theirs)
    assert NAMES[10] not in calibrated.model.labels
    np.testing.assert_allclose(
        calibrated.model.posterior(vectors).known, before.posterior(vectors).known, rtol=1e-6
    )


def test_a_renewal_leaves_a_label_untested_that_no_query_has():
    vectors, labels = queries(900)
    kept = [i for i, label in enumerate(labels) if label != NAMES[10]]
    decider = fitted().calibrate(vectors[kept], [labels[i] for i in kept])
    decider.add(*blobs(100, np.random.default_rng(4), NAMES[10:11])).renew()
    answers = decider.decide(vectors)
    assert "match" not in answers.decision[answers.label == NAMES[10]]


@pytest.mark.parametrize("own", [True, False])
def test_a_saved_decider_answers_equally(own, itself, calibrated, tmp_path):
    decider = itself if own else calibrated
    decider.save(tmp_path / "decider.json")
    again = Decider.load(tmp_path / "decider.json")
    vectors, _ = queries(200, seed=9)
    a, b = decider.decide(vectors), again.decide(vectors)
    np.testing.assert_array_equal(a.probability, b.probability)
    np.testing.assert_array_equal(a.decision, b.decision)
    assert again.target == decider.target
    assert again.calibration == decider.calibration
    if not own:
        assert again.renew().calibration.renewals == 1
    damaged = json.loads((tmp_path / "decider.json").read_text())
    damaged["state"]["value"]["missing"] = "nothing"
    (tmp_path / "damaged.json").write_text(json.dumps(damaged))
    with pytest.raises(InputError):
        Decider.load(tmp_path / "damaged.json")


def test_who_decides_meanwhile_sees_old_or_new(calibrated):
    vectors, _ = queries(40)
    extra, theirs = blobs(20, np.random.default_rng(4), NAMES[10:11])
    seen, done = set(), threading.Event()

    def ask():
        while not done.is_set():
            seen.add(calibrated.decide(vectors).probability.tobytes())

    asking = threading.Thread(target=ask)
    asking.start()
    states = {calibrated.decide(vectors).probability.tobytes()}
    for change in [calibrated.add, calibrated.remove] * 4:
        change(extra, theirs)
        states.add(calibrated.decide(vectors).probability.tobytes())
    done.set()
    asking.join()
    assert seen <= states


def few(labels):
    return Decider().fit(np.random.default_rng(0).normal(size=(len(labels), 4)), labels)


@pytest.mark.parametrize(
    ("use", "field"),
    [
        (lambda _: Decider().decide(np.ones((2, 4))), None),
        (lambda _: Decider(max_wrong=0), "max_wrong"),
        (lambda _: few([*"abcd"]).decide(np.ones((2, 4))), "calibration"),
        (lambda _: few([*"aabbccdd"]).calibration, "calibration"),
        (lambda decider: decider.renew(), "queries"),
        (lambda decider: decider.decide(np.ones((2, 4))), "vectors"),
        (lambda decider: decider.decide(queries(5)[0], labels=["nobody"]), "labels"),
        (lambda decider: decider.calibrate(queries(30)[0], [1] * 30), "truth"),
        (lambda decider: decider.calibrate(queries(30)[0], ["a"] * 29), "truth"),
        (lambda _: Decider.load("nowhere.json"), "path"),
    ],
)
def test_unusable_input_is_refused(use, field, itself):
    with pytest.raises(InputError) as refused:
        use(itself)
    assert refused.value.field == field


def test_few_items_can_be_calibrated_with_queries():
    vectors, labels = blobs(12, np.random.default_rng(0), NAMES[:10])
    decider = Decider(max_wrong=0.2).fit(vectors, labels)
    assert isinstance(decider.model, LabelModel)
    assert decider.calibrate(*queries(900)).calibration.queries == 900
    assert "12 items" in repr(decider)


def test_one_label_is_told_from_none():
    vectors, labels = blobs(300, np.random.default_rng(0), NAMES[:1])
    decider = Decider(max_wrong=0.1).fit(vectors, labels)
    others, _ = blobs(300, np.random.default_rng(1), NAMES[1:])
    assert (decider.decide(others).decision == "match").mean() < 0.1
