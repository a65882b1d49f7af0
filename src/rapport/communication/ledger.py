"""The ledger's events: how every change of a delivery's state is written to `log`. [CO-10]"""

from __future__ import annotations

import msgspec

from rapport.communication.effects import Effect
from rapport.communication.peers import adapter_of, shown_address
from rapport.communication.steps import Note, Tell
from rapport.communication.tracking import Tracking
from rapport.core.event import CAUSE, Event, make_event
from rapport.core.ids import content_id

SOURCE = "communication"
DELIVERY_PREFIX = "rapport.delivery."
"""Ledger lines are of type `rapport.delivery.<state>`."""
ANSWER_REFUSED = "rapport.answer.refused"
UNMAPPED = "action.unmapped"
"""Begins the reason of a line that has no message: the site maps the phrase to nothing."""
CONTROL_PREFIX = "rapport.control."


class Case(msgspec.Struct, kw_only=True):
    """Everything kept about one message: how far it got, and what each of its deliveries says."""

    tracking: Tracking
    text: str
    policy: str
    detection: str
    sender: str
    time: int
    lines: int = 0
    """Ledger lines written so far; numbers them, so that each has an id of its own."""
    forget_at: int = 0
    """When a closed case is let go of; until then a late answer is still written down."""
    effect: Effect | None = None
    """What is done, for an action that tells nobody."""


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of one ledger event. Addresses are in their shown form: no secrets."""

    message: str
    policy: str = ""
    detection: str = ""
    peer: str = ""
    address: str = ""
    adapter: str = ""
    attempt: int = 0
    reason: str = ""
    answer: str = ""
    until: int = 0
    result: str = ""


def line_event(case: Case, note: Note, *, now_ms: int, cause: str) -> Event:
    """The next ledger line of a case; its causes are the message and what led to the change."""
    case.lines += 1
    message = case.tracking.message
    line = LedgerLine(
        message=message,
        policy=case.policy,
        detection=case.detection,
        peer=note.peer,
        address=shown_address(note.address),
        adapter=adapter_of(note.address),
        attempt=note.attempt,
        reason=note.reason,
        answer=note.answer,
        until=note.until,
        result=note.result,
    )
    return make_event(
        source=SOURCE,
        id=content_id("ledger", message, str(case.lines)),
        type=DELIVERY_PREFIX + note.state,
        subject=message,
        time=now_ms,
        data=line,
        headers={CAUSE: f"{message} {cause}".strip()},
    )


def unmapped_event(detection: str, policy: str, phrase: str, *, now_ms: int) -> Event:
    """The ledger line of a policy's action that the site maps to nothing: nobody was told."""
    message = content_id("message", detection, phrase, "unmapped")
    line = LedgerLine(
        message=message,
        policy=policy,
        detection=detection,
        reason=f"{UNMAPPED}: the site has no [actions.{phrase!r}]",
    )
    return make_event(
        source=SOURCE,
        id=content_id("ledger", message, "unmapped"),
        type=DELIVERY_PREFIX + "failed",
        subject=message,
        time=now_ms,
        data=line,
        headers={CAUSE: detection},
    )


def told_event(case: Case, tell: Tell, *, now_ms: int) -> Event:
    """What the sender of a message is told, as an event of `control`."""
    message = case.tracking.message
    return make_event(
        source=SOURCE,
        id=content_id("told", message, tell.subtype),
        type=CONTROL_PREFIX + tell.subtype,
        subject=case.sender,
        time=now_ms,
        data={"refers_to": message, "reason": tell.reason},
        headers={CAUSE: message},
    )


def refused_answer_event(message: str, peer: str, reason: str, *, cause: str, now_ms: int) -> Event:
    """An answer that does not count: forged, or to nothing we sent."""
    return make_event(
        source=SOURCE,
        id=content_id("answer refused", cause),
        type=ANSWER_REFUSED,
        subject=message[:200] if message.isprintable() else "",
        time=now_ms,
        data={"message": message[:200], "peer": peer[:200], "reason": reason},
        headers={CAUSE: cause},
    )
