"""One channel on a LogStore: appending in groups, reading, waiting. [CH-1, CH-6]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Appended
from rapport.channel.checking import check_events
from rapport.channel.decoded import DecodedBlock
from rapport.channel.grouping import cut_blocks, plan_group
from rapport.channel.seen import SeenWindow, decode_identities, identity_keys
from rapport.channel.sequence_keeping import SequenceKeeping
from rapport.channel.shared import Shared
from rapport.channel.waiting import Bell
from rapport.channel.writer import closed_error
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, InvalidInput, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block

_log = get_logger(__name__)

_REBUILD_RECORDS = 50_000
_LOOK_AHEAD = 256
"""Events decoded when one is asked for: who repeats itself asks for the next ones soon."""


class LoggedChannel:
    """See Channel. The writing thread calls `commit` and `event_at`, event loops the rest."""

    def __init__(self, name: str, shared: Shared, *, last: int) -> None:
        self.name = name
        self.bell = Bell()
        self._shared, self._parts = shared, shared.parts
        self._last = last
        self._seen: SeenWindow | None = None
        self._sequences = SequenceKeeping(name, self._parts, self._position_of)
        self._unreadable = (0, 0)

    async def append(self, events: Sequence[Event]) -> Appended:
        """See Channel."""
        if self._shared.closed:
            raise closed_error()
        held = tuple(events)  # the caller's list may change while we wait
        data_bytes = check_events(held, self._parts.max_data_bytes)
        if not held:
            return Appended((), 0)
        return await self._parts.writer.write(self, held, data_bytes)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. Recent events come from memory, decoded once for all readers."""
        if limit < 1 or position < 0:
            raise InvalidInput(
                f"cannot read {limit} events after position {position}", code="channel.bad_position"
            )
        if self._shared.closed:
            raise closed_error()
        if position >= self._last:
            return []
        found = self._from_memory(position, limit)
        if found:
            return found
        return await self._shared.off_loop(lambda: self._from_log(position, limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel."""
        if self._has_after(position):
            return True
        if timeout_ms is None:
            while not self._has_after(position):
                await self._next_ring(position)
            return True
        return await self._wait_until(position, timeout_ms)

    def last_position(self) -> int:
        """See Channel."""
        return self._last

    # --- called by the writer ---------------------------------------------------------------------

    def commit(self, appends: Sequence[Sequence[Event]]) -> list[Appended]:
        """Makes appends durable with one sync; see writer.Target."""
        seen = self._seen_window()
        draft = self._sequences.draft(appends, self._last)
        group = plan_group(appends, self._last + 1, seen.find, self._is_same, draft)
        if group.fresh:
            pieces = cut_blocks(group.fresh)
            blocks = self._parts.log.append(
                self.name,
                [(len(events), body) for events, body in pieces],
                self._parts.clock.now_ms(),
            )
            seen.add(group.keys, blocks[0].first)
            for block, (events, body) in zip(blocks, pieces, strict=True):
                decoded = DecodedBlock(block.first, block.received, events, len(body))
                self._shared.decoded.put(self.name, decoded)
            self._last = blocks[-1].last
            if draft is not None:
                draft.keep(self._last)
            self.bell.ring()
            self._shared.appended(self.name, self._last)
        return group.answers

    def event_at(self, position: int) -> StoredEvent | None:
        """The event at a position; None when it is trimmed or damaged."""
        found = self._from_memory(position - 1, 1) or self._from_log(position - 1, _LOOK_AHEAD)
        return found[0] if found and found[0].position == position else None

    def _is_same(self, event: Event, position: int) -> bool:
        """Whether a suspected repetition is one. What cannot be read any more is taken for one:
        the suspicion is wrong once in 10^13 events.
        """
        stored = self.event_at(position)
        if stored is None:
            return True
        return (stored.event.source, stored.event.id) == (event.source, event.id)

    def _position_of(self, event: Event) -> int:
        """Where an event stands that its number calls old and the window has forgotten; 0 when the
        history index does not know (yet, or any more).
        """
        try:
            places = self._parts.history.find(event.id)
        except StoreUnavailable as error:
            _log.warning("history index not asked", channel=self.name, why=error.message)
            return 0
        for name, position in places:
            stored = self.event_at(position) if name == self.name else None
            if stored and (stored.event.source, stored.event.id) == (event.source, event.id):
                return position
        return 0

    def _seen_window(self) -> SeenWindow:
        """The window of identities, filled from the log at the first append after a start."""
        if self._seen is None:
            window = SeenWindow(self._parts.dedupe_window)
            position = max(self._last - self._parts.dedupe_window, 0)
            while position < self._last:
                blocks = self._parts.log.read_after(
                    self.name, position, max_records=_REBUILD_RECORDS
                )
                for block in blocks:
                    self._remember(window, block)
                position = blocks[-1].last if blocks else self._last
            self._seen = window
        return self._seen

    def _remember(self, window: SeenWindow, block: Block) -> None:
        try:
            window.add(identity_keys(decode_identities(block.body)), block.first)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning(
                "block unreadable", channel=self.name, position=block.first, why=str(error)
            )

    # --- reading ----------------------------------------------------------------------------------

    def _from_memory(self, position: int, limit: int) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        while len(found) < limit:
            block = self._shared.decoded.holding(self.name, position + 1)
            if block is None:
                break
            part = block.after(position, limit - len(found))
            position = part[-1].position
            found += part
        return found

    def _from_log(self, position: int, limit: int) -> list[StoredEvent]:
        last = self._last
        found: list[StoredEvent] = []
        place = position
        while len(found) < limit and place < last:
            blocks = self._parts.log.read_after(self.name, place, max_records=limit - len(found))
            if not blocks:
                break
            for block in blocks:
                decoded = self._decode(block)
                if decoded is not None:
                    found += decoded.after(position, limit - len(found))
            place = blocks[-1].last
        if not found:
            self._unreadable = (position, last)
        return found

    def _decode(self, block: Block) -> DecodedBlock | None:
        held = self._shared.decoded.holding(self.name, block.first)
        if held is not None:
            return held
        try:
            events = decode_block(block.body)
        except Corrupt as error:
            _log.warning(
                "block unreadable", channel=self.name, position=block.first, why=str(error)
            )
            return None
        decoded = DecodedBlock(block.first, block.received, events, len(block.body))
        self._shared.decoded.put(self.name, decoded)
        return decoded

    # --- waiting ----------------------------------------------------------------------------------

    def _has_after(self, position: int) -> bool:
        if self._shared.closed:
            raise closed_error()
        unreadable_from, unreadable_to = self._unreadable
        if unreadable_from <= position < unreadable_to:
            # Nothing but damage was found there: waiting for it would spin for ever.
            position = unreadable_to
        return self._last > position

    async def _next_ring(self, position: int) -> None:
        ring = self.bell.listen()
        if not self._has_after(position):  # the ring may have come before we listened
            await ring

    async def _wait_until(self, position: int, timeout_ms: int) -> bool:
        clock = self._parts.clock
        pause = asyncio.ensure_future(clock.sleep(timeout_ms))
        try:
            while not self._has_after(position):
                ring = self.bell.listen()
                if self._has_after(position):
                    return True
                await asyncio.wait((ring, pause), return_when=asyncio.FIRST_COMPLETED)
                if pause.done():
                    return self._has_after(position)
            return True
        finally:
            pause.cancel()
