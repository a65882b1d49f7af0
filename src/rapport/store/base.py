"""The two shapes of keeping: a log of blocks and a map of records. [CH-13]

Both are synchronous: they are called from the channel's writer thread or from short calls of
low-rate code. "Returned" means durable, for every back end that claims to be persistent.

Changes that happen only while other records still say what they said: fences for several
processes on one record store. [CH-13, CO-17]

What may be a record, checked before any back end is asked, so all refuse alike. [CH-13]

Logs beside a channel's, in the same store: for what all processes that share it must agree on.
[CH-13]

They are no channels: stores do not list them. Their names hold a slash, which no channel's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast, runtime_checkable

import msgspec

from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable, Unsupported

READ_BYTES = 32 * 1024 * 1024
"""A reading ends with the block that brings it to so many bytes: how many records fit into memory
is not known to who asks for a number of them.
"""


class Block(msgspec.Struct, frozen=True, gc=False):
    """`count` records appended together: positions `first` .. `first + count - 1`; `body` is opaque
    here.
    """

    first: int
    count: int
    received: int
    body: bytes

    @property
    def last(self) -> int:
        """Position of the block's last record."""
        return self.first + self.count - 1


class LogStore(Protocol):
    """Named logs of blocks. One writer per store; any number of readers, also while it writes.

    Positions count records from 1 without gaps. A block is there whole or not at all, also after a
    power cut.
    """

    def append(self, log: str, blocks: Sequence[tuple[int, bytes]], received: int) -> list[Block]:
        """Appends blocks of (count, body) in order and makes them durable with one sync; returns
        them placed.

        Raises StoreUnavailable when the disk refuses; then none of the blocks is there.
        """

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """Whole blocks holding records after `position`, in order, until `max_records` or
        READ_BYTES are reached (at least one block if there is any). The first block may begin at or
        before `position`. Cost does not depend on the length of the log. An unknown log is empty.
        """

    def last_position(self, log: str) -> int:
        """Position of the last durable record; 0 when there is none."""

    def first_position(self, log: str) -> int:
        """Position of the oldest record still kept; last + 1 when there is none."""

    def trim(self, log: str, before: int) -> None:
        """Lets go of records before a position, as far as whole segments allow."""

    def logs(self) -> list[str]:
        """Names of all logs, sorted."""

    def close(self) -> None:
        """Ends; a second call is no error."""


class LogPiece(msgspec.Struct, frozen=True, gc=False):
    """What a log lets go of at once: positions, bytes, and when the oldest and the newest of them
    were received.
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
        """`limit_of` gives the most bytes of a piece of a log; 0 = as large as any."""


class PiecedLogStore(LogStore, Protocol):
    """A LogStore that knows its pieces, so that retention can choose among them.

    The cost of every call is bounded by its limit, not by the length of the log.
    """

    def pieces(self, log: str, limit: int) -> list[LogPiece]:
        """The oldest pieces that hold something, in order; the last may still be growing."""

    def kept_bytes(self, log: str) -> int:
        """Bytes of all pieces."""

    def close_piece(self, log: str) -> None:
        """Ends the growing piece, so that it can be let go of; by the thread that appends."""

    def closed_end(self, log: str) -> int:
        """Last position that shares no piece with what is appended next; of the log itself where
        any block can go. 0 when there is none.
        """

    def trims_blocks(self, log: str) -> bool:
        """Whether any block can go, not only whole pieces; then these may be of any size."""


class AppendConflict(StoreUnavailable):
    """Another process appended first; nothing was appended. Read on and try again."""

    code = "store.overtaken"


class SharedLogStore(LogStore, Protocol):
    """A LogStore that several processes may write at the same time: positions still count without
    gaps, because an append says what it follows.
    """

    def append_after(
        self, log: str, after: int, blocks: Sequence[tuple[int, bytes]], received: int
    ) -> list[Block]:
        """`append`, provided that `after` is the log's last position; raises Overtaken when
        another process was faster.
        """

    def watch(self, grown: Callable[[str, int], None]) -> None:
        """From now on calls `grown(log, last position)` from a thread of the store's own whenever
        a log has grown, whoever appended; calls may be merged, the last one is never lost.
        """


class MovableLogStore(LogStore, Protocol):
    """A LogStore that a log can be moved to and away from, its positions kept."""

    def skip_to(self, log: str, position: int) -> None:
        """The next record appended gets `position`, when that lies after the next one; what lies
        between is not there. Makes the log if there is none; by the thread that appends.
        """

    def restore(self, log: str, blocks: Sequence[Block]) -> None:
        """Appends blocks at the positions and with the times they had elsewhere, all or none,
        durable when it returns. Raises InvalidInput unless they follow the log's end and each
        other without a gap.
        """

    def remove(self, log: str) -> None:
        """Forgets a log and all it holds; not being there is no error."""


def check_contiguous(log: str, last: int, blocks: Sequence[Block]) -> None:
    """Raises InvalidInput unless the blocks stand one after the other, the first after `last`."""
    for block in blocks:
        if block.first != last + 1:
            raise InvalidInput(
                f"log {log!r} goes on at {last + 1}, not at {block.first}", code="log.bad_place"
            )
        last = block.last


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Write `value` at `key`."""

    table: str
    key: str
    value: bytes


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Forget `key`; not being there is no error."""

    table: str
    key: str


Change = Put | Delete


class RecordStore(Protocol):
    """Tables of key to bytes, keys ordered by code points."""

    def get(self, table: str, key: str) -> bytes | None:
        """The value, or None."""

    def put(self, table: str, key: str, value: bytes) -> None:
        """Durable when it returns."""

    def delete(self, table: str, key: str) -> None:
        """Durable when it returns."""

    def apply(self, changes: Sequence[Change]) -> None:
        """All changes or none, durable when it returns."""

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Up to `limit` pairs in key order whose key starts with `prefix` and is greater than
        `after`.
        """

    def close(self) -> None:
        """Ends; a second call is no error."""


