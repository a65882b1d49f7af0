"""Which messages of a channel are taken or leased, and by which token. [CH-2, CH-3, CH-13]

Taken positions are bits in rows of 4,096: a take changes a few rows, in the same transaction as the
note which token took them. With the note the same token gives the same messages again (its answer
may have been lost) until the lease ends; then it is swept. A leased message has a record of its own
until it is acked; then it is a bit like all others.

Where several nodes write the channel's log, takes are records of a side log in the same store. A
take is appended only if nothing was taken since its messages were chosen (`append_after`), so one
of two takers has to choose again, and a killed taker blocks nobody. From time to time a summary
record replaces the ones before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from rapport.channel.requests.leases import MessageLease, MessageLeases
from rapport.core.errors import Corrupt
from rapport.store.base import (
    Block,
    Change,
    Delete,
    LogStore,
    Put,
    RecordStore,
    SharedLogStore,
    all_blocks,
    all_records,
    decode_record,
    take_log,
)

TAKEN, TAKES, LEASES = "taken", "takes", "message_leases"
ROW_BITS = 4_096
SUMMARY_EVERY = 1_000
"""Takes between two summary records."""


class Take(msgspec.Struct, frozen=True, array_like=True):
    """The runs (first, last) of positions that one token took, and until when it is known."""

    until_ms: int
    runs: tuple[tuple[int, int], ...]

    def positions(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)


def runs_of(positions: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending positions as runs of neighbours.

    >>> runs_of([1, 2, 3, 7])
    ((1, 3), (7, 7))
    """
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and runs[-1][1] == position - 1:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return tuple(runs)


