"""What the policy engine appends besides detections: late readings, moved time, what it set aside.
[PO-7, design 15]

Places in the stream at which something other than a reading happened, and their order. Pure.
[PO-8, PO-9]

A place is the last position of `events` taken and the largest time reached by then. The second
reading after a crash meets what is on record in the same places, so it comes to the same.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from rapport.core.codec import to_cloudevent
from rapport.core.detection import Cause, Detection, SkippedAction
from rapport.core.errors import Problem
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, PullData

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


PlanChangeKind = Literal["deploy", "withdraw", "shadow", "promote", "drop", "note"]


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """After the events up to position `after`, and after time had reached `time`, having begun anew
    so many times.
    """

    after: int
    time: int
    resets: int = 0

    def __lt__(self, other: StreamPosition) -> bool:
        return self.order() < other.order()

    def __le__(self, other: StreamPosition) -> bool:
        return self.order() <= other.order()

    def order(self) -> tuple[int, int, int]:
        """What places are sorted by: time goes back where it begins anew."""
        return self.after, self.resets, self.time


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """From `place` on other plans run; `position` is where the change is on record.

    `deploy` has the plan that runs from then on, `shadow` the one that runs beside; `note` changes
    nothing about what runs.
    """

    place: StreamPosition
    position: int
    act: PlanChangeKind
    policy: str
    plan: Plan | None = None


class TablesChange(msgspec.Struct, frozen=True):
    """From `place` on instances are looked up in other tables. Only met by who reads the whole log
    again: the engine commits before it goes over to other tables.
    """

    place: StreamPosition
    pull: Callable[[], PullData]
    ontology: Ontology


StreamStep = TimeMoved | TimeReset | PlanChange | TablesChange
"""What is met again on a second reading."""


class PlansAt(msgspec.Struct, frozen=True):
    """The plans that run, and those that run in the shadow of one of them."""

    plans: tuple[Plan, ...] = ()
    shadows: tuple[Plan, ...] = ()


class PolicyCommand(msgspec.Struct, frozen=True):
    """What an action of a policy asks for about a policy, because of a detection."""

    what: Literal["delete", "pause"]
    policy: str
    detection: Detection
    skipped: SkippedAction | None = None
    """Set where the detection is too old: the command is recorded, not carried out."""


class PlanSource(Protocol):
    """Who knows which plans run since when; asked by the engine while it holds its turn."""

    async def plans_at(self, position: int) -> PlansAt:
        """What ran when the record had gone so far."""

    async def changes_after(self, position: int) -> Sequence[PlanChange]:
        """What changed since, in the order of the record."""

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        """What a detection's policy does to policies."""

    async def obey(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Puts a command on record at this place, once whatever happens; None when there is no such
        policy. What counts is how the policy stood where the detection was found: by the record up
        to position `met`, or `is_stopped` by a detection whose change has its place further on.
        """


class FixedPlans:
    """Plans that nobody changes but who holds them: for engines without a record of changes."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self.plans = {plan.policy: plan for plan in plans}

    async def plans_at(self, position: int) -> PlansAt:
        """Always the same."""
        return PlansAt(tuple(self.plans.values()))

    async def changes_after(self, position: int) -> Sequence[PlanChange]:
        """None."""
        return ()

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        """None."""
        return ()

    async def obey(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Nothing to do."""
        return None


def position_of(step: StreamStep) -> StreamPosition:
    """Where it happened."""
    match step:
        case TimeMoved():
            return StreamPosition(step.after, step.time, step.resets)
        case TimeReset():
            return StreamPosition(step.after, -END_OF_TIME, step.resets)
        case _:
            return step.place


def merge_steps(
    steps: Iterable[TimeMoved | TimeReset | TablesChange], changes: Iterable[PlanChange]
) -> deque[StreamStep]:
    """Both as they happened; at one place tables come before the plans that use them.

    Moving time on always reaches a time that was not reached before since time began, so at one
    place it came before a change that saw that time, and after one that did not.
    """

    def key(step: StreamStep) -> tuple[StreamPosition, int, int]:
        if isinstance(step, PlanChange):
            return position_of(step), 2, step.position
        return position_of(step), int(isinstance(step, TablesChange)), 0

    return deque(sorted([*steps, *changes], key=key))
