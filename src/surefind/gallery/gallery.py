"""A gallery: add, update, delete and search embeddings, with decisions of a stated risk.

Each item has an id, a unit vector with its concentration κ and perhaps its novelty, a label, a payload and
a group. What a call changed is durable when it returns: with a FAISS folder it is on the disk, with Milvus
it is acknowledged by the server. A gallery in memory is lost with the process until `Gallery.save` gives it
a folder.

A search returns neighbours and a posterior over labels (`surefind.decisions.label_posterior`), which is
fitted to the gallery's own items when it is first needed, and again when the gallery has grown or shrunk by
a tenth; how often labels are asked for it learns from the queries of a calibration. After
`Gallery.calibrate` a search also returns, per query, the probability that the answered label is right and a
decision. A calibration holds for one content, one model and one way of searching; when items come and go,
answers are marked as stale until it is renewed (`surefind.gallery.calibrating`). Whether queries still look
like the calibration's is watched (`Gallery.watch`).

One gallery may be used by many threads; its calls wait for each other, calibrations and copies only for
moments.
"""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefind.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_int,
    id_values,
    payload_values,
)
from surefind.decisions.calibration import (
    Calibration,
    Target,
    check_share,
    draw_share,
    least_queries,
)
from surefind.decisions.drift import WatchReport
from surefind.decisions.verdicts import judge
from surefind.errors import DegenerateError, InputError, StorageError
from surefind.files import from_stored, to_stored
from surefind.gallery.answers import Answers, Item, answers_of
from surefind.gallery.audit import audit_items
from surefind.gallery.calibrating import GalleryCalibration, calibrate_gallery
from surefind.gallery.calibration_queries import CalibrationQueries, ReviewSample
from surefind.gallery.engine import (
    Engine,
    Id,
    Label,
    Records,
    find,
    read_groups,
    read_labels,
    read_vectors,
)
from surefind.gallery.findings import Audit
from surefind.gallery.label_fit import METADATA as LABELS
from surefind.gallery.label_fit import VOTERS, LabelFit, fit_labels, neighbours_of
from surefind.gallery.memory import FaissEngine
from surefind.gallery.milvus_engine import MilvusEngine
from surefind.gallery.store import change_count, holds_gallery

if TYPE_CHECKING:
    from surefind.gallery.forecast import Forecast

SCAN = 1000

ENGINES = ("faiss", "milvus")
INDICES = ("auto", "exact", "hnsw")
MODES = ("w", "r")

AUTOMATIC = 2**52
"""Automatic ids stay below: whoever takes a higher number, up to the highest that every reader of JSON
knows (2^53 - 1), leaves room for them."""


