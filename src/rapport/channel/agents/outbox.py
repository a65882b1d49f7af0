"""The outbox: a publisher's own log on disk. [CH-5, CH-6]

A directory with logs in the product's log format: `events` (the position is the sequence),
`progress` (the last settled sequence), `rejected` (events with the reason) and `forgotten`
(rejected events to skip). Events behind the mark are pending; those before it were sent, unless
`rejected` names them. `outbox.json` holds the publisher's name and the epoch of its sequence: a new
epoch begins at each opening, so an outbox that was restored from an older copy and repeats a number
is not mistaken for a repetition. One process writes; others may read without the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rapport.channel.agents.connection import Reason
from rapport.channel.log.sequences import EPOCH, PUBLISHER
from rapport.core.codec import decode_block, encode_block
from rapport.core.errors import Corrupt, StoreUnavailable, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block, LogReader, all_blocks
from rapport.store.files import LOCK_NAME, DiskFiles, Files, disk_error, read_whole, replace_whole
from rapport.store.segment_store import SegmentLogReader, SegmentLogStore

IDENTITY_NAME = "outbox.json"
_log = get_logger(__name__)
EVENTS, PROGRESS, REJECTED, FORGOTTEN = "events", "progress", "rejected", "forgotten"
State = Literal["pending", "sent", "rejected"]
SEGMENT_BYTES = 4 * 1024 * 1024
"""Settled events are removed in pieces of this size."""
_BLOCK_EVENTS, _BLOCK_BYTES = 256, 1024 * 1024
_OVERHEAD_BYTES = 512
"""Charged per event besides its data: the envelope as JSON."""


class OutboxIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `outbox.json`. The token is never stored."""

    publisher: str
    epoch: int
    url: str = ""
    channel: str = ""


def read_identity(directory: Path, files: Files | None = None) -> OutboxIdentity | None:
    """The identity of an outbox; None without one. Raises Corrupt and OSError."""
    path = directory / IDENTITY_NAME
    try:
        return msgspec.json.decode(read_whole(files or DiskFiles(), path), type=OutboxIdentity)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="outbox.bad_identity",
            hint="the events are safe; delete that file, and the outbox takes a new name",
        ) from None


def next_identity(
    former: OutboxIdentity | None, *, now_ms: int, new_name: str, url: str, channel: str
) -> OutboxIdentity:
    """The identity of an outbox that is being opened: the same name, a later epoch."""
    return OutboxIdentity(
        publisher=former.publisher if former else new_name,
        epoch=max(now_ms, former.epoch + 1 if former else 0),
        url=url,
        channel=channel,
    )


def write_identity(directory: Path, identity: OutboxIdentity, files: Files | None = None) -> None:
    """Replaces the file in one step; durable when it returns. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(identity)) + b"\n"
    replace_whole(files or DiskFiles(), directory / IDENTITY_NAME, text)


class NumberedEvent(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    event: Event


class RejectedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the sink rejected, with the reason and the time."""

    sequence: int
    time: int
    reason: Reason
    event: Event


class OutboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    state: State
    event: Event
    reason: Reason | None = None


