"""A dead letter: an event that tells why the handler of another one gave up. [CH-14]"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.core.codec import decode_cloudevent, to_cloudevent
from rapport.core.errors import InvalidInput, RapportError, TooLarge
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id

DEAD_LETTERS = "dead_letters"
DEAD_LETTER = "rapport.channel.dead_letter"
_SOURCE = "rapport.channel"
_BASE64 = "data_base64"
_LONGEST_MESSAGE = 2000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a dead letter: whose, where, why. `event` is absent when it would not fit."""

    channel: str
    position: int
    reader: str
    attempts: int
    code: str
    message: str
    event: dict[str, Any] | None = None


async def bury(
    channels: Channels,
    channel: str,
    reader: str,
    stored: StoredEvent,
    error: Exception,
    attempts: int,
) -> str:
    """Appends the dead letter and returns its id; doing it again after a crash changes nothing.
    Raises ChannelUnavailable.
    """
    target = channels.channel(DEAD_LETTERS)
    letter = dead_letter(channel, reader, stored, error, attempts)
    try:
        await target.append([letter])
    except TooLarge:
        await target.append([dead_letter(channel, reader, stored, error, attempts, whole=False)])
    return letter.id


def dead_letter(
    channel: str,
    reader: str,
    stored: StoredEvent,
    error: Exception,
    attempts: int,
    *,
    whole: bool = True,
) -> Event:
    """The dead letter as an event; its id depends only on whose and which event it is. One that was
    never stored (position 0) is known by its own identity.
    """
    place = (str(stored.position),) if stored.position else (stored.event.source, stored.event.id)
    failure = Failure(
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


def buried_event(letter: Event) -> Event | None:
    """The event inside a dead letter, to be replayed; None when it was too large for that."""
    failure: Failure = letter.payload_as(Failure)
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
