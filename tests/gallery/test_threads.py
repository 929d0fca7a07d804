"""Nobody waits for what is computed of the items: searches go on while fits, renewals and audits run."""

import threading
import time

import numpy as np
import pytest
from gallery.people import People, names

from surefind.labels.model import LabelModel

SLOW, MOST = 1.0, 0.5


@pytest.fixture
def people():
    return People()


@pytest.fixture
def gallery(people):
    made = people.gallery()
    made.calibrate(*people.asked(), max_wrong=0.1)
    people.enrol(made, [20] * 12)  # more than a tenth: the model is fitted again
    return made


@pytest.fixture
def slow(monkeypatch, gallery):
    """Fits that take their time, without the gallery's lock; set once one has begun."""
    begun, fit = threading.Event(), LabelModel.fit

    def later(model, *given, **options):
        assert not gallery._lock._is_owned()
        begun.set()
        time.sleep(SLOW)
        return fit(model, *given, **options)

    monkeypatch.setattr(LabelModel, "fit", later)
    return begun


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("call", ["renew", "calibrate", "audit"])
def test_searches_and_changes_go_on_meanwhile(gallery, people, slow, call, calibrated):
    if not calibrated:
        gallery._record = None
        people.enrol(gallery, [21] * 20)
        gallery._behind = True
    work = threading.Thread(target=getattr(gallery, call))
    work.start()
    assert slow.wait(30)
    waited, count = [], 0
    while work.is_alive() and count < 10:
        start = time.perf_counter()
        gallery.search(people.faces([0, 1]))
        people.enrol(gallery, [3], ids=[f"new {count}"])
        gallery.delete(f"new {count}")
        waited.append(time.perf_counter() - start)
        count += 1
    assert max(waited) < MOST
    work.join()
    assert gallery._learned.model.counts == gallery.labels()


@pytest.mark.parametrize("call", ["renew", "calibrate"])
def test_what_changes_meanwhile_is_computed_once_more(gallery, people, monkeypatch, call):
    """And if it changes again then, the calibration is stale, and the label model is not."""
    fits, fit = [], LabelModel.fit

    def overtaken(model, vectors, labels, **options):
        fits.append(len(labels))
        if len(fits) <= times:
            people.enrol(gallery, [22 + len(fits)] * 6)
            gallery.delete(next(iter(gallery)))
        return fit(model, vectors, labels, **options)

    monkeypatch.setattr(LabelModel, "fit", overtaken)
    times = 1
    assert not getattr(gallery, call)().stale
    assert fits == [112, 117]
    people.enrol(gallery, [30] * 20)
    fits.clear()
    times = 2
    assert getattr(gallery, call)().stale
    assert fits == [137, 142]
    assert gallery._learned.model.counts == gallery.labels()
    assert (gallery.search(people.faces([24] * 20)).label == "p24").mean() > 0.8
    times = 0
    assert not gallery.renew().stale


def test_every_answer_comes_from_one_calibration(gallery, people):
    later, seen, stop = people.faces(np.arange(30)), [], threading.Event()

    def ask_on():
        while not stop.is_set():
            found = gallery.search(later)
            seen.append((found.stale, tuple(found.probability.tolist())))

    asking = threading.Thread(target=ask_on)
    asking.start()
    for n in range(4):
        people.enrol(gallery, [30 + n])
        gallery.renew()
    stop.set()
    asking.join()
    assert not gallery.search(later).stale
    assert len({found for stale, found in seen if not stale}) <= 5


def test_one_search_fits_and_the_others_wait_for_it(people, monkeypatch):
    fits, fit = [], LabelModel.fit

    def counted(model, *given, **options):
        fits.append(model)
        time.sleep(0.2)
        return fit(model, *given, **options)

    monkeypatch.setattr(LabelModel, "fit", counted)
    gallery, answers = people.gallery(), []
    asking = [
        threading.Thread(target=lambda: answers.append(gallery.search(people.centres[:3]).label))
        for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(fits) == 1
    assert [found.tolist() for found in answers] == [names(range(3))] * 4


def test_after_renew_no_search_fits_again(people):
    gallery = people.gallery()
    gallery.renew()
    fitted = gallery._learned.model.settings.items
    people.enrol(gallery, np.arange(20).repeat(5))
    assert (gallery.search(people.faces(np.arange(20))).label == names(range(20))).mean() > 0.8
    assert gallery._learned.model.settings.items == fitted
    gallery.renew()
    assert gallery._learned.model.settings.items == len(gallery)


def test_a_fit_that_fails_leaves_what_was_there(gallery, people, monkeypatch):
    def broken(*_, **__):
        raise MemoryError

    monkeypatch.setattr(LabelModel, "fit", broken)
    before = gallery.calibration
    with pytest.raises(MemoryError):
        gallery.renew()
    people.enrol(gallery, [0])
    assert gallery.calibration == before
    assert gallery.search(people.faces([0])).label[0] == "p0"
