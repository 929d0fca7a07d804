"""The watch on a gallery's promise: what it sees, what it survives, and when it speaks."""

import numpy as np
import pytest

from surefind.decisions.drift import Watch
from surefind.embeddings import Embeddings
from surefind.gallery import calibrating
from surefind.gallery.gallery import Gallery

DIM, PEOPLE = 16, 20


class Camera:
    """Takes pictures of people; `strange` of them are of something else."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.centres = self.rng.normal(size=(PEOPLE, DIM))

    def take(self, who, *, strange=0.0, novelty=True):
        spread = 0.9 * self.rng.normal(size=(len(who), DIM))
        x = self.centres[who] + spread
        p = self.rng.random(len(who))
        p = np.where(self.rng.random(len(who)) < strange, 0.004 * p, p)
        mean = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        return Embeddings(mean, np.full(len(who), 80.0), p if novelty else None)

    def anybody(self, n, **options):
        return self.take(self.rng.integers(PEOPLE, size=n), **options)

    def gallery(self, *, novelty=True, **options):
        """The first half of the people, calibrated with pictures of everybody."""
        made = Gallery(**options)
        enrolled = np.repeat(np.arange(PEOPLE // 2), 5)
        made.add(self.take(enrolled, novelty=novelty), labels=enrolled.tolist())
        self.calibrate(made, novelty=novelty)
        return made

    def calibrate(self, gallery, *, novelty=True):
        who = self.rng.integers(PEOPLE, size=600)
        labels = np.where(who < PEOPLE // 2, who, -1).tolist()
        queries = self.take(who, novelty=novelty)
        gallery.calibrate(queries, labels, max_wrong=0.2)


@pytest.fixture
def camera():
    return Camera()


@pytest.fixture
def gallery(camera):
    with camera.gallery() as made:
        yield made


def test_queries_are_compared_with_those_that_tested(camera, gallery):
    """All of them by novelty, by probability those that passed the gate and were not fitted to."""
    made, watch = gallery.calibration, gallery._watch._watch
    seen, tested = watch.bags.sum(axis=1).tolist()
    assert seen == made.queries
    assert tested == np.isfinite(made.tested_probability).sum()
    assert 0.4 < tested / made.queries < 0.8
    found = gallery.search(camera.anybody(300))
    assert gallery.watch().queries == 300
    passing = int((found.novelty > made.gate.unusual_below).sum())
    assert watch.bags.sum(axis=1).tolist() == [900, tested + passing]


def test_the_same_queries_raise_no_alarm_and_strange_ones_do(camera, gallery):
    for _ in range(20):
        gallery.search(camera.anybody(100))
    report = gallery.watch()
    assert (report.queries, report.alarm) == (2000, None)
    for _ in range(20):
        gallery.search(camera.anybody(20, strange=0.2))
    report = gallery.watch()
    assert report.alarm.stream == "novelty"
    assert report.alarm.query <= 2400
    assert 1900 < report.alarm.since_query < 2200
    assert "more unusual inputs" in report.sentence
    assert report.alarm.since.tzinfo is not None
    camera.calibrate(gallery)
    assert gallery.watch().alarm is None
    assert gallery.watch().queries == 0


def test_what_need_not_be_watched_is_left_out(camera, gallery):
    for options in ({"watch": False}, {"decide": False}):
        for _ in range(10):
            gallery.search(camera.anybody(50, strange=1.0), **options)
    assert gallery.watch().queries == 0
    gallery.add(camera.take([3]), labels=[3])
    assert gallery.search(camera.anybody(50, strange=1.0)).stale
    assert gallery.watch().queries == 0


@pytest.mark.parametrize("novelty", [True, False])
def test_renewals_keep_what_was_seen(camera, novelty):
    """A person is enrolled every 20 queries; without novelty, only what comes between is compared."""
    with camera.gallery(novelty=novelty) as gallery:
        for n in range(15):
            gallery.add(camera.take([n % 10], novelty=novelty), labels=[n % 10])
            gallery.renew()
            gallery.search(camera.anybody(20, strange=0.4, novelty=novelty))
        assert gallery.calibration.renewals == 15
        report = gallery.watch()
        assert report.queries == 300
        assert (report.alarm is not None) == novelty
        gallery.add(camera.take([1], novelty=novelty), labels=[1])
        gallery.renew()
        assert gallery.watch().alarm == report.alarm
        assert not gallery.calibration.stale


def test_it_is_kept_with_the_gallery(camera, gallery, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrating, "EVERY", 100)
    gallery.search(camera.anybody(30))
    gallery.save(tmp_path / "g")
    assert queries_on_disk(tmp_path) == 30
    gallery.search(camera.anybody(70))
    assert queries_on_disk(tmp_path) == 30
    gallery.search(camera.anybody(70))
    assert queries_on_disk(tmp_path) == 170
    gallery.search(camera.anybody(5))
    report = gallery.watch()
    gallery.close()
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        assert reader.watch() == report
        reader.search(camera.anybody(200))
        assert reader.watch().queries == 375
    assert queries_on_disk(tmp_path) == 175
    with Gallery.open(tmp_path / "g") as again:
        monkeypatch.setattr(calibrating, "EVERY", 10**6)
        while again.watch().alarm is None:
            again.search(camera.anybody(10, strange=0.5))
        assert queries_on_disk(tmp_path) == again.watch().queries
        again.add(camera.take([2]), labels=[2])
        again.renew()
    with Gallery.open(tmp_path / "g", mode="r") as reader:
        assert reader.watch().alarm is not None
        assert reader.calibration.renewals == 1
        assert reader.calibration.made.tzinfo is not None


def queries_on_disk(folder):
    with Gallery.open(folder / "g", mode="r") as reader:
        return reader.watch().queries


def test_a_damaged_watch_is_no_reason_not_to_search(camera, gallery, tmp_path):
    gallery.save(tmp_path / "g")
    engine = gallery._engine
    engine.set_metadata({**engine.metadata, "watch": {"checksum": ""}})
    gallery._watch._watch = None
    gallery.close()
    with pytest.warns(RuntimeWarning, match="not watched"):
        again = Gallery.open(tmp_path / "g")
    with again:
        assert again.search(camera.anybody(3)).decision is not None
        assert again.watch() is None
        again.add(camera.take([2]), labels=[2])
        again.renew()
        again.search(camera.anybody(3))
        assert again.watch().queries == 3
        assert isinstance(again._watch._watch, Watch)
