"""The stream of one log: making it, where it ends, which message holds a position. [CH-13]

All coroutines run in the loop of the connection, so what is known here needs no locks.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block
from rapport.store.nats.groups import GroupMark, encode_token, read_mark
from rapport.store.nats.index import PositionIndex, guess
from rapport.store.nats.link import Message, NatsLink

_log = get_logger(__name__)

NEAR = 4
"""Messages that are sooner read than asked for one by one."""
NO_STREAM = 10059


class Tail(msgspec.Struct, frozen=True):
    """The end of a stream."""

    position: int = 0
    """Last committed record."""
    committed: int = 0
    """Sequence of the message that committed it."""
    sequence: int = 0
    """Sequence of the last message, committed or not."""


class NatsStream:
    """What this process knows of a stream; what it has not heard of yet, `refresh` finds out."""

    def __init__(self, name: str, prefix: str, link: NatsLink) -> None:
        token = encode_token(name)
        self.name, self._link = name, link
        self._stream = f"{prefix}_{token}"
        self._subject, self._grown = f"{prefix}.log.{token}", f"{prefix}.grown.{token}"
        self._forget("")

    def _forget(self, created: str) -> None:
        """Knows nothing any more: the stream is new, or is another one under the same name."""
        self._created = created
        self._index = PositionIndex()
        self._tail = Tail()
        self._first_sequence = 1
        self._density, self._read_through = 1.0, -1
        self._recent: list[Block] = []

    async def make(self) -> None:
        """Makes the stream if there is none; several processes may at once."""
        if self._created or await self.refresh() is not None:
            return
        made = await self._link.api(
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
                # What was stored, whoever stored it, is told to all: see nats_watch.py.
                "republish": {"src": self._subject, "dest": self._grown, "headers_only": True},
            },
        )
        if "error" in made:
            raise refused(self.name, made["error"])
        await self.refresh()

    async def refresh(self) -> Tail | None:
        """The end of the stream as it is now; None when there is no stream."""
        info = await self._link.api(f"STREAM.INFO.{self._stream}", {})
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

    async def _find_tail(self, last: int) -> Tail:
        """Walks back over groups that were never finished."""
        sequence = last
        while sequence >= self._first_sequence and sequence > 0:
            found = await self._link.get(self._stream, {"seq": sequence})
            if found is None:
                break
            mark = self._mark_of(found)
            if mark is not None and mark.is_final:
                return Tail(mark.last, sequence, last)
            sequence -= mark.part + 1 if mark else 1
        return Tail(0, 0, last)

    async def first_position(self) -> int:
        """See LogStore."""
        tail = await self.refresh()
        if tail is None or not tail.committed:
            return 1
        found = await self.mark_from(self._first_sequence)
        return found[1].first if found else tail.position + 1

    @property
    def first_sequence(self) -> int:
        """The oldest message kept, as far as known."""
        return self._first_sequence

    async def mark_from(self, sequence: int) -> tuple[int, GroupMark] | None:
        """The first message of ours at or after a sequence: its own sequence and what it says."""
        while True:
            body = {"seq": sequence, "next_by_subj": self._subject}
            found = await self._link.get(self._stream, body)
            if found is None:
                return None
            mark = self._mark_of(found)
            if mark is not None:
                return found.sequence, mark
            sequence = found.sequence + 1

    def _mark_of(self, message: Message) -> GroupMark | None:
        """What a message says; None, and a warning, when it is not ours."""
        try:
            return read_mark(message.headers)
        except Corrupt as error:
            _log.warning(
                "message passed over",
                log=self.name,
                sequence=message.sequence,
                why=error.message,
                hint=error.hint,
            )
            return None

    async def size(self) -> int:
        """Bytes of the stream."""
        info = await self._link.api(f"STREAM.INFO.{self._stream}", {})
        return int(info["state"]["bytes"]) if "state" in info else 0

    async def locate(self, position: int, *, near: int = NEAR) -> int:
        """Sequence to begin reading at, for a position; at most `near` messages too early.

        Costs nothing when the index knows, and otherwise a few questions: every third one halves
        what is left.
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


def refused(log: str, error: dict[str, Any]) -> StoreUnavailable:
    """What JetStream answered, as the store says it."""
    return StoreUnavailable(
        f"NATS refused log {log!r}: {error.get('description', error)}",
        code="store.nats_refused",
        hint="the server's log says more; is its disk full, or the account's limit reached?",
    )