class Guard(msgspec.Struct, frozen=True):
    """What a record must say for a change to happen; None = it must not be there."""

    table: str
    key: str
    expected: bytes | None


class GuardFailed(StoreUnavailable):
    """A guarded record says something else: nothing was changed. Look again before trying again."""

    code = "store.guard_failed"

    def __init__(self, guard: Guard) -> None:
        super().__init__(
            f"the record {guard.key!r} of {guard.table} was changed by another process",
            code=self.code,
            hint="read it again; what was to be changed may be another's now",
        )
        self.guard = guard


class GuardedRecordStore(RecordStore, Protocol):
    """A RecordStore that several processes may share."""

    def apply_guarded(self, changes: Sequence[Change], guards: Sequence[Guard]) -> None:
        """All changes if every guard holds at that moment, else none and GuardFailed; durable when
        it returns. One transaction: no change of a guarded record comes in between.

        After a broken connection it may be done twice; the second time fails when the first one
        changed a guarded record, so who changes one looks at it after a failure.
        """


class _Keeping(Protocol):
    def get(self, table: str, key: str) -> bytes | None: ...
    def put(self, table: str, key: str, value: bytes) -> None: ...


def as_guarded(records: RecordStore) -> GuardedRecordStore:
    """The store as one with guards; raises Unsupported when it has none."""
    if not hasattr(records, "apply_guarded"):
        raise Unsupported("changing records under a guard", type(records).__name__)
    return cast(GuardedRecordStore, records)


def check_guards(guards: Iterable[Guard], get: Callable[[str, str], bytes | None]) -> None:
    """Raises GuardFailed for the first record that says something else."""
    for guard in guards:
        if get(guard.table, guard.key) != guard.expected:
            raise GuardFailed(guard)


def put_if_absent(records: _Keeping, table: str, key: str, value: bytes) -> bytes:
    """What a record says, `value` when there was none: of several processes that try at the same
    time one is first, and all get its value.
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
    """Raises InvalidInput for a key that is no text or a value that is no bytes."""
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


_TAKEN = "taken/"


def take_log(channel: str) -> str:
    """The log of what was taken from a channel."""
    return f"{_TAKEN}{channel}"


def is_side_log(log: str) -> bool:
    """Whether a log only stands beside a channel's."""
    return log.startswith(_TAKEN)


def owning_channel(log: str) -> str:
    """The channel whose store a log is in: its own, or the one it stands beside."""
    return log.removeprefix(_TAKEN)
