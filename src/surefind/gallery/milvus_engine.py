"""Records in Milvus: a milvus-lite folder on one machine, or the address of a server or cluster.

One collection holds the records, with the id as the key. The metadata are in a second one,
``NAME_metadata``, made when there are any. Searches are exact (FLAT) unless ``index="hnsw"`` was asked
for when the collection was made.

What a server can and cannot promise here:

* A call of more than `BATCH` records is sent in parts. If the server goes away in between, some parts
  are kept; repeating the call with ``update`` puts that right.
* Others may write to the same collection. Their changes are found by searches at once, but the
  content fingerprint and the labels are counted once and then follow this process's own changes only;
  open the gallery again to count anew.
* milvus-lite lets one process at a time open its folder.

pymilvus is imported when a connection is made, not before.
"""

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from surefind.checks import install_command
from surefind.errors import InputError, StorageError
from surefind.gallery.memory import FaissEngine
from surefind.gallery.records import Asked, Id, Label, Metadata, Records, as_fingerprint, forget

BATCH = 1000
"""Rows per request: with 1,024 dimensions about 4 MB."""

KEY_LENGTH, TEXT_LENGTH = 4096, 65535
"""Bytes that Milvus keeps of a key and of any other text."""

LINKS, BUILD_BREADTH, BREADTH = 16, 64, 128
"""As in `surefind.gallery.graph`."""

PART, PARTS = TEXT_LENGTH - 16, 256
"""Bytes of the metadata in one row, and rows in one request."""

NAMES = "names"
"""Where the metadata collection lists what it has, with the number of parts of each."""

TEXTS, NUMBERS = ["label", "payload", "group"], ["kappa", "novelty"]
COLUMNS = ["key", "vector", *NUMBERS, *TEXTS]
UNKNOWN = -1.0
"""In the place of a novelty that is not known: a server refuses NaN."""
Row = dict[str, Any]