class TakenMessages:
    """The taken messages of one channel. No I/O: `changes` returns what to write; once that is
    durable the caller calls `confirm`. One take at a time, or rows would be overwritten.
    """

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._rows: dict[int, int] = {}
        self._takes: dict[str, Take] = {}
        self._due: list[tuple[int, str]] = []
        self._expired: list[str] = []
        self._floor = 0
        """Everything up to here was taken: a queue that is emptied costs no more as it grows."""
        self._first = 0
        """Positions before it are no longer stored."""
        self._is_summed_up = False
        self.leases = MessageLeases()
        """Messages that are taken for a time; they are not held."""

    def holds(self, position: int) -> bool:
        row = self._rows.get(position // ROW_BITS)
        if position < self._first:
            return True
        return row is not None and bool(row >> position % ROW_BITS & 1)

    def skip(self, position: int) -> int:
        """The last position of the run of taken ones right after `position`; itself if none is."""
        if position <= self._floor:
            self._floor = position = self._end_of_run(self._floor)
            return position
        return self._end_of_run(position)

    def forget_before(self, position: int) -> None:
        self._first = max(self._first, position)
        self._floor = max(self._floor, position - 1)
        self.leases.drop_before(position)
        for number in [number for number in self._rows if number < position // ROW_BITS]:
            del self._rows[number]

    def is_untouched(self) -> bool:
        """Whether nothing was ever taken: most channels."""
        return not self._rows and not self._is_summed_up and not len(self.leases)

    def take_of(self, token: str) -> Take | None:
        return self._takes.get(token)

    def changes(
        self, positions: Sequence[int], token: str, take: Take, now_ms: int
    ) -> list[Change]:
        """The changes for a token's take; nothing is taken before `confirm`."""
        note = Put(TAKES, take_key(self._channel, token), msgspec.msgpack.encode(take))
        changes: list[Change] = [note]
        changes += self._row_puts(self._rows_with(positions))
        self.expire(now_ms)
        changes += [Delete(TAKES, take_key(self._channel, old)) for old in self._expired]
        return changes

    def lease_changes(
        self, leases: Mapping[int, MessageLease], done: Sequence[int]
    ) -> list[Change]:
        """The changes for leased, returned and consumed messages, to be confirmed later."""
        changes: list[Change] = [
            Put(LEASES, lease_key(self._channel, position), msgspec.msgpack.encode(lease))
            for position, lease in leases.items()
        ]
        changes += self._row_puts(self._rows_with(done))
        return changes + [Delete(LEASES, lease_key(self._channel, one)) for one in done]

    def confirm_leases(self, leases: Mapping[int, MessageLease], done: Sequence[int]) -> None:
        """These changes are durable."""
        for position, lease in leases.items():
            self.leases.put(position, lease)
        self._rows.update(self._rows_with(done))
        for position in done:
            self.leases.drop(position)

    def as_records(self) -> list[Change]:
        """The records from which `load_taken` restores all of this."""
        floor, _rows, takes = self.contents()
        rows = dict(self._rows)
        for number in range(floor // ROW_BITS + 1):
            through = min(floor - number * ROW_BITS, ROW_BITS - 1)
            rows[number] = rows.get(number, 0) | (1 << through + 1) - 1
        return [
            *self._row_puts(rows),
            *(
                Put(TAKES, take_key(self._channel, token), msgspec.msgpack.encode(take))
                for token, take in takes.items()
            ),
            *self.lease_changes(self.leases.all(), ()),
        ]

    def confirm(self, positions: Sequence[int], token: str, take: Take) -> None:
        """The changes are durable: the positions are taken, and old notes are off the records."""
        self._rows.update(self._rows_with(positions))
        self.restore_take(token, take)
        self._expired.clear()

    def contents(self) -> tuple[int, dict[int, int], dict[str, Take]]:
        """Everything up to a position is taken, rows of bits behind it, the notes."""
        floor = self.skip(0)
        rows = {n: row for n, row in self._rows.items() if (n + 1) * ROW_BITS > floor + 1}
        return floor, rows, dict(self._takes)

    def covers(self, other: TakenMessages) -> bool:
        """Whether everything that `other` holds is held here."""
        for number, row in other._rows.items():
            missing = row & ~self._rows.get(number, 0)
            if missing and number * ROW_BITS + missing.bit_length() - 1 >= self._first:
                return False
        return all(one in self.leases or self.holds(one) for one in other.leases.all())

    def add_all_through(self, position: int) -> None:
        self._is_summed_up = True
        self.forget_before(position + 1)

    def add_row(self, number: int, row: int) -> None:
        """Merges a row: taken positions stay taken."""
        self._rows[number] = self._rows.get(number, 0) | row

    def restore_row(self, number: int, row: bytes) -> None:
        self._rows[number] = int.from_bytes(row, "little")

    def restore_take(self, token: str, take: Take) -> None:
        if token in self._takes:
            return
        self._takes[token] = take
        heapq.heappush(self._due, (take.until_ms, token))

    def _end_of_run(self, position: int) -> int:
        while True:
            number, bit = divmod(position + 1, ROW_BITS)
            free = ~(self._rows.get(number, 0) >> bit)
            ones = (free & -free).bit_length() - 1  # taken ones before the first free one
            position += ones
            if ones == 0 or bit + ones < ROW_BITS:
                return position

    def expire(self, now_ms: int) -> None:
        """Forgets notes past their lease; their records go with the next take that succeeds."""
        while self._due and self._due[0][0] <= now_ms:
            _until, token = heapq.heappop(self._due)
            del self._takes[token]
            self._expired.append(token)

    def _row_puts(self, rows: Mapping[int, int]) -> list[Change]:
        return [
            Put(TAKEN, row_key(self._channel, number), row.to_bytes(ROW_BITS // 8, "little"))
            for number, row in rows.items()
        ]

    def _rows_with(self, positions: Sequence[int]) -> dict[int, int]:
        rows: dict[int, int] = {}
        for position in positions:
            number = position // ROW_BITS
            row = rows.get(number, self._rows.get(number, 0))
            rows[number] = row | 1 << position % ROW_BITS
        return rows


def row_key(channel: str, number: int) -> str:
    """Key of a row of bits; channel names hold no slash."""
    return f"{channel}/{number:015d}"


def take_key(channel: str, token: str) -> str:
    return f"{channel}/{token}"


def lease_key(channel: str, position: int) -> str:
    return f"{channel}/{position:020d}"


def load_taken(records: RecordStore, channel: str) -> TakenMessages:
    """The taken messages in the records: 512 bytes per 4,096 positions. Raises Corrupt."""
    taken = TakenMessages(channel)
    try:
        for key, row in all_records(records, TAKEN, prefix=f"{channel}/"):
            taken.restore_row(int(key.partition("/")[2]), row)
        for key, raw in all_records(records, TAKES, prefix=f"{channel}/"):
            taken.restore_take(key.partition("/")[2], msgspec.msgpack.decode(raw, type=Take))
        for key, raw in all_records(records, LEASES, prefix=f"{channel}/"):
            lease = msgspec.msgpack.decode(raw, type=MessageLease)
            taken.leases.put(int(key.partition("/")[2]), lease)
    except (ValueError, msgspec.DecodeError) as error:
        raise Corrupt(
            f"what was taken from channel {channel!r} cannot be read: {error}",
            code="channel.bad_takes",
        ) from None
    return taken


def rows_before(records: RecordStore, channel: str, position: int, limit: int) -> list[Change]:
    """Deletions of rows and leases that lie wholly before a position, `limit` of each."""
    rows = records.find(TAKEN, prefix=f"{channel}/", limit=limit)
    leases = records.find(LEASES, prefix=f"{channel}/", limit=limit)
    gone = [(TAKEN, key) for key, _row in rows if key < row_key(channel, position // ROW_BITS)]
    gone += [(LEASES, key) for key, _lease in leases if key < lease_key(channel, position)]
    return [Delete(table, key) for table, key in gone]


class TookRecord(msgspec.Struct, frozen=True, array_like=True, tag="took"):
    token: str
    take: Take


class SummaryRecord(msgspec.Struct, frozen=True, array_like=True, tag="all"):
    """The whole state: everything up to `floor` is taken, rows of bits behind it, and the notes."""

    floor: int
    rows: dict[int, bytes]
    takes: dict[str, Take]
    leases: dict[int, MessageLease] = {}


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """Messages that were leased or returned, and others that are done."""

    leases: dict[int, MessageLease]
    done: tuple[int, ...] = ()


AnyRecord = TookRecord | SummaryRecord | LeaseRecord


class SharedTakes:
    """This node's position in the side log of takes of one channel. Blocking calls (`read`,
    `append`) are made off the loop; `take_in` belongs to the loop, like the `TakenMessages` it
    changes.
    """

    def __init__(self, log: SharedLogStore, channel: str) -> None:
        self.log, self._channel, self.name = log, channel, take_log(channel)
        self.known = 0
        self._summed_up = 0

    @property
    def is_long(self) -> bool:
        return self.known - self._summed_up >= SUMMARY_EVERY

    def read(self) -> list[Block]:
        """The blocks behind the known position; one store call when there are none."""
        return list(all_blocks(self.log, self.name, self.known))

    def take_in(self, taken: TakenMessages, blocks: Sequence[Block]) -> None:
        """Applies blocks; one that was read twice counts once. Raises Corrupt."""
        for block in blocks:
            if block.first <= self.known:
                continue
            what = f"what was taken from channel {self._channel!r}"
            record: AnyRecord = decode_record(
                block.body,
                AnyRecord,  # type: ignore[arg-type]
                what,
                code="channel.bad_takes",
            )
            if isinstance(record, TookRecord):
                taken.confirm(tuple(record.take.positions()), record.token, record.take)
            elif isinstance(record, LeaseRecord):
                taken.confirm_leases(record.leases, record.done)
            else:
                restore_summary(taken, record)
                self._summed_up = block.last
            self.known = block.last

    def append(self, record: AnyRecord, received: int) -> list[Block]:
        """Appends a record durably; raises AppendConflict when another node was faster."""
        body = msgspec.msgpack.encode(record)
        return self.log.append_after(self.name, self.known, [(1, body)], received)

    def trim(self) -> None:
        """Trims the side log before the last known summary."""
        self.log.trim(self.name, self._summed_up)


def summary_of(taken: TakenMessages, now_ms: int) -> SummaryRecord:
    """All that was taken, without notes past their lease."""
    floor, rows, takes = taken.contents()
    packed = {number: row.to_bytes(ROW_BITS // 8, "little") for number, row in rows.items()}
    alive = {token: take for token, take in takes.items() if take.until_ms > now_ms}
    return SummaryRecord(floor, packed, alive, taken.leases.all())


def restore_summary(taken: TakenMessages, summary: SummaryRecord) -> None:
    """Applies a summary, which is newer than the known state: its leases replace known ones."""
    for number, row in summary.rows.items():
        taken.add_row(number, int.from_bytes(row, "little"))
    for token, take in summary.takes.items():
        taken.restore_take(token, take)
    if summary.floor:
        taken.add_all_through(summary.floor)
    for position, lease in summary.leases.items():
        if not taken.holds(position):
            taken.leases.put(position, lease)


def takes_as_records(log: LogStore, channel: str, taken: TakenMessages) -> list[Change]:
    """The records that hold the state of a side log, for a channel that is moved. `taken` is the
    state already in the records.
    """
    if log.last_position(take_log(channel)) == 0:
        return []
    shared = SharedTakes(cast(SharedLogStore, log), channel)
    shared.take_in(taken, shared.read())
    return taken.as_records()
