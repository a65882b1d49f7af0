"""Dead letters: events whose handler gave up, their replay, and their administration. [CH-14]

Replays are queued in the records, by channel, reader and position. A RetryingConsumer handles them
between two batches and removes them together with its cursor and state, in one transaction: a
replay is done once, whenever the process dies. `DeadLetterAdmin` lists, shows, replays and forgets
letters, each action recorded.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from rapport.channel.channel import ChannelLookup, Channels
from rapport.channel.interceptors.reader_view import delivered_events
from rapport.core.codec import decode_cloudevent, to_cloudevent
from rapport.core.errors import (
    Conflict,
    InvalidInput,
    RapportError,
    TooLarge,
    UnknownName,
    Unsupported,
)
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Delete, Put, RecordStore

DEAD_LETTERS = "dead_letters"
DEAD_LETTER = "rapport.channel.dead_letter"
_SOURCE = "rapport.channel"
_BASE64 = "data_base64"
_LONGEST_MESSAGE = 2000
REPLAYS, STATES, TAKERS = "replays", "dead_letters", "replay_readers"
"""Tables: queued replays, states of letters, readers that take replays."""
ASKED = "rapport.channel.dead_letter.replay_asked"
REPLAYED = "rapport.channel.dead_letter.replayed"
FAILED_AGAIN = "rapport.channel.dead_letter.failed_again"
FORGOTTEN = "rapport.channel.dead_letter.forgotten"
_REPLAYS_AT_ONCE = 100
T = TypeVar("T")
State = Literal["open", "waiting", "replayed", "forgotten"]
_PAGE = 1_000


class LetterFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a dead letter; `event` is absent when it would not fit."""

    channel: str
    position: int
    reader: str
    attempts: int
    code: str
    message: str
    event: dict[str, Any] | None = None


async def append_dead_letter(
    channels: ChannelLookup,
    channel: str,
    reader: str,
    stored: StoredEvent,
    error: Exception,
    attempts: int,
) -> str:
    """Appends the dead letter and returns its id; a repetition after a crash is deduplicated.
    Raises ChannelUnavailable.
    """
    target = channels.channel(DEAD_LETTERS)
    letter = dead_letter_event(channel, reader, stored, error, attempts)
    try:
        await target.append([letter])
    except TooLarge:
        await target.append(
            [dead_letter_event(channel, reader, stored, error, attempts, whole=False)]
        )
    return letter.id


def dead_letter_event(
    channel: str,
    reader: str,
    stored: StoredEvent,
    error: Exception,
    attempts: int,
    *,
    whole: bool = True,
) -> Event:
    """The dead letter as an event; its id depends only on reader and event. An event that was never
    stored (position 0) is identified by its own identity.
    """
    place = (str(stored.position),) if stored.position else (stored.event.source, stored.event.id)
    failure = LetterFailure(
        channel=channel,
        position=stored.position,
        reader=reader,
        attempts=attempts,
        code=error.code if isinstance(error, RapportError) else type(error).__name__,
        message=_text(error),
        event=_readable(stored.event) if whole else None,
    )
    return make_event(
        source=_SOURCE,
        id=content_id(DEAD_LETTER, channel, reader, *place),
        type=DEAD_LETTER,
        subject=f"{channel}/{reader}",
        time=stored.event.time,
        data=failure,
        headers={CAUSE: cause_text(stored.event.id)},
    )


def letter_event(letter: Event) -> Event | None:
    """The event inside a dead letter; None when it was too large."""
    failure: LetterFailure = letter.payload_as(LetterFailure)
    if failure.event is None:
        return None
    members = dict(failure.event)
    encoded = members.pop(_BASE64, None)
    event = decode_cloudevent(msgspec.json.encode(members), received_ms=letter.time)
    if encoded is None:
        return event
    return msgspec.structs.replace(event, data=b64decode(encoded))


def _readable(event: Event) -> dict[str, Any]:
    """The event as a CloudEvent; data that are no JSON go as base64, as CloudEvents has it."""
    members = to_cloudevent(event)
    try:
        event.payload()
    except InvalidInput:
        del members["data"]
        members[_BASE64] = event.data
    return members


def _text(error: Exception) -> str:
    text = error.message if isinstance(error, RapportError) else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST_MESSAGE]


