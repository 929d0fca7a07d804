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
fitted to waits for a fit; where `Gallery.prepare` is used, it alone fits again.
"""

import copy
import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from surefind.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_int,
    id_values,
    label_values,
    payload_values,
)
from surefind.decisions.answers import Answers
from surefind.decisions.calibration import Calibration, Target
from surefind.decisions.decision import read_novelty
from surefind.decisions.drift import WatchReport
from surefind.errors import DegenerateError, InputError, StorageError
from surefind.gallery.audit import Audit, audit_items
from surefind.gallery.calibrating import (
    LEAST,
    MODEL,
    Fit,
    Kept,
    Queries,
    Record,
    learn,
    store,
)
from surefind.gallery.engine import (
    Engine,
    Id,
    Item,
    Label,
    Records,
    find,
    read_groups,
    read_labels,
    read_vectors,
)
from surefind.gallery.memory import FaissEngine
from surefind.gallery.milvus_engine import MilvusEngine
from surefind.gallery.review_sample import ReviewSample
from surefind.gallery.store import change_count, holds_gallery
from surefind.labels.model import LabelModel
from surefind.labels.posterior import LabelPosterior

SCAN = 1000

ENGINES = ("faiss", "milvus")
INDICES = ("auto", "exact", "hnsw")
MODES = ("w", "r")

Learned = tuple[Record, np.ndarray | None]

AUTOMATIC = 2**52
"""Automatic ids stay below: whoever takes a higher number, up to the highest that every reader of JSON
knows (2^53 - 1), leaves room for them."""


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
        reopen = functools.partial(
            open_engine,
            path,
            mode=mode,
            index=index,
            collection=collection,
            token=token,
            timeout=timeout,
        )
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
        self._missed: list[tuple[str, Records]] | None = None
        self._view: tuple[LabelModel | None, set[Label]] | None = None
        self._kept, self._fit = Kept(engine), _stored_fit(engine)

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, when, how often it was renewed and whether it is stale; or None."""
        with self._lock:
            return self._kept.calibration

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the gallery; it waits for no other call.

        ``place`` (a folder, an address or ``"memory"``), ``dim`` (None until the first item), ``model``,
        ``index``, ``fingerprint`` (changes with every id, label, vector and κ, not with their order),
        ``faults`` (why it cannot answer as it should, a phrase each, beginning with "gallery", "graph" or
        "calibration"), ``reviews_needed`` (reviewed queries that `calibrate` needs at least), and what
        `describe` stored.
        """
        engine = self._open_engine
        if engine is None:
            return {"faults": ["gallery: it is closed"]}
        faults = [] if engine.graph_ready else ["graph: it is being built, and searches are exact"]
        kept = self._kept
        if kept.record is not None and kept.record.model != self.model:
            faults.append("calibration: it was made with another model")
        elif kept.stale:
            faults.append("calibration: items were added, updated or deleted")
        return {
            **engine.metadata.get("about", {}),
            "place": engine.place,
            "dim": engine.dim,
            "model": self.model,
            "index": engine.index,
            "fingerprint": engine.fingerprint(),
            "faults": faults,
            "reviews_needed": kept.reviews_needed,
        }

    def __len__(self) -> int:
        with self._lock:
            return len(self._engine)

    def labels(self) -> dict[Label, int]:
        """Return how many items have each label; those without one do not count."""
        with self._lock:
            counts = self._engine.label_counts()
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

        Searches go on meanwhile with what was there before. What `watch` has seen here is kept as long as
        the calibration is the same; with another one, it begins with what the writer's had seen.

        Returns:
            Whether there was something to read.
        """
        engine = self._engine
        if self._reopen is None or not engine.read_only:
            return False
        seen = change_count(Path(engine.place))
        if seen == self._seen:
            return False
        found = self._reopen()
        kept, fit = Kept(found), _stored_fit(found)
        with self._lock:
            kept.go_on(self._kept)
            self._open_engine, self._kept, self._fit = found, kept, fit
            self._seen, self._version, self._view = seen, self._version + 1, None
        engine.close()
        return True

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
            vectors, kappa, novelty = self._read(embeddings)
            named = self._fresh_ids(len(vectors)) if ids is None else id_values("ids", ids)
            check_count("ids", named, len(vectors))
            texts = payload_values("payload", payload, count=len(vectors))
            own = read_groups(groups, len(vectors))
            called = read_labels(labels, len(vectors))
            records = Records(named, vectors, kappa, _or_nan(novelty, kappa), called, texts, own)
            if there := self._engine.known(named):
                raise InputError(
                    f"{len(there)} of the ids are in the gallery already, such as "
                    f"{min(there, key=str)!r}; use update to replace them.",
                    field="ids",
                )
            self._engine.put(records)
            self._follow(add=records)
            if self._next_id is not None:
                self._next_id = _after(named, self._next_id)
            return named

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
            vectors, kappa, novelty = old.vectors, old.kappa, old.novelty
            if embeddings is not None:
                vectors, kappa, known = self._read(embeddings)
                novelty = _or_nan(known, kappa)
            check_count("ids", named, len(vectors))
            new_labels = old.labels if labels is None else read_labels(labels, len(named))
            texts = (
                old.payload
                if payload is None
                else payload_values("payload", payload, count=len(named))
            )
            own = old.groups if groups is None else read_groups(groups, len(named))
            new = Records(named, vectors, kappa, novelty, new_labels, texts, own)
            self._engine.put(new)
            if any(changed is not None for changed in (embeddings, labels, groups)):
                self._follow(remove=old, add=new)

    def delete(self, ids: Any) -> None:
        """Delete items; all of them or, if an id is missing, none.

        Args:
            ids: Ids that are in the gallery, or a single one.
        """
        with self._lock:
            named = self._present(ids)
            old = self._engine.fetch(named)
            self._engine.remove(named)
            self._follow(remove=old)

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
            vectors, kappa, own = self._read_queries(queries)
        self._fit_if_needed(again=not self._behind)
        with self._lock:
            only = None if labels is None else self._enrolled(labels)
            kept, record = self._kept, self._kept.record if decide else None
            stale = record is not None and kept.stale
            model, untested = self._answering()
            found = find(self._engine, vectors, k, only)
        posterior, novelty = _posterior(model, vectors, only), own
        if record is not None:
            record.check_model(self.model)
            if record.own_novelty:
                novelty = read_novelty(own, len(vectors))
        if novelty is None or (record is not None and not record.own_novelty):
            novelty = np.ones(len(vectors)) if model is None else model.novelty(vectors)
        if record is None:
            answers = Answers.of(posterior, novelty=novelty)
        else:
            answers = record.calibration.decide(
                posterior, novelty=novelty, kappa=kappa, groups=groups, untested=untested
            )
        answers = replace(answers, kappa=kappa, stale=stale, **found)
        if watch and record is not None and not stale and only is None:
            with self._lock:
                if kept.record is record:
                    kept.see(answers)
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
            seed: Splits the queries, and draws the items; by default 0.

        Returns:
            The calibration; it says whether the target was reached.

        Raises:
            InputError: If the queries cannot be used, or none of their labels is in the gallery.
            DegenerateError: If items cannot play the queries, or there are reviews to add, and too few
                queries in all to reach the target.
        """
        with self._lock:
            base = Target() if queries is not None or reviews is None else self._kept.target
            target = base.changed(
                max_wrong=max_wrong,
                max_fpir=max_fpir,
                confidence=confidence,
                max_false_alarms=max_false_alarms,
                unknown_share=unknown_share,
                seed=seed,
            )
            asked: Queries | None = None
            if queries is not None:
                asked = self._given(queries, truth, ids, groups)
                if reviews is not None:
                    asked = self._with_reviews(asked, reviews, least=0)
            elif truth is not None or ids is not None:
                raise InputError(
                    "truth and ids belong to queries, and there are none.",
                    field="queries",
                    hint="Give the queries, or leave truth and ids out.",
                )
            elif reviews is not None:
                if self._kept.record is not None:
                    self._kept.record.check_model(self.model)
                asked = self._with_reviews(self._kept.queries, reviews, least=target.least_queries)
            else:
                self._group_items(groups)
        model = self.model

        def make(records: Records, fit: Fit | None) -> tuple[Fit, Learned]:
            fit = Fit.of(records, target.seed, fit)
            if fit is None:
                raise DegenerateError(
                    "no item of the gallery has a label, so there is nothing to decide.",
                    field="queries",
                    hint="Give labels to items with update.",
                )
            return fit, learn(fit, asked, records, target, model=model)

        with self._fitting:
            self._compute(make, asked)
        return self.calibration  # type: ignore[return-value]

    def renew(self) -> Calibration | None:
        """Make the calibration again for the items that are there now, if it is stale.

        Searches go on meanwhile, and use the new calibration when it is whole.

        Returns:
            The calibration; None if there is none.
        """
        with self._fitting:
            with self._lock:
                kept = self._kept
                record = kept.record
                if record is None or not kept.stale or not self._labelled():
                    return kept.calibration
                queries = kept.queries
            before, model = record, self.model

            def make(records: Records, fit: Fit | None) -> tuple[Fit, Learned]:
                counts = Counter(label for label in records.labels if label is not None)
                new = {name for name, n in counts.items() if n >= LEAST} - set(before.labels)
                # What is left out is known right after a fit only; queries need it for new labels alone.
                known = queries is not None and fit is not None and fit.left_out is not None
                if fit is None or new or not known or fit.outdated(counts.total()):
                    fit = Fit.of(records, before.calibration.target.seed, fit)
                if fit is None:
                    raise DegenerateError("no item has a label any more.")
                target = before.calibration.target
                return fit, learn(fit, queries, records, target, model=model, before=before)

            self._compute(make, queries)
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
            return self._kept.drift

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
            records, made = self._engine.copied(), self._kept.calibration
            fit = None if self._fit is None else self._fit.copied()
        return audit_items(
            Records.concatenate(records),
            fit,
            calibration=made,
            items=items,
            duplicate=duplicate,
            seed=seed,
        )

    def prepare(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Do what a search would do otherwise: fit the label model again, and build the graph.

        To be called in a thread of its own, after changes; searches go on meanwhile, by the model there is,
        and look at every item while there is no graph. From the first call on no search does either by
        itself, until somebody calls this again. Where there is a calibration, `renew` fits the model.

        Args:
            stop: Asked now and then, in the thread that calls this, whether to give up the graph.
        """
        self._behind = True
        self._fit_if_needed(again=True)
        with self._lock:
            build = self._engine.graph_task(stop)
        if build is not None:
            install = build()
            with self._lock:
                install()

    def _fit_if_needed(self, *, again: bool) -> None:
        """Fit the label model; while one thread does, others go on with the one there is.

        Args:
            again: Whether one that is outdated is fitted again; with a calibration that is for `renew`.
        """

        def wanted() -> bool:
            labelled, fit = self._labelled(), self._fit
            if fit is None or not labelled:
                return labelled > 0
            return again and self._kept.record is None and fit.outdated(labelled)

        with self._lock:
            needed, first = wanted(), self._fit is None
        if needed and self._fitting.acquire(blocking=first):
            try:
                with self._lock:
                    needed = wanted()
                if needed:
                    self._compute(lambda records, _: (Fit.of(records), None))
            finally:
                self._fitting.release()

    def _labelled(self) -> int:
        return len(self._engine) - self._engine.label_counts().get(None, 0)

    def _answering(self) -> tuple[LabelModel | None, set[Label]]:
        """Return the label model as it is, None if no item has a label; and labels that are not tested."""
        if self._view is None:
            model = None if self._fit is None else copy.copy(self._fit.model)
            labels = set() if model is None else {*model.labels}
            record = self._kept.record
            self._view = (
                model if labels else None,
                labels - set(() if record is None else record.labels),
            )
        return self._view

    def _compute(
        self,
        make: Callable[[Records, Fit | None], tuple[Fit | None, Learned | None]],
        queries: Queries | None = None,
    ) -> None:
        """Make a label model, and perhaps a calibration, of a copy of the records, and install them.

        Args:
            make: Called without the lock, with the records and a copy of the label model.
            queries: Those of the calibration.
        """
        for last in (False, True):
            with self._lock:
                engine, version, self._missed = self._engine, self._version, []
                parts: Iterable[Records] = engine.copied()
                if last:  # of Milvus, which cannot be copied: nothing may change while it is read
                    parts = list(parts)
                fit = None if self._fit is None else self._fit.copied()
            try:
                fit, learned = make(Records.concatenate(parts), fit)
                content = engine.fingerprint()  # which Milvus may have to count first
                stored = None if fit is None else fit.model.to_stored()
            except BaseException:
                with self._lock:
                    self._missed = None
                raise
            with self._lock:
                missed, self._missed = self._missed, None
                same = self._version == version
                if not same and (not last or self._engine is not engine):
                    continue
                if fit is not None:
                    for change, records in missed or ():
                        _apply(fit.model, change, records)
                    fit = replace(fit, fresh=fit.fresh and same)
                self._fit, self._unsaved, self._view = fit, not same, None
                content = content if same else ""  # the stored model is then brought up to date
                values = {MODEL: {"model": stored, "content": content}} if stored else {}
                if learned is None:
                    with suppress(StorageError):  # it can be fitted again
                        store(self._engine, values)
                else:
                    record, novelty = learned
                    self._kept.install(replace(record, content=content), novelty, queries, values)
                return

    def _follow(self, *, remove: Records | None = None, add: Records | None = None) -> None:
        """Tell the label model, and whoever fits one now, what came and went; the lock is held."""
        self._version, self._unsaved, self._view = self._version + 1, True, None
        for change, records in (("remove", remove), ("add", add)):
            if records is None:
                continue
            if self._fit is not None:
                try:
                    _apply(self._fit.model, change, records)
                    self._fit = replace(self._fit, fresh=False)
                except InputError:  # items of others, as in a shared collection: it is fitted again
                    self._fit = None
            if self._missed is not None:
                self._missed.append((change, records))

    def _keep_fit(self) -> None:
        """Store the label model if it has changed."""
        if self._fit is not None and self._unsaved:
            stored = {
                "model": self._fit.model.to_stored(),
                "content": self._engine.fingerprint(),
            }
            with suppress(StorageError):  # it can be fitted again
                store(self._engine, {MODEL: stored})
                self._unsaved = False

    def _enrolled(self, labels: Any) -> list[Label]:
        """Read labels that are alone possible: some items have each of them."""
        one = isinstance(labels, str | int)
        named = [*dict.fromkeys(label_values("labels", [labels] if one else labels))]
        counts = self._engine.label_counts()
        missing = [label for label in named if label is None or not counts.get(label)]
        if missing or not named:
            raise InputError(
                f"no item has the label {missing[0]!r}." if missing else "labels names no label.",
                field="labels",
                hint="Give labels as the items have them (1 and '1' differ), or None for all.",
            )
        return named

    def _given(self, queries: Any, truth: Any, ids: Any, groups: Any) -> Queries:
        vectors, kappa, novelty = self._read_queries(queries)
        count = len(vectors)
        labels = read_labels(truth, count, name="truth")
        named = {label for label in labels if label is not None}
        if named and not named & self._engine.label_counts().keys():
            raise InputError(
                f"none of the {len(named)} labels is in the gallery, such as "
                f"{min(named, key=str)!r}; give the labels as the items have them (1 and '1' differ), or "
                "None for a query that has no match there.",
                field="truth",
            )
        if groups is not None:
            check_count("groups", groups, count)
        return Queries(
            vectors,
            kappa,
            novelty,
            labels,
            [None] * count if ids is None else id_values("ids", ids, count=count),
            [None] * count if groups is None else list(groups),
            np.zeros(count, dtype=bool),
        )

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
        live = self._given(reviews.queries, reviews.labels, None, None)
        if others is not None and others.novelty is not None and live.novelty is None:
            raise InputError(
                "the calibration's queries have a novelty and not all of the reviewed ones do.",
                field="reviews",
                hint="Calibrate with queries that all have it.",
            )
        live = replace(live, live=np.ones(len(live), dtype=bool))
        queries = live if others is None else others.joined(live)
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

    def describe(self, **facts: str | None) -> None:
        """Store facts about the gallery with it, which `info` has; they decide nothing.

        Args:
            **facts: Strings; None forgets one. `surefind index` keeps ``run``, the folder of the model that
                embeds, and ``images``, the folder in which the payloads' paths begin.
        """
        with self._lock:
            before = self._engine.metadata.get("about", {})
            about = {name: text for name, text in (before | facts).items() if text is not None}
            if about != before:
                self._engine.set_metadata({**self._engine.metadata, "about": about})

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
            self._kept.keep()
            self._keep_fit()
            engine = self._engine
            if path is None or engine.place == "memory":
                engine.save(None if path is None else Path(path))
                return
        engine.save(Path(path))

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""
        with self._lock:
            if self._open_engine is not None:
                self._kept.keep()
                self._keep_fit()
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

    def _fresh_ids(self, count: int) -> list[Id]:
        if self._next_id is None:
            self._next_id = _after(self, 0)
        return list(range(self._next_id, self._next_id + count))


