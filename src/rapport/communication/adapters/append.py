"""The node's own channels as a medium: an action's event is appended. [PO-10, CO-4]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rapport.channel.channel import Appended
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Outcome
from rapport.communication.effects import Effect
from rapport.communication.hops import ACTION_HOPS
from rapport.core.errors import RapportError, Unavailable
from rapport.core.event import CAUSE, Event, cause_text, check_envelope

RAW_PREFIX = "raw."
SOURCE = "action"

Append = Callable[[str, Sequence[Event]], Awaitable[Appended]]
"""Channel and events; what it takes is durable."""


class AppendAdapter:
    """Appends an action's event; the same id for every try, so that the channel holds it once."""

    name = "append"

    def __init__(self, append: Append) -> None:
        self._append = append

    async def send(self, delivery: Delivery) -> Outcome:
        """Confirmed with its place. A channel that cannot be written now is worth a retry; one that
        refuses the event is not.
        """
        effect = delivery.effect
        if effect is None:
            return Failed("only an action's event can be appended", retry=False)
        if effect.hops > effect.most_hops:
            return Failed(
                f"action.too_many_hops: {effect.hops - 1} actions led here one after the other",
                retry=False,
            )
        try:
            appended = await self._append(effect.target, [event_of(effect, delivery.message)])
        except RapportError as error:
            return Failed(f"{error.code}: {error.message}", retry=isinstance(error, Unavailable))
        return Confirmed(f"{effect.target} {appended.positions[0]}")

    async def close(self) -> None:
        """Nothing to let go of."""


def event_of(effect: Effect, message: str) -> Event:
    """The event, caused by the action's message; raises InvalidInput when a name is too long.

    In `raw.NAME` it is an event of the source NAME, as if that had sent it.
    """
    channel = effect.target
    raw = channel.startswith(RAW_PREFIX)
    event = Event(
        source=channel.removeprefix(RAW_PREFIX) if raw else SOURCE,
        id=effect.id,
        type=effect.type,
        subject=effect.subject,
        time=effect.time,
        data=effect.data.encode(),
        headers={CAUSE: cause_text(message), ACTION_HOPS: str(effect.hops)},
    )
    check_envelope(event)
    return event
