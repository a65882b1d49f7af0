"""One log in its JetStream stream: appending after a position, reading, trimming. [CH-13]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import Any

import msgspec

from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import READ_BYTES, Block, Overtaken
from rapport.store.nats.groups import (
    GROUP_HEADER,
    Assembler,
    GroupMark,
    encode_group,
    read_mark,
)
from rapport.store.nats.link import Message, NatsLink
from rapport.store.nats.stream import NO_STREAM, NatsStream, Tail, refused

_log = get_logger(__name__)

_HEADER_ROOM = 1_024
"""Bytes of a message kept free for its headers."""
_LARGEST_PART = 4 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024
_MOST_MESSAGES = 500
_COURTESY_SECONDS = 0.5
"""How long another writer's unfinished group is left in peace before it is taken for dead."""
_WRONG_SEQUENCE = 10071


class NatsLog(NatsStream):
    """A log; see NatsLogStore for what is promised."""

    def __init__(self, name: str, prefix: str, link: NatsLink) -> None:
        super().__init__(name, prefix, link)
        self._writing = asyncio.Lock()

    # --- appending --------------------------------------------------------------------------------

    async def append(self, blocks: Sequence[Block], write: str) -> None:
        """Appends blocks where they say they stand; raises Overtaken when the log goes on beyond
        the place before the first. `write` names this append among all there ever are.
        """
        first, last = blocks[0], blocks[-1].last
        async with self._writing:
            await self.make()
            await self._stand_at(first.first - 1)
            count = last - first.first + 1
            await self._publish(GroupMark(first.first, count, first.received, 0, 1, write), blocks)

    async def skip_to(self, position: int, write: str) -> None:
        """Makes `position` the next one; what lies before is not there."""
        async with self._writing:
            await self.make()
            tail = await self.refresh()
            if tail is not None and position > tail.position:
                await self._publish(GroupMark(position, 0, 0, 0, 1, write), ())

    async def mark_end(self, write: str) -> None:
        """Ends with a message that holds nothing but the position, so that all before it can go."""
        async with self._writing:
            tail = await self.refresh()
            if tail is not None and tail.committed:
                await self._publish(GroupMark(tail.position + 1, 0, 0, 0, 1, write), ())

    async def _stand_at(self, after: int) -> None:
        """Makes sure that the log ends at `after`; raises Overtaken when it is longer."""
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
        room = min(self._link.largest_message, _LARGEST_PART) - _HEADER_ROOM
        began = self._tail.sequence + 1
        for part, piece in encode_group(blocks, mark, room):
            await self._publish_part(part, piece)
        self._tail = Tail(mark.last, self._tail.sequence, self._tail.sequence)
        self._index.add(mark.first, began)

    async def _publish_part(self, mark: GroupMark, piece: bytes) -> None:
        """Publishes one message behind the last one. Safe to be asked again: the sequence it names
        lets it in once, and a message of ours that stands there tells that it was let in.
        """
        expected = self._tail.sequence
        headers = {GROUP_HEADER: mark.header(), "Nats-Expected-Last-Sequence": str(expected)}

        async def ask() -> Any:
            return await self._link.request(self._subject, piece, headers)

        answer = msgspec.json.decode((await self._link.until_answered(ask)).data)
        error = answer.get("error")
        if error is not None and error.get("err_code") == _WRONG_SEQUENCE:
            if not await self._is_ours(expected + 1, mark):
                await self._make_way(mark)
        elif error is not None:
            raise refused(self.name, error)
        self._tail = msgspec.structs.replace(self._tail, sequence=expected + 1)

    async def _is_ours(self, sequence: int, mark: GroupMark) -> bool:
        found = await self._link.get(self._stream, {"seq": sequence})
        there = self._mark_of(found) if found else None
        return there is not None and (there.write, there.part) == (mark.write, mark.part)

    async def _make_way(self, mark: GroupMark) -> None:
        """Somebody else wrote where we wanted to. When that is a group whose writer ended half-way,
        the next try goes behind it; otherwise it is read first. Either way this one is given up.
        """
        before = self._tail
        tail = await self.refresh()
        while tail is not None and tail.committed != tail.sequence:
            last = tail.sequence
            await self._wait_a_little()
            tail = await self.refresh()
            if tail is not None and tail.sequence == last:
                _log.info("unfinished group passed", log=self.name, sequence=last)
                break
        if self._tail.position < before.position:
            raise refused(self.name, {"description": "the stream was put back"})
        raise _overtaken(self.name)

    async def _wait_a_little(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await asyncio.wait((waiting,), timeout=_COURTESY_SECONDS)

    # --- reading ----------------------------------------------------------------------------------

    async def read_after(self, position: int, max_records: int) -> list[Block]:
        """See LogStore."""
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
        # Who goes on where the last reading ended finds about as many records per message as that.
        density = self._density if position == self._read_through else float(wanted)
        assembler = Assembler()
        found: list[Block] = []
        records, size, messages_read = 0, 0, 0
        while records < wanted and size < READ_BYTES:
            count = min(ceil((wanted - records) / density), _MOST_MESSAGES)
            messages, is_end = await self._link.get_many(self._stream, sequence, count, _READ_BYTES)
            for message in messages:
                fresh = _cut(self._take(assembler, message), position, wanted - records)
                found += fresh
                records += sum(block.count for block in fresh)
                size += sum(len(block.body) for block in fresh)
            messages_read += len(messages)
            # Nothing yet: what was read stands too early; twice as many next time.
            density = (records or wanted / 2) / max(messages_read, 1)
            if is_end or not messages:
                break
            sequence = messages[-1].sequence + 1
        if found:
            self._density, self._read_through = density, found[-1].last
        return found

    def _take(self, assembler: Assembler, message: Message) -> list[Block]:
        """The blocks of the group that a message completes; damage is told and passed over."""
        try:
            mark = read_mark(message.headers)
            blocks = assembler.take(message.sequence, mark, message.data)
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

    # --- letting go -------------------------------------------------------------------------------

    async def trim(self, before: int) -> None:
        """See LogStore; whole groups, and never the last one: it says where the log ends."""
        tail = await self.refresh()
        if tail is None or not tail.committed:
            return
        final = await self._link.get(self._stream, {"seq": tail.committed})
        begins = tail.committed - (read_mark(final.headers).part if final else 0)
        sequence = begins
        if before <= tail.position:
            sequence = min(await self.locate(before, near=1), begins)
        if sequence <= self._first_sequence:
            return
        answer = await self._link.api(f"STREAM.PURGE.{self._stream}", {"seq": sequence})
        if "error" in answer:
            raise refused(self.name, answer["error"])
        self._first_sequence = sequence
        self._index.forget_before(sequence)
        self._recent = []

    async def remove(self) -> None:
        """Forgets the log; not being there is no error."""
        answer = await self._link.api(f"STREAM.DELETE.{self._stream}", {})
        error = answer.get("error")
        if error is not None and error.get("err_code") != NO_STREAM:
            raise refused(self.name, error)
        self._forget("")


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


def _overtaken(log: str) -> Overtaken:
    return Overtaken(f"another process appended to log {log!r} first")
