"""What was taken from a channel whose log several nodes write: a log beside it, in the same store.
[CH-2, CH-13]

A take is appended only if nothing was taken since its messages were chosen (`append_after`), so of
two takers one is told to look again, and nobody waits for a taker that was killed. Now and then all
of it is said in one record, and what stood before that is let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from rapport.channel.requesting.message_leases import MessageLease
from rapport.channel.requesting.taking import ROW_BITS, Take, Taken
from rapport.core.errors import Corrupt
from rapport.store.base import Block, Change, LogStore, SharedLogStore, take_log

SUMMARY_EVERY = 1_000
"""Takes after which all of them are said in one record."""
_READ_RECORDS = 10_000


class TookRecord(msgspec.Struct, frozen=True, array_like=True, tag="took"):
    """One token took messages."""

    token: str
    take: Take


class SummaryRecord(msgspec.Struct, frozen=True, array_like=True, tag="all"):
    """All that was taken: everything up to `floor`, rows of bits behind it, and the notes."""

    floor: int
    rows: dict[int, bytes]
    takes: dict[str, Take]
    leases: dict[int, MessageLease] = {}


class LeaseRecord(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """Messages were leased or given back, and others are done."""

    leases: dict[int, MessageLease]
    done: tuple[int, ...] = ()


AnyRecord = TookRecord | SummaryRecord | LeaseRecord
_READ = msgspec.msgpack.Decoder(AnyRecord)


class SharedTakes:
    """How far this node has read the log of takes of one channel. Blocking calls (`read`, `append`)
    are made off the loop; `take_in` belongs to the loop, like the `Taken` it changes.
    """

    def __init__(
        self, log: SharedLogStore, channel: str, *, summary_every: int = SUMMARY_EVERY
    ) -> None:
        self.log, self._channel, self.name = log, channel, take_log(channel)
        self._every = summary_every
        self.known = 0
        self._summed_up = 0

    @property
    def is_long(self) -> bool:
        """Whether a summary is due."""
        return self.known - self._summed_up >= self._every

    def read(self) -> list[Block]:
        """What was appended behind what is known; one question when there is nothing."""
        found: list[Block] = []
        reached = self.known
        while blocks := self.log.read_after(self.name, reached, max_records=_READ_RECORDS):
            found += blocks
            reached = blocks[-1].last
        return found

    def take_in(self, taken: Taken, blocks: Sequence[Block]) -> None:
        """Makes what was read known; what was read twice counts once. Raises Corrupt."""
        for block in blocks:
            if block.first <= self.known:
                continue
            record = self._decoded(block)
            if isinstance(record, TookRecord):
                taken.confirm(tuple(record.take.positions()), record.token, record.take)
            elif isinstance(record, LeaseRecord):
                taken.confirm_leases(record.leases, record.done)
            else:
                restore_summary(taken, record)
                self._summed_up = block.last
            self.known = block.last

    def append(self, record: AnyRecord, received: int) -> list[Block]:
        """What is to be taken in, durable when it returns; raises Overtaken when another node took
        something meanwhile.
        """
        body = msgspec.msgpack.encode(record)
        return self.log.append_after(self.name, self.known, [(1, body)], received)

    def let_go(self) -> None:
        """Drops what stands before the last summary that is known."""
        self.log.trim(self.name, self._summed_up)

    def _decoded(self, block: Block) -> AnyRecord:
        try:
            record: AnyRecord = _READ.decode(block.body)
        except msgspec.DecodeError as error:
            raise Corrupt(
                f"what was taken from channel {self._channel!r} cannot be read: {error}",
                code="channel.bad_takes",
            ) from None
        return record


def summary_of(taken: Taken, now_ms: int) -> SummaryRecord:
    """All that was taken, without notes past their lease."""
    floor, rows, takes = taken.contents()
    packed = {number: row.to_bytes(ROW_BITS // 8, "little") for number, row in rows.items()}
    alive = {token: take for token, take in takes.items() if take.until_ms > now_ms}
    return SummaryRecord(floor, packed, alive, taken.leases.all())


def restore_summary(taken: Taken, summary: SummaryRecord) -> None:
    """Takes in a summary beside what is known already."""
    for number, row in summary.rows.items():
        taken.add_row(number, int.from_bytes(row, "little"))
    for token, take in summary.takes.items():
        taken.restore_take(token, take)
    if summary.floor:
        taken.add_all_through(summary.floor)
    for position, lease in summary.leases.items():
        if position not in taken.leases and not taken.holds(position):
            taken.leases.put(position, lease)


def takes_as_records(log: LogStore, channel: str, taken: Taken) -> list[Change]:
    """What to write so that the records know, too, what stands in the log of takes; for a channel
    that is moved. `taken` is what they know.
    """
    if log.last_position(take_log(channel)) == 0:
        return []
    shared = SharedTakes(cast(SharedLogStore, log), channel)
    shared.take_in(taken, shared.read())
    return taken.as_records()
