"""Outcomes of deliveries as data and as events of `control`: from a dispatch to the engine. [CO-8,
CO-10]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, overload

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.delivery_state import OutcomeState
from rapport.communication.peers import adapter_of, shown_address
from rapport.core.event import CAUSE, Event, cause_text, check_envelope
from rapport.core.ids import content_id
from rapport.kernel.clock import Clock

if TYPE_CHECKING:
    from rapport.communication.adapters.delivery_marks import EndMark

OUTCOME = "rapport.control.outcome"
DECIDED = "decided meanwhile: nobody needs it any more"
_UNKNOWN = "broken off while it was being sent; sending again"
_shown = lru_cache(maxsize=16_384)(shown_address)
_ENCODER = msgspec.json.Encoder()


class OutcomeData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The outcome of one attempt; the address is in its shown form. After a crash the same outcome
    may be reported again, with the same `id`.
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
    """Adapter, position in its channel, state."""
    case: str = ""
    """See Delivery; as the next."""
    share: str = ""
    delivery: Delivery | None = None
    """The whole delivery where it is `plain`: there is no other record of it."""


Report = Callable[[Sequence[OutcomeData]], Awaitable[None]]
"""Takes outcomes in order; durable when it returns. They may come again after a crash."""


def outcome_data(delivery: Delivery, outcome: Outcome, position: int = 0) -> OutcomeData:
    """The outcome that an adapter returned."""
    if isinstance(outcome, Failed):
        retry, unavailable = outcome.retry, outcome.unavailable
        return _data(delivery, "failed", outcome.reason, retry, position, 0, unavailable)
    state: OutcomeState = "handed" if isinstance(outcome, Sent) else "confirmed"
    return _data(delivery, state, outcome.reference, False, position, 0)


class SentOutcomes(Sequence[OutcomeData]):
    """The outcomes of fast-path deliveries that were simply sent, which are most by far: each is
    made when it is read.
    """

    __slots__ = ("deliveries", "positions")

    def __init__(self, deliveries: Sequence[Delivery], positions: Sequence[int]) -> None:
        self.deliveries, self.positions = deliveries, positions

    def __len__(self) -> int:
        return len(self.deliveries)

    @overload
    def __getitem__(self, place: int) -> OutcomeData: ...
    @overload
    def __getitem__(self, place: slice) -> SentOutcomes: ...
    def __getitem__(self, place: int | slice) -> OutcomeData | SentOutcomes:
        if isinstance(place, slice):
            return SentOutcomes(self.deliveries[place], self.positions[place])
        return _data(self.deliveries[place], "handed", "", False, self.positions[place], 0)

    @staticmethod
    def joined(parts: Sequence[Sequence[OutcomeData]]) -> Sequence[OutcomeData]:
        ...

        handed = [part for part in parts if isinstance(part, SentOutcomes)]
        if len(handed) < len(parts):
            return [data for part in parts for data in part]
        if len(handed) == 1:
            return handed[0]
        return SentOutcomes(
            [delivery for part in handed for delivery in part.deliveries],
            [position for part in handed for position in part.positions],
        )


def outcomes_data(
    deliveries: Sequence[Delivery], outcomes: Sequence[Outcome], positions: Sequence[int]
) -> Sequence[OutcomeData]:
    """`outcome_data` for each."""
    if all([type(outcome) is Sent and not outcome.reference for outcome in outcomes]) and all(
        [delivery.plain and not delivery.case for delivery in deliveries]
    ):
        return SentOutcomes(deliveries, positions)
    return [
        outcome_data(delivery, outcome, position)
        for delivery, outcome, position in zip(deliveries, outcomes, positions, strict=True)
    ]


def unknown_data(delivery: Delivery, position: int = 0, starts: int = 0) -> OutcomeData:
    """An attempt during which the process died."""
    return _data(delivery, "unknown", _UNKNOWN, False, position, starts)


def dropped_data(delivery: Delivery, position: int = 0) -> OutcomeData:
    """An attempt that was not made: the message was decided while it waited."""
    return _data(delivery, "dropped", DECIDED, False, position, 0)


def deferred_data(delivery: Delivery, position: int = 0) -> OutcomeData:
    """An attempt that was not made: its receiver's privacy policies do not allow it now."""
    return _data(delivery, "put_off", "", False, position, 0)


def recorded_data(delivery: Delivery, mark: EndMark) -> OutcomeData:
    """An outcome that was marked before a crash; the same that may have been reported."""
    return _data(delivery, mark.state, mark.reason, mark.retry, mark.position, 0, mark.unavailable)


def outcome_event(data: OutcomeData, *, now_ms: int) -> Event:
    """The event for `control`; the same outcome always has the same id."""
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
    """A report that appends to `control`, once for all outcomes."""

    async def report(outcomes: Sequence[OutcomeData]) -> None:
        now_ms = clock.now_ms()
        events = [outcome_event(data, now_ms=now_ms) for data in outcomes]
        await channels.channel("control").append(events)

    return report


def _data(
    delivery: Delivery,
    state: OutcomeState,
    reason: str,
    retry: bool,
    position: int,
    starts: int,
    unavailable: bool = False,
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
        unavailable=unavailable,
        id=f"{name}.{position}.{state}.{starts}" if position else "",
        case=delivery.case,
        share=delivery.share,
        delivery=delivery if delivery.plain else None,
    )
