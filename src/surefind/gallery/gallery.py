"""A gallery: add, update, delete and search embeddings, with decisions of a stated risk.

Each item has an id, a unit vector with its concentration κ and perhaps its novelty, a label, a payload and
a group. What a call changed is durable when it returns: with a FAISS folder it is on the disk, with Milvus
it is acknowledged by the server. A gallery in memory is lost with the process until `Gallery.save` gives it
a folder.

A search returns the nearest items and the posterior of a label model (`surefind.labels.model`), which is
fitted to the gallery's own items when it is first needed. Items that come and go change it at once, and it
is fitted again when there are a tenth more or fewer. After `Gallery.calibrate` a search also returns, per
query, the probability that the answered label is right and a decision. A calibration holds for one content
and one model; when items come and go, answers are marked as stale until it is renewed
(`surefind.gallery.calibrating`). Whether queries still look like the calibration's is watched
(`Gallery.watch`).

**Threads.** One gallery may be used by many. Its lock is held to read and change items, never to compute
anything of them: fits, calibrations, renewals and audits take a copy of the records, compute without the
lock, and put the result in its place if nothing has changed meanwhile. Otherwise they do it once more, and
then keep what they have: the label model with what was missed added and removed, the calibration as stale.
Searches go on meanwhile by what was there before. Only the first search of items that no model was ever
fitted to waits for a fit; where `Gallery.renew` is used, it alone fits again.
"""

import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from surefind.checks import (
    check_count,
    check_fraction,
    check_int,
    id_values,
    label_values,
    payload_values,
)
from surefind.decisions.answers import Answers
from surefind.decisions.calibration import Calibration, Target
from surefind.decisions.decider import LEAST, Learned, Queries, hashes
from surefind.decisions.drift import Watch, WatchReport
from surefind.errors import DegenerateError, InputError, StorageError
from surefind.files import content_hashes, from_stored, to_stored
from surefind.gallery.audit import Audit, audit_items
from surefind.gallery.calibrating import (
    CALIBRATION,
    MODEL,
    QUERIES,
    WATCH,
    KeptWatch,
    Record,
    fitted,
    outdated,
    store,
    usable,
)
from surefind.gallery.engine import Engine, find, make_engine, open_engine
from surefind.gallery.records import Id, Item, Label, Records, read_names, read_vectors
from surefind.gallery.review_sample import ReviewSample
from surefind.gallery.store import change_count
from surefind.labels.model import LabelModel
from surefind.labels.posterior import LabelPosterior

SCAN = 1000

AUTOMATIC = 2**52
"""Automatic ids stay below: whoever takes a higher number, up to the highest that every reader of JSON
knows (2^53 - 1), leaves room for them."""

Change = tuple[Literal["add", "remove"], Records]
NOBODY = np.zeros(0, dtype=np.int64)


