"""The interfaces of stores: a log of blocks, and tables of records. [CH-13]

Both are synchronous: the channel's writer thread and low-rate code call them. A call that returns
has made its change durable, in every back end that claims to be persistent. The checks here come
before any back end is used, so that all of them refuse the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, cast, runtime_checkable

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable, Unsupported

T = TypeVar("T")

READ_BYTES = 32 * 1024 * 1024
"""A read ends with the block that brings it to so many bytes: a caller that asks for a number of
records does not know how many of them fit into memory.
"""
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Longest body of a block; a stored header that claims more is broken."""


def closed_error() -> StoreUnavailable:
    return StoreUnavailable("the store is closed", code="store.closed")


# --- logs -----------------------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True, gc=False):
    """`count` records appended together, from position `first` on."""

    first: int
    count: int
    received: int
    body: bytes

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class LogReader(Protocol):
    """The reading half of a LogStore."""

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """Whole blocks with records after `position`, in order, until `max_records` or READ_BYTES
        are reached (at least one block if there is any). The first block may begin at or before
        `position`. Cost does not depend on the length of the log. An unknown log is empty.
        """

    def last_position(self, log: str) -> int:
        """Position of the last durable record; 0 when there is none."""

    def first_position(self, log: str) -> int:
        """Position of the oldest record kept; last + 1 when there is none."""

    def logs(self) -> list[str]:
        """Names of all logs, sorted."""

    def close(self) -> None:
        """Ends; a second call is no error."""


class LogStore(LogReader, Protocol):
    """Named logs of blocks. One writer per store; any number of readers, also while it writes.

    Positions count records from 1 without gaps. A block is there whole or not at all, also after a
    power cut.
    """

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """Appends blocks of (count, body) in order and makes them durable with one sync; returns
        them with their positions.

        Raises StoreUnavailable when the disk refuses; then none of the blocks is there.
        """

    def trim(self, log: str, before: int) -> None:
        """Removes records before a position, as far as whole segments allow."""

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """The oldest pieces that hold records, in order; the last may be the active one. Costs by
        the limit, not by the length of the log.
        """

    def kept_bytes(self, log: str) -> int:
        """Bytes of all pieces."""

    def close_piece(self, log: str) -> None:
        """Ends the active piece, so that it can be removed; by the thread that appends."""

    def closed_end(self, log: str) -> int:
        """Last position that shares no piece with the next append; the log's last position where
        any block can be removed. 0 when there is none.
        """

    def trims_blocks(self, log: str) -> bool:
        """Whether any block can be removed, not only whole pieces."""


class LogPiece(msgspec.Struct, frozen=True, gc=False):
    """The smallest part of a log that retention removes: positions, bytes, and when its oldest and
    newest records were received.
    """

    first: int
    last: int
    size: int
    oldest: int
    newest: int


@runtime_checkable
class DamagedLogs(Protocol):
    """A store of files, which can be damaged or vanish."""

    def find_damage(self) -> list[Corrupt]:
        """Every damage known by now, as errors naming file and offset; looks for missing files."""


@runtime_checkable
class LimitedPieces(Protocol):
    """A store whose pieces can be made smaller, so that retention by size cuts finely."""

    def limit_pieces(self, limit_of: Callable[[str], int]) -> None:
        """`limit_of` gives the most bytes of a piece of a log; 0: the store's own limit."""


class MovableLogStore(LogStore, Protocol):
    """A LogStore that a log can be moved to and from, its positions kept."""

    def skip_to(self, log: str, position: int) -> None:
        """Gives the next record `position`, when that lies after the next one; the positions
        between stay empty. Creates the log if there is none; by the thread that appends.
        """

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        """Appends blocks at the positions and with the times they had in another store, all or
        none, durable when it returns. Raises InvalidInput unless they follow the log's end and each
        other without a gap.
        """

    def remove(self, log: str) -> None:
        """Deletes a log; an unknown one is no error."""


