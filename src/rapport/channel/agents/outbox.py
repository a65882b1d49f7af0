"""The publisher's own log on disk, written by one process. [CH-5]"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rapport.channel.agents.identity import (
    Identity,
    next_identity,
    read_identity,
    write_identity,
)
from rapport.channel.agents.outbox_reading import (
    EVENTS,
    PROGRESS,
    REJECTED,
    Numbered,
    RejectedEvent,
    numbered_in,
    read_holder,
    read_progress,
    read_rejected,
)
from rapport.channel.sequences.numbers import EPOCH, PUBLISHER
from rapport.core.codec import encode_block
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.kernel.telemetry import get_logger
from rapport.store.files import Files, disk_error
from rapport.store.segment_store import SegmentLogStore

_log = get_logger(__name__)

SEGMENT_BYTES = 4 * 1024 * 1024
"""Settled events are let go of in pieces of this size."""
_BLOCK_EVENTS, _BLOCK_BYTES = 256, 1024 * 1024
_OVERHEAD_BYTES = 512
"""Counted per event beside its data: the envelope as JSON."""


class _Added:
    """A call of `add` that waits for its disk sync."""

    __slots__ = ("error", "events", "last")

    def __init__(self, events: Sequence[Event]) -> None:
        self.events, self.last = events, 0
        self.error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        return self.last > 0 or self.error is not None

    def result(self) -> int:
        """The number of the newest event of its group; raises what the disk said."""
        if self.error is not None:
            raise self.error
        return self.last


class Outbox:
    """One directory of events that wait. Calls may come from any thread.

    Opening makes it when absent and begins a new epoch. Raises StoreUnavailable: `outbox.locked`
    when another process holds it, or when the disk refuses.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        new_name: str,
        url: str = "",
        channel: str = "",
        segment_bytes: int = SEGMENT_BYTES,
        files: Files | None = None,
    ) -> None:
        self.directory, self._clock = directory, clock
        self._store = open_outbox_store(directory, segment_bytes, files)
        try:
            self.identity = _begin_epoch(directory, clock.now_ms(), new_name, url, channel, files)
            self.last = self._store.last_position(EVENTS)
            """Number of the newest durable event; 0 when there was none yet."""
            self.settled = read_progress(self._store)
            """Everything up to this number was taken or rejected."""
            rejected = read_rejected(self._store)
            self.rejected_count = len(rejected)
            self._rejected = _name_of(rejected[-1]) if rejected else None
        except BaseException:
            self._store.close()
            raise
        self._stamp = {PUBLISHER: self.identity.publisher, EPOCH: str(self.identity.epoch)}
        self._process = os.getpid()
        self._turn = threading.Condition()
        self._gathered: list[_Added] = []
        self._writing = False

    @property
    def is_inherited(self) -> bool:
        """Whether this process got it by a fork: then it may neither write nor close it."""
        return os.getpid() != self._process

    def add(self, events: Sequence[Event]) -> int:
        """Makes the events durable; returns a number that is not below that of the last.

        Calls that come while another one waits for the disk share the next sync. Raises
        StoreUnavailable when the disk refuses.
        """
        if not events:
            return self.last
        if self.is_inherited:
            raise StoreUnavailable(
                f"the outbox {self.directory} was opened before this process was forked",
                code="outbox.forked",
                hint="open a publisher with a directory of its own in each process",
            )
        added = _Added(events)
        with self._turn:
            self._gathered.append(added)
            while self._writing and not added.is_settled:
                self._turn.wait()
            if added.is_settled:  # whoever wrote took it along
                return added.result()
            self._writing = True
            group, self._gathered = self._gathered, []
        why: Exception = StoreUnavailable("publishing was interrupted", code="outbox.interrupted")
        try:
            self._write(group)
        except Exception as error:
            why = error
        finally:  # nobody may be left waiting, not even when Ctrl-C came in between
            with self._turn:
                for one in group:
                    one.error = None if one.last else why
                self._writing = False
                self._turn.notify_all()
        return added.result()

    def _write(self, group: list[_Added]) -> None:
        events = [self._in_this_epoch(event) for added in group for event in added.events]
        blocks = self._store.append(EVENTS, _as_blocks(events), self._clock.now_ms())
        self.last = blocks[-1].last
        for added in group:
            added.last = self.last

    def _in_this_epoch(self, event: Event) -> Event:
        return msgspec.structs.replace(event, headers={**event.headers, **self._stamp})

    def read_waiting(self, first: int, last: int, *, most_bytes: int) -> list[Numbered]:
        """Events `first` to `last`, as many from the front as fit into so many bytes, at least
        one; none when the disk has lost them all.
        """
        blocks = self._store.read_after(EVENTS, first - 1, max_records=last - first + 1)
        found: list[Numbered] = []
        size = 0
        for one in numbered_in(blocks):
            if first <= one.sequence <= last:
                size += len(one.event.data) + _OVERHEAD_BYTES
                if found and size > most_bytes:
                    break
                found.append(one)
        return found

    def settle(self, sequence: int, rejected: RejectedEvent | None = None) -> None:
        """Moves the mark, durably, and lets go of what is before it; a rejected event is kept
        first. Raises StoreUnavailable; then the mark may not have moved.
        """
        now_ms = self._clock.now_ms()
        if rejected is not None and _name_of(rejected) != self._rejected:
            self._store.append(REJECTED, [(1, msgspec.msgpack.encode(rejected))], now_ms)
            self.rejected_count += 1
            self._rejected = _name_of(rejected)  # once, also when the mark could not be moved
        self._store.append(PROGRESS, [(1, str(sequence).encode())], now_ms)
        self.settled = sequence
        try:
            self._store.trim(EVENTS, sequence + 1)
            self._store.trim(PROGRESS, self._store.last_position(PROGRESS))
        except StoreUnavailable as error:
            _log.warning("outbox not cleaned", directory=str(self.directory), why=error.message)

    def rejected(self) -> list[RejectedEvent]:
        """All rejected events, oldest first."""
        return read_rejected(self._store)

    def problems(self) -> list[Corrupt]:
        """Damage met so far."""
        return self._store.problems()

    def close(self) -> None:
        """Gives the directory back; a second call is no error."""
        if not self.is_inherited:
            self._store.close()


