"""Dead letters go back to the reader that failed: once, in their order, after the mend. [CH-14]

What is to be handled again stands in the records, by channel, reader and position. A reader under
care takes it between two batches and strikes it out together with its cursor and state, in one
transaction: so a replay is done once, whenever the process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import DEAD_LETTERS, buried_event
from rapport.channel.delivering import as_given
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.store.base import Change, Delete, Put, RecordStore

REPLAYS, STATES, TAKERS = "replays", "dead_letters", "replay_readers"
"""Tables: what is to be handled again, what became of letters, which readers take replays."""
ASKED = "rapport.channel.dead_letter.replay_asked"
REPLAYED = "rapport.channel.dead_letter.replayed"
FAILED_AGAIN = "rapport.channel.dead_letter.failed_again"
FORGOTTEN = "rapport.channel.dead_letter.forgotten"
_SOURCE = "rapport.channel"
_REPLAYS_AT_ONCE = 100
T = TypeVar("T")


@runtime_checkable
class KeepsRecords(Protocol):
    """Channels whose records can be looked at and changed: those that replays are kept in."""

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """What is found in the records, looked up where waiting for a disk does no harm."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""


class Replay(msgspec.Struct, frozen=True, array_like=True):
    """One letter on its way back; new fields go at the end with a default."""

    letter: str
    letter_position: int
    channel: str
    reader: str
    position: int
    asked_ms: int

    @property
    def key(self) -> str:
        """Its place in the queue of its reader: by position, or by that of its letter where the
        event was never stored.
        """
        place = f"{self.position:020d}"
        if not self.position:
            place += f".{self.letter_position:020d}"
        return f"{self.channel}/{self.reader}/{place}"


def put_replay(replay: Replay) -> Put:
    """The change that queues a replay."""
    return Put(REPLAYS, replay.key, msgspec.msgpack.encode(replay))


def next_replays(records: RecordStore, channel: str, reader: str) -> list[Replay]:
    """What a reader is to handle again, by position; at most a hundred."""
    prefix = f"{channel}/{reader}/"
    found = records.find(REPLAYS, prefix=prefix, limit=_REPLAYS_AT_ONCE)
    return [msgspec.msgpack.decode(raw, type=Replay) for _key, raw in found]


def taker_key(channel: str, reader: str) -> str:
    """Key under which a reader says that it takes replays."""
    return f"{channel}/{reader}"


def settled(replay: Replay, state: str) -> list[Change]:
    """The changes that end a replay; with "" the letter stays open."""
    changes: list[Change] = [Delete(REPLAYS, replay.key)]
    if state:
        changes.append(Put(STATES, replay.letter, state.encode()))
    return changes


def open_again(letter: str) -> Change:
    """The change after which a letter that was replayed or forgotten is open: it failed anew."""
    return Delete(STATES, letter)


def letter_note(
    type: str, letter: str, subject: str, *, time_ms: int, tried: str = "", error: str = ""
) -> Event:
    """The event that records what became of a letter; the same note twice is one."""
    return make_event(
        source=_SOURCE,
        id=content_id(type, letter, tried),
        type=type,
        subject=subject,
        time=time_ms,
        data={"letter": letter, "error": error},
        headers={CAUSE: cause_text(letter)},
    )


async def event_of(
    channels: Channels, replay: Replay, *, as_stored: bool = False
) -> StoredEvent | None:
    """The event as its reader is given it from its channel (or as it is stored there), else as it
    was buried; None when it is nowhere, or hidden from the reader by now.
    """
    found: Sequence[StoredEvent] = ()
    if replay.position:
        found = await channels.channel(replay.channel).read_after(replay.position - 1, limit=1)
    if found and found[0].position == replay.position:
        if as_stored:
            return found[0]
        given = as_given(channels, replay.channel, replay.reader, found)
        return given[0] if given else None
    letters = await channels.channel(DEAD_LETTERS).read_after(replay.letter_position - 1, limit=1)
    if not letters or letters[0].event.id != replay.letter:
        return None
    event = buried_event(letters[0].event)
    if event is None:
        return None
    return StoredEvent(replay.position, letters[0].received, event)


async def note(channels: Channels, notes: Sequence[Event]) -> None:
    """Appends what became of letters to their channel."""
    await channels.channel(DEAD_LETTERS).append(notes)
