"""An audit: its probabilities against their definition, and what it finds where something was planted."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import logistic_regression
from scipy.special import logsumexp

from surefind.decisions import label_errors
from surefind.decisions.label_errors import RIDGES, VARIANCE, WHITENING
from surefind.decisions.label_posterior import LabelModel
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery import audit as auditing
from surefind.gallery import second_opinion
from surefind.gallery.audit import with_copies
from surefind.gallery.findings import COLUMN_NAMES
from surefind.gallery.gallery import Gallery
from surefind.gallery.label_fit import left_out_votes, read_table
from surefind.gallery.second_opinion import fit_second_opinion


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def world(n=300, labels=10, dim=24, spread=0.12, seed=0):
    rng = np.random.default_rng(seed)
    centres = unit(rng.normal(size=(labels, dim)))
    who = rng.permutation(np.arange(n) % labels)
    x = unit(centres[who] + spread * rng.normal(size=(n, dim)))
    return x.astype(np.float32), who, rng


def planted(who, rng, count):
    """Give some items another label at random."""
    rows = rng.choice(len(who), count, replace=False)
    wrong = who.copy()
    labels = who.max() + 1
    wrong[rows] = (who[rows] + rng.integers(1, labels, count)) % labels
    return wrong, set(rows.tolist())


def opinion_oracle(x, labels, together, folds, row, score, T, c, e, b, ridge):
    """P of every label for one item, by the definitions of `label_errors`, in loops."""
    kept = [i for i in range(len(x)) if i not in together[row] and labels[i] is not None]
    train = [i for i in range(len(x)) if folds[i] != folds[row] and labels[i] is not None]
    dim = x.shape[1]
    # Labels of a single item in the whole gallery say nothing about the spread within labels.
    train = [i for i in train if sum(other == labels[i] for other in labels) > 1]
    names = {labels[i] for i in train}
    within = np.zeros((dim, dim))
    for name in names:
        members = [x[i] for i in train if labels[i] == name]
        for v in members:
            apart = v - np.mean(members, axis=0)
            within += np.outer(apart, apart)
    within /= len(train) - len(names)
    shrunk = lambda ridge: (within + ridge * np.trace(within) / dim * np.eye(dim)) / (1 + ridge)
    covariance = shrunk(ridge)
    values, axes = np.linalg.eigh(shrunk(WHITENING))
    mean, whiten = x[train].mean(axis=0), axes / np.sqrt(values)
    given = [labels[i] for i in train]
    regression = logistic_regression((x[train] - mean) @ whiten, given, dim / VARIANCE)
    logits = regression @ whiten.T @ (x[row] - mean)
    q = dict(zip(sorted(names), logits - logsumexp(logits), strict=True))
    absent = -np.log(len({*labels} - {None}))
    weights = {}
    for name in {labels[i] for i in kept}:
        members = [i for i in kept if labels[i] == name]
        s = np.log(np.mean([np.exp(score(row, i) / T) for i in members]))
        gap = x[row] - np.mean([x[i] for i in members], axis=0)
        n = len(members)
        g = -0.5 * n / (n + 1) * gap @ np.linalg.solve(covariance, gap)
        weights[name] = c * s + e * g + b * q.get(name, absent)
    top = max(weights.values())
    total = sum(np.exp(w - top) for w in weights.values())
    return {name: np.exp(w - top) / total for name, w in weights.items()}


@pytest.mark.parametrize("grouped", [False, True])
def test_probabilities_are_those_of_the_definition(monkeypatch, grouped):
    monkeypatch.setattr(second_opinion, "ROWS", 7)
    monkeypatch.setattr(second_opinion, "WIDE", 5)
    monkeypatch.setattr(second_opinion, "CELLS", 200)
    monkeypatch.setattr(second_opinion, "SUMS", 20)
    monkeypatch.setattr(label_errors, "STEPS", 500)
    x, who, rng = world(n=90, labels=6, dim=8, spread=0.5)
    who[[11, 12]] = 6  # in one group, if there are groups: others of their fold lack the label
    x[40], x[41] = x[3], x[3]  # copies, of other labels perhaps
    labels = [None if i % 17 == 5 else int(label) for i, label in enumerate(who)]
    groups = [int(g) if grouped and g < 12 else None for g in rng.integers(20, size=90)]
    groups[11] = groups[12] = 50 if grouped else None
    gallery = Gallery(normalize=True)
    gallery.add(x, labels=labels, groups=groups)
    engine = gallery._engine
    table = read_table(engine)
    stored = engine.fetch(table.ids)
    _, prints = auditing._read_novelty_and_prints(engine, table)
    groups_and_copies = with_copies(table.groups, prints)
    table = replace(table, groups=groups_and_copies)
    judge = fit_second_opinion(engine, table, np.random.default_rng(1), 90)
    assert judge.pooling.gaussian > 0
    judge = replace(judge, pooling=replace(judge.pooling, classifier=0.7))
    vectors = stored.vectors.astype(float)

    scores = vectors @ vectors.T
    score = lambda a, b: scores[a, b]
    together = []
    for row in range(90):
        mine = {row} | {i for i in range(90) if (x[i] == x[row]).all()}
        for _ in range(3):  # a copy's group comes along, and that one's copies
            sessions = {groups[i] for i in mine} - {None}
            mine |= {i for i in range(90) if groups[i] in sessions}
            mine |= {i for i in range(90) for j in mine if (x[i] == x[j]).all()}
        together.append(mine)
    mates = [{j for j in range(90) if labels[j] == labels[i]} - together[i] for i in range(90)]
    asked = np.array([i for i in range(90) if labels[i] is not None and mates[i]])
    compared = 0
    for rows, outside in judge.blocks(asked, 4):
        votes, found = left_out_votes(engine, table, rows, stored.vectors[rows])
        opinion = judge.of(rows, stored.vectors[rows], votes[0], found[0], outside)
        for at, row in enumerate(rows.tolist()):
            pooling = judge.pooling
            wanted = opinion_oracle(
                vectors,
                labels,
                together,
                judge.folds,
                row,
                score,
                judge.model.temperature,
                pooling.kernel,
                pooling.gaussian,
                pooling.classifier,
                RIDGES[pooling.ridge],
            )
            own = 1 / (1 + np.exp(opinion.against[at]))
            # The classifier is fitted in float32, and so stops a little off the minimum.
            assert own == pytest.approx(wanted.pop(labels[row]), rel=1e-2, abs=1e-12)
            best = max(wanted, key=wanted.get)
            assert table.label_names[opinion.suggested[at]] == best
            assert opinion.probability[at] == pytest.approx(wanted[best], rel=1e-2)
            near = [i for i in range(90) if labels[i] == best and i not in together[row]]
            assert opinion.nearest[at] == max(near, key=lambda i, row=row: score(row, i))
            compared += 1
    assert compared == len(asked)


def test_densities_of_all_labels_are_over_all_items(monkeypatch):
    """Not over the nearest alone, or the own label, which is over all, would be favoured."""
    monkeypatch.setattr(second_opinion, "LINES", 7)
    monkeypatch.setattr(second_opinion, "COLUMNS", 11)
    x, who, rng = world(n=60, labels=5, dim=8, spread=0.5)
    labels = [None if i % 13 == 5 else int(label) for i, label in enumerate(who)]
    groups = [int(g) if g < 6 else None for g in rng.integers(12, size=60)]
    gallery = Gallery(normalize=True)
    gallery.add(x, labels=labels, groups=groups)
    engine = gallery._engine
    table = read_table(engine)
    stored = engine.fetch(table.ids).vectors
    scores = stored.astype(float) @ stored.T
    rows = np.flatnonzero(table.labels >= 0)
    model = LabelModel(temperature=0.3)
    found = second_opinion.label_masses(engine, table, model, rows, stored[rows])
    for at, row in enumerate(rows.tolist()):
        for code, name in enumerate(table.label_names):
            members = [
                i
                for i in range(60)
                if labels[i] == name
                and i != row
                and (groups[i] is None or groups[i] != groups[row])
            ]
            wanted = np.log(np.sum(np.exp(scores[row, members] / 0.3)))
            assert found[at, code] == pytest.approx(wanted, rel=1e-4)
    own = second_opinion.own_densities(engine, table, model)[rows] + np.log(table.companions(rows))
    np.testing.assert_allclose(found[np.arange(len(rows)), table.labels[rows]], own, rtol=1e-4)


def test_planted_errors_are_found_and_counted():
    x, who, rng = world(n=500, labels=25, dim=32, spread=0.1)
    wrong, rows = planted(who, rng, 10)
    gallery = Gallery()
    gallery.add(x, labels=wrong)
    before = gallery.info["fingerprint"]
    found = gallery.audit()
    assert gallery.info["fingerprint"] == before
    assert found.judged == found.items == len(found.mislabelled) == 500
    first = found.mislabelled[:10]
    assert {s.id for s in first} == rows
    assert all(s.suggested == who[s.id] for s in first)
    assert all(s.suggested_probability > 0.9 > 0.1 > s.probability for s in first)
    assert {s.id for s in found.suspects} == rows
    assert found.wrong_fraction == pytest.approx(10 / 500, abs=0.005)
    chances = [s.probability for s in found.mislabelled]
    assert chances == sorted(chances)
    assert "2.0% of the labels are wrong, about 10; rather wrong than right: 10." in found.summary
    assert "gallery.update(ids=" in found.to_rows()[0]["mend"]


@pytest.mark.parametrize(("weights", "judged"), [(25 * 32, 500), (25 * 32 - 1, 500), (2**19, 499)])
def test_where_the_classifier_costs_too_much_there_is_none(monkeypatch, weights, judged):
    monkeypatch.setattr(second_opinion, "WEIGHTS", weights)
    x, who, rng = world(n=500, labels=25, dim=32, spread=0.1)
    wrong, rows = planted(who, rng, 10)
    gallery = Gallery()
    gallery.add(x, labels=wrong)
    table = read_table(gallery._engine)
    judge = fit_second_opinion(gallery._engine, table, np.random.default_rng(0), judged)
    assert (judge.pooling.classifier > 0) == (weights == 25 * 32)
    assert {s.id for s in gallery.audit().suspects} == rows


def test_nothing_is_found_where_nothing_is_wrong():
    x, who, _ = world()
    gallery = Gallery()
    gallery.add(x, labels=who)
    found = gallery.audit()
    assert found.suspects == ()
    assert found.wrong_fraction < 0.001
    assert found.confusions == ()
    assert found.unusable == ()
    assert found.duplicates == ()


def test_frames_of_one_video_do_not_vouch_for_each_other():
    """Each object is there in three frames; where the label is wrong, it is wrong for all three."""
    x, who, rng = world(n=120, spread=0.2)
    wrong, rows = planted(who, rng, 4)
    frames = unit(np.repeat(x, 3, axis=0) + 0.01 * rng.normal(size=(360, 24)))
    bad = {3 * row + i for row in rows for i in range(3)}
    alone, grouped = Gallery(), Gallery()
    alone.add(frames, labels=np.repeat(wrong, 3))
    grouped.add(frames, labels=np.repeat(wrong, 3), groups=np.repeat(np.arange(120), 3))
    assert not alone.audit().suspects
    assert len({s.id for s in grouped.audit().mislabelled[:12]} & bad) >= 11


def test_a_copy_is_no_alibi():
    x, who, rng = world(spread=0.15)
    wrong, rows = planted(who, rng, 6)
    gallery = Gallery()
    for _ in range(2):
        gallery.add(x, labels=wrong)
    found = gallery.audit()
    bad = rows | {row + 300 for row in rows}
    assert {s.id for s in found.mislabelled[: len(bad)]} == bad
    assert found.copies == 300
    assert found.duplicate_pairs == 0


def test_copies_under_different_labels_are_duplicates():
    x, who, rng = world(n=200)
    near = unit(x[:3] + 1e-3 * rng.normal(size=(3, 24)))
    gallery = Gallery(normalize=True)
    gallery.add(np.concatenate([x, near]), labels=[*who, *(who[:3] + 1) % 10])
    found = gallery.audit(duplicate=0.999)
    assert {(d.id, d.other) for d in found.duplicates} == {(0, 200), (1, 201), (2, 202)}
    rows = [row for row in found.to_rows() if row["kind"] == "duplicate"]
    assert (
        rows[0]["mend"]
        == f"gallery.update(ids=[{rows[0]['other_id']}], labels=[{rows[0]['label']}])"
    )
    assert found.duplicate_pairs == 3
    first = found.duplicates[0]
    assert (first.label, first.other_label) == (who[first.id], (who[first.id] + 1) % 10)
    assert 0.999 <= found.duplicates[-1].cosine <= first.cosine <= 1
    assert "near-duplicates (cosine from 0.999 up) with different labels: 3" in found.summary


def test_how_near_duplicates_are_follows_from_the_gallery():
    """Of a network that brings a label together, cosines of 0.99 are no duplicates."""
    x, who, rng = world()
    near = unit(x[:1] + 1e-3 * rng.normal(size=(1, 24)))
    bounds = []
    for shift in (0, 3):  # all vectors in one corner: cosines are near 1
        every = unit(np.concatenate([x, near]) + shift * np.eye(24)[0])
        gallery = Gallery(normalize=True)
        gallery.add(every, labels=[*who, (who[0] + 1) % 10])
        found = gallery.audit()
        assert [(d.id, d.other) for d in found.duplicates] == [(0, 300)]
        bounds.append(found.duplicate)
    assert bounds[0] < 0.99 < bounds[1] < 1


def test_duplicates_within_a_group_are_found_too():
    x, who, _ = world(n=100)
    gallery = Gallery()
    gallery.add(
        np.concatenate([x, x[:1]]),
        labels=[*who, (who[0] + 1) % 10],
        groups=["day", *[None] * 99, "day"],
    )
    (pair,) = gallery.audit().duplicates
    assert {pair.id, pair.other} == {0, 100}


def test_many_duplicates_are_counted_and_the_nearest_listed(monkeypatch):
    monkeypatch.setattr(auditing, "MOST", 10)
    x, who, _ = world(n=200, labels=10)
    gallery = Gallery()
    gallery.add(x, labels=who)
    found = gallery.audit(duplicate=0.0)
    cosines = x.astype(float) @ x.T
    apart = np.triu(who[:, None] != who, 1) & (cosines >= 0)
    assert found.duplicate_pairs == apart.sum()
    nearest = np.sort(cosines[apart])[::-1][:10]
    np.testing.assert_allclose([d.cosine for d in found.duplicates], nearest, atol=1e-6)


def test_items_without_a_label_are_never_judged():
    x, who, rng = world()
    wrong, rows = planted(who, rng, 8)
    labels = [None if i % 5 == 0 and i not in rows else int(w) for i, w in enumerate(wrong)]
    gallery = Gallery()
    gallery.add(x, labels=labels)
    found = gallery.audit()
    named = {i for i, label in enumerate(labels) if label is not None}
    assert {s.id for s in found.mislabelled} == named
    assert {s.id for s in found.mislabelled[:8]} == rows
    assert (found.items, found.judged) == (300, len(named))
    assert {i.id for i in found.impostors} <= named


def test_a_label_with_one_item_is_judged_by_none():
    """The only item of its label lies amid another label: it may have two names; or apart: it is itself."""
    x, who, rng = world()
    keep = who < 9
    apart = np.flatnonzero(~keep)[0]
    inside = unit(x[keep][:1] + 0.05 * rng.normal(size=(1, 24)))
    gallery = Gallery(normalize=True)
    gallery.add(
        np.concatenate([x[keep], inside, x[[apart]]]),
        labels=[*who[keep].tolist(), 50, 51],
    )
    found = {s.label: s for s in gallery.audit().mislabelled if s.label in (50, 51)}
    assert found[50].probability < 0.2
    assert found[50].suggested == who[keep][0]
    assert found[51].probability > 0.5 > found[51].wrong


def test_one_label_alone_is_no_reason_for_doubt():
    x, _, _ = world(n=50)
    gallery = Gallery()
    gallery.add(x, labels=["a"] * 50)
    found = gallery.audit()
    assert {s.probability for s in found.mislabelled} == {1.0}
    assert {s.suggested for s in found.mislabelled} == {None}
    assert found.suspects == found.impostors == found.confusions == ()
    assert found.ceiling is None
    assert "one label alone" in found.summary


def test_two_items_and_one_item():
    for count in (1, 2):
        gallery = Gallery()
        gallery.add(np.eye(4)[:count], labels=["a", "b"][:count])
        assert gallery.audit().judged == count


@pytest.mark.parametrize(
    ("items", "options", "error"),
    [
        (0, {}, DegenerateError),
        (4, {}, DegenerateError),  # none has a label
        (4, {"labels": range(4), "items": 0}, InputError),
        (4, {"labels": range(4), "duplicate": 1.5}, InputError),
    ],
)
def test_what_cannot_be_audited_is_refused(items, options, error):
    gallery = Gallery()
    if items:
        gallery.add(np.eye(4), labels=options.pop("labels", None))
    with pytest.raises(error) as refused:
        gallery.audit(**options)
    assert refused.value.field in {*options, None}


def test_some_items_are_judged_by_all():
    x, who, rng = world(n=500, labels=25, dim=32, spread=0.1)
    wrong, rows = planted(who, rng, 25)
    gallery = Gallery()
    gallery.add(x, labels=wrong)
    whole, part = gallery.audit(duplicate=0.9), gallery.audit(items=100, duplicate=0.9)
    assert part.judged == 100
    some = {s.id for s in part.mislabelled}
    assert len(some) == 100
    assert {s.id for s in part.suspects} == {s.id for s in whole.suspects} & some == rows & some
    wanted = {(d.id, d.other) for d in whole.duplicates if {d.id, d.other} & some}
    assert {tuple(sorted((d.id, d.other))) for d in part.duplicates} == wanted


def test_confused_labels_are_counted_both_ways():
    x, who, rng = world(n=300)
    label = who.copy()
    mixed = np.flatnonzero(np.isin(who, [3, 7]))
    label[mixed] = np.where(rng.random(len(mixed)) < 0.5, 3, 7)  # nobody can tell these two
    gallery = Gallery()
    gallery.add(x, labels=label)
    found = gallery.audit()
    assert {found.confusions[0].label, found.confusions[0].other} == {3, 7}
    judged = {s.id: s for s in found.mislabelled}
    taken = [
        (label[i], s.suggested)
        for i, s in judged.items()
        if s.suggested is not None and s.suggested_probability > s.probability
    ]
    first = found.confusions[0]
    assert first.items == taken.count((first.label, first.other)) >= first.other_items
    assert first.other_items == taken.count((first.other, first.label))
    assert sum(c.items + c.other_items for c in found.confusions) == len(taken)


def test_unusable_items_have_reasons():
    x, who, rng = world(n=300)
    kappa = np.exp(rng.normal(5, 0.2, size=300))
    novelty = rng.uniform(0.02, 1, size=300)
    kappa[4], novelty[9], kappa[30], novelty[30] = 1.0, 0.004, 0.5, 0.00001
    gallery = Gallery()
    gallery.add(Embeddings(x, kappa, novelty), labels=who)
    found = gallery.audit()
    assert [u.id for u in found.unusable][:2] == [30, 9]
    reasons = {u.id: u.reasons for u in found.unusable}
    assert reasons[9] == ("unlike anything seen (p = 0.004)",)
    assert len(reasons[30]) == 2
    assert "far less certain than the others (κ 1, the median is" in reasons[4][0]
    assert len(reasons) < 12
    assert found.max_false_alarms == 0.01


def test_impostors_are_answers_without_the_own_label():
    x, who, rng = world(labels=12, spread=0.25)
    groups = [int(g) if g < 30 else None for g in rng.integers(100, size=300)]
    gallery = Gallery()
    gallery.add(x, labels=who, groups=groups)
    found = gallery.audit()
    assert found.impostor_matches is None
    assert found.strangers == len(found.impostors) == 300
    assert found.ceiling == max(i.probability for i in found.impostors)
    for impostor in found.impostors[:5]:
        row = impostor.id
        rest = [
            i
            for i in range(300)
            if who[i] != who[row] and (groups[row] is None or groups[i] != groups[row])
        ]
        other = Gallery()
        other.add(x[rest], labels=who[rest], ids=rest)
        other._labels = type(gallery._labels)(gallery._label_fit().model, len(rest))
        answer = other.search(x[[row]], decide=False)
        assert impostor.probability == pytest.approx(answer.label_probability[0, 0], abs=1e-4)
        assert impostor.match_label == answer.label[0]
        assert impostor.match == answer.evidence(0)[0].ids[0]
        assert impostor.accepted is None


def test_with_a_calibration_impostors_have_its_probability():
    x, who, _ = world(n=600, labels=25, spread=0.2)
    known = who < 20
    gallery = Gallery()
    gallery.add(x[known][:300], labels=who[known][:300])
    asked = np.concatenate([x[known][300:], x[~known]])
    truth = [*who[known][300:].tolist(), *[None] * int((~known).sum())]
    calibration = gallery.calibrate(asked, truth, max_wrong=0.3, contributions=False)
    found = gallery.audit()
    first = found.impostors[0]
    rest = [i for i in range(300) if who[known][i] != who[known][first.id]]
    other = Gallery()
    other.add(x[known][rest], labels=who[known][rest])
    other._state.record = gallery._state.record
    answer = other.search(x[known][[first.id]])
    assert first.probability == pytest.approx(answer.probability[0], abs=1e-3)
    assert first.accepted == (first.probability >= calibration.threshold)
    assert found.impostor_matches == sum(i.accepted for i in found.impostors)
    assert "would have been a match" in found.summary


def test_findings_are_plain_rows():
    x, who, rng = world(spread=0.22)
    wrong, _ = planted(who, rng, 6)
    gallery = Gallery()
    gallery.add(x, labels=[f"={label}" for label in wrong], ids=[f"a,{i}" for i in range(300)])
    found = gallery.audit(duplicate=0.9)
    rows = found.to_rows()
    assert all(tuple(row) == COLUMN_NAMES for row in rows)
    assert {row["kind"] for row in rows} >= {"mislabelled", "confusion", "impostor"}
    assert all(row["sentence"].endswith(".") for row in rows)
    few = found.to_rows(2)
    assert len(few) <= 2 * 5
    assert few[:2] == rows[:2]


def test_errors_that_follow_a_pattern_are_worth_a_look():
    """Some 0s are all written 3: whatever the estimate takes them for, they are named."""
    x, who, _ = world(n=300, labels=8, spread=0.1)
    rows = np.flatnonzero(who == 0)[:4]
    wrong = who.copy()
    wrong[rows] = 3
    gallery = Gallery()
    gallery.add(x, labels=wrong)
    found = gallery.audit()
    assert {s.id for s in found.improbable} >= set(rows.tolist())
    assert set(found.suspects) <= set(found.improbable)
    assert [r["id"] for r in found.to_rows() if r["kind"] == "mislabelled"] == [
        s.id for s in found.improbable
    ]
