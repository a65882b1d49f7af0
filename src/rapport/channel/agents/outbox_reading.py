"""What an outbox holds, read with or without its lock. [CH-5]

Logs in the product's one log format: `events` (the position is the sequence), `progress` (the last
settled sequence), `rejected` (events with the reason) and `forgotten` (which of these to pass
over). An event is pending behind the mark and sent before it, unless `rejected` names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from rapport.channel.agents.identity import Identity, read_identity
from rapport.channel.agents.window import Reason
from rapport.core.codec import decode_block
from rapport.core.errors import Corrupt, UnknownName
from rapport.core.event import Event
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Block
from rapport.store.files import LOCK_NAME
from rapport.store.segment_store import SegmentLogReader

_log = get_logger(__name__)

EVENTS, PROGRESS, REJECTED, FORGOTTEN = "events", "progress", "rejected", "forgotten"
State = Literal["pending", "sent", "rejected"]
_CHUNK = 10_000


class OutboxLogs(Protocol):
    """The part of a LogStore that is needed here."""

    def read_after(self, log: str, position: int, *, max_records: int = 10_000) -> list[Block]:
        """See LogStore."""

    def last_position(self, log: str) -> int:
        """See LogStore."""


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """An event with its number."""

    sequence: int
    event: Event


class RejectedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event the sink will not take, with what it said and when."""

    sequence: int
    time: int
    reason: Reason
    event: Event


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One event and what became of it."""

    sequence: int
    state: State
    event: Event
    reason: Reason | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """An outbox at one moment."""

    directory: str
    identity: Identity | None
    holder: str
    """Process that wrote it last, perhaps still; empty when unknown."""
    last: int
    settled: int
    rejected: list[RejectedEvent]
    entries: list[Entry]
    """What is still in the file, oldest first; settled events leave it in whole segments."""
    damaged: int

    @property
    def pending(self) -> int:
        """Events that wait."""
        return max(self.last - self.settled, 0)


def read_progress(logs: OutboxLogs) -> int:
    """The last settled sequence; 0 when there is none."""
    blocks = logs.read_after(PROGRESS, max(logs.last_position(PROGRESS) - 1, 0))
    text = blocks[-1].body if blocks else b"0"
    return int(text) if text.isdigit() else 0


def read_rejected(logs: OutboxLogs) -> list[RejectedEvent]:
    """All rejected events, oldest first; one that a crash made us write twice stands once."""
    found: dict[tuple[int, str], RejectedEvent] = {}
    forgotten = _read_forgotten(logs)
    for block in _blocks(logs, REJECTED):
        try:
            one = msgspec.msgpack.decode(block.body, type=RejectedEvent)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("rejected event unreadable", place=block.first, why=str(error))
            continue
        if one.sequence not in forgotten:
            found.setdefault((one.sequence, one.event.id), one)
    return list(found.values())


def _read_forgotten(logs: OutboxLogs) -> set[int]:
    """Numbers of rejected events that nobody needs any more."""
    found: set[int] = set()
    for block in _blocks(logs, FORGOTTEN):
        try:
            found.update(msgspec.msgpack.decode(block.body, type=list[int]))
        except msgspec.DecodeError as error:
            _log.warning("forgotten events unreadable", place=block.first, why=str(error))
    return found


def numbered_in(blocks: Iterable[Block]) -> Iterator[Numbered]:
    """The events of blocks; a block that cannot be read is left out and told."""
    for block in blocks:
        try:
            events = decode_block(block.body)
        except Corrupt as error:
            _log.warning("outbox block unreadable", sequence=block.first, why=error.message)
            continue
        for sequence, event in enumerate(events, start=block.first):
            yield Numbered(sequence, event)


def inspect_outbox(directory: Path, *, limit: int = 0) -> Inspection:
    """Looks into an outbox, also while a program writes it; with the first `limit` entries.

    Raises UnknownName when there is none, Corrupt when its identity cannot be read.
    """
    logs = SegmentLogReader(directory)
    identity = read_identity(directory)
    if identity is None and not logs.logs():
        raise UnknownName("outbox", str(directory), code="outbox.unknown")
    settled, rejected = read_progress(logs), read_rejected(logs)
    return Inspection(
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
    logs: OutboxLogs, settled: int, rejected: Sequence[RejectedEvent], limit: int
) -> list[Entry]:
    reasons = {(one.sequence, one.event.id): one.reason for one in rejected}
    entries: list[Entry] = []
    for numbered in numbered_in(_blocks(logs, EVENTS)) if limit else ():
        reason = reasons.get((numbered.sequence, numbered.event.id))
        state: State = "pending" if numbered.sequence > settled else "sent"
        entries.append(
            Entry(
                sequence=numbered.sequence,
                state="rejected" if reason else state,
                event=numbered.event,
                reason=reason,
            )
        )
        if len(entries) == limit:
            break
    return entries


def _blocks(logs: OutboxLogs, log: str) -> Iterator[Block]:
    position = 0
    while blocks := logs.read_after(log, position, max_records=_CHUNK):
        yield from blocks
        position = blocks[-1].last