@runtime_checkable
class KeepsRecords(Protocol):
    """Channels with access to their records."""

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """Reads records off the loop."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""


class Replay(msgspec.Struct, frozen=True, array_like=True):
    """One queued replay; new fields go at the end with a default."""

    letter: str
    letter_position: int
    channel: str
    reader: str
    position: int
    asked_ms: int

    @property
    def key(self) -> str:
        """Its key in the queue of its reader: by position, or by that of its letter when the event
        was never stored.
        """
        place = f"{self.position:020d}"
        if not self.position:
            place += f".{self.letter_position:020d}"
        return f"{self.channel}/{self.reader}/{place}"


def put_replay(replay: Replay) -> Put:
    return Put(REPLAYS, replay.key, msgspec.msgpack.encode(replay))


def next_replays(records: RecordStore, channel: str, reader: str) -> list[Replay]:
    """The next replays of a reader, by position; at most a hundred."""
    prefix = f"{channel}/{reader}/"
    found = records.find(REPLAYS, prefix=prefix, limit=_REPLAYS_AT_ONCE)
    return [msgspec.msgpack.decode(raw, type=Replay) for _key, raw in found]


def taker_key(channel: str, reader: str) -> str:
    return f"{channel}/{reader}"


def settled(replay: Replay, state: str) -> list[Change]:
    """The changes that end a replay; with "" the letter stays open."""
    changes: list[Change] = [Delete(REPLAYS, replay.key)]
    if state:
        changes.append(Put(STATES, replay.letter, state.encode()))
    return changes


def open_again(letter: str) -> Change:
    """The change that reopens a replayed or forgotten letter, as it failed again."""
    return Delete(STATES, letter)


def letter_note(
    type: str, letter: str, subject: str, *, time_ms: int, tried: str = "", error: str = ""
) -> Event:
    """The event that records a letter's outcome; a repetition is deduplicated."""
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
    """The event as its reader receives it from its channel (or as it is stored there), else as in
    the letter; None when it is gone, or hidden from the reader by now.
    """
    found: Sequence[StoredEvent] = ()
    if replay.position:
        found = await channels.channel(replay.channel).read_after(replay.position - 1, limit=1)
    if found and found[0].position == replay.position:
        if as_stored:
            return found[0]
        given = delivered_events(channels, replay.channel, replay.reader, found)
        return given[0] if given else None
    letters = await channels.channel(DEAD_LETTERS).read_after(replay.letter_position - 1, limit=1)
    if not letters or letters[0].event.id != replay.letter:
        return None
    event = letter_event(letters[0].event)
    if event is None:
        return None
    return StoredEvent(replay.position, letters[0].received, event)


async def note(channels: Channels, notes: Sequence[Event]) -> None:
    await channels.channel(DEAD_LETTERS).append(notes)


class AdminChannels(Channels, KeepsRecords, Protocol):
    """Channels with records."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    position: int
    """Its position in `dead_letters`."""
    received: int
    channel: str
    reader: str
    event_position: int
    attempts: int
    code: str
    message: str
    state: State
    """open, waiting (for its replay), replayed or forgotten."""
    event: dict[str, Any] | None = None


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects letters: those of `ids`, or all that match; empty fields match any."""

    ids: tuple[str, ...] = ()
    channel: str = ""
    reader: str = ""
    since_ms: int = 0
    until_ms: int = 2**62
    state: str = "open"
    """"" = any state."""


