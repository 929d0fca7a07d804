"""A gallery: add, update, delete and search embeddings, with decisions of a stated risk.

Each item has an id, a unit vector with its concentration κ and perhaps its novelty, a label, a payload and
a group. What a call changed is durable when it returns: with a FAISS folder it is on the disk, with Milvus
it is acknowledged by the server. A gallery in memory is lost with the process until `Gallery.save` gives it
a folder.

A search returns neighbours and a posterior over labels (`surefind.decisions.label_posterior`), which is
fitted to the gallery's own items when it is first needed, and again when the gallery has grown or shrunk by
a tenth. After `Gallery.calibrate` a search also returns, per query, the probability that the answered label
is right and a decision. A calibration holds for one content, one model and one way of
searching (`surefind.gallery.calibration_record`); when one of them changes, decisions are refused, or
marked as stale, as the user chose.

One gallery may be used by many threads; its calls wait for each other.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from surefind.decisions.calibration import Calibration
from surefind.decisions.label_posterior import LabelModel
from surefind.errors import DegenerateError, InputError
from surefind.gallery.answers import Answers, Item, answers_of
from surefind.gallery.calibration_record import (
    METADATA,
    answered,
    fit_record,
    is_stale,
    stored_record,
)
from surefind.gallery.engine import Engine, Id, Records
from surefind.gallery.items import (
    check_count,
    read_groups,
    read_ids,
    read_labels,
    read_payload,
    read_vectors,
)
from surefind.gallery.label_fit import METADATA as LABELS
from surefind.gallery.label_fit import VOTERS, LabelFit, fit_labels
from surefind.gallery.opening import make_engine, open_engine, save_engine
from surefind.gallery.ranking import RANKS, find
from surefind.validation import check_choice, check_int

ON_STALE = ("refuse", "mark")
SCAN = 1000


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
        on_stale: What a search does when its calibration no longer holds: ``"refuse"`` or ``"mark"``.
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
        on_stale: str = "refuse",
        collection: str = "surefind",
        token: str = "",
        timeout: float | int = 60.0,
    ) -> None:
        check_choice("on_stale", on_stale, ON_STALE)
        made = make_engine(
            engine, path, index=index, collection=collection, token=token, timeout=timeout
        )
        if model is not None or index != "auto":
            made.set_metadata({"model": model, "index": index})
        self._start(made, model=model, normalize=normalize, on_stale=on_stale)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        mode: str = "w",
        index: str | None = None,
        model: str | None = None,
        normalize: bool = False,
        on_stale: str = "refuse",
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
            on_stale: As for `Gallery`.
            collection: As for `Gallery`.
            token: As for `Gallery`.
            timeout: As for `Gallery`.

        Returns:
            The gallery.
        """
        check_choice("on_stale", on_stale, ON_STALE)
        found = open_engine(
            path, mode=mode, index=index, collection=collection, token=token, timeout=timeout
        )
        gallery = cls.__new__(cls)
        model = model or found.metadata.get("model")
        gallery._start(found, model=model, normalize=normalize, on_stale=on_stale)
        return gallery

    def _start(self, engine: Engine, *, model: str | None, normalize: bool, on_stale: str) -> None:
        self.model = model
        self.normalize = normalize
        self.on_stale = on_stale
        self._open_engine: Engine | None = engine
        self._lock = threading.RLock()
        self._next_id: int | None = None
        self._record = stored_record(engine.metadata)
        stored = engine.metadata.get(LABELS)
        self._labels = None if stored is None else LabelFit.from_json(stored)

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found, or None."""
        return None if self._record is None else self._record.calibration

    @property
    def about(self) -> dict[str, Any]:
        """What `describe` kept."""
        return dict(self._engine.metadata.get("about", {}))

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first item."""
        return self._engine.dim

    @property
    def fingerprint(self) -> str:
        """A string that changes with every id, label, vector and κ, but not with their order."""
        with self._lock:
            return self._engine.fingerprint()

    def __len__(self) -> int:
        with self._lock:
            return len(self._engine)

    def __contains__(self, id_: object) -> bool:
        with self._lock:
            return bool(self._engine.known(read_ids([id_])))

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

    def records(self, size: int = SCAN) -> Iterator[list[Item]]:
        """Go through all items, a block at a time, for instance to list or to copy them.

        Other calls get their turn between two blocks. An item that is deleted before its block comes is
        left out, and so is one that is added after the first block was asked for.

        Args:
            size: Items in a block; the last one may be smaller.

        Yields:
            Items with vector, κ, novelty, label and payload, as copies, in no order that means anything.
        """
        check_int("size", size, least=1)
        ids = list(self)
        for start in range(0, len(ids), size):
            with self._lock:
                block = ids[start : start + size]
                known = self._engine.known(block)
                found = self._engine.fetch([i for i in block if i in known]) if known else ()
            if found:
                yield [Item.of(found, row) for row in range(len(found))]

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
                above the highest there is.
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
            named = self._fresh_ids(len(vectors)) if ids is None else read_ids(ids)
            check_count("ids", named, len(vectors))
            texts, own = read_payload(payload, len(vectors)), read_groups(groups, len(vectors))
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
            texts = old.payload if payload is None else read_payload(payload, len(named))
            own = old.groups if groups is None else read_groups(groups, len(named))
            self._engine.put(Records(named, vectors, kappa, novelty, new_labels, texts, own))

    def delete(self, ids: Any) -> None:
        """Delete items; all of them or, if an id is missing, none.

        Args:
            ids: Ids that are in the gallery, or a single one.
        """
        with self._lock:
            self._engine.remove(self._present(ids))

    def search(
        self,
        embeddings: Any,
        k: int = 10,
        *,
        rank: str = "distance",
        decide: bool = True,
        groups: Any = None,
    ) -> Answers:
        """Find the label and the best items of each query and, after `calibrate`, decide.

        Args:
            embeddings: The queries, as for `add`.
            k: How many items; a smaller gallery gives all it has.
            rank: What orders the items: ``"distance"``, ``"expected"`` or ``"match"``
                (`surefind.gallery.ranking`). It decides nothing else.
            decide: Whether to decide, if there is a calibration.
            groups: The group of each query, if the calibration had groups.

        Returns:
            The answers.

        Raises:
            InputError: If the queries cannot be used, or the calibration has a gate and they come without
                novelty.
        """
        check_int("k", k, least=1)
        check_choice("rank", rank, RANKS)
        with self._lock:
            record = self._record if decide else None
            queries, kappa, novelty = self._read_queries(embeddings)
            stale = record is not None and is_stale(
                self._engine, record, model=self.model, policy=self.on_stale
            )
            model = self._label_fit().model if record is None else record.labels
            calibration = None if record is None else record.calibration
            found = find(self._engine, queries, kappa, k, rank, voters=VOTERS)
            known = answered(
                self._engine, found, kappa, novelty, queries.shape[1], model, calibration, groups
            )
        return answers_of(found, kappa, novelty, rank, stale=stale, **known)

    def calibrate(
        self,
        embeddings: Any,
        labels: Any,
        *,
        ids: Any = None,
        max_wrong: float = 0.01,
        confidence: float = 0.95,
        max_false_alarms: float = 0.01,
        groups: Any = None,
        contributions: bool = True,
        seed: int = 0,
    ) -> Calibration:
        """Fit on held-out queries when an answer may be called a match, and keep that.

        Args:
            embeddings: Queries, as for `add`. One that is an item of the gallery (its vector is there, or
                its id) is answered without that item. Those with novelty pass a gate first, here and in
                every later search (`surefind.decisions.gate`).
            labels: Theirs; -1 or None for a query whose label is not in the gallery.
            ids: Theirs, if they may be items of the gallery.
            max_wrong: The highest fraction of wrong answers among matches.
            confidence: With what probability this is kept.
            max_false_alarms: Highest fraction of inputs like those of the training that the gate stops as
                unlike anything seen, below 0.1; ten times as many are a review at most.
            groups: A group for each query, for thresholds of their own.
            contributions: Whether to measure what each signal adds, which takes most of the time.
            seed: Splits the queries.

        Returns:
            The calibration; it says whether the target was reached.
        """
        with self._lock:
            queries, kappa, novelty = self._read_queries(embeddings)
            named = None if ids is None else read_ids(ids)
            if named is not None:
                check_count("ids", named, len(queries))
            self._labels = fit_labels(self._engine)
            record = fit_record(
                self._engine,
                queries,
                kappa,
                read_labels(labels, len(queries), queries=True),
                ids=named,
                model=self.model,
                labels=self._labels.model,
                seed=seed,
                max_wrong=max_wrong,
                confidence=confidence,
                novelty=novelty,
                max_false_alarms=max_false_alarms,
                groups=groups,
                contributions=contributions,
            )
            kept = {METADATA: record.to_json(), LABELS: self._labels.to_json()}
            self._engine.set_metadata({**self._engine.metadata, **kept})
            self._record = record
        return record.calibration

    @property
    def label_model(self) -> LabelModel:
        """How neighbours' votes become probabilities of labels, fitted to the items that are there now."""
        return self.fit_labels()

    def fit_labels(self) -> LabelModel:
        """Fit the posterior over labels if it is not; the first search would do it otherwise.

        This takes seconds for a million items. It is kept with the gallery, and done again when the gallery
        has grown or shrunk by a tenth.

        Returns:
            How neighbours' votes become probabilities of labels.
        """
        with self._lock:
            return self._label_fit().model

    def _label_fit(self) -> LabelFit:
        """Return the posterior over labels, fitted if need be."""
        if self._labels is None or not self._labels.fits(len(self._engine)):
            self._labels = fit_labels(self._engine)
            if not self._engine.read_only:
                fitted = {LABELS: self._labels.to_json()}
                self._engine.set_metadata({**self._engine.metadata, **fitted})
        return self._labels

    def describe(self, **facts: str | None) -> None:
        """Keep facts about the gallery with it; they decide nothing.

        Args:
            **facts: Strings; None forgets one. `surefind index` keeps ``run``, the folder of the model that
                embeds, and ``images``, the folder in which the payloads' paths begin.
        """
        with self._lock:
            known = {name: text for name, text in (self.about | facts).items() if text is not None}
            if known != self.about:
                self._engine.set_metadata({**self._engine.metadata, "about": known})

    def save(self, path: str | Path | None = None) -> None:
        """Move a gallery from memory into a folder; copy one that has a place; or compact its folder.

        Args:
            path: A new folder. A gallery in memory moves there, and every later change is kept there.
                One that has a place already (Milvus too) is copied there, and stays where it is. None
                gives back the room that deleted items had in a gallery's own folder.
        """
        with self._lock:
            save_engine(self._engine, None if path is None else Path(path))

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""
        with self._lock:
            if self._open_engine is not None:
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
        if not len(self._engine):
            raise DegenerateError("the gallery is empty, so nothing can be found; add items first.")
        return self._read(embeddings)

    def _present(self, ids: Any) -> list[Id]:
        named = read_ids(ids)
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
    """Return the lowest number, from ``least`` up, above every id that is a number."""
    return max([least, *(i + 1 for i in ids if isinstance(i, int))])
