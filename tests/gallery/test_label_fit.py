"""The posterior over labels of a gallery: what its items find when left out, and when it is fitted."""

import numpy as np
import pytest

from surefind.decisions.label_posterior import USUAL
from surefind.gallery import label_fit
from surefind.gallery.gallery import Gallery
from surefind.gallery.label_fit import balanced_sample, leave_out


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def world(n=400, labels=20, dim=12, spread=0.3, seed=0):
    rng = np.random.default_rng(seed)
    centres = unit(rng.normal(size=(labels, dim)))

    def draw(who):
        return unit(centres[who] + spread * rng.normal(size=(len(who), dim)))

    who = rng.integers(labels, size=n)
    return draw(who), who, draw, rng


def left_out_oracle(x, labels, groups, row, voters, *, without_label):
    """Cosines, labels and n_l of the nearest items to one that is left out, by sorting everything."""
    kept = [
        i
        for i in range(len(x))
        if i != row
        and not (groups[row] is not None and groups[i] == groups[row])
        and not (without_label and labels[i] == labels[row])
    ]
    sizes = {
        label: sum(
            labels[i] == label
            for i in range(len(x))
            if i != row and (groups[row] is None or groups[i] != groups[row])
        )
        for label in {labels[i] for i in kept}
    }
    near = sorted(kept, key=lambda i: -float(x[i] @ x[row]))[:voters]
    return [float(x[i] @ x[row]) for i in near], [labels[i] for i in near], sizes


@pytest.mark.parametrize("grouped", [False, True])
def test_neighbours_are_those_of_a_gallery_without_the_item(monkeypatch, grouped):
    monkeypatch.setattr(label_fit, "VOTERS", 15)
    monkeypatch.setattr(label_fit, "COLUMNS", 64)
    monkeypatch.setattr(label_fit, "ROWS", 7)
    x, who, _, rng = world(n=150)
    groups = [int(g) if grouped and g < 25 else None for g in rng.integers(40, size=150)]
    gallery = Gallery()
    gallery.add(x, labels=who, groups=groups)
    found = leave_out(gallery._engine, np.random.default_rng(0))
    stored = gallery._engine.fetch(list(range(150))).vectors.astype(float)
    rows = balanced_sample(_codes(who), np.random.default_rng(0))
    numbers = {label: code for code, label in enumerate(dict.fromkeys(who.tolist()))}
    seen = 0
    for row, own in zip(rows, range(len(rows)), strict=True):
        cosines, names, sizes = left_out_oracle(
            stored, who.tolist(), groups, int(row), 15, without_label=True
        )
        np.testing.assert_allclose(found.unknown.scores[own], cosines, atol=1e-6)
        assert found.unknown.labels[own].tolist() == [numbers[n] for n in names]
        assert found.unknown.sizes[own].tolist() == [sizes[n] for n in names]
        cosines, names, sizes = left_out_oracle(
            stored, who.tolist(), groups, int(row), 15, without_label=False
        )
        if not sizes.get(int(who[row])):
            continue  # no companion is left: it cannot find its label again
        np.testing.assert_allclose(found.enrolled.scores[seen], cosines, atol=1e-6)
        assert found.enrolled.labels[seen].tolist() == [numbers[n] for n in names]
        assert found.enrolled.sizes[seen].tolist() == [sizes[n] for n in names]
        assert found.truth[seen] == numbers[int(who[row])]
        seen += 1
    assert seen == len(found.enrolled)