class AppendConflict(StoreUnavailable):
    """Another process appended first; nothing was appended. Read on and try again."""

    code = "store.overtaken"


class SharedLogStore(LogStore, Protocol):
    """A LogStore that several processes may write at the same time: positions still count without
    gaps, because an append names the position it follows.
    """

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        """`append`, provided that `after` is the log's last position; raises AppendConflict when
        another process was faster.
        """

    def watch(self, grown: Callable[[str, int], None]) -> None:
        """From now on calls `grown(log, last position)` from a thread of the store whenever any
        process has appended to a log; calls may be merged, the last one is never lost.
        """


def place_blocks(
    blocks: Sequence[tuple[int, bytes]], first: int, received: int, most_bytes: int | None = None
) -> list[Block]:
    """Blocks of (count, body) at their positions from `first` on; raises InvalidInput for one
    without records, or longer than `most_bytes`.
    """
    placed: list[Block] = []
    for count, body in blocks:
        placed.append(Block(first, count, received, bytes(body)))
        first += count
    check_sizes(placed, most_bytes)
    return placed


def check_sizes(blocks: Sequence[Block], most_bytes: int | None = None) -> None:
    """Raises InvalidInput for a block that has no records or is too long."""
    for block in blocks:
        if block.count < 1 or (most_bytes is not None and len(block.body) > most_bytes):
            raise InvalidInput(
                f"a block of {block.count} records and {len(block.body)} bytes cannot be kept",
                code="log.bad_block_size",
            )


def check_contiguous(log: str, last: int, blocks: Sequence[Block]) -> None:
    """Raises InvalidInput unless the blocks follow each other, the first one `last`."""
    for block in blocks:
        if block.first != last + 1:
            raise InvalidInput(
                f"log {log!r} goes on at {last + 1}, not at {block.first}", code="log.bad_place"
            )
        last = block.last


def all_blocks(
    log: LogReader, name: str, after: int = 0, *, last: int = 2**63, max_records: int = 10_000
) -> Iterator[Block]:
    """Every block with records after a position and not beyond `last`."""
    while after < last and (blocks := log.read_after(name, after, max_records=max_records)):
        yield from (block for block in blocks if block.first <= last)
        after = blocks[-1].last


# --- side logs: beside a channel's log, for state that the processes which share the store must
# agree on. They are no channels, so stores do not list them. Their names hold a slash, which no
# channel's name does.

_TAKEN = "taken/"


def take_log(channel: str) -> str:
    return f"{_TAKEN}{channel}"


def is_side_log(log: str) -> bool:
    return log.startswith(_TAKEN)


def owning_channel(log: str) -> str:
    """The channel whose store holds a log: the log's own, or the one of a side log."""
    return log.removeprefix(_TAKEN)


# --- records --------------------------------------------------------------------------------------


class Put(msgspec.Struct, frozen=True, tag="put"):
    table: str
    key: str
    value: bytes


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Delete `key`; an unknown one is no error."""

    table: str
    key: str


Change = Put | Delete


class RecordStore(Protocol):
    """Tables of key to bytes, keys ordered by code points. A change that returned is durable."""

    def get(self, table: str, key: str) -> bytes | None: ...

    def put(self, table: str, key: str, value: bytes) -> None: ...

    def delete(self, table: str, key: str) -> None: ...

    def apply(self, changes: Sequence[Change]) -> None:
        """All changes or none."""

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Up to `limit` pairs in key order, with this prefix and greater than `after`."""

    def close(self) -> None:
        """Ends; a second call is no error."""


