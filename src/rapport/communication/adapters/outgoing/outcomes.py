"""What became of a delivery: told by dispatch, taken by the engine. [CO-8, CO-10]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import overload

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.adapters.outgoing.marks import Ended
from rapport.communication.delivery_state import OutcomeState
from rapport.communication.peers import adapter_of, shown_address
from rapport.core.event import CAUSE, Event, cause_text, check_envelope
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock

OUTCOME = "rapport.control.outcome"
DECIDED = "decided meanwhile: nobody needs it any more"
_UNKNOWN = "broken off while it was being sent; sending again"
_shown = lru_cache(maxsize=16_384)(shown_address)
_ENCODER = msgspec.json.Encoder()


class OutcomeData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What became of one attempt; the address is in its shown form. The same attempt may be told
    more than once, after a crash, with the same `id`.
    """

    message: str
    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False
    unavailable: bool = False
    id: str = ""
    """Names the outcome: adapter, place in its channel, state."""
    case: str = ""
    """See Delivery; as the next."""
    share: str = ""
    delivery: Delivery | None = None
    """All of the delivery, where it is `plain`: nothing else is kept about it."""


Report = Callable[[Sequence[OutcomeData]], Awaitable[None]]
"""Takes outcomes in order; they are safe when it returns, and may come again after a crash."""


def outcome_data(
    delivery: Delivery, outcome: Outcome, position: int = 0, starts: int = 0
) -> OutcomeData:
    """The outcome of an attempt that came to an end."""
    if isinstance(outcome, Failed):
        data = _data(delivery, "failed", outcome.reason, outcome.retry, position, starts)
        return msgspec.structs.replace(data, unavailable=True) if outcome.unavailable else data
    state: OutcomeState = "handed" if isinstance(outcome, Sent) else "confirmed"
    return _data(delivery, state, outcome.reference, False, position, starts)


class HandedOutcomes(Sequence[OutcomeData]):
    """The outcomes of plain deliveries that the medium just took, of which there are most by far:
    made when somebody looks at one. Who wants the deliveries themselves takes these.
    """

    __slots__ = ("deliveries", "positions")

    def __init__(self, deliveries: Sequence[Delivery], positions: Sequence[int]) -> None:
        self.deliveries, self.positions = deliveries, positions

    def __len__(self) -> int:
        return len(self.deliveries)

    @overload
    def __getitem__(self, place: int) -> OutcomeData: ...
    @overload
    def __getitem__(self, place: slice) -> HandedOutcomes: ...
    def __getitem__(self, place: int | slice) -> OutcomeData | HandedOutcomes:
        if isinstance(place, slice):
            return HandedOutcomes(self.deliveries[place], self.positions[place])
        return _data(self.deliveries[place], "handed", "", False, self.positions[place], 0)

    @staticmethod
    def joined(parts: Sequence[Sequence[OutcomeData]]) -> Sequence[OutcomeData]:
        """The outcomes of all parts, in order."""
        handed = [part for part in parts if isinstance(part, HandedOutcomes)]
        if len(handed) < len(parts):
            return [data for part in parts for data in part]
        if len(handed) == 1:
            return handed[0]
        return HandedOutcomes(
            [delivery for part in handed for delivery in part.deliveries],
            [position for part in handed for position in part.positions],
        )


def outcomes_data(
    deliveries: Sequence[Delivery], outcomes: Sequence[Outcome], positions: Sequence[int]
) -> Sequence[OutcomeData]:
    """As `outcome_data` of each."""
    if all([type(outcome) is Sent and not outcome.reference for outcome in outcomes]) and all(
        [delivery.plain and not delivery.case for delivery in deliveries]
    ):
        return HandedOutcomes(deliveries, positions)
    return [
        outcome_data(delivery, outcome, position)
        for delivery, outcome, position in zip(deliveries, outcomes, positions, strict=True)
    ]


def unknown_data(delivery: Delivery, position: int = 0, starts: int = 0) -> OutcomeData:
    """An attempt of which nobody can say how it ended: the process died while it was under way."""
    return _data(delivery, "unknown", _UNKNOWN, False, position, starts)


def dropped_data(delivery: Delivery, position: int = 0) -> OutcomeData:
    """An attempt that was not made, since the message was decided while it waited."""
    return _data(delivery, "dropped", DECIDED, False, position, 0)


def put_off_data(delivery: Delivery, position: int = 0) -> OutcomeData:
    """An attempt that was not made, since its receiver may not want it at this hour."""
    return _data(delivery, "put_off", "", False, position, 0)


def kept_data(delivery: Delivery, kept: Ended) -> OutcomeData:
    """An outcome as it was noted before a crash; the same as the one that may have been told."""
    data = _data(delivery, kept.state, kept.reason, kept.retry, kept.position, 0)
    return msgspec.structs.replace(data, unavailable=True) if kept.unavailable else data


def outcome_event(data: OutcomeData, *, now_ms: int) -> Event:
    """The event for `control`; appending the same outcome again is harmless."""
    name = data.id or content_id(
        "outcome", data.message, data.peer, data.address, str(data.attempt), data.state, data.reason
    )
    event = Event(
        source=f"adapter/{adapter_of(data.address)}",
        id=name,
        type=OUTCOME,
        subject=data.message,
        time=now_ms,
        data=_ENCODER.encode(data),
        headers={CAUSE: cause_text(data.message)},
    )
    check_envelope(event)
    return event


def report_to_control(channels: Channels, clock: Clock) -> Report:
    """Reports by appending to `control`: one append for all."""

    async def report(outcomes: Sequence[OutcomeData]) -> None:
        now_ms = clock.now_ms()
        events = [outcome_event(data, now_ms=now_ms) for data in outcomes]
        await channels.channel("control").append(events)

    return report


def _data(
    delivery: Delivery, state: OutcomeState, reason: str, retry: bool, position: int, starts: int
) -> OutcomeData:
    name = adapter_of(delivery.address)
    return OutcomeData(
        message=delivery.message,
        peer=delivery.peer,
        address=_shown(delivery.address),
        attempt=delivery.attempt,
        state=state,
        reason=reason,
        retry=retry,
        id=f"{name}.{position}.{state}.{starts}" if position else "",
        case=delivery.case,
        share=delivery.share,
        delivery=delivery if delivery.plain else None,
    )