class OutboxInspection(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    identity: OutboxIdentity | None
    holder: str
    """Process that wrote it last, perhaps still; empty when unknown."""
    last: int
    settled: int
    rejected: list[RejectedEvent]
    entries: list[OutboxEntry]
    """Stored entries, oldest first; settled events are removed in whole segments."""
    damaged: int

    @property
    def pending(self) -> int:
        return max(self.last - self.settled, 0)


def read_progress(logs: LogReader) -> int:
    """The last settled sequence; 0 when there is none."""
    blocks = logs.read_after(PROGRESS, max(logs.last_position(PROGRESS) - 1, 0))
    text = blocks[-1].body if blocks else b"0"
    return int(text) if text.isdigit() else 0


def read_rejected(logs: LogReader) -> list[RejectedEvent]:
    """All rejected events, oldest first; one that a crash repeated is listed once."""
    found: dict[tuple[int, str], RejectedEvent] = {}
    forgotten = _read_forgotten(logs)
    for block in all_blocks(logs, REJECTED):
        try:
            one = msgspec.msgpack.decode(block.body, type=RejectedEvent)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("rejected event unreadable", place=block.first, why=str(error))
            continue
        if one.sequence not in forgotten:
            found.setdefault((one.sequence, one.event.id), one)
    return list(found.values())


def _read_forgotten(logs: LogReader) -> set[int]:
    found: set[int] = set()
    for block in all_blocks(logs, FORGOTTEN):
        try:
            found.update(msgspec.msgpack.decode(block.body, type=list[int]))
        except msgspec.DecodeError as error:
            _log.warning("forgotten events unreadable", place=block.first, why=str(error))
    return found


def numbered_in(blocks: Iterable[Block]) -> Iterator[NumberedEvent]:
    """The events of blocks; an unreadable block is skipped and logged."""
    for block in blocks:
        try:
            events = decode_block(block.body)
        except Corrupt as error:
            _log.warning("outbox block unreadable", sequence=block.first, why=error.message)
            continue
        for sequence, event in enumerate(events, start=block.first):
            yield NumberedEvent(sequence, event)


def inspect_outbox(directory: Path, *, limit: int = 0) -> OutboxInspection:
    """Looks into an outbox, also while a program writes it; with the first `limit` entries.

    Raises UnknownName when there is none, Corrupt when its identity cannot be read.
    """
    logs = SegmentLogReader(directory)
    identity = read_identity(directory)
    if identity is None and not logs.logs():
        raise UnknownName("outbox", str(directory), code="outbox.unknown")
    settled, rejected = read_progress(logs), read_rejected(logs)
    return OutboxInspection(
        directory=str(directory),
        identity=identity,
        holder=read_holder(directory),
        last=logs.last_position(EVENTS),
        settled=settled,
        rejected=rejected,
        entries=_entries(logs, settled, rejected, limit),
        damaged=len(logs.problems()),
    )


def read_holder(directory: Path) -> str:
    """The process that the lock file names; empty when it names none."""
    try:
        return (directory / LOCK_NAME).read_text("ascii", "replace").strip()[:32]
    except OSError:
        return ""


def _entries(
    logs: LogReader, settled: int, rejected: Sequence[RejectedEvent], limit: int
) -> list[OutboxEntry]:
    reasons = {(one.sequence, one.event.id): one.reason for one in rejected}
    entries: list[OutboxEntry] = []
    for numbered in numbered_in(all_blocks(logs, EVENTS)) if limit else ():
        reason = reasons.get((numbered.sequence, numbered.event.id))
        state: State = "pending" if numbered.sequence > settled else "sent"
        entries.append(
            OutboxEntry(
                sequence=numbered.sequence,
                state="rejected" if reason else state,
                event=numbered.event,
                reason=reason,
            )
        )
        if len(entries) == limit:
            break
    return entries


class _Added:
    __slots__ = ("error", "events", "last")

    def __init__(self, events: Sequence[Event]) -> None:
        self.events, self.last = events, 0
        self.error: Exception | None = None

    @property
    def is_settled(self) -> bool:
        return self.last > 0 or self.error is not None

    def result(self) -> int:
        """The number of the newest event of its group; raises the disk's error."""
        if self.error is not None:
            raise self.error
        return self.last


class Outbox:
    """A directory of pending events. Calls may come from any thread.

    Opening creates it when absent and begins a new epoch. Raises StoreUnavailable: `outbox.locked`
    when another process holds it, or when the disk fails.
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
        self._store = open_agent_store(directory, "outbox", segment_bytes, files)
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

        Calls that arrive while another one waits for the disk share the next sync. Raises
        StoreUnavailable.
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
            if added.is_settled:  # the writing thread included it
                return added.result()
            self._writing = True
            group, self._gathered = self._gathered, []
        why: Exception = StoreUnavailable("publishing was interrupted", code="outbox.interrupted")
        try:
            self._write(group)
        except Exception as error:
            why = error
        finally:  # no caller may be left waiting, not even after Ctrl-C
            with self._turn:
                for one in group:
                    one.error = None if one.last else why
                self._writing = False
                self._turn.notify_all()
        return added.result()

    def _write(self, group: list[_Added]) -> None:
        events = [self._in_this_epoch(event) for added in group for event in added.events]
        blocks = self._store.append(EVENTS, _cut_blocks(events), self._clock.now_ms())
        self.last = blocks[-1].last
        for added in group:
            added.last = self.last

    def _in_this_epoch(self, event: Event) -> Event:
        return msgspec.structs.replace(event, headers={**event.headers, **self._stamp})

    def read_waiting(self, first: int, last: int, *, most_bytes: int) -> list[NumberedEvent]:
        """Events `first` to `last`, as many from the front as fit into so many bytes, at least
        one; none when the disk has lost them all.
        """
        blocks = self._store.read_after(EVENTS, first - 1, max_records=last - first + 1)
        found: list[NumberedEvent] = []
        size = 0
        for one in numbered_in(blocks):
            if first <= one.sequence <= last:
                size += len(one.event.data) + _OVERHEAD_BYTES
                if found and size > most_bytes:
                    break
                found.append(one)
        return found

    def settle(self, sequence: int, rejected: RejectedEvent | None = None) -> None:
        """Moves the mark, durably, and removes events before it; a rejected event is kept first.
        Raises StoreUnavailable; then the mark may not have moved.
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
        return self._store.problems()

    def close(self) -> None:
        """Releases the directory; a second call is no error."""
        if not self.is_inherited:
            self._store.close()


def _name_of(rejected: RejectedEvent) -> tuple[int, str]:
    return rejected.sequence, rejected.event.id


def _cut_blocks(events: Sequence[Event]) -> list[tuple[int, bytes]]:
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


def open_agent_store(
    directory: Path, agent: str, segment_bytes: int, files: Files | None = None
) -> SegmentLogStore:
    """The logs of an outbox or a listener, held by this process; raises StoreUnavailable
    (`outbox.locked`, `listener.locked`).
    """
    try:
        if files is None:
            make_private_directory(directory)
        return SegmentLogStore(directory, files=files, segment_bytes=segment_bytes)
    except OSError as error:
        raise disk_error(f"cannot open the {agent} {directory}", error) from error
    except StoreUnavailable as error:
        if error.code != "store.locked":
            raise
        holder = read_holder(directory) or "unknown"
        raise StoreUnavailable(
            f"the {agent} {directory} is held by process {holder}",
            code=f"{agent}.locked",
            hint="one process at a time: wait until that one ends, or use another directory",
        ) from None


def _begin_epoch(
    directory: Path, now_ms: int, new_name: str, url: str, channel: str, files: Files | None
) -> OutboxIdentity:
    """Durable before the first event is numbered in it."""
    try:
        former = read_identity(directory, files)
        identity = next_identity(former, now_ms=now_ms, new_name=new_name, url=url, channel=channel)
        write_identity(directory, identity, files)
    except OSError as error:
        raise disk_error(f"cannot open the outbox {directory}", error) from error
    return identity


def forget_rejected(
    directory: Path, clock: Clock, sequences: Collection[int] | None = None
) -> list[int]:
    """Forgets rejected events by their numbers, or all of them; the numbers forgotten.

    Raises UnknownName (no outbox, no such rejected event), StoreUnavailable when another process
    holds the outbox.
    """
    if not directory.is_dir():
        raise UnknownName("outbox", str(directory), code="outbox.unknown")
    store = open_agent_store(directory, "outbox", SEGMENT_BYTES)
    try:
        held = [one.sequence for one in read_rejected(store)]
        chosen = held if sequences is None else sorted(set(sequences))
        for sequence in chosen:
            if sequence not in held:
                raise UnknownName("rejected event", str(sequence), [str(number) for number in held])
        if chosen:
            store.append(FORGOTTEN, [(1, msgspec.msgpack.encode(chosen))], clock.now_ms())
        if chosen and len(chosen) == len(held):
            # The events before the notes: a crash in between leaves notes that name nothing.
            for log in (REJECTED, FORGOTTEN):
                store.close_piece(log)
                store.trim(log, store.last_position(log) + 1)
        return chosen
    finally:
        store.close()