def decode_record(raw: bytes, type: type[T], what: str, *, code: str, hint: str = "") -> T:
    """What is stored as msgpack; raises Corrupt naming it."""
    try:
        return msgspec.msgpack.decode(raw, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{what} cannot be read: {error}", code=code, hint=hint) from None


class Guard(msgspec.Struct, frozen=True):
    """The value that a record must have for a change to happen; None: it must not exist."""

    table: str
    key: str
    expected: bytes | None


class GuardFailed(StoreUnavailable):
    """A guarded record has another value: nothing was changed. Read it before trying again."""

    code = "store.guard_failed"

    def __init__(self, guard: Guard) -> None:
        super().__init__(
            f"the record {guard.key!r} of {guard.table} was changed by another process",
            code=self.code,
            hint="read it again; the change may be another process's task now",
        )
        self.guard = guard


class GuardedRecordStore(RecordStore, Protocol):
    """A RecordStore that several processes may share: a change can depend on the values of
    other records (a fence). [CO-17]
    """

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        """All changes if every guard holds at that moment, else none and GuardFailed. One
        transaction: no change of a guarded record comes in between.

        After a broken connection it may run twice; the second run fails when the first one changed
        a guarded record, so a caller that changes one reads it after a failure.
        """


class RecordChanges:
    """The changes of a RecordStore by way of `apply_guarded`."""

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        raise NotImplementedError

    def put(self, table: str, key: str, value: bytes) -> None:
        self.apply_guarded((Put(table, key, value),), ())

    def delete(self, table: str, key: str) -> None:
        self.apply_guarded((Delete(table, key),), ())

    def apply(self, changes: Sequence[Change]) -> None:
        self.apply_guarded(changes, ())


def all_records(
    records: RecordStore, table: str, *, prefix: str = ""
) -> Iterator[tuple[str, bytes]]:
    """Every pair of a table whose key starts with `prefix`, in key order, read in pages."""
    after = ""
    while page := records.find(table, prefix=prefix, after=after):
        yield from page
        after = page[-1][0]


class _GetAndPut(Protocol):
    def get(self, table: str, key: str) -> bytes | None: ...
    def put(self, table: str, key: str, value: bytes) -> None: ...


def as_guarded(records: RecordStore) -> GuardedRecordStore:
    """The store as one with guards; raises Unsupported when it has none."""
    if not hasattr(records, "apply_guarded"):
        raise Unsupported("changing records under a guard", type(records).__name__)
    return cast(GuardedRecordStore, records)


def check_guards(guards: Iterable[Guard], get: Callable[[str, str], bytes | None]) -> None:
    """Raises GuardFailed for the first record that has another value."""
    for guard in guards:
        if get(guard.table, guard.key) != guard.expected:
            raise GuardFailed(guard)


def put_if_absent(records: _GetAndPut, table: str, key: str, value: bytes) -> bytes:
    """Puts `value` unless there is one, and returns the one that stands: of several processes that
    try at the same time one is first, and all get its value.
    """
    kept = records.get(table, key)
    if kept is not None:
        return kept
    if not hasattr(records, "apply_guarded"):
        records.put(table, key, value)
        return value
    try:
        cast(GuardedRecordStore, records).apply_guarded(
            [Put(table, key, value)], [Guard(table, key, None)]
        )
    except GuardFailed:
        kept = records.get(table, key)
    return value if kept is None else kept


def check_changes(changes: Sequence[Change]) -> None:
    """Raises InvalidInput for a key that is not text or a value that is not bytes."""
    for change in changes:
        try:
            f"{change.table}{change.key}".encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{change.key[:60]!r} cannot be a key: {error.reason}", code="store.bad_key"
            ) from None
        if not isinstance(change.key, str) or not isinstance(change.table, str):
            raise InvalidInput(f"{change.key!r} is no text", code="store.bad_key")
        if isinstance(change, Put) and not isinstance(change.value, bytes):
            raise InvalidInput(
                f"the value of {change.key[:60]!r} is no bytes", code="store.bad_record"
            )


def as_shared_log(log: LogStore) -> SharedLogStore | None:
    """The store as one that several processes may write; None when it is not."""
    return cast(SharedLogStore, log) if hasattr(log, "append_after") else None


def shared_log_of(log: LogStore, channel: str) -> SharedLogStore | None:
    """The store, when several processes may write the log of this channel in it; else None."""
    home = log.store_of(channel) if hasattr(log, "store_of") else log
    return as_shared_log(log) if hasattr(home, "append_after") else None
