"""What became of a delivery: written to `control` by dispatch, read by the engine. [CO-8, CO-10]"""

from __future__ import annotations

import msgspec

from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Outcome, Sent
from rapport.communication.peers import adapter_of, shown_address
from rapport.communication.steps import OutcomeState
from rapport.core.event import CAUSE, Event, make_event
from rapport.core.ids import content_id

OUTCOME = "rapport.control.outcome"


class OutcomeData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an outcome event; the address is in its shown form."""

    message: str
    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False


def outcome_data(delivery: Delivery, outcome: Outcome) -> OutcomeData:
    """The outcome of an attempt that came to an end."""
    match outcome:
        case Sent(reference):
            return _data(delivery, "handed", reference)
        case Confirmed(reference):
            return _data(delivery, "confirmed", reference)
        case Failed(reason, retry):
            return _data(delivery, "failed", reason, retry)


def unknown_data(delivery: Delivery) -> OutcomeData:
    """An attempt of which nobody can say how it ended: the process died while it was under way."""
    return _data(delivery, "unknown", "the node stopped while it was being sent; sending again")


def outcome_event(delivery: Delivery, data: OutcomeData, *, now_ms: int, starts: int = 0) -> Event:
    """The event for `control`; one per attempt, start and state: appending it again is harmless."""
    return make_event(
        source=f"adapter/{adapter_of(delivery.address)}",
        id=content_id("outcome", delivery.id, data.state, str(starts)),
        type=OUTCOME,
        subject=delivery.message,
        time=now_ms,
        data=data,
        headers={CAUSE: delivery.id},
    )


def _data(delivery: Delivery, state: OutcomeState, reason: str, retry: bool = False) -> OutcomeData:
    return OutcomeData(
        message=delivery.message,
        peer=delivery.peer,
        address=shown_address(delivery.address),
        attempt=delivery.attempt,
        state=state,
        reason=reason,
        retry=retry,
    )
