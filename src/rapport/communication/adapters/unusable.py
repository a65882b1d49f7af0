"""What came in and is no message: kept as a dead letter with the reason, never dropped silently.
[CO-5, CO-16]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead_letters import append_dead_letter
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Message
from rapport.kernel.clock import Clock

INPUT = "input"
UNUSABLE = "rapport.input.unusable"
SHOWN_TEXT = 2_000
TOO_FAST = "message.too_fast"
"""The reason of a message that was refused only for now."""


class Unusable(msgspec.Struct, frozen=True, kw_only=True):
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


SetAside = Callable[[Unusable], Awaitable[None]]
"""Durable when it returns; may be called again for the same thing."""


async def only_counted(_found: Unusable) -> None:
    """For an input without a place to keep things aside."""


def bury_unusable(name: str, channels: Channels, clock: Clock) -> SetAside:
    """Keeps what the input `name` could not use in `dead_letters`."""

    async def set_aside(found: Unusable) -> None:
        event = unusable_event(name, found, now_ms=clock.now_ms())
        error = InvalidInput(found.reason, code=found.code)
        await append_dead_letter(
            channels, INPUT, f"input.{name}", StoredEvent(0, event.time, event), error, 1
        )

    return set_aside


def unusable_event(name: str, found: Unusable, *, now_ms: int) -> Event:
    """What was found, as the event of a dead letter."""
    return make_event(
        source=f"input/{name}", id=found.id, type=UNUSABLE, subject=name, time=now_ms, data=found
    )


def not_accepted(message: Message, reason: str) -> Unusable:
    """A message that the engine refused for good."""
    return Unusable(
        id=message.id,
        code="input.not_accepted",
        reason=reason,
        sender=str(message.sender),
        text=message.content[:SHOWN_TEXT],
        message=msgspec.structs.replace(message, session_token="").to_json().decode(),
    )


def refused_message(event: Event | None) -> Message:
    """The message that `not_accepted` kept; raises InvalidInput for what was none."""
    if event is None:
        raise InvalidInput("the event is in no log any more", code="dead_letter.event_gone")
    found: Unusable = event.payload_as(Unusable)
    if not found.message:
        raise InvalidInput(
            f"it was no message ({found.code}), and only what is shown of it was kept",
            code="input.not_replayable",
            hint="bring it again by its medium, then forget this letter",
        )
    return Message.from_json(found.message.encode())