class DeadLetterAdmin:
    """The dead letters of a node. Reads the channel from its oldest letter on."""

    def __init__(self, channels: AdminChannels, clock: Clock) -> None:
        self._channels, self._clock = channels, clock

    async def letters(self, wanted: LetterFilter, *, limit: int = 100) -> list[DeadLetter]:
        """The oldest matching letters, without their events."""
        found: list[DeadLetter] = []
        position = 0
        channel = self._channels.channel(DEAD_LETTERS)
        while len(found) < limit and (page := await channel.read_after(position, limit=_PAGE)):
            position = page[-1].position
            letters = [stored for stored in page if stored.event.type == DEAD_LETTER]
            found += [one for one in await self._known(letters) if _fits(one, wanted)]
        return found[:limit]

    async def show(self, id: str) -> DeadLetter:
        """One letter with its event; raises UnknownName."""
        for name, stored in await self._channels.find_event(id):
            if name == DEAD_LETTERS and stored.event.type == DEAD_LETTER:
                (letter,) = await self._known([stored])
                return msgspec.structs.replace(letter, event=_failure(stored.event).event)
        raise UnknownName("dead letter", id, code="dead_letter.unknown")

    async def replay(
        self, wanted: LetterFilter, *, republish: bool = False, limit: int = 1000
    ) -> list[DeadLetter]:
        """Replays letters to the readers that failed, in order, once.

        With `republish` the events are appended to their channels again, under new ids, for all
        readers: for readers that take no replays. Raises Conflict for a settled letter, Unsupported
        for such a reader.
        """
        letters = await self._chosen(wanted, limit)
        for letter in letters:
            if letter.state not in ("open", "waiting"):
                raise Conflict(
                    f"the dead letter {letter.id} was {letter.state}", code="dead_letter.settled"
                )
        if republish:
            await self._republish(letters)
        else:
            await self._send_back(letters)
        return letters

    async def forget(self, wanted: LetterFilter, *, limit: int = 1000) -> list[DeadLetter]:
        """Removes letters from the list; they stay in their channel as long as it keeps them."""
        letters = [one for one in await self._chosen(wanted, limit) if one.state == "open"]
        await self._settle(letters, "forgotten", FORGOTTEN)
        return letters

    # --- choosing ---

    async def _chosen(self, wanted: LetterFilter, limit: int) -> list[DeadLetter]:
        if wanted.ids:
            return [await self.show(id) for id in wanted.ids]
        if not (wanted.channel or wanted.reader):
            raise InvalidInput(
                "name the dead letters: ids, a channel or a reader", code="dead_letter.none_named"
            )
        return await self.letters(wanted, limit=limit)

    async def _known(self, stored: Sequence[StoredEvent]) -> list[DeadLetter]:
        letters = [_letter(one) for one in stored]

        def with_states(records: RecordStore) -> list[DeadLetter]:
            return [msgspec.structs.replace(one, state=_state(records, one)) for one in letters]

        return await self._channels.look(with_states)

    # --- sending back ---

    async def _send_back(self, letters: Sequence[DeadLetter]) -> None:
        await self._check_takers(letters)
        now_ms = self._clock.now_ms()
        replays = [_replay(letter, now_ms) for letter in letters]
        await self._channels.apply([put_replay(replay) for replay in replays])
        # After the records: the note wakes the reader.
        tried = str(now_ms)
        await note(self._channels, [self._note(ASKED, letter, tried) for letter in letters])

    async def _check_takers(self, letters: Sequence[DeadLetter]) -> None:
        for channel, reader in sorted({(one.channel, one.reader) for one in letters}):
            key = taker_key(channel, reader)

            def knows(records: RecordStore, key: str = key) -> bool:
                return records.get(TAKERS, key) is not None

            if not await self._channels.look(knows):
                raise Unsupported(
                    f"sending events of {channel!r} back to the reader {reader!r}",
                    hint="republish appends them anew to their channel, for all its readers",
                )

    async def _republish(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            if not letter.event_position:
                raise Unsupported(
                    f"republishing what was never in the channel {letter.channel!r}",
                    hint="replay it without republishing: then it goes through its input again",
                )
            stored = await event_of(self._channels, _replay(letter, 0), as_stored=True)
            if stored is None:
                raise Conflict(
                    f"the event of the dead letter {letter.id} is in no log any more",
                    code="dead_letter.event_gone",
                )
            again = msgspec.structs.replace(
                stored.event, id=content_id("replay", letter.id, stored.event.id)
            )
            await self._channels.channel(letter.channel).append([again])
            await self._settle([letter], "replayed", REPLAYED)

    async def _settle(self, letters: Sequence[DeadLetter], state: str, type: str) -> None:
        if letters:
            await note(self._channels, [self._note(type, letter) for letter in letters])
            changes: list[Change] = [Put(STATES, one.id, state.encode()) for one in letters]
            await self._channels.apply(changes)

    def _note(self, type: str, letter: DeadLetter, tried: str = "") -> Event:
        subject = f"{letter.channel}/{letter.reader}"
        return letter_note(type, letter.id, subject, time_ms=self._clock.now_ms(), tried=tried)


def _failure(event: Event) -> LetterFailure:
    failure: LetterFailure = event.payload_as(LetterFailure)
    return failure


def _letter(stored: StoredEvent) -> DeadLetter:
    failure = _failure(stored.event)
    return DeadLetter(
        id=stored.event.id,
        position=stored.position,
        received=stored.received,
        channel=failure.channel,
        reader=failure.reader,
        event_position=failure.position,
        attempts=failure.attempts,
        code=failure.code,
        message=failure.message,
        state="open",
    )


def _replay(letter: DeadLetter, asked_ms: int) -> Replay:
    return Replay(
        letter.id, letter.position, letter.channel, letter.reader, letter.event_position, asked_ms
    )


def _state(records: RecordStore, letter: DeadLetter) -> State:
    settled = records.get(STATES, letter.id)
    if settled is not None:
        return "replayed" if settled == b"replayed" else "forgotten"
    return "open" if records.get(REPLAYS, _replay(letter, 0).key) is None else "waiting"


def _fits(letter: DeadLetter, wanted: LetterFilter) -> bool:
    return (
        wanted.channel in ("", letter.channel)
        and wanted.reader in ("", letter.reader)
        and wanted.state in ("", letter.state)
        and wanted.since_ms <= letter.received <= wanted.until_ms
    )
