"""Dead letters in the hands of people: listed, shown, sent back, forgotten, each noted. [CH-14]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import DEAD_LETTER, DEAD_LETTERS, Failure
from rapport.channel.dead.replay import (
    ASKED,
    FORGOTTEN,
    REPLAYED,
    REPLAYS,
    STATES,
    TAKERS,
    KeepsRecords,
    Replay,
    event_of,
    letter_note,
    note,
    put_replay,
    taker_key,
)
from rapport.core.errors import Conflict, InvalidInput, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Put, RecordStore

State = Literal["open", "waiting", "replayed", "forgotten"]
_PAGE = 1_000


class OfficeChannels(Channels, KeepsRecords, Protocol):
    """Channels with records."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter and what became of it."""

    id: str
    position: int
    """Its place in `dead_letters`."""
    received: int
    channel: str
    reader: str
    event_position: int
    attempts: int
    code: str
    message: str
    state: State
    """open, waiting (on its way back), replayed or forgotten."""
    event: dict[str, Any] | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: those of `ids`, or all that fit; what is left empty fits any."""

    ids: tuple[str, ...] = ()
    channel: str = ""
    reader: str = ""
    since_ms: int = 0
    until_ms: int = 2**62
    state: str = "open"
    """"" = whatever became of them."""


class DeadLetterOffice:
    """The dead letters of a node. Looking reads the channel from its oldest letter on."""

    def __init__(self, channels: OfficeChannels, clock: Clock) -> None:
        self._channels, self._clock = channels, clock

    async def letters(self, wanted: Wanted, *, limit: int = 100) -> list[Letter]:
        """The oldest letters that fit, without their events."""
        found: list[Letter] = []
        position = 0
        channel = self._channels.channel(DEAD_LETTERS)
        while len(found) < limit and (page := await channel.read_after(position, limit=_PAGE)):
            position = page[-1].position
            letters = [stored for stored in page if stored.event.type == DEAD_LETTER]
            found += [one for one in await self._known(letters) if _fits(one, wanted)]
        return found[:limit]

    async def show(self, id: str) -> Letter:
        """One letter with its event; raises UnknownName."""
        for name, stored in await self._channels.find_event(id):
            if name == DEAD_LETTERS and stored.event.type == DEAD_LETTER:
                (letter,) = await self._known([stored])
                return msgspec.structs.replace(letter, event=_failure(stored.event).event)
        raise UnknownName("dead letter", id, code="dead_letter.unknown")

    async def replay(
        self, wanted: Wanted, *, republish: bool = False, limit: int = 1000
    ) -> list[Letter]:
        """Sends letters back to the readers that failed, which handle them again in order, once.

        With `republish` the events are appended to their channels anew, under ids of their own, for
        all readers: the way for readers that take no letters back.
        Raises Conflict for a letter that was settled, Unsupported for such a reader.
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

    async def forget(self, wanted: Wanted, *, limit: int = 1000) -> list[Letter]:
        """Strikes letters off the list; they stay in their channel as long as it keeps them."""
        letters = [one for one in await self._chosen(wanted, limit) if one.state == "open"]
        await self._settle(letters, "forgotten", FORGOTTEN)
        return letters

    # --- choosing ---

    async def _chosen(self, wanted: Wanted, limit: int) -> list[Letter]:
        if wanted.ids:
            return [await self.show(id) for id in wanted.ids]
        if not (wanted.channel or wanted.reader):
            raise InvalidInput(
                "say which dead letters: ids, a channel or a reader", code="dead_letter.none_named"
            )
        return await self.letters(wanted, limit=limit)

    async def _known(self, stored: Sequence[StoredEvent]) -> list[Letter]:
        letters = [_letter(one) for one in stored]

        def with_states(records: RecordStore) -> list[Letter]:
            return [msgspec.structs.replace(one, state=_state(records, one)) for one in letters]

        return await self._channels.look(with_states)

    # --- sending back ---

    async def _send_back(self, letters: Sequence[Letter]) -> None:
        await self._check_takers(letters)
        now_ms = self._clock.now_ms()
        replays = [_replay(letter, now_ms) for letter in letters]
        await self._channels.apply([put_replay(replay) for replay in replays])
        # After the records: the note is what wakes the reader.
        tried = str(now_ms)
        await note(self._channels, [self._note(ASKED, letter, tried) for letter in letters])

    async def _check_takers(self, letters: Sequence[Letter]) -> None:
        for channel, reader in sorted({(one.channel, one.reader) for one in letters}):
            key = taker_key(channel, reader)

            def knows(records: RecordStore, key: str = key) -> bool:
                return records.get(TAKERS, key) is not None

            if not await self._channels.look(knows):
                raise Unsupported(
                    f"sending events of {channel!r} back to the reader {reader!r}",
                    hint="republish appends them anew to their channel, for all its readers",
                )

    async def _republish(self, letters: Sequence[Letter]) -> None:
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

    async def _settle(self, letters: Sequence[Letter], state: str, type: str) -> None:
        if letters:
            await note(self._channels, [self._note(type, letter) for letter in letters])
            changes: list[Change] = [Put(STATES, one.id, state.encode()) for one in letters]
            await self._channels.apply(changes)

    def _note(self, type: str, letter: Letter, tried: str = "") -> Event:
        subject = f"{letter.channel}/{letter.reader}"
        return letter_note(type, letter.id, subject, time_ms=self._clock.now_ms(), tried=tried)


def _failure(event: Event) -> Failure:
    failure: Failure = event.payload_as(Failure)
    return failure


def _letter(stored: StoredEvent) -> Letter:
    failure = _failure(stored.event)
    return Letter(
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


def _replay(letter: Letter, asked_ms: int) -> Replay:
    return Replay(
        letter.id, letter.position, letter.channel, letter.reader, letter.event_position, asked_ms
    )


def _state(records: RecordStore, letter: Letter) -> State:
    settled = records.get(STATES, letter.id)
    if settled is not None:
        return "replayed" if settled == b"replayed" else "forgotten"
    return "open" if records.get(REPLAYS, _replay(letter, 0).key) is None else "waiting"


def _fits(letter: Letter, wanted: Wanted) -> bool:
    return (
        wanted.channel in ("", letter.channel)
        and wanted.reader in ("", letter.reader)
        and wanted.state in ("", letter.state)
        and wanted.since_ms <= letter.received <= wanted.until_ms
    )