def _codes(labels):
    numbers = {label: code for code, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([numbers[x] for x in labels.tolist()])


def test_the_sample_is_alike_for_all_labels():
    labels = np.repeat([0, 1, 2, -1], [1000, 10, 3, 50])
    rows = balanced_sample(labels, np.random.default_rng(0), most=21)
    assert len(set(rows)) == 21
    counts = np.bincount(labels[rows])
    assert counts.tolist() == [9, 9, 3]
    assert len(balanced_sample(np.full(5, -1), np.random.default_rng(0))) == 0


def test_the_answer_is_the_voted_label_and_the_nearest_item_another():
    gallery = Gallery()
    angles = np.array([0.10, -0.12, -0.13, 0.14, 2.0, 2.1, 2.2, 2.3])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    gallery.add(x, labels=["b", "a", "a", "a", "b", "b", "b", "b"])
    answers = gallery.search(np.array([[1.0, 0.0]]), k=2)
    assert answers.labels[0, 0] == "b"
    assert answers.label[0] == answers.candidates[0, 0] == "a"
    assert answers.label_probability[0, 0] > answers.label_probability[0, 1] > 0
    first, second = answers.evidence(0)
    assert (first.label, second.label) == ("a", "b")
    assert first.ids == [1, 2, 3]
    assert second.ids[0] == 0
    assert first.cosines == pytest.approx(np.cos(angles[[1, 2, 3]]), abs=1e-6)


def test_voted_labels_are_right_more_often_than_nearest_ones():
    x, who, draw, rng = world(n=1000, spread=0.45)
    gallery = Gallery()
    gallery.add(x, labels=who)
    asked = rng.integers(20, size=1000)
    answers = gallery.search(draw(asked))
    assert (answers.label == asked).mean() > (answers.labels[:, 0] == asked).mean() + 0.05
    among_labels = answers.label_probability[:, 0] / (1 - answers.none)
    assert among_labels.mean() == pytest.approx((answers.label == asked).mean(), abs=0.05)


def test_one_item_a_label_and_no_label_at_all():
    x, *_ = world(n=50)
    gallery = Gallery()
    gallery.add(x, labels=range(50))
    answers = gallery.search(x)
    assert (answers.label == np.arange(50)).all()
    assert gallery._label_fit().model.temperature == USUAL[0]
    nameless = Gallery()
    nameless.add(x)
    answers = nameless.search(x[:3])
    assert answers.label.tolist() == [None] * 3
    assert answers.none.tolist() == [1.0] * 3
    assert not answers.label_probability.any()
    assert answers.evidence(0) == []


def test_it_is_fitted_again_when_the_gallery_has_grown_by_a_tenth(monkeypatch):
    fits = []
    fit = label_fit.fit_labels
    monkeypatch.setattr(
        "surefind.gallery.gallery.fit_labels",
        lambda engine, **how: fits.append(len(engine)) or fit(engine, **how),
    )
    x, who, draw, _ = world(n=100)
    gallery = Gallery()
    gallery.add(x, labels=who)
    gallery.search(x[:2])
    gallery.search(x[:2])
    gallery.add(draw(np.arange(9)), labels=range(9))
    gallery.search(x[:2])
    assert fits == [100]
    gallery.add(draw(np.arange(1)), labels=[0])
    gallery.search(x[:2])
    assert fits == [100, 110]
    gallery.delete(list(range(20)))
    gallery.search(x[:2])
    assert fits == [100, 110, 90]


@pytest.mark.parametrize("mode", ["w", "r"])
def test_it_is_kept_with_the_gallery(tmp_path, monkeypatch, mode):
    x, who, *_ = world()
    with Gallery(path=tmp_path / "g") as gallery:
        gallery.add(x, labels=who, groups=[f"g{n // 2}" for n in range(len(who))])
        model = gallery._label_fit().model
        before = gallery.search(x[:5])
        assert gallery.get(3).group == "g1"
    monkeypatch.setattr("surefind.gallery.gallery.fit_labels", None)
    with Gallery.open(tmp_path / "g", mode=mode) as again:
        assert again._label_fit().model == model
        np.testing.assert_array_equal(again.search(x[:5]).none, before.none)
        assert again.get(3).group == "g1"


def test_a_gallery_that_is_only_read_fits_for_itself(tmp_path):
    x, who, *_ = world()
    with Gallery(path=tmp_path / "g") as gallery:
        gallery.add(x, labels=who)
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        here = reader.search(x[:9])
    with Gallery.open(tmp_path / "g") as writer:
        assert here.label.tolist() == writer.search(x[:9]).label.tolist()


def test_near_duplicates_in_groups_do_not_make_it_overconfident():
    rng = np.random.default_rng(5)
    x = unit(rng.normal(size=(300, 24)))
    frames = unit(np.repeat(x, 2, axis=0) + 0.01 * rng.normal(size=(600, 24)))
    who = np.repeat(
        rng.integers(30, size=300), 2
    )  # nothing but the frame beside it tells the label
    alone, grouped = Gallery(), Gallery()
    alone.add(frames, labels=who)
    grouped.add(frames, labels=who, groups=np.repeat(np.arange(300), 2))
    assert alone._label_fit().model.nats < 0.3
    assert grouped._label_fit().model.nats > 3
