"""A list of items, part by part, while the gallery changes.

A cursor is a place in a list: what its item is ordered by, and its id. The part that follows holds what is
ordered behind that, whether the item itself is still there. So an item that does not change is seen exactly
once by whoever goes from part to part; one that is changed or added meanwhile may be missed.

    surest       the highest κ first; equal ones by id, numbers before texts
    least-sure   the same, backwards
    confusing    those that confuse most others first; equal ones by id as a text

A cursor is opaque to callers, and harmless if it is made up: it is compared with, and nothing else.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surefind.errors import InputError
from surefind.gallery.engine import Id
from surefind.gallery.gallery import Gallery
from surefind.service.wire import RefusedError

Order = Literal["surest", "least-sure", "confusing"]


@dataclass(frozen=True, eq=False)
class Listing:
    """A gallery's items in one order.

    Attributes:
        order: Which.
        ids: Of the items, in this order.
        gallery: Whose items.
        counts: How many others each item confuses, if that is the order.
    """

    order: Order
    ids: Sequence[Id]
    gallery: Gallery
    counts: Mapping[Id, int]

    def cursor(self, position: int) -> str:
        """Return the cursor of the item at a position."""
        id_ = self.ids[position]
        return urlsafe_b64encode(json.dumps([self.order, self._rank(id_), id_]).encode()).decode()

    def after(self, cursor: str) -> int:
        """Return the position of the first item behind a cursor; refused if it is not of this order."""
        there = self._key(*self._read(cursor))
        back = self.order == "least-sure"

        def behind(id_: Id) -> bool:
            here = self._key(self._rank(id_), id_)
            return bool(here < there if back else here > there)

        return bisect_left(self.ids, True, key=behind)

    def _read(self, cursor: str) -> tuple[float, Id]:
        try:
            order, rank, id_ = json.loads(urlsafe_b64decode(cursor))
        except (ValueError, TypeError, RecursionError):
            order, rank, id_ = None, None, None
        if order != self.order or type(rank) is not float or type(id_) not in (int, str):
            raise RefusedError(422, "after must be the ``next`` of a list in the same order.")
        return rank, id_

    def _rank(self, id_: Id) -> float:
        if self.order == "confusing":
            return float(self.counts[id_])
        try:
            return self.gallery.get(id_).kappa
        except InputError as error:  # it was deleted while this was listed
            sentence = "the gallery changed while it was listed; ask again."
            raise RefusedError(503, sentence, {"Retry-After": "1"}) from error

    def _key(self, rank: float, id_: Id) -> tuple[Any, ...]:
        if self.order == "confusing":
            return -rank, str(id_)
        return -rank, isinstance(id_, str), id_
