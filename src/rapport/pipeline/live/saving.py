"""How a bucket is kept: a snapshot now and then, and between them what it was given. Pure.
[PI-10, design 14]

Writing all that a bucket knows after every batch would cost as much as it knows; what it was given
costs as much as the batch. To go on elsewhere the newest snapshot is taken and the rest given
again, which comes to the same. A chain of digests names every state by all that led to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import msgspec

from rapport.core.errors import Corrupt
from rapport.pipeline.live.bucket import Bucket, BucketPlan, Found
from rapport.pipeline.live.parcel import Parcel, decode_parcel, encode_parcel
from rapport.pipeline.worker_tables import WorkerTables

CHUNK_BYTES = 4 * 1024 * 1024
"""No single value is larger."""
_LEAST_BYTES = 4 * 1024 * 1024
_MOST_ENTRIES = 100
_MARK_BYTES = 16


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Names a state, and says when the next snapshot is due."""

    digest: bytes
    entries: int
    """Given since the snapshot."""
    given_bytes: int
    snapshot_bytes: int

    def is_snapshot_due(self) -> bool:
        """Once as much was given as a snapshot has: then both cost the same."""
        return self.entries >= _MOST_ENTRIES or self.given_bytes > max(
            _LEAST_BYTES, self.snapshot_bytes
        )


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A piece of what is kept: entry 0 is the snapshot, 1 and on what was given after it, each with
    the digest it led to. Long ones have several rows.
    """

    entry: int
    digest: bytes
    piece: bytes


class Shelf(Protocol):
    """Where one bucket is kept; all that is done to it in a batch becomes true together."""

    def mark(self) -> Mark | None:
        """Of what is kept; None when there is nothing yet."""

    def rows(self) -> Iterator[Row]:
        """All pieces, in the order in which they were put there."""

    def add(self, mark: Mark, rows: Sequence[Row]) -> None:
        """Puts further pieces behind the others."""

    def renew(self, mark: Mark, rows: Sequence[Row]) -> None:
        """Puts other pieces in their place."""


class Held(msgspec.Struct):
    """A bucket in memory and the digest of what led to it."""

    digest: bytes
    bucket: Bucket


class Keeper:
    """Takes a bucket from its shelf, lets it take a batch, and puts it back."""

    def __init__(
        self,
        plan: BucketPlan,
        tables: WorkerTables,
        *,
        told: Callable[[list[str]], None] | None = None,
    ) -> None:
        """`told`: is given the names of policies that begin anew because they changed."""
        self._plan, self._tables = plan, tables
        self._told = told or (lambda _: None)

    def step(
        self, shelf: Shelf, parcels: Sequence[Parcel], held: Held | None
    ) -> tuple[Found, Held]:
        """`held` is what this process still has in memory: it saves reading everything again. It
        is used up, whatever happens.
        """
        mark = shelf.mark()
        now = self._taken(shelf, mark, held)
        is_other = not now.bucket.is_of(self._plan, self._tables)
        if is_other:
            now.bucket, anew = now.bucket.turned_to(self._plan, self._tables)
            self._told(anew)
        raw = _pack(parcels)
        found = now.bucket.take(parcels)
        now.digest = _next_digest(now.digest, raw)
        added = _added(mark, now.digest, len(raw))
        if added is None or is_other or added.is_snapshot_due():
            snapshot = now.bucket.snapshot()
            shelf.renew(Mark(now.digest, 0, 0, len(snapshot)), _rows(0, now.digest, snapshot))
        else:
            shelf.add(added, _rows(added.entries, now.digest, raw))
        return found, now

    def _taken(self, shelf: Shelf, mark: Mark | None, held: Held | None) -> Held:
        """The bucket as the shelf has it."""
        if mark is None:
            return Held(b"", Bucket(self._plan, self._tables))
        if held is not None and held.digest == mark.digest:
            return held
        snapshot, *given = _entries(shelf.rows())
        places = [entry.digest for entry in (snapshot, *given)]
        if held is not None and held.digest in places:
            begin, given = held, given[places.index(held.digest) :]
        else:
            bucket = Bucket.restored(snapshot.piece, self._plan.sources, self._tables)
            begin = Held(snapshot.digest, bucket)
        for entry in given:
            begin.bucket.take(_unpack(entry.piece))
            begin.digest = entry.digest
        if begin.digest != mark.digest:
            raise Corrupt(
                "what is kept of a bucket does not lead to where it stands", code="live.bad_state"
            )
        return begin


def _added(mark: Mark | None, digest: bytes, size: int) -> Mark | None:
    if mark is None:
        return None
    return Mark(digest, mark.entries + 1, mark.given_bytes + size, mark.snapshot_bytes)


def _pack(parcels: Sequence[Parcel]) -> bytes:
    """As they are kept: what is set aside is appended once and not needed again."""
    kept = (msgspec.structs.replace(parcel, aside=b"") for parcel in parcels)
    return msgspec.msgpack.encode([encode_parcel(parcel) for parcel in kept])


def _unpack(raw: bytes) -> list[Parcel]:
    return [decode_parcel(one) for one in msgspec.msgpack.decode(raw, type=list[bytes])]


def _next_digest(digest: bytes, raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_MARK_BYTES, key=digest).digest()


def _rows(entry: int, digest: bytes, raw: bytes) -> list[Row]:
    return [
        Row(entry, digest, raw[begin : begin + CHUNK_BYTES])
        for begin in range(0, max(len(raw), 1), CHUNK_BYTES)
    ]


def _entries(rows: Iterable[Row]) -> list[Row]:
    """Rows of one entry put together; the snapshot comes first."""
    found: list[Row] = []
    for _, pieces in groupby(rows, key=lambda row: row.entry):
        first, *more = pieces
        found.append(Row(first.entry, first.digest, b"".join(one.piece for one in (first, *more))))
    if [row.entry for row in found] != list(range(len(found))) or not found:
        raise Corrupt("pieces of a bucket are missing", code="live.bad_state")
    return found