def _or_nan(novelty: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """Return p-values as records have them: NaN where none is known."""
    return np.full_like(like, np.nan) if novelty is None else novelty


def _after(ids: Iterable[Id], least: int) -> int:
    """Return the lowest number, from ``least`` up, above every id that is a number below `AUTOMATIC`."""
    return max([least, *(i + 1 for i in ids if isinstance(i, int) and i < AUTOMATIC)])


def _stored_fit(engine: Engine) -> Fit | None:
    """Return the label model that is stored with the items, brought up to date; None if there is none."""
    stored = engine.metadata.get(MODEL)
    if stored is None:
        return None
    try:
        model = LabelModel.from_stored(stored["model"])
    except InputError:  # of another version
        return None
    if stored["content"] != engine.fingerprint():
        records = Records.concatenate(engine.copied())
        named = [row for row, label in enumerate(records.labels) if label is not None]
        model = model.recounted(records.vectors[named], [records.labels[row] for row in named])
    return Fit(model)


def _apply(model: LabelModel, change: str, records: Records) -> None:
    """Add records to a label model, or remove them; those without a label do not count."""
    rows = [row for row, label in enumerate(records.labels) if label is not None]
    if rows:
        getattr(model, change)(records.vectors[rows], [records.labels[row] for row in rows])


def _posterior(
    model: LabelModel | None, queries: np.ndarray, labels: Collection[Label] | None
) -> LabelPosterior:
    """Return what a label model says; that no label is possible if there is none."""
    if model is None:
        nothing = np.full((len(queries), 1), None)
        return LabelPosterior(nothing, np.zeros(nothing.shape), np.ones(len(queries)))
    return model.posterior(queries, labels=labels)


def make_engine(engine: str, path: str | Path | None, *, index: str, **milvus: Any) -> Engine:
    """Make an engine for a new gallery; the arguments are those of `Gallery`."""
    check_choice("engine", engine, ENGINES)
    check_choice("index", index, INDICES)
    if engine == "faiss":
        made = FaissEngine(index)
        if path is not None:
            made.save(Path(path))
        return made
    if path is None or not _is_milvus(path):
        raise InputError(
            "engine='milvus' needs a path: 'NAME.db' for milvus-lite on this machine, or "
            f"'http://host:port' for a server; got {path!r}."
        )
    found = MilvusEngine(str(path), index=index, **milvus)
    if found.dim is not None:
        found.close()
        raise InputError(
            f"{found.place} holds a gallery already; open it with Gallery.open({str(path)!r})."
        )
    return found


def open_engine(path: str | Path, *, mode: str, index: str | None, **milvus: Any) -> Engine:
    """Open the engine of a gallery that exists; the arguments are those of `Gallery.open`."""
    check_choice("mode", mode, MODES)
    if index is not None:
        check_choice("index", index, INDICES)
    if not _is_milvus(path):
        return FaissEngine.open(Path(path), index=index, read_only=mode == "r")
    there = "://" in str(path) or Path(path).exists()
    found = MilvusEngine(str(path), index=index or "auto", **milvus) if there else None
    if found is None or found.dim is None:
        if found is not None:
            found.close()
        raise InputError(
            f"there is no gallery at {path}.",
            field="path",
            hint=f"Make one: surefind.Gallery('milvus', {str(path)!r}), or `surefind index SOURCE --out "
            f"{path}`.",
        )
    return found


def _is_milvus(path: str | Path) -> bool:
    text = str(path)
    return "://" in text or (text.endswith(".db") and not holds_gallery(Path(text)))
