"""What the policy engine appends besides detections: late readings, moved time, what it set aside.
[PO-7, design 15]
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from rapport.core.codec import to_cloudevent
from rapport.core.detection import Cause
from rapport.core.errors import Problem
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id

LATE_TYPE = "rapport.policy.late"
TIME_TYPE = "rapport.policy.time"
RESET_TYPE = "rapport.policy.reset"
QUARANTINED_TYPE = "rapport.policy.quarantined"


class TimeMoved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The clock moved time on to `time` when the events up to position `after` had been taken."""

    time: int
    after: int
    begins: bool = False
    """There was no reading as yet: this is the start of all policies, from which silence counts."""
    resets: int = 0
    """How often time had begun anew before."""


class TimeReset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Time began anew when the events up to position `after` had been taken: it had reached
    `before`, further than the allowed skew ahead of the clock at `time`, so the clock was wrong.
    """

    time: int
    after: int
    before: int
    resets: int
    """How many there have been, this one among them."""
    skew_ms: int
    """Readings that waited further ahead of `time` than this were left out."""


def late_event(source: str, cause: Cause) -> Event:
    """A reading that came after its time had been decided."""
    time, id = cause
    return make_event(
        source=source,
        id=content_id("late", str(time), id),
        type=LATE_TYPE,
        time=time,
        data={"id": id, "time": time},
        headers={CAUSE: cause_text(id)},
    )


def time_event(source: str, moved: TimeMoved) -> Event:
    """Time moved on without a reading."""
    parts = ["time", str(moved.time), str(moved.after)]
    if moved.begins:  # another one than a beat at the same time
        parts.append("begins")
    if moved.resets:  # time may reach once more what it had reached before it began anew
        parts.append(f"resets {moved.resets}")
    return make_event(
        source=source,
        id=content_id(*parts),
        type=TIME_TYPE,
        time=moved.time,
        data=moved,
    )


def reset_event(source: str, reset: TimeReset) -> Event:
    """Time began anew after the clock jumped."""
    return make_event(
        source=source,
        id=content_id("reset", str(reset.resets), str(reset.after)),
        type=RESET_TYPE,
        time=reset.time,
        data=reset,
    )


def ahead_problem(stored: StoredEvent) -> Problem:
    """Why a reading whose time lies ahead of the clock is set aside."""
    ahead_ms = stored.event.time - stored.received
    return Problem(
        code="policy.ahead_of_clock",
        message=f"the reading's time lies {ahead_ms} ms ahead of the clock",
        hint="set the source's clock, or allow more skew",
    )


def quarantine_event(source: str, event: Event, problem: Problem) -> Event:
    """An event that policies cannot use, with the reason."""
    return make_event(
        source=source,
        id=content_id("policy", event.source, event.id),
        type=QUARANTINED_TYPE,
        subject=event.subject,
        time=event.time,
        data={
            "reason": problem.code,
            "message": problem.message,
            "hint": problem.hint,
            "event": _as_members(event),
        },
        headers={CAUSE: cause_text(event.id)},
    )


def _as_members(event: Event) -> dict[str, Any]:
    """The event as a CloudEvent; data that is not JSON goes in base64, as CloudEvents says."""
    members = to_cloudevent(event)
    try:
        msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        del members["data"], members["datacontenttype"]
        members["data_base64"] = base64.b64encode(event.data).decode()
    return members