def _name_of(rejected: RejectedEvent) -> tuple[int, str]:
    return rejected.sequence, rejected.event.id


def _as_blocks(events: Sequence[Event]) -> list[tuple[int, bytes]]:
    """Events in blocks small enough to be read singly; one large event has a block of its own."""
    blocks: list[tuple[int, bytes]] = []
    piece: list[Event] = []
    size = 0
    for event in events:
        if piece and (len(piece) == _BLOCK_EVENTS or size + len(event.data) > _BLOCK_BYTES):
            blocks.append((len(piece), encode_block(piece)))
            piece, size = [], 0
        piece.append(event)
        size += len(event.data)
    if piece:
        blocks.append((len(piece), encode_block(piece)))
    return blocks


def open_outbox_store(
    directory: Path, segment_bytes: int = SEGMENT_BYTES, files: Files | None = None
) -> SegmentLogStore:
    """The logs of an outbox, held by this process; raises StoreUnavailable (`outbox.locked`)."""
    try:
        if files is None:
            make_private_directory(directory)
        return SegmentLogStore(directory, files=files, segment_bytes=segment_bytes)
    except OSError as error:
        raise disk_error(f"cannot open the outbox {directory}", error) from error
    except StoreUnavailable as error:
        if error.code != "store.locked":
            raise
        holder = read_holder(directory) or "unknown"
        raise StoreUnavailable(
            f"the outbox {directory} is held by process {holder}",
            code="outbox.locked",
            hint="one process at a time: wait until that one ends, or use another directory",
        ) from None


def _begin_epoch(
    directory: Path, now_ms: int, new_name: str, url: str, channel: str, files: Files | None
) -> Identity:
    """Durable before the first event is numbered in it."""
    try:
        former = read_identity(directory, files)
        identity = next_identity(former, now_ms=now_ms, new_name=new_name, url=url, channel=channel)
        write_identity(directory, identity, files)
    except OSError as error:
        raise disk_error(f"cannot open the outbox {directory}", error) from error
    return identity
