"""Many callers in one batch: each gets what it would get alone, and errors stay with their callers."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery, at_once
from surefind.service import batching
from surefind.service.batching import Batcher, Query, search_together
from surefind.service.wire import RefusedError


def nothing(_id, _payload):
    return False


@pytest.fixture
def gallery():
    made = Gallery()
    made.add(np.eye(3), ids=list("abc"), payload=[{"n": 1}, None, {"n": 3}])
    return made


def asked(gallery, queries):
    """Let everybody ask at once; return a reply or an error for each."""

    async def main():
        batcher = Batcher(lambda batch: search_together(gallery, nothing, batch))
        found = await asyncio.gather(*map(batcher.ask, queries), return_exceptions=True)
        await batcher.close()
        return found

    return asyncio.run(main())


def test_each_gets_its_own_rows_and_its_own_k(gallery):
    queries = [
        Query([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [5.0, None], 2),
        Query([[0.0, 1.0, 0.0]], [7.0], 1),
    ]
    one, two = search_together(gallery, lambda id_, payload: payload == {"n": 3}, queries)
    assert [a["neighbours"][0]["id"] for a in one.answers] == ["a", "c"]
    assert [a["neighbours"][0]["image"] for a in one.answers] == [False, True]
    assert [len(a["neighbours"]) for a in one.answers + two.answers] == [2, 2, 1]
    assert [a["kappa"] for a in one.answers + two.answers] == [5.0, None, 7.0]
    assert one.vectors.shape == (2, 3)
    assert two.answers[0]["neighbours"][0]["id"] == "b"
    assert two.answers[0]["decision"] is None
    assert two.answers[0]["reasons"] == []


@pytest.mark.parametrize(
    "bad", [[[1.0, 0.0]], [[2.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]], ids=["size", "length", "zero"]
)
def test_a_fault_stays_with_the_query_that_has_it(gallery, bad):
    good = Query([[1.0, 0.0, 0.0]], [None], 3)
    first, wrong, last = asked(gallery, [good, Query(bad, [None], 3), good])
    assert isinstance(wrong, InputError)
    assert first.answers == last.answers
    assert first.answers[0]["neighbours"][0]["id"] == "a"
    (alone,) = asked(gallery, [Query(bad, [None], 3)])
    assert (type(alone), str(alone)) == (type(wrong), str(wrong))


def test_an_empty_gallery_refuses_everybody_whatever_they_sent():
    queries = [Query([[1.0, 0.0]], [None], 1), Query([[1.0, 0.0, 0.0]], [None], 1)]
    for answer in asked(Gallery(), queries):
        assert isinstance(answer, DegenerateError)


def test_what_holds_for_all_is_told_to_each(gallery, monkeypatch):
    def refuse(*_args, **_options):
        raise InputError("calibrate again")

    monkeypatch.setattr(gallery, "search", refuse)
    good = Query([[1.0, 0.0, 0.0]], [None], 3)
    found = asked(gallery, [good, good])
    assert [type(answer) for answer in found] == [InputError, InputError]


def test_what_arrives_together_is_done_together():
    sizes = []

    async def main():
        def run(items):
            time.sleep(0.02)
            return [item * 2 for item in items]

        batcher = Batcher(run, most=4, observe=sizes.append)
        found = await asyncio.gather(*(batcher.ask(i) for i in range(10)))
        await batcher.close()
        return found

    assert asyncio.run(main()) == [2 * i for i in range(10)]
    assert sizes == [4, 4, 2]


def test_a_full_queue_sends_away_and_an_error_reaches_who_asked():
    async def main():
        def run(items):
            return [ValueError(item) if item == "bad" else item for item in items]

        batcher = Batcher(run, most=4, waiting=2)
        asked = [asyncio.ensure_future(batcher.ask(i)) for i in ("good", "bad")]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as refused:
            await batcher.ask("late")
        assert refused.value.status == 429
        good, bad = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.close()
        return good, bad

    good, bad = asyncio.run(main())
    assert good == "good"
    assert isinstance(bad, ValueError)


def test_whoever_went_away_is_not_served():
    async def main():
        served = []

        def run(items):
            time.sleep(0.05)
            served.extend(items)
            return items

        batcher = Batcher(run, most=1)
        tasks = [asyncio.ensure_future(batcher.ask(i)) for i in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        assert await tasks[2] == 2
        await batcher.close()
        return served

    assert asyncio.run(main()) == [0, 2]


def test_callers_that_were_answered_together_ask_together_again(monkeypatch):
    monkeypatch.setattr(batching, "LINGER", 0.5)

    async def main():
        sizes = []

        def run(items):
            time.sleep(0.05)
            return items

        batcher = Batcher(run, observe=sizes.append)

        async def caller(number):
            for _ in range(5):
                await asyncio.sleep(0.002 * number)
                await batcher.ask(number)

        await asyncio.gather(*(caller(i) for i in range(4)))
        return sizes

    sizes = asyncio.run(main())
    assert sizes[0] == 1  # nothing is known yet about the others
    assert sizes.count(4) >= 3


def test_who_is_alone_is_answered_on_the_loop_while_that_is_quick_and_free(monkeypatch):
    monkeypatch.setattr(batching, "LINGER", 60.0)
    here, slow, free = [], [], [True]

    def run(items):
        here.append(threading.current_thread() is threading.main_thread())
        while slow and time.thread_time() < slow[0]:
            pass
        return items

    async def main():
        batcher = Batcher(run, prompt=lambda _: nullcontext(free[0]))
        async with asyncio.timeout(30):
            for step in range(6):
                free[0] = step != 2
                slow[:] = [time.thread_time() + 0.01] if step == 4 else []
                assert await batcher.ask(step) == step
        await batcher.close()

    asyncio.run(main())
    # The first is measured, the third would wait, and after a slow one the way goes through the thread.
    assert here == [False, True, False, True, True, False]


def test_a_search_that_would_wait_is_not_done_at_once(gallery):
    gallery.update(ids=["a"], labels=["x"])
    with at_once(gallery) as free:
        assert not free  # a label model has to be fitted first
    gallery.search(np.eye(3)[:1])
    with at_once(gallery) as free, ThreadPoolExecutor(1) as other:
        assert free
        assert not other.submit(lambda: at_once(gallery).__enter__()).result()


@pytest.fixture(scope="module")
def crowded():
    """Items with ties, some without a label or a payload, ids of both kinds; and queries."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 8))

    def near(who):
        drawn = centres[who] + 0.4 * rng.normal(size=(len(who), 8))
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    who, asked = rng.integers(12, size=400), rng.integers(12, size=120)
    items, queries = near(who), near(asked)
    items[50:80] = items[:30]
    made = Gallery()
    made.add(
        Embeddings(items, rng.uniform(20, 200, 400)),
        ids=[i if i % 3 else f"s{i}" for i in range(400)],
        labels=[None if i % 7 == 0 else f"c{w}" for i, w in enumerate(who)],
        payload=[{"n": i} if i % 2 else None for i in range(400)],
    )
    kappa = rng.uniform(20, 200, 120)
    truth = [None if i % 6 == 0 else f"c{w}" for i, w in enumerate(asked)]
    made.calibrate(Embeddings(queries[:90], kappa[:90]), truth[:90], max_wrong=0.2)
    queries[90:95] = items[:5]
    return made, queries[90:], kappa[90:]


def alike(one, other):
    """A product of matrices depends on how many rows there are, in the last digits."""
    if isinstance(one, float):
        return one == pytest.approx(other, abs=1e-5)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    return one == other


def test_every_field_is_the_same_alone_and_in_company(crowded):
    gallery, vectors, kappa = crowded
    queries = [
        Query([v], [k], 1 + i % 20)
        for i, (v, k) in enumerate(zip(vectors.tolist(), kappa.tolist(), strict=True))
    ]
    together = search_together(gallery, nothing, queries)
    alone = [search_together(gallery, nothing, [query])[0] for query in queries]
    assert alike([reply.answers for reply in together], [reply.answers for reply in alone])
    assert all(reply.answers[0]["decision"] is not None for reply in alone)