class Gallery:
    """Items that can be searched, in memory, in a folder, or in Milvus.

    Args:
        path: For FAISS a new folder, or None for memory. For Milvus ``"NAME.db"`` (milvus-lite) or
            ``"http://host:port"``.
        engine: ``"faiss"`` or ``"milvus"``.
        index: ``"exact"``, ``"hnsw"`` (approximate, for many items), or ``"auto"``: exact, and with
            FAISS a graph beyond 1,000,000 items.
        model: A name of the model that embeds, kept with the gallery and with its calibration.
        normalize: Whether to rescale plain vectors instead of refusing those of another length.
        collection: Milvus's name for the gallery.
        token: Milvus's ``user:password``, if it wants one.
        timeout: Seconds that Milvus has for an answer.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        engine: str = "faiss",
        *,
        index: str = "auto",
        model: str | None = None,
        normalize: bool = False,
        collection: str = "surefind",
        token: str = "",
        timeout: float | int = 60.0,
    ) -> None:
        made = make_engine(
            engine, path, index=index, collection=collection, token=token, timeout=timeout
        )
        if model is not None or index != "auto":
            made.set_metadata({"model": model, "index": index})
        self._start(made, model=model, normalize=normalize)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        mode: str = "w",
        index: str | None = None,
        model: str | None = None,
        normalize: bool = False,
        collection: str = "surefind",
        token: str = "",
        timeout: float | int = 60.0,
    ) -> "Gallery":
        """Open a gallery that exists, with everything that was acknowledged.

        Args:
            path: Its folder, milvus-lite's ``NAME.db``, or a server's address.
            mode: ``"w"`` to change it, one process at a time; ``"r"`` to search a folder as it is now,
                beside a process that changes it.
            index: How to search, if not as when it was made.
            model: The model that embeds now, if it is not the one that the gallery remembers.
            normalize: As for `Gallery`.
            collection: As for `Gallery`.
            token: As for `Gallery`.
            timeout: As for `Gallery`.

        Returns:
            The gallery.
        """
        milvus: Any = {"collection": collection, "token": token, "timeout": timeout}
        reopen = functools.partial(open_engine, path, mode=mode, index=index, **milvus)
        seen = change_count(Path(path))  # before it is read, so that nothing is missed
        found = reopen()
        gallery = cls.__new__(cls)
        model = model or found.metadata.get("model")
        gallery._start(found, model=model, normalize=normalize)
        gallery._reopen, gallery._seen = reopen, seen
        return gallery

    def _start(self, engine: Engine, *, model: str | None, normalize: bool) -> None:
        self.model = model
        self.normalize = normalize
        self._open_engine: Engine | None = engine
        self._lock = threading.RLock()
        self._next_id: int | None = None
        self._reopen: Callable[[], Engine] | None = None
        self._seen = b""
        self._fitting = threading.Lock()
        """Held by the one thread that fits, calibrates or renews."""
        self._behind = False
        self._version, self._unsaved = 0, False
        self._missed: list[Change] | None = None
        self._record: Record | None = None
        self._queries: tuple[Any, Queries | None] = None, None
        self._take_over(engine)

    def _take_over(self, engine: Engine) -> None:
        """Go on with the items of an engine, and with what is kept beside them."""
        learned = _stored_model(engine)
        record: Record | None = usable(Record, engine, CALIBRATION, "searching without decisions")
        watch = usable(Watch, engine, WATCH, "drift is not watched")
        with self._lock:
            if record is None or record != self._record:
                self._watch = KeptWatch(watch)
            self._open_engine, self._learned, self._record = engine, learned, record
            self._version += 1

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, when, how often it was renewed and whether it is stale; or None."""
        with self._lock:
            record = self._record
            return None if record is None else replace(record.calibration, stale=self._stale)

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the gallery; it waits for no other call.

        ``place`` (a folder, an address or ``"memory"``), ``dim`` (None until the first item), ``model``,
        ``index``, ``fingerprint`` (changes with every id, label, vector and κ, not with their order),
        ``faults`` (why it cannot answer as it should, a phrase each, beginning with "gallery", "graph" or
        "calibration"), and ``reviews_needed`` (reviewed queries that `calibrate` needs at least).

        Assign to it to keep further facts with the gallery: ``gallery.info |= {"camera": "north"}``; None
        forgets one. They decide nothing. `surefind index` keeps ``run``, the folder of the model that
        embeds, and ``images``, the folder in which the payloads' paths begin.
        """
        engine = self._open_engine
        if engine is None:
            return {"faults": ["gallery: it is closed"]}
        faults = [] if engine.graph_ready else ["graph: it is being built, and searches are exact"]
        if self._record is not None and self._record.model != self.model:
            faults.append("calibration: it was made with another model")
        elif self._stale:
            faults.append("calibration: items were added, updated or deleted")
        return {
            **engine.metadata.get("about", {}),
            "place": engine.place,
            "dim": engine.dim,
            "model": self.model,
            "index": engine.index,
            "fingerprint": engine.fingerprint,
            "faults": faults,
            "reviews_needed": self._reviews_needed,
        }

    @info.setter
    def info(self, facts: Mapping[str, Any]) -> None:
        with self._lock:
            before, own = self._engine.metadata.get("about", {}), self.info.keys()
            kept = {
                k: x for k, x in facts.items() if x is not None and (k in before or k not in own)
            }
            if kept != before:
                self._engine.set_metadata({**self._engine.metadata, "about": kept})

    def __len__(self) -> int:
        with self._lock:
            return len(self._engine)

    def labels(self) -> dict[Label, int]:
        """Return how many items have each label; those without one do not count."""
        with self._lock:
            counts = self._engine.label_counts
            return {label: count for label, count in counts.items() if label is not None and count}

    def __contains__(self, id_: object) -> bool:
        with self._lock:
            return bool(self._engine.known(id_values("ids", [id_])))

    def __iter__(self) -> Iterator[Id]:
        with self._lock:
            return iter([i for records in self._engine.scan(SCAN) for i in records.ids])

    def __repr__(self) -> str:
        if self._open_engine is None:
            return "Gallery(closed)"
        return f"Gallery({len(self)} items in {self._engine.place}, {self._engine.index})"

    def __enter__(self) -> "Gallery":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def refresh(self) -> bool:
        """Read what another process has changed, in a gallery that was opened with ``mode="r"``.

        Searches go on meanwhile with what was there before. A label model and a graph are made if need
        be. What `watch` has seen here is kept as long as the calibration is the same; with another one, it
        begins with what the writer's had seen.

        Returns:
            Whether there was something to read.
        """
        engine = self._engine
        if self._reopen is None or not engine.read_only:
            return False
        seen = change_count(Path(engine.place))
        changed = seen != self._seen
        if changed:
            self._take_over(self._reopen())
            self._seen = seen
            engine.close()
        self._keep_up()
        return changed

    def get(self, id_: Id) -> Item:
        """Return one item.

        Args:
            id_: Its id.

        Returns:
            The item, as a copy.
        """
        with self._lock:
            (known,) = self._present([id_])
            return Item.of(self._engine.fetch([known]))

    def items(self) -> Iterator[Item]:
        """Go through all items, for instance to list or to copy them.

        Other calls get their turn in between. An item that is deleted before its turn comes is left out,
        and so is one that is added after the first was asked for.

        Yields:
            Items with vector, κ, novelty, label and payload, as copies, in no order that means anything.
        """
        ids = list(self)
        for start in range(0, len(ids), SCAN):
            with self._lock:
                block = ids[start : start + SCAN]
                known = self._engine.known(block)
                found = self._engine.fetch([i for i in block if i in known]) if known else ()
            for row in range(len(found)):
                yield Item.of(found, row)  # type: ignore[arg-type]

    def add(
        self,
        embeddings: Any,
        *,
        ids: Any = None,
        labels: Any = None,
        payload: Any = None,
        groups: Any = None,
    ) -> list[Id]:
        """Add new items; all of them or, if something is wrong, none.

        Args:
            embeddings: `surefind.Embeddings`, or plain vectors (n, z), whose κ is then infinite.
            ids: A string or an integer each, none of them in the gallery. By default integers, one
                above the highest there is below 2^52; higher ones do not count.
            labels: A string, an integer or None each.
            payload: A dict or None each, of what JSON can hold.
            groups: A string, an integer or None each: frames of one video, photos of one session. Where the
                gallery learns from its own items, those of one group are left out together.

        Returns:
            The ids.

        Raises:
            InputError: If something cannot be used, or an id is in the gallery already.
        """
        with self._lock:
            named = None if ids is None else id_values("ids", ids)
            records = self._records(named, embeddings, labels, payload, groups)
            named = records.ids.tolist()
            if there := self._engine.known(named):
                raise InputError(
                    f"{len(there)} of the ids are in the gallery already, such as "
                    f"{min(there, key=str)!r}; use update to replace them.",
                    field="ids",
                )
            self._engine.put(records)
            self._follow(("add", records))
            if self._next_id is not None:
                self._next_id = _after(named, self._next_id)
            return list(named)

    def update(
        self,
        embeddings: Any = None,
        *,
        ids: Any,
        labels: Any = None,
        payload: Any = None,
        groups: Any = None,
    ) -> None:
        """Replace items, or parts of them; all of them or, if something is wrong, none.

        Args:
            embeddings: New vectors, as for `add`; None to keep the old.
            ids: Ids that are in the gallery.
            labels: New labels; None to keep the old.
            payload: New payload; None to keep the old.
            groups: New groups; None to keep the old.
        """
        with self._lock:
            named = self._present(ids)
            old = self._engine.fetch(named)
            new = self._records(named, embeddings, labels, payload, groups, old)
            self._engine.put(new)
            if any(changed is not None for changed in (embeddings, labels, groups)):
                self._follow(("remove", old), ("add", new))

    def delete(self, ids: Any) -> None:
        """Delete items; all of them or, if an id is missing, none.

        Args:
            ids: Ids that are in the gallery, or a single one.
        """
        with self._lock:
            named = self._present(ids)
            old = self._engine.fetch(named)
            self._engine.remove(named)
            self._follow(("remove", old))

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        labels: Any = None,
        decide: bool = True,
        watch: bool = True,
        groups: Any = None,
    ) -> Answers:
        """Find the label and the nearest items of each query and, after `calibrate`, decide.

        Args:
            queries: As for `add`.
            k: How many items; if there are fewer, all of them.
            labels: Only these are possible, of the answer and of the items: those of one department, say.
                By default all.
            decide: Whether to decide, if there is a calibration.
            watch: Whether these are queries like those to come, which `watch` should see. Leave out health
                checks, repeated queries and items of the gallery. Queries with ``labels`` are left out.
            groups: The group of each query, if the calibration had groups.

        Returns:
            The answers.

        Raises:
            InputError: If the queries cannot be used, or the calibration needs their κ or novelty and they
                come without.
        """
        check_int("k", k, least=1)
        with self._lock:
            vectors, kappa, novelty = self._read_queries(queries)
        self._fit_if_needed(again=not self._behind)
        with self._lock:
            only = None if labels is None else self._enrolled(labels)
            kept, record, stale = self._watch, self._record if decide else None, self._stale
            learned = self._learned
            found = find(self._engine, vectors, k, only)
        if record is not None:
            record.check_model(self.model)
        if learned is None:  # no item has a label
            nothing = LabelPosterior(np.full((len(vectors), 1), None), np.zeros((len(vectors), 1)))
            answers = Answers.of(nothing, novelty=novelty)
        else:
            made, own = (
                (None, False) if record is None else (record.calibration, record.own_novelty)
            )
            known = replace(learned, calibration=made, own_novelty=own)
            answers = known.decide(
                vectors, labels=only, novelty=novelty, kappa=kappa, groups=groups
            )
        stale &= record is not None
        answers = replace(answers, kappa=kappa, stale=stale, **found)
        if watch and record is not None and not stale and only is None:
            with self._lock:
                if self._record is record and kept.see(record.calibration, answers):
                    self._keep_watch()
        return answers

    def calibrate(
        self,
        queries: Any = None,
        truth: Any = None,
        *,
        ids: Any = None,
        reviews: ReviewSample | None = None,
        max_wrong: float | None = None,
        max_fpir: float | None = None,
        confidence: float | None = None,
        max_false_alarms: float | None = None,
        unknown_share: float | None = None,
        groups: Any = None,
        trained: Any = None,
        seed: int | None = None,
    ) -> Calibration:
        """Find out when an answer may be called a match, and store that, and the queries, for renewals.

        Searches and changes go on meanwhile.

        Args:
            queries: Held-out ones, as for `add`; those that are items of the gallery (the vector is there,
                or the id) are left out, and more than half of such queries are refused. None: the items
                play the queries, each answered without itself, its group and its copies, and items whose
                whole label is left out play unknown ones; what is promised is then promised for queries
                that are like the items.
            truth: Their labels. -1 or None, or a label that the gallery does not have: an unknown query;
                once its label is enrolled, a renewal takes it for an enrolled one.
            ids: Theirs, if they may be items of the gallery.
            reviews: What `surefind.service.review_store.read_reviews` returns, added to the queries.
                Without queries, they are added to those that the calibration there is was made with, in
                place of earlier reviews and of the gallery's own items; what is promised then stays, unless
                it is given here.
            max_wrong: The highest fraction of wrong answers among matches; by default 0.01.
            max_fpir: The highest share of unknown queries that may be a match, promised as well.
            confidence: With what probability both are kept; by default 0.95.
            max_false_alarms: Highest fraction of inputs like those of the training that the gate stops as
                unlike anything seen, below 0.1 and by default 0.01; ten times as many are a review at most.
            unknown_share: The share of unknown queries to expect, from 0 to below 1: queries count by
                weight as if it were so. By default that of the queries.
            groups: A group for each query, for thresholds of their own. Where items play the queries, a
                dict from ids to groups that are left out together; they are kept, in place of those given
                to `add`.
            trained: Ids of items that the network that embeds was trained on, which
                `MetricLearner.trained_on` finds: they play no queries, now or in a renewal.
            seed: Splits the queries, and draws the items; by default 0.

        Returns:
            The calibration; it says whether the target was reached.

        Raises:
            InputError: If the queries cannot be used, or none of their labels is in the gallery.
            DegenerateError: If items cannot play the queries, or there are reviews to add, and too few
                queries in all to reach the target.
        """
        parts = {
            "max_wrong": max_wrong,
            "max_fpir": max_fpir,
            "confidence": confidence,
            "max_false_alarms": max_false_alarms,
            "unknown_share": unknown_share,
            "seed": seed,
        }
        with self._lock:
            again = queries is None and reviews is not None
            target = (self._target if again else Target()).changed(**parts)
            asked: Queries | None = None
            if queries is not None:
                asked = self._given(queries, truth, ids=ids, groups=groups)
            elif truth is not None or ids is not None:
                raise InputError(
                    "truth and ids belong to queries, and there are none.",
                    field="queries",
                    hint="Give the queries, or leave truth and ids out.",
                )
            elif again and self._record is not None:
                self._record.check_model(self.model)
                asked = self._asked()
            elif reviews is None:
                self._group_items(groups)
            if reviews is not None:
                asked = self._with_reviews(asked, reviews, least=target.least_queries * again)

        own = np.sort(_id_hashes(() if trained is None else trained))

        def make(records: Records, known: Learned | None) -> Learned:
            known = fitted(records, None if len(own) else known, target.seed)
            return _calibrated(known, asked, target, records, own)

        with self._fitting:
            self._learn(make, asked, own)
        return self.calibration  # type: ignore[return-value]

    def renew(self) -> Calibration | None:
        """Bring up to date what was made of the items: the label model, the calibration and the graph.

        To be called after changes, in a thread of its own perhaps: searches go on meanwhile, by what there
        is, and use what is new when it is whole. Whoever calls it once keeps calling it: from then on no
        search fits the label model again by itself.

        Returns:
            The calibration, made again for the items that are there now if it was stale; None if there is
            none.
        """
        self._keep_up()
        with self._fitting:
            with self._lock:
                record = self._record
                if record is None or not self._stale or not self._labelled():
                    return self.calibration
                asked, before, own = self._asked(), record.calibration, record.trained

            def make(records: Records, known: Learned | None) -> Learned:
                counts = Counter(label for label in records.labels if label is not None)
                new = {name for name, n in counts.items() if n >= LEAST} - set(before.labels or ())
                # What is left out is known right after a fit only; queries need it for new labels alone.
                enough = asked is not None and known is not None and known.left_out is not None
                if known is None or new or not enough or outdated(known, counts.total()):
                    known = fitted(records, None if len(own) else known, before.target.seed)
                return _calibrated(known, asked, before.target, records, own, before)

            self._learn(make, asked, own)
        return self.calibration

    def watch(self) -> WatchReport | None:
        """Say whether queries still look like the calibration's, which is what its promise is about.

        Every decided search is compared, by its novelty and by its probability
        (`surefind.decisions.drift`). A false alarm, ever, has a probability of at most 1 % for each call of
        `calibrate`, its renewals included: these start the comparison of probabilities again, while that of
        novelty goes on. An alarm stays until the gallery is calibrated anew, with queries as they are now.

        Returns:
            What was found, in a ``sentence`` too; None without a calibration.
        """
        with self._lock:
            if self._watch.bet():
                self._keep_watch()
            return None if self._record is None else self._watch.report

    def audit(
        self, *, items: int | None = None, duplicate: float | None = None, seed: int = 0
    ) -> Audit:
        """Look for what is probably wrong with the items (`surefind.gallery.audit`).

        Every labelled item is left out, with its group and its exact copies, and judged by the rest;
        nothing is changed. Searches and changes go on meanwhile.

        Args:
            items: How many to look at, drawn at random and judged by each other; all by default.
            duplicate: Cosine, from 0 to 1, from which two items are near-duplicates.
            seed: Draws samples.

        Returns:
            Items that are probably mislabelled, near-duplicates under different labels, labels that are
            confused, unusable items, and what unknown queries could have been matched with.
        """
        if items is not None:
            check_int("items", items, least=1)
        if duplicate is not None:
            check_fraction("duplicate", duplicate)
        with self._lock:
            self._check_filled()
            made, known, parts = self.calibration, self._learned, self._engine.copied()
        records = Records.concatenate([*parts])
        return audit_items(records, known, made, items=items, duplicate=duplicate, seed=seed)

    def _keep_up(self) -> None:
        """Make what searches need, which from now on do not make it again."""
        self._behind = True
        with self._lock:
            self._engine.keep_up()
        self._fit_if_needed(again=True)

    def _fit_if_needed(self, *, again: bool) -> None:
        """Fit the label model; while one thread does, others go on with the one there is.

        Args:
            again: Whether one that is outdated is fitted again; with a calibration that is for `renew`.
        """

        def wanted() -> bool:
            with self._lock:
                labelled, known = self._labelled(), self._learned
                if known is None or not labelled:
                    return labelled > 0
                return again and self._record is None and outdated(known, labelled)

        if wanted() and self._fitting.acquire(blocking=self._learned is None):
            try:
                if wanted():
                    self._learn(lambda records, _: fitted(records))
            finally:
                self._fitting.release()

    def _labelled(self) -> int:
        return len(self._engine) - self._engine.label_counts.get(None, 0)

    @property
    def _stale(self) -> bool:
        """Whether the calibration was made for other items."""
        return self._record is not None and self._record.content != self._engine.fingerprint

    @property
    def _target(self) -> Target:
        return Target() if self._record is None else self._record.calibration.target

    def _asked(self) -> Queries | None:
        """Return the calibration's queries; None if there is none, or if items played them."""
        stored = self._engine.metadata.get(QUERIES)
        if self._queries[0] is not stored:
            queries = stored and from_stored(Queries, stored, "the calibration's queries")
            self._queries = stored, queries
        return self._queries[1]

    @property
    def _reviews_needed(self) -> int:
        held_out = 0
        with suppress(InputError):  # they cannot be used, and reviews take their place
            asked = self._asked()
            held_out = 0 if asked is None else int((~asked.live).sum())
        return max(1, self._target.least_queries - held_out)

    def _learn(
        self,
        make: Callable[[Records, Learned | None], Learned],
        queries: Queries | None = None,
        trained: np.ndarray = NOBODY,
    ) -> None:
        """Make a label model, and perhaps a calibration, of a copy of the records, and install them.

        Args:
            make: Called without the lock, with the records and what is known of them.
            queries: Those of the calibration.
            trained: Hashes of the ids of items that play none.
        """
        for last in (False, True):
            with self._lock:
                engine, version, self._missed = self._engine, self._version, []
                known, parts = self._learned, engine.copied()
                if last:  # of Milvus, which cannot be copied: nothing may change while it is read
                    parts = [*parts]
            try:
                learned = make(Records.concatenate([*parts]), known)
                content = engine.fingerprint  # which Milvus may have to count first
                stored = learned.model.to_stored()
            except BaseException:
                with self._lock:
                    self._missed = None
                raise
            with self._lock:
                missed, self._missed = self._missed, None
                same = self._version == version
                if same or (last and self._engine is engine):
                    self._install(learned, stored, content if same else "", queries, trained)
                    for change in missed or ():
                        self._learned = _changed(self._learned, change)
                    return

    def _install(
        self,
        learned: Learned,
        model: dict[str, Any],
        content: str,
        queries: Queries | None,
        trained: np.ndarray,
    ) -> None:
        """Store what was learned of some content, in place of what there is."""
        values: dict[str, Any] = {MODEL: {"model": model, "content": content}}
        made = learned.calibration
        if made is None:
            with suppress(StorageError):  # it can be fitted again
                store(self._engine, values)
        else:
            record = Record(made, learned.own_novelty, self.model, content, trained)
            watch = self._watch.next(made, learned.own_novelty)
            values |= {CALIBRATION: to_stored(Record, record), WATCH: to_stored(Watch, watch)}
            if not made.renewals:
                values[QUERIES] = None if queries is None else to_stored(Queries, queries)
            store(self._engine, values)
            self._record, self._watch = record, KeptWatch(watch)
        self._learned, self._unsaved = replace(learned, calibration=None), not content

    def _follow(self, *changes: Change) -> None:
        """Tell the label model, and whoever fits one now, what came and went; the lock is held."""
        self._version, self._unsaved = self._version + 1, True
        for change in changes:
            self._learned = _changed(self._learned, change)
            if self._missed is not None:
                self._missed.append(change)

    def _keep(self) -> None:
        """Store what was learned and seen since it was stored."""
        if self._learned is not None and self._unsaved:
            model = {"model": self._learned.model.to_stored(), "content": self._engine.fingerprint}
            with suppress(StorageError):  # it can be fitted again
                store(self._engine, {MODEL: model})
                self._unsaved = False
        self._watch.bet()
        self._keep_watch()

    def _keep_watch(self) -> None:
        """Store the drift that was seen since it was last stored, if that is allowed."""
        watch = self._watch.unstored()
        if watch is not None:
            try:
                store(self._engine, {WATCH: to_stored(Watch, watch)})
            except StorageError as error:
                # No reason to fail a search that was answered; it is tried again later.
                warnings.warn(f"the drift that was seen is not stored: {error}", RuntimeWarning, 2)

    def _enrolled(self, labels: Any) -> list[Label]:
        """Read labels that are alone possible: some items have each of them."""
        one = isinstance(labels, str | int)
        named = [*dict.fromkeys(label_values("labels", [labels] if one else labels))]
        counts = self._engine.label_counts
        missing = [label for label in named if label is None or not counts.get(label)]
        if missing or not named:
            raise InputError(
                f"no item has the label {missing[0]!r}." if missing else "labels names no label.",
                field="labels",
                hint="Give labels as the items have them (1 and '1' differ), or None for all.",
            )
        return named

    def _given(self, queries: Any, truth: Any, **known: Any) -> Queries:
        vectors, kappa, novelty = self._read_queries(queries)
        enrolled = self._engine.label_counts
        return Queries.read(vectors, truth, enrolled, kappa=kappa, novelty=novelty, **known)

    def _with_reviews(
        self, others: Queries | None, reviews: ReviewSample, *, least: int
    ) -> Queries:
        """Add reviewed queries to others, if there are any; refuse less than ``least`` in all."""
        if reviews.model != self.model:
            raise InputError(
                f"the reviewed queries were embedded by the model {reviews.model!r}, and now it is "
                f"{self.model!r}.",
                field="reviews",
                hint="Review queries that the model of now has embedded.",
            )
        live = self._given(reviews.queries, reviews.labels, live=True)
        if others is not None and others.novelty is not None and live.novelty is None:
            raise InputError(
                "the calibration's queries have a novelty and not all of the reviewed ones do.",
                field="reviews",
                hint="Calibrate with queries that all have it.",
            )
        queries = live
        if others is not None:
            queries = Queries.concatenate([others[~others.live], live])
        if len(queries) < least:
            raise DegenerateError(
                f"{len(queries):,} queries, {len(live):,} of them reviewed, are too few for the target, "
                f"which needs {least:,} at least; nothing was changed.",
                field="reviews",
                hint=f"Review {least - len(queries):,} more random checks.",
            )
        return queries

    def _group_items(self, groups: Any) -> None:
        """Take the groups of items that are to play the queries."""
        if groups is not None and not isinstance(groups, Mapping):
            raise InputError(
                "without queries, groups must be a dict from ids of items to groups.",
                field="groups",
            )
        self._check_filled()
        if groups:
            self.update(ids=list(groups), groups=list(groups.values()))

    def save(self, path: str | Path | None = None) -> None:
        """Move a gallery from memory into a folder; copy one that has a place; or compact its folder.

        Args:
            path: A new folder. A gallery in memory moves there, and every later change is stored there.
                One that has a place already (Milvus too) is copied there as it is now, while searches and
                changes go on, and stays where it is. None gives back the room that deleted items had in a
                gallery's own folder.

        Raises:
            InputError: If a gallery in memory is given no folder, or the folder is in use.
            StorageError: If it cannot be written; then there is no such folder.
        """
        with self._lock:
            self._keep()
            engine = self._engine
            if path is None or engine.place == "memory":
                engine.save(None if path is None else Path(path))
                return
        engine.save(Path(path))

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""
        with self._lock:
            if self._open_engine is not None:
                self._keep()
                self._open_engine.close()
                self._open_engine = None

    @property
    def _engine(self) -> Engine:
        if self._open_engine is None:
            raise InputError("this gallery is closed; open it again with Gallery.open(path).")
        return self._open_engine

    def _read(
        self, embeddings: Any, name: str = "embeddings"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return read_vectors(embeddings, normalize=self.normalize, dim=self._engine.dim, name=name)

    def _read_queries(self, queries: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        self._check_filled()
        return self._read(queries, "queries")

    def _check_filled(self) -> None:
        if not len(self._engine):
            raise DegenerateError("the gallery is empty, so nothing can be found; add items first.")

    def _present(self, ids: Any) -> list[Id]:
        named = id_values("ids", ids)
        if missing := set(named) - self._engine.known(named):
            raise InputError(
                f"{len(missing)} of the ids are not in the gallery, such as "
                f"{min(missing, key=str)!r}; nothing was changed.",
                field="ids",
            )
        return named

    def _records(
        self,
        ids: Sequence[Id] | None,
        embeddings: Any,
        labels: Any,
        payload: Any,
        groups: Any,
        old: Records | None = None,
    ) -> Records:
        """Read items; what is not given is that of the old records."""
        if old is None or embeddings is not None:
            vectors, kappa, novelty = self._read(embeddings)
            novelty = np.full_like(kappa, np.nan) if novelty is None else novelty
        else:
            vectors, kappa, novelty = old.vectors, old.kappa, old.novelty
        if ids is None:
            if self._next_id is None:
                self._next_id = _after(self, 0)
            ids = range(self._next_id, self._next_id + len(vectors))
        count = len(ids)
        check_count("ids", ids, len(vectors))
        texts = payload_values("payload", payload, count=count)
        names, own = read_names("labels", labels, count), read_names("groups", groups, count)
        read = Records([*ids], vectors, kappa, novelty, names, texts, own)
        given = {"labels": labels, "payload": payload, "groups": groups}
        kept = [name for name, value in given.items() if old is not None and value is None]
        return replace(read, **{name: getattr(old, name) for name in kept})


@contextmanager
def at_once(gallery: Gallery) -> Iterator[bool]:
    """Say whether a search that begins inside would wait for no thread, no fit and no disk."""
    free = gallery._lock.acquire(blocking=False)
    try:
        yield free and gallery._learned is not None and not gallery._watch.due
    finally:
        if free:
            gallery._lock.release()


def _after(ids: Iterable[Id], least: int) -> int:
    """Return the lowest number, from ``least`` up, above every id that is a number below `AUTOMATIC`."""
    return max([least, *(i + 1 for i in ids if isinstance(i, int) and i < AUTOMATIC)])


def _stored_model(engine: Engine) -> Learned | None:
    """Return the label model that is stored with the items, brought up to date; None if there is none."""
    stored = engine.metadata.get(MODEL)
    if stored is None:
        return None
    try:
        model = LabelModel.from_stored(stored["model"])
    except InputError:  # of another version
        return None
    if stored["content"] != engine.fingerprint:
        records = Records.concatenate([*engine.copied()])
        model = model.recounted(records.vectors, [*records.labels])
    return Learned(model)


def _changed(learned: Learned | None, change: Change) -> Learned | None:
    """Return what is known after a change; None if the model must be fitted again."""
    how, records = change
    try:
        return learned and learned.changed(how, records.vectors, [*records.labels])
    except InputError:  # items of others, as in a shared collection
        return None


def _calibrated(
    known: Learned,
    asked: Queries | None,
    target: Target,
    records: Records,
    trained: np.ndarray,
    before: Calibration | None = None,
) -> Learned:
    """Calibrate for records."""
    items = () if asked is None else hashes(records.vectors)
    ids = () if asked is None or asked.ids is None else {*records.ids}
    own = np.isin(_id_hashes(records.ids), trained) if len(trained) else None
    return known.calibrated(asked, target, items, ids, before=before, trained=own)


def _id_hashes(ids: Any) -> np.ndarray:
    return content_hashes(repr(x).encode() for x in id_values("ids", ids))
