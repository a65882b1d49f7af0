"""The node's own channels as a medium: an action's event is appended to one. [PO-10, CO-4]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rapport.channel.channel import AppendResult
from rapport.communication.actions import ACTION_HOPS, Effect
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Outcome, adapter
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.core.event import CAUSE, Event, cause_text, check_envelope

RAW_PREFIX = "raw."
SOURCE = "action"

Append = Callable[[str, Sequence[Event]], Awaitable[AppendResult]]
"""Channel and events; durable on return."""


@adapter("append")
class AppendAdapter:
    """Appends an action's event; its id is the same for every attempt, so the channel holds it
    once.
    """

    name = "append"
    repeatable = True
    keeps_order = True

    def __init__(self, append: Append) -> None:
        self._append = append

    async def send(self, delivery: Delivery) -> Outcome:
        """Confirmed with its position. An unavailable channel is worth a retry; one that refuses
        the event is not.
        """
        return (await self.send_many([delivery]))[0]

    async def send_many(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """One append per channel; where that is refused, each event by itself."""
        outcomes: dict[int, Outcome] = {}
        channels: dict[str, dict[int, Event]] = {}
        for number, delivery in enumerate(deliveries):
            entry = _prepared(delivery)
            if isinstance(entry, Failed):
                outcomes[number] = entry
            else:
                channels.setdefault(entry[0], {})[number] = entry[1]
        for channel, events in channels.items():
            found = await self._append_all(channel, list(events.values()))
            outcomes.update(zip(events, found, strict=True))
        return [outcomes[number] for number in range(len(deliveries))]

    async def _append_all(self, channel: str, events: Sequence[Event]) -> list[Outcome]:
        try:
            appended = await self._append(channel, events)
        except RapportError as error:
            if len(events) == 1:
                return [
                    Failed(f"{error.code}: {error.message}", retry=isinstance(error, Unavailable))
                ]
            return [(await self._append_all(channel, [event]))[0] for event in events]
        return [Confirmed(f"{channel} {position}") for position in appended.positions]

    async def close(self) -> None: ...


def _prepared(delivery: Delivery) -> tuple[str, Event] | Failed:
    """The channel and the event, or why there is no event."""
    effect = delivery.effect
    if effect is None:
        return Failed("only an action's event can be appended", retry=False)
    if effect.hops > effect.most_hops:
        return Failed(
            f"action.too_many_hops: {effect.hops - 1} actions led here one after the other",
            retry=False,
        )
    try:
        return effect.target, event_of(effect, delivery.message)
    except InvalidInput as error:
        return Failed(f"{error.code}: {error.message}", retry=False)


def event_of(effect: Effect, message: str) -> Event:
    """The event, caused by the action's message; raises InvalidInput when a name is too long. In
    `raw.NAME` it is an event of the source NAME.
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