class Gallery:
    """Items that can be searched, in memory, in a folder, or in Milvus.

    Args:
        engine: ``"faiss"`` or ``"milvus"``.
        path: For FAISS a new folder, or None for memory. For Milvus ``"NAME.db"`` (milvus-lite) or
            ``"http://host:port"``.
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
        engine: str = "faiss",
        path: str | Path | None = None,
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
        self._state = GalleryCalibration(engine, self._lock)
        self._labels = _stored_labels(engine)

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, when, how often it was renewed and whether it is stale; or None."""
        with self._lock:
            return self._state.calibration

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
        record = self._state.record
        if record is not None and record.model != self.model:
            faults.append("calibration: it was made with another model")
        elif record is not None and record.stale(engine):
            faults.append("calibration: items were added, updated or deleted")
        return {
            **engine.metadata.get("about", {}),
            "place": engine.place,
            "dim": engine.dim,
            "model": self.model,
            "index": engine.index,
            "fingerprint": engine.fingerprint(),
            "faults": faults,
            "reviews_needed": self._state.reviews_needed,
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
        state, labels = GalleryCalibration(found, self._lock), _stored_labels(found)
        with self._lock:
            state.go_on(self._state)
            self._open_engine, self._state = found, state
            self._labels, self._seen = labels, seen
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
            self._engine.put(Records(named, vectors, kappa, novelty, new_labels, texts, own))

    def delete(self, ids: Any) -> None:
        """Delete items; all of them or, if an id is missing, none.

        Args:
            ids: Ids that are in the gallery, or a single one.
        """
        with self._lock:
            named = self._present(ids)
            self._engine.remove(named)

    def search(
        self,
        embeddings: Any,
        k: int = 10,
        *,
        decide: bool = True,
        watch: bool = True,
        groups: Any = None,
    ) -> Answers:
        """Find the label and the best items of each query and, after `calibrate`, decide.

        Args:
            embeddings: The queries, as for `add`.
            k: How many items; a smaller gallery gives all it has.
            decide: Whether to decide, if there is a calibration.
            watch: Whether these are queries like those to come, which `watch` should see. Leave out health
                checks, repeated queries and items of the gallery.
            groups: The group of each query, if the calibration had groups.

        Returns:
            The answers.

        Raises:
            InputError: If the queries cannot be used, or the calibration has a gate and they come without
                novelty.
        """
        check_int("k", k, least=1)
        with self._lock:
            queries, kappa, novelty = self._read_queries(embeddings)
            record = self._state.record if decide else None
            model = self._label_fit().model if record is None else record.rule.labels
            found = find(self._engine, queries, max(k, VOTERS))
            near = neighbours_of(found, self._engine)
            stale = False
            if record is None:
                known = judge(near, kappa, model, None)
            else:
                record.check_model(self.model)
                record.check_kappa(kappa)
                made, stale = record.rule.calibration, record.stale(self._engine)
                known = judge(near, kappa, model, made, novelty=novelty, groups=groups)
            answers = answers_of(found, kappa, novelty, k, stale=stale, **vars(known))
            if watch and record is not None and not stale:
                self._state.see(known, novelty)
        return answers

    def calibrate(
        self,
        embeddings: Any = None,
        labels: Any = None,
        *,
        ids: Any = None,
        reviews: ReviewSample | None = None,
        max_wrong: float | None = None,
        max_fpir: float | None = None,
        confidence: float | None = None,
        max_false_alarms: float | None = None,
        unknown_share: float | None = None,
        groups: Any = None,
        contributions: bool = True,
        seed: int | None = None,
    ) -> Calibration:
        """Find out when an answer may be called a match, and store that, and the queries, for renewals.

        Searches and changes go on meanwhile; what is changed makes it stale, as any change does.

        Args:
            embeddings: Held-out queries, as for `add`. One that is an item of the gallery (its vector is
                there, or its id) is answered without that item. Those with novelty pass a gate first, here
                and in every later search (`surefind.decisions.decision`). None: the gallery's own items
                play the queries (`surefind.gallery.calibration_queries`); the guarantee is then about
                queries that are like the items.
            labels: Theirs. -1 or None, or a label that the gallery does not have: an unknown query; once
                its label is enrolled, a renewal takes it for an enrolled one.
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
            unknown_share: The share of unknown queries to expect, from 0 to below 1. Where items play the
                queries, by default 0.5. Others are by default taken as they are; with it, some are left out
                at random until it is so.
            groups: A group for each query, for thresholds of their own. Where items play the queries, a
                dict from ids to groups that are left out together; they are kept, in place of those given
                to `add`.
            contributions: Whether to measure what each signal adds, which takes most of the time.
            seed: Splits the queries, and draws the items; by default 0.

        Returns:
            The calibration; it says whether the target was reached.

        Raises:
            InputError: If the queries cannot be used, or none of their labels is in the gallery.
            DegenerateError: If there are reviews to add, and too few queries in all to reach the target.
        """
        with self._lock:
            base = Target() if embeddings is not None or reviews is None else self._state.target
            target = base.changed(
                max_wrong=max_wrong,
                max_fpir=max_fpir,
                confidence=confidence,
                max_false_alarms=max_false_alarms,
                seed=seed,
            )
            if embeddings is not None:
                given = self._given_queries(embeddings, labels, ids, groups, unknown_share, target)
                queries: CalibrationQueries | float = (
                    given if reviews is None else self._with_reviews(given, reviews, least=0)
                )
            elif labels is not None or ids is not None:
                raise InputError(
                    "labels and ids belong to queries, and there are none.",
                    field="embeddings",
                    hint="Give their embeddings, or leave labels and ids out.",
                )
            elif reviews is not None:
                if self._state.record is not None:
                    self._state.record.check_model(self.model)
                least = least_queries(target.max_wrong, target.confidence)
                queries = self._with_reviews(self._state.queries, reviews, least=least)
            else:
                queries = self._own_share(unknown_share, groups)
            engine = self._engine.copied()
        record, asked, answers = calibrate_gallery(
            engine, queries, target, model=self.model, contributions=contributions
        )
        with self._lock:
            self._state.install(record, asked, answers)
            self._labels = record.labels
            return self._state.calibration  # type: ignore[return-value]

    def renew(self) -> Calibration | None:
        """Make the calibration again for the items that are there now, if it is stale.

        Searches go on meanwhile, and use the new calibration when it is whole.

        Returns:
            The calibration; None if there is none.
        """
        return self._state.renew()

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
            return self._state.drift

    def forecast(
        self,
        growth: float = 10.0,
        *,
        max_wrong: float | None = None,
        unknown_share: float = 0.5,
        seed: int = 0,
    ) -> "Forecast":
        """Estimate what share of queries can still be answered when there are more labels.

        Parts of the gallery play smaller galleries, and their items the queries
        (`surefind.gallery.forecast`). This takes some seconds.

        Args:
            growth: How many times the labels of now, above 1.
            max_wrong: The highest fraction of wrong answers among matches; None for that of the
                calibration, or 0.01 without one.
            unknown_share: The share of unknown queries to expect, from 0 to below 1.
            seed: Draws labels and items.

        Returns:
            The forecast; its ``summary`` is a sentence.

        Raises:
            InputError: If ``growth`` is not above 1.
        """
        from surefind.gallery.forecast import forecast

        if not growth > 1:
            raise InputError(f"growth must be above 1; got {growth!r}.", field="growth")
        made = self.calibration
        wrong = (0.01 if made is None else made.max_wrong) if max_wrong is None else max_wrong
        check_share(unknown_share)
        with self._lock:
            self._check_filled()
            return forecast(
                self._engine,
                float(growth),
                max_wrong=float(wrong),
                unknown_share=float(unknown_share),
                seed=seed,
            )

    def _given_queries(
        self,
        embeddings: Any,
        labels: Any,
        ids: Any,
        groups: Any,
        unknown_share: float | None,
        target: Target,
    ) -> CalibrationQueries:
        vectors, kappa, novelty = self._read_queries(embeddings)
        count = len(vectors)
        named = None if ids is None else id_values("ids", ids, count=count)
        truth = read_labels(labels, count, queries=True)
        self._check_some_known(truth)
        if groups is not None:
            check_count("groups", groups, count)
        queries = CalibrationQueries.held_out(vectors, kappa, novelty, truth, named, groups)
        if unknown_share is None:
            return queries
        counts = self._engine.label_counts()
        unknown = np.array([not counts.get(name, 0) for name in truth])
        return queries.some(draw_share(unknown, unknown_share, target.rng))

    def _with_reviews(
        self, others: CalibrationQueries | None, reviews: ReviewSample, *, least: int
    ) -> CalibrationQueries:
        """Add reviewed queries to others, if there are any; refuse less than ``least`` in all."""
        if reviews.model != self.model:
            raise InputError(
                f"the reviewed queries were embedded by the model {reviews.model!r}, and now it is "
                f"{self.model!r}.",
                field="reviews",
                hint="Review queries that the model of now has embedded.",
            )
        vectors, kappa, novelty = self._read_queries(reviews.queries)
        if (
            others is not None
            and not others.items
            and others.novelty is not None
            and novelty is None
        ):
            raise InputError(
                "the calibration's queries have a novelty and not all of the reviewed ones do.",
                field="reviews",
                hint="Calibrate with queries that all have it.",
            )
        truth = read_labels(reviews.labels, len(vectors), queries=True)
        live = CalibrationQueries.held_out(vectors, kappa, novelty, truth, None, None, live=True)
        queries = live if others is None else others.joined(live)
        if len(queries) < least:
            raise DegenerateError(
                f"{len(queries):,} queries, {len(live):,} of them reviewed, are too few for the target, "
                f"which needs {least:,} at least; nothing was changed.",
                field="reviews",
                hint=f"Review {least - len(queries):,} more random checks.",
            )
        return queries

    def _own_share(self, unknown_share: float | None, groups: Any) -> float:
        """Take the groups of items that are to play the queries; return which share of them is unknown."""
        share = 0.5 if unknown_share is None else unknown_share
        check_share(share)
        if groups is not None and not isinstance(groups, Mapping):
            raise InputError(
                "without queries, groups must be a dict from ids of items to groups.",
                field="groups",
            )
        self._check_filled()
        if groups:
            self.update(ids=list(groups), groups=list(groups.values()))
        return float(share)

    def _check_some_known(self, truth: Sequence[Label]) -> None:
        named = {label for label in truth if label is not None}
        if named and not named & self._engine.label_counts().keys():
            raise InputError(
                f"none of the {len(named)} labels is in the gallery, such as "
                f"{min(named, key=str)!r}; give the labels as the items have them (1 and '1' differ), or "
                "None for a query that has no match there.",
                field="labels",
            )

    def audit(
        self, *, items: int | None = None, duplicate: float | None = None, seed: int = 0
    ) -> Audit:
        """Look for what is probably wrong with the items (`surefind.gallery.audit`).

        Every labelled item is left out, with its group and its exact copies, and judged by the rest;
        nothing is changed. Minutes for 100,000 items; other calls wait.

        Args:
            items: How many labelled items to judge, drawn at random; all by default.
            duplicate: Cosine, from 0 to 1, from which two items are near-duplicates; by default it follows
                from how near different labels are.
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
            record = self._state.record
            return audit_items(
                self._engine,
                self._label_fit().model if record is None else record.rule.labels,
                calibration=None if record is None else record.rule.calibration,
                items=items,
                duplicate=duplicate,
                seed=seed,
            )

    def _label_fit(self) -> LabelFit:
        """Return the posterior over labels, fitted if need be."""
        if self._labels is None or not self._labels.fits(len(self._engine)):
            prior = 0.0 if self._labels is None else self._labels.model.prior
            self._labels = fit_labels(self._engine, prior=prior)
            if not self._engine.read_only:
                fitted = {LABELS: to_stored(LabelFit, self._labels)}
                with suppress(
                    StorageError
                ):  # a search need not fail because it will be fitted again
                    self._engine.set_metadata({**self._engine.metadata, **fitted})
        return self._labels

    def prepare(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Do what the first search would do otherwise: fit the posterior over labels, and build the graph.

        The posterior takes seconds for a million items; it is stored with the gallery. Much of a graph is
        built without stopping searches, which look at every item meanwhile; from the first call on no
        search builds one by itself, until somebody calls this again.

        Args:
            stop: Asked now and then, in the thread that calls this, whether to give up the graph.
        """
        with self._lock:
            self._label_fit()
            build = self._engine.graph_task(stop)
        if build is not None:
            install = build()
            with self._lock:
                install()

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
            self._state.keep()
            engine = self._engine
            if path is None or engine.place == "memory":
                engine.save(None if path is None else Path(path))
                return
        engine.save(Path(path))

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""
        with self._lock:
            if self._open_engine is not None:
                self._state.keep()
                self._open_engine.close()
                self._open_engine = None

    @property
    def _engine(self) -> Engine:
        if self._open_engine is None:
            raise InputError("this gallery is closed; open it again with Gallery.open(path).")
        return self._open_engine

    def _read(self, embeddings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return read_vectors(embeddings, normalize=self.normalize, dim=self._engine.dim)

    def _read_queries(self, embeddings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        self._check_filled()
        return self._read(embeddings)

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


def _stored_labels(engine: Engine) -> LabelFit | None:
    stored = engine.metadata.get(LABELS)
    return None if stored is None else from_stored(LabelFit, stored, "the posterior over labels")


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
