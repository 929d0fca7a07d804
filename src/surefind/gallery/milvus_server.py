"""Talking to Milvus: collections of vectors with columns of text and numbers, failures in words.

The only module that imports pymilvus, and only when a connection is made.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from surefind.errors import InputError
from surefind.gallery.faults import StorageError

BATCH = 1000
"""Rows per request: with 1,024 dimensions about 4 MB."""

KEY_LENGTH, TEXT_LENGTH = 4096, 65535
"""Bytes that Milvus keeps of a key and of any other text."""

Row = dict[str, Any]


class Milvus:
    """A connection."""

    def __init__(self, address: str, *, token: str, timeout: float | int) -> None:
        """Connect.

        Args:
            address: A folder for milvus-lite that ends in ``.db``, or ``http://host:port``.
            token: ``user:password``, or nothing.
            timeout: Seconds after which a call fails.

        Raises:
            InputError: If pymilvus is not installed.
        """
        try:
            self._pymilvus: Any = import_module("pymilvus")
        except ImportError as error:
            raise InputError(
                f"Milvus needs pymilvus ({error}): pip install 'surefind[milvus]'.", field="engine"
            ) from error
        self.address = address
        self._timeout = timeout
        self._client: Any = self._ask(
            self._pymilvus.MilvusClient, address, token=token, timeout=timeout
        )

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of pymilvus's client.

        Args:
            method: Its name.
            *arguments: Its arguments.
            **options: Its keyword arguments.

        Returns:
            What it returns.
        """
        return self._ask(
            getattr(self._client, method), *arguments, timeout=self._timeout, **options
        )

    def rows(self, collection: str, keys: Sequence[str], columns: list[str]) -> list[Row]:
        """Return the rows of those keys that exist, in any order."""
        found: list[Row] = []
        for start in range(0, len(keys), BATCH):
            part = list(keys[start : start + BATCH])
            found += self.call("get", collection, ids=part, output_fields=columns)
        return found

    def walk(self, collection: str, columns: list[str], size: int) -> Iterator[list[Row]]:
        """Return all rows, at most ``size`` at a time."""
        walk = self.call(
            "query_iterator", collection, batch_size=min(size, BATCH), output_fields=columns
        )
        while rows := self._ask(walk.next):
            yield list(rows)
        walk.close()

    def make(
        self,
        collection: str,
        dim: int,
        *,
        texts: Sequence[str],
        numbers: Sequence[str] = (),
        index: str = "FLAT",
        options: dict[str, int] | None = None,
    ) -> None:
        """Make a collection of vectors, each with a key and further columns, ready to search.

        Args:
            collection: Its name.
            dim: The vectors' dimension.
            texts: Columns of text.
            numbers: Columns of float64.
            index: Milvus's name for how to search.
            options: The index's parameters.
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
        how.add_index("vector", index_type=index, metric_type="IP", params=options or {})
        self.call(
            "create_collection",
            collection,
            schema=schema,
            index_params=how,
            consistency_level="Strong",
        )

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
