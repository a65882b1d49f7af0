"""What came in and is no message: kept as a dead letter with the reason, never dropped silently.
[CO-5, CO-16]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import bury
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Message
from rapport.kernel.clock import Clock

INPUT = "input"
REJECTED_INPUT = "rapport.input.unusable"
SHOWN_TEXT = 2_000
LARGEST_RAW = 500_000
"""Bytes of unreadable input that a dead letter holds; as base64 they fit into an event."""
TOO_FAST = "message.too_fast"
"""The reason of a message that was refused only for now."""


class RejectedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A mail or file that is no message, and why."""

    id: str
    code: str
    reason: str
    sender: str = ""
    subject: str = ""
    """The subject of a mail, the name of a file."""
    text: str = ""
    message: str = ""
    """The whole message as JSON, without its token, where it was one and was refused: it can be put
    through its input again.
    """
    raw: bytes = b""
    """The input as its medium gave it, where no message came of it: its input reads it again when
    the letter is replayed. See `kept_raw`.
    """


DeadLetterInput = Callable[[RejectedInput], Awaitable[None]]
"""Durable when it returns; may be called again for the same thing."""


async def drop_input(_found: RejectedInput) -> None:
    """For an input without a place to keep things aside."""


def dead_letter_inputs(name: str, channels: Channels, clock: Clock) -> DeadLetterInput:
    """Keeps what the input `name` could not use in `dead_letters`."""

    async def set_aside(found: RejectedInput) -> None:
        event = rejected_input_event(name, found, now_ms=clock.now_ms())
        error = InvalidInput(found.reason, code=found.code)
        await bury(channels, INPUT, f"input.{name}", StoredEvent(0, event.time, event), error, 1)

    return set_aside


def rejected_input_event(name: str, found: RejectedInput, *, now_ms: int) -> Event:
    """What was found, as the event of a dead letter."""
    return make_event(
        source=f"input/{name}",
        id=found.id,
        type=REJECTED_INPUT,
        subject=name,
        time=now_ms,
        data=found,
    )


def kept_raw(raw: bytes) -> bytes:
    """Unreadable input as its dead letter keeps it: nothing of what is too large, or of what shows
    a session token, which no log may hold.
    """
    return raw if len(raw) <= LARGEST_RAW and b"session-token" not in raw else b""


def refused_input(message: Message, reason: str) -> RejectedInput:
    """A message that the engine refused for good."""
    return RejectedInput(
        id=message.id,
        code="input.not_accepted",
        reason=reason,
        sender=str(message.sender),
        text=message.content[:SHOWN_TEXT],
        message=msgspec.structs.replace(message, session_token="").to_json().decode(),
    )


@runtime_checkable
class RereadsInput(Protocol):
    """An input adapter that reads what was unreadable once more."""

    async def read_again(self, found: RejectedInput) -> Message | None:
        """The message in `found.raw`, with the same id each time; None when it was no message but
        is dealt with now. Raises InvalidInput when it is still unreadable.
        """


async def message_of_letter(event: Event | None, adapter: object) -> Message | None:
    """The message of a dead letter: as `not_accepted` kept it, or as the input's adapter reads it
    now; None when there is nothing left to publish. Raises InvalidInput.
    """
    if event is None:
        raise InvalidInput("the event is in no log any more", code="dead_letter.event_gone")
    found: RejectedInput = event.payload_as(RejectedInput)
    if found.message:
        return Message.from_json(found.message.encode())
    if found.raw and isinstance(adapter, RereadsInput):
        return await adapter.read_again(found)
    raise InvalidInput(
        f"it was no message ({found.code}), and only what is shown of it was kept",
        code="input.not_replayable",
        hint="bring it again by its medium, then forget this letter",
    )