class MilvusEngine:
    """Records in Milvus; `surefind.gallery.engine` says what it does.

    Args:
        address: A folder for milvus-lite that ends in ``.db``, or ``http://host:port``.
        collection: Its name.
        index: ``"auto"`` and ``"exact"`` look at every vector, ``"hnsw"`` does not.
        token: ``user:password``, for a server that wants it.
        timeout: Seconds after which a call fails.
    """

    read_only, graph_ready = False, True

    def __init__(
        self,
        address: str,
        collection: str,
        *,
        index: str = "auto",
        token: str = "",
        timeout: float | int = 60,
    ) -> None:
        self._milvus = Milvus(address, token=token, timeout=timeout)
        self._name, self._metadata_name = collection, f"{collection}_metadata"
        self.index = "hnsw" if index == "hnsw" else "exact"
        self.dim: int | None = None
        self.metadata: dict[str, Any] = {}
        self._counting = threading.Lock()
        self._tally: tuple[int, Counter[Label]] | None = None
        if self._milvus.call("has_collection", collection):
            self._take_over()
        if self._milvus.call("has_collection", self._metadata_name):
            # milvus-lite loads a collection when it is made, and not when its folder is opened again.
            self._milvus.call("load_collection", self._metadata_name)
            self.metadata = self._read_metadata()

    @property
    def place(self) -> str:
        """Where the records are, in words."""
        return f"{self._milvus.address} ({self._name})"

    def __len__(self) -> int:
        if self.dim is None:
            return 0
        found = self._milvus.call("query", self._name, filter="", output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def known(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of the ids that are kept."""
        return {_id(row["key"]) for row in self._rows(ids, ["key"])}

    def put(self, records: Records) -> None:
        """Keep records, in place of those with the same ids."""
        rows = _to_rows(records)
        if self.dim is None:
            self.dim = records.vectors.shape[1]
            self._milvus.make(self._name, self.dim, TEXTS, NUMBERS, hnsw=self.index == "hnsw")
        self._change("upsert", rows, records.ids, records)

    def remove(self, ids: Sequence[Id]) -> None:
        """Drop records, all of which are kept."""
        self._change("delete", [_key(i) for i in ids], ids)

    def fetch(self, ids: Sequence[Id]) -> Records:
        """Return kept records, in the order of the ids."""
        found = {row["key"]: row for row in self._rows(ids, COLUMNS)}
        return _to_records([found[_key(i)] for i in ids])

    def search(
        self, queries: Asked, count: int, labels: Collection[Label] | None = None
    ) -> Records:
        """Find ``count`` candidates of high cosine, with some label; there are that many records."""
        options = {"ef": max(BREADTH, 4 * count)} if self.index == "hnsw" else {}
        found = self._milvus.call(
            "search",
            self._name,
            data=list(queries),
            limit=count,
            filter="" if labels is None else f"label in {json.dumps([*map(json.dumps, labels)])}",
            output_fields=COLUMNS,
            search_params={"metric_type": "IP", "params": options},
            consistency_level="Strong",
        )
        # A graph may find fewer than asked for; the gallery works with rows of one length.
        fewest = min(len(hits) for hits in found)
        rows = [{"key": hit["key"], **hit["entity"]} for hits in found for hit in hits[:fewest]]
        return _to_records(rows)

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, at most ``size`` at a time."""
        if self.dim is not None:
            yield from map(_to_records, self._milvus.walk(self._name, COLUMNS, size))

    copied = functools.partialmethod(scan, BATCH)
    """Return all records, read while the iterator is used: changes until then may be among them."""

    @property
    def label_counts(self) -> Counter[Label]:
        """How many records each label in use has."""
        return self._counted()[1]

    @property
    def fingerprint(self) -> str:
        """The content fingerprint, in hexadecimal."""
        return as_fingerprint(self._counted()[0])

    def keep_up(self) -> None:
        """Do nothing: Milvus sees to its graph."""

    def save(self, folder: Path | None) -> None:
        """Copy everything into a folder; without one there is nothing to do."""
        if folder is None:
            return
        copy = FaissEngine()
        for records in self.scan(BATCH):
            copy.put(records)
        copy.set_metadata(self.metadata)
        copy.save(folder)
        copy.close()

    def set_metadata(self, metadata: Metadata) -> None:
        """Keep a JSON object, in place of the last one: what differs is written."""
        if not self._milvus.call("has_collection", self._metadata_name):
            self._milvus.make(self._metadata_name, 2, ["text"])
        # ASCII: characters are bytes.
        parts = {name: _parts(json.dumps(value), PART) for name, value in metadata.items()}
        same = {n for n in metadata if n in self.metadata and self.metadata[n] == metadata[n]}
        counts = json.dumps({name: len(texts) for name, texts in parts.items()})
        rows = [
            {"key": f"{name} {n}", "vector": [1.0, 0.0], "text": text}
            for name, texts in [*parts.items(), (NAMES, _parts(counts, PART))]
            for n, text in enumerate(texts if name not in same else ())
        ]
        for some in _parts(rows, PARTS):
            self._milvus.call("upsert", self._metadata_name, some)
        self.metadata = dict(metadata)

    def close(self) -> None:
        """Let go of the connection."""
        self._milvus.close()

    def _read_metadata(self) -> dict[str, Any]:
        def read(name: str, count: int) -> Any:
            keys = [f"{name} {n}" for n in range(count)]
            rows = self._milvus.rows(self._metadata_name, keys, ["key", "text"])
            text = {row["key"]: row["text"] for row in rows}
            return json.loads("".join(text.get(key, "") for key in keys) or "{}")

        # Earlier metadata may have had more parts, which are still there.
        return {name: read(name, count) for name, count in read(NAMES, 1).items()}

    def _take_over(self) -> None:
        """Learn the dimension and the index of a collection that exists."""
        found = self._milvus.call("describe_collection", self._name)
        fields = {field["name"]: field for field in found["fields"]}
        if not set(COLUMNS) <= set(fields):
            raise InputError(
                f"the Milvus collection {self._name!r} is not a gallery: it has the columns "
                f"{', '.join(fields)}. Choose another collection."
            )
        self.dim = int(fields["vector"]["params"]["dim"])
        index = self._milvus.call("describe_index", self._name, index_name="vector")
        self.index = "hnsw" if index and index["index_type"] == "HNSW" else "exact"
        self._milvus.call("load_collection", self._name)

    def _change(
        self, method: str, values: list[Any], ids: Sequence[Id], new: Records | None = None
    ) -> None:
        """Send a change, and count it; if it fails, what is kept must be counted again."""
        with self._counting:
            tally, self._tally = self._tally, None
            old = None if tally is None else _to_records(self._rows(ids, COLUMNS))
            for part in _parts(values):
                self._milvus.call(method, self._name, part)
            if tally is not None and old is not None:
                total, counts = tally
                forget(counts, old.labels)
                counts.update(() if new is None else new.labels)
                self._tally = total - old.hash_sum + (0 if new is None else new.hash_sum), counts

    def _counted(self) -> tuple[int, Counter[Label]]:
        """Return the sum of the hashes, and the labels; the first call reads all records."""
        with self._counting:
            if self._tally is None:
                total, counts = 0, Counter[Label]()
                for records in self.scan(BATCH):
                    total += records.hash_sum
                    counts.update(records.labels)
                self._tally = total, counts
            return self._tally

    def _rows(self, ids: Sequence[Id], columns: list[str]) -> list[Row]:
        if self.dim is None:
            return []
        return self._milvus.rows(self._name, [_key(i) for i in ids], columns)


class Milvus:
    """A connection: collections of vectors with columns of text and numbers, failures in words.

    Args:
        address: A folder for milvus-lite that ends in ``.db``, or ``http://host:port``.
        token: ``user:password``, or nothing.
        timeout: Seconds after which a call fails.

    Raises:
        InputError: If pymilvus is not installed.
    """

    def __init__(self, address: str, *, token: str, timeout: float | int) -> None:
        try:
            self._pymilvus: Any = import_module("pymilvus")
        except ImportError as error:
            raise InputError(
                f"Milvus needs pymilvus ({error}): {install_command('pymilvus', 'milvus-lite')}.",
                field="engine",
            ) from error
        self.address = address
        self._timeout = timeout
        connect = self._pymilvus.MilvusClient
        self._client: Any = self._ask(connect, address, token=token, timeout=timeout)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of pymilvus's client."""
        called = getattr(self._client, method)
        return self._ask(called, *arguments, timeout=self._timeout, **options)

    def rows(self, collection: str, keys: Sequence[str], columns: list[str]) -> list[Row]:
        """Return the rows of those keys that exist, in any order."""
        parts = _parts(list(keys))
        found = (self.call("get", collection, ids=part, output_fields=columns) for part in parts)
        return [row for rows in found for row in rows]

    def walk(self, collection: str, columns: list[str], size: int) -> Iterator[list[Row]]:
        """Return all rows, at most ``size`` at a time."""
        most = min(size, BATCH)
        walk = self.call("query_iterator", collection, batch_size=most, output_fields=columns)
        while rows := self._ask(walk.next):
            yield list(rows)
        walk.close()

    def make(
        self,
        collection: str,
        dim: int,
        texts: Sequence[str],
        numbers: Sequence[str] = (),
        *,
        hnsw: bool = False,
    ) -> None:
        """Make a collection of vectors, each with a key and further columns, ready to search.

        Args:
            collection: Its name.
            dim: The vectors' dimension.
            texts: Columns of text.
            numbers: Columns of float64.
            hnsw: Whether to search through a graph; every vector is looked at otherwise.
        """
        client, kinds = self._pymilvus.MilvusClient, self._pymilvus.DataType
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", kinds.VARCHAR, is_primary=True, max_length=KEY_LENGTH)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dim)
        for column in texts:
            schema.add_field(column, kinds.VARCHAR, max_length=TEXT_LENGTH)
        for column in numbers:
            schema.add_field(column, kinds.DOUBLE)
        how = client.prepare_index_params()
        options = {"M": LINKS, "efConstruction": BUILD_BREADTH} if hnsw else {}
        index = "HNSW" if hnsw else "FLAT"
        how.add_index("vector", index_type=index, metric_type="IP", params=options)
        made = {"schema": schema, "index_params": how, "consistency_level": "Strong"}
        self.call("create_collection", collection, **made)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call Milvus, and put its failures into words."""
        failures = (self._pymilvus.MilvusException, import_module("grpc").RpcError, ValueError)
        try:
            return call(*arguments, **options)
        except failures as error:
            raise StorageError(
                f"Milvus at {self.address} did not do what was asked: {error}. What it acknowledged "
                "before is kept there. Check that it runs, that the address is right, and that no "
                "other process has a milvus-lite folder open; then repeat the call."
            ) from error


def _parts(values: Any, size: int = BATCH) -> list[Any]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _key(id_: Id) -> str:
    """Write an id without the quotes and backslashes that would end a text in Milvus's filters."""
    return f"s{quote(id_, safe='')}" if isinstance(id_, str) else f"i{id_}"


def _id(key: str) -> Id:
    return unquote(key[1:]) if key.startswith("s") else int(key[1:])


def _to_rows(records: Records) -> list[Row]:
    """Write records as Milvus takes them, and refuse texts that it would not keep whole."""
    columns = {
        "key": map(_key, records.ids),
        "vector": records.vectors,
        "kappa": records.kappa.tolist(),
        "novelty": np.nan_to_num(records.novelty, nan=UNKNOWN).tolist(),
        "label": map(json.dumps, records.labels),
        "payload": (text or "" for text in records.payload),
        "group": map(json.dumps, records.groups),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for name, most in (("key", KEY_LENGTH), *((name, TEXT_LENGTH) for name in TEXTS)):
        if (longest := max((len(row[name]) for row in rows), default=0)) > most:
            what = "an id" if name == "key" else f"a {name}"
            raise InputError(
                f"Milvus keeps at most {most} bytes of {what}; there is one of {longest}. Keep long texts "
                "elsewhere, under the id."
            )
    return rows


def _to_records(rows: Sequence[Row]) -> Records:
    novelty = np.array([row["novelty"] for row in rows], dtype=np.float64)
    return Records(
        [_id(row["key"]) for row in rows],
        np.array([row["vector"] for row in rows], dtype=np.float32),
        np.array([row["kappa"] for row in rows], dtype=np.float64),
        np.where(novelty == UNKNOWN, np.nan, novelty),
        [json.loads(row["label"]) for row in rows],
        [row["payload"] or None for row in rows],
        [json.loads(row["group"]) for row in rows],
    )
