"""One log in its JetStream stream: appending after a position, reading, trimming, retention pieces.
[CH-13, CH-14]

All coroutines run in the loop of the connection, so the state here needs no locks. The stream is
addressed by sequences of messages; `PositionIndex` caches which sequence holds which position.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec

from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import READ_BYTES, AppendConflict, Block, LogPiece
from rapport.store.nats_connection import NatsConnection, StreamMessage
from rapport.store.nats_groups import (
    GROUP_HEADER,
    GroupAssembler,
    GroupMark,
    encode_group,
    encode_token,
    read_mark,
)

MOST_ENTRIES = 8_192

Begin = tuple[int, int]
"""First position of a group, and the sequence of its first message."""


def guess(position: int, low: Begin, high: Begin, *, halve: bool) -> int:
    """A sequence strictly between two group beginnings to look at next: by interpolation, or in the
    middle.
    """
    gap = high[1] - low[1]
    if halve or high[0] <= low[0]:
        step = gap // 2
    else:
        step = gap * (position - low[0]) // (high[0] - low[0])
    return low[1] + min(max(step, 1), gap - 1)


class PositionIndex:
    """Pairs of (first position of a group, sequence of its first message), both growing.

    Appending and reading add pairs. When there are too many, every other one is dropped: positions
    between two pairs are found by a search in the stream.
    """

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._firsts: list[int] = []
        self._sequences: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, sequence: int) -> None:
        """Adds the beginning of a group; the later message wins over an interrupted attempt."""
        at = bisect_right(self._firsts, first)
        if at and self._firsts[at - 1] == first:
            self._sequences[at - 1] = max(self._sequences[at - 1], sequence)
            return
        self._firsts.insert(at, first)
        self._sequences.insert(at, sequence)
        if len(self._firsts) > self._most:
            del self._firsts[1:-1:2], self._sequences[1:-1:2]

    def around(self, position: int) -> tuple[Begin | None, Begin | None]:
        """The known group beginnings at or before a position and after it; None where unknown. They
        are neighbours when a group is known to begin at the position.
        """
        at = bisect_right(self._firsts, position)
        lower = (self._firsts[at - 1], self._sequences[at - 1]) if at else None
        if lower is not None and lower[0] == position:
            return lower, (position + 1, lower[1] + 1)
        upper = (self._firsts[at], self._sequences[at]) if at < len(self._firsts) else None
        return lower, upper

    def forget_before(self, sequence: int) -> None:
        """Drops groups that were removed from the stream."""
        gone = bisect_right(self._sequences, sequence - 1)
        del self._firsts[:gone], self._sequences[:gone]


_log = get_logger(__name__)

NEAR = 4
"""Messages that are cheaper to read than to search through."""
NO_STREAM = 10059


class StreamTail(msgspec.Struct, frozen=True):
    position: int = 0
    """Last committed record."""
    committed: int = 0
    """Sequence of the message that committed it."""
    sequence: int = 0
    """Sequence of the last message, committed or not."""


class NatsLog:
    """A log in its stream, as this process knows it; `refresh` brings it up to date."""

    def __init__(self, name: str, prefix: str, connection: NatsConnection) -> None:
        token = encode_token(name)
        self.name, self._connection = name, connection
        self._writing = asyncio.Lock()
        self._stream = f"{prefix}_{token}"
        self._subject, self._grown = f"{prefix}.log.{token}", f"{prefix}.grown.{token}"
        self._forget("")

    def _forget(self, created: str) -> None:
        """Resets all state: the stream is new, or another one with the same name."""
        self._created = created
        self._index = PositionIndex()
        self._tail = StreamTail()
        self._first_sequence = 1
        self._density, self._read_through = 1.0, -1
        self._recent: list[Block] = []

    async def make(self) -> None:
        """Creates the stream if there is none; several processes may do it at once."""
        if self._created or await self.refresh() is not None:
            return
        made = await self._connection.api(
            f"STREAM.CREATE.{self._stream}",
            {
                "name": self._stream,
                "description": f"Rapport log {self.name}",
                "subjects": [self._subject],
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "num_replicas": 1,
                "allow_direct": True,
                # Notifies all processes of every stored message: see NatsWatch.
                "republish": {"src": self._subject, "dest": self._grown, "headers_only": True},
            },
        )
        if "error" in made:
            raise refused(self.name, made["error"])
        await self.refresh()

    async def refresh(self) -> StreamTail | None:
        """The present end of the stream; None when there is no stream."""
        info = await self._connection.api(f"STREAM.INFO.{self._stream}", {})
        if "error" in info:
            if info["error"].get("err_code") != NO_STREAM:
                raise refused(self.name, info["error"])
            self._forget("")
            return None
        if info["created"] != self._created:
            self._forget(info["created"])
        state = info["state"]
        self._first_sequence = int(state["first_seq"])
        if int(state["last_seq"]) != self._tail.sequence:
            self._tail = await self._find_tail(int(state["last_seq"]))
        return self._tail

    async def _find_tail(self, last: int) -> StreamTail:
        sequence = last
        while sequence >= self._first_sequence and sequence > 0:
            found = await self._connection.get(self._stream, {"seq": sequence})
            if found is None:
                break
            mark = self._mark_of(found)
            if mark is not None and mark.is_final:
                return StreamTail(mark.last, sequence, last)
            sequence -= mark.part + 1 if mark else 1
        return StreamTail(0, 0, last)

    async def first_position(self) -> int:
        tail = await self.refresh()
        if tail is None or not tail.committed:
            return 1
        found = await self.mark_from(self._first_sequence)
        return found[1].first if found else tail.position + 1

    @property
    def first_sequence(self) -> int:
        return self._first_sequence

    async def mark_from(self, sequence: int) -> tuple[int, GroupMark] | None:
        """Sequence and mark of Rapport's first message at or after a sequence."""
        while True:
            body = {"seq": sequence, "next_by_subj": self._subject}
            found = await self._connection.get(self._stream, body)
            if found is None:
                return None
            mark = self._mark_of(found)
            if mark is not None:
                return found.sequence, mark
            sequence = found.sequence + 1

    def _mark_of(self, message: StreamMessage) -> GroupMark | None:
        """The mark of a message; None, and a warning, when it is not Rapport's."""
        try:
            return read_mark(message.headers)
        except Corrupt as error:
            _log.warning(
                "message skipped",
                log=self.name,
                sequence=message.sequence,
                why=error.message,
                hint=error.hint,
            )
            return None

    async def size(self) -> int:
        info = await self._connection.api(f"STREAM.INFO.{self._stream}", {})
        return int(info["state"]["bytes"]) if "state" in info else 0

    async def locate(self, position: int, *, near: int = NEAR) -> int:
        """Sequence to begin reading at for a position; at most `near` messages too early.

        Costs nothing when the index knows it, otherwise a few requests: every third one halves the
        rest.
        """
        if position > self._tail.position:
            await self.refresh()
            if position > self._tail.position:
                return self._tail.sequence + 1 if self._tail.committed else self._first_sequence
        low, high = self._index.around(position)
        if low is None or low[1] < self._first_sequence:
            low = (1, self._first_sequence)
        high = high or (self._tail.position + 1, self._tail.sequence + 1)
        part, tries = 0, 0
        while high[1] - low[1] > near:
            tries += 1
            middle = guess(position, low, high, halve=tries % 3 == 0)
            found = await self.mark_from(middle)
            if found is None or found[0] >= high[1]:
                high = (high[0], middle)
                continue
            sequence, mark = found
            if mark.first > position:
                high = (mark.first, middle)
                continue
            low, part = (mark.first, sequence), mark.part
            self._index.add(mark.first, sequence - mark.part)
            if position <= mark.last and mark.part == 0:
                break
        return low[1] - part

    # --- appending --------------------------------------------------------------------------------

    async def append(self, blocks: Sequence[Block], write: str) -> None:
        """Appends blocks at their positions; raises AppendConflict when the log does not end before
        the first one. `write` is a unique name of this append.
        """
        first, last = blocks[0], blocks[-1].last
        async with self._writing:
            await self.make()
            await self._check_end(first.first - 1)
            count = last - first.first + 1
            await self._publish(GroupMark(first.first, count, first.received, 0, 1, write), blocks)

    async def skip_to(self, position: int, write: str) -> None:
        """Makes `position` the next one; the positions before it stay empty."""
        async with self._writing:
            await self.make()
            tail = await self.refresh()
            if tail is not None and position > tail.position:
                await self._publish(GroupMark(position, 0, 0, 0, 1, write), ())

    async def mark_end(self, write: str) -> None:
        """Appends a message without records, so that all messages before it can be removed."""
        async with self._writing:
            tail = await self.refresh()
            if tail is not None and tail.committed:
                await self._publish(GroupMark(tail.position + 1, 0, 0, 0, 1, write), ())

    async def _check_end(self, after: int) -> None:
        """Checks that the log ends at `after`; raises AppendConflict when it is longer."""
        if self._tail.position != after:
            await self.refresh()
        if self._tail.position > after:
            raise _overtaken(self.name)
        if self._tail.position < after:
            raise StoreUnavailable(
                f"the stream of log {self.name!r} ends at {self._tail.position}, not at {after}",
                code="store.log_shrank",
                hint="was it purged or put back to an older state? restart the node",
            )

    async def _publish(self, mark: GroupMark, blocks: Sequence[Block]) -> None:
        room = min(self._connection.largest_message, _LARGEST_PART) - _HEADER_ROOM
        began = self._tail.sequence + 1
        for part, piece in encode_group(blocks, mark, room):
            await self._publish_part(part, piece)
        self._tail = StreamTail(mark.last, self._tail.sequence, self._tail.sequence)
        self._index.add(mark.first, began)

    async def _publish_part(self, mark: GroupMark, piece: bytes) -> None:
        """Publishes one message behind the last one. Idempotent: the expected sequence admits it
        once, and its mark at that sequence shows that it was admitted.
        """
        expected = self._tail.sequence
        headers = {GROUP_HEADER: mark.header(), "Nats-Expected-Last-Sequence": str(expected)}

        async def send() -> Any:
            return await self._connection.request(self._subject, piece, headers)

        answer = msgspec.json.decode((await self._connection.until_answered(send)).data)
        error = answer.get("error")
        if error is not None and error.get("err_code") == _WRONG_SEQUENCE:
            if not await self._is_ours(expected + 1, mark):
                await self._give_up(mark)
        elif error is not None:
            raise refused(self.name, error)
        self._tail = msgspec.structs.replace(self._tail, sequence=expected + 1)

    async def _is_ours(self, sequence: int, mark: GroupMark) -> bool:
        found = await self._connection.get(self._stream, {"seq": sequence})
        there = self._mark_of(found) if found else None
        return there is not None and (there.write, there.part) == (mark.write, mark.part)

    async def _give_up(self, mark: GroupMark) -> None:
        """Raises AppendConflict: another process wrote at the expected sequence. Waits until its
        group is finished or counts as abandoned, so that the next attempt goes behind it.
        """
        before = self._tail
        tail = await self.refresh()
        while tail is not None and tail.committed != tail.sequence:
            last = tail.sequence
            await self._pause()
            tail = await self.refresh()
            if tail is not None and tail.sequence == last:
                _log.info("unfinished group skipped", log=self.name, sequence=last)
                break
        if self._tail.position < before.position:
            raise refused(self.name, {"description": "the stream was put back"})
        raise _overtaken(self.name)

    async def _pause(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await asyncio.wait((waiting,), timeout=_COURTESY_SECONDS)

    # --- reading ----------------------------------------------------------------------------------

    async def read_after(self, position: int, max_records: int) -> list[Block]:
        if self._recent and self._recent[0].first <= position + 1 <= self._recent[-1].last:
            found = _cut(self._recent, position, max_records)
        else:
            found = []
        records = sum(block.count for block in found)
        if records < max_records:
            after = found[-1].last if found else position
            found += await self._read_stream(after, max_records - records)
        return found

    async def _read_stream(self, position: int, wanted: int) -> list[Block]:
        if not self._created and await self.refresh() is None:
            return []
        sequence = await self.locate(position + 1)
        # A read that continues the last one finds about as many records per message.
        density = self._density if position == self._read_through else float(wanted)
        assembler = GroupAssembler()
        found: list[Block] = []
        records, size, messages_read = 0, 0, 0
        while records < wanted and size < READ_BYTES:
            count = min(ceil((wanted - records) / density), _MOST_MESSAGES)
            messages, is_end = await self._connection.get_many(
                self._stream, sequence, count, _READ_BYTES
            )
            for message in messages:
                fresh = _cut(self._assemble(assembler, message), position, wanted - records)
                found += fresh
                records += sum(block.count for block in fresh)
                size += sum(len(block.body) for block in fresh)
            messages_read += len(messages)
            # Without records so far, twice as many messages are read next time.
            density = (records or wanted / 2) / max(messages_read, 1)
            if is_end or not messages:
                break
            sequence = messages[-1].sequence + 1
        if found:
            self._density, self._read_through = density, found[-1].last
        return found

    def _assemble(self, assembler: GroupAssembler, message: StreamMessage) -> list[Block]:
        """The blocks of the group that a message completes; damage is logged and skipped."""
        try:
            mark = read_mark(message.headers)
            blocks = assembler.add(message.sequence, mark, message.data)
        except Corrupt as error:
            _log.warning(
                "message unreadable", log=self.name, sequence=message.sequence, why=error.message
            )
            return []
        if not blocks:
            return []
        self._index.add(mark.first, assembler.began)
        self._index.add(mark.last + 1, message.sequence + 1)
        self._recent = blocks
        return blocks

    # --- removing ---------------------------------------------------------------------------------

    async def trim(self, before: int) -> None:
        """See LogStore; whole groups, but never the last one, which marks the end of the log."""
        tail = await self.refresh()
        if tail is None or not tail.committed:
            return
        final = await self._connection.get(self._stream, {"seq": tail.committed})
        begins = tail.committed - (read_mark(final.headers).part if final else 0)
        sequence = begins
        if before <= tail.position:
            sequence = min(await self.locate(before, near=1), begins)
        if sequence <= self._first_sequence:
            return
        answer = await self._connection.api(f"STREAM.PURGE.{self._stream}", {"seq": sequence})
        if "error" in answer:
            raise refused(self.name, answer["error"])
        self._first_sequence = sequence
        self._index.forget_before(sequence)
        self._recent = []

    async def remove(self) -> None:
        answer = await self._connection.api(f"STREAM.DELETE.{self._stream}", {})
        error = answer.get("error")
        if error is not None and error.get("err_code") != NO_STREAM:
            raise refused(self.name, error)
        self._forget("")


def refused(log: str, error: dict[str, Any]) -> StoreUnavailable:
    return StoreUnavailable(
        f"NATS refused log {log!r}: {error.get('description', error)}",
        code="store.nats_refused",
        hint="the server's log says more; is its disk full, or the account's limit reached?",
    )


_HEADER_ROOM = 1_024
"""Bytes of a message kept free for its headers."""
_LARGEST_PART = 4 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024
_MOST_MESSAGES = 500
_COURTESY_SECONDS = 0.5
"""Time after which another writer's unfinished group counts as abandoned."""
_WRONG_SEQUENCE = 10071


def _cut(blocks: Sequence[Block], position: int, wanted: int) -> list[Block]:
    """Whole blocks holding records after `position`, until `wanted` is reached."""
    found = []
    for block in blocks:
        if wanted <= 0:
            break
        if block.last > position:
            found.append(block)
            wanted -= block.count
    return found


def _overtaken(log: str) -> AppendConflict:
    return AppendConflict(f"another process appended to log {log!r} first")


MOST_MESSAGES = 256
"""Messages of one retention piece."""


async def pieces_of(log: NatsLog, limit: int) -> list[LogPiece]:
    """The oldest pieces, in order; two requests for each. Bytes are an average per message."""
    pieces: list[LogPiece] = []
    tail = await log.refresh()
    if tail is None:
        return pieces
    message_bytes = await log.size() // max(tail.sequence - log.first_sequence + 1, 1)
    sequence = log.first_sequence
    while sequence <= tail.committed and len(pieces) < limit:
        began = await log.mark_from(sequence)
        if began is None:
            break
        mark = began[1]
        until, after = await _following(log, sequence, tail.committed, tail.position)
        newest = await log.mark_from(until - 1)
        received = newest[1].received if newest else mark.received
        if after > mark.first:
            size = (until - sequence) * message_bytes
            # A message without records only marks the beginning or end of the log.
            oldest = mark.received if mark.count else received
            pieces.append(LogPiece(mark.first, after - 1, size, oldest, max(received, oldest)))
        sequence = until
    return pieces


async def _following(log: NatsLog, sequence: int, committed: int, position: int) -> tuple[int, int]:
    """Sequence and position at which the piece after the one at `sequence` begins."""
    wanted = sequence + MOST_MESSAGES
    while wanted <= committed:
        found = await log.mark_from(wanted)
        if found is None:
            break
        at, mark = found
        if at - mark.part > sequence:
            return at - mark.part, mark.first
        wanted = at - mark.part + mark.parts  # one group is larger than a piece
    return committed + 1, position + 1
