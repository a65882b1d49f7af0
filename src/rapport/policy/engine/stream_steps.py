"""Stream positions, the steps recorded at them (clock moves, resets, plan and table changes) and
the engine's own events. Pure. [PO-7, PO-8, PO-9, design 15]

A stream position is the last processed position of `events` and the largest time reached by then.
After a crash the second pass applies the recorded steps at the same positions, so it gives the same
results.
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
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import PolicyPlan

LATE_TYPE = "rapport.policy.late"
TIME_TYPE = "rapport.policy.time"
RESET_TYPE = "rapport.policy.reset"
QUARANTINED_TYPE = "rapport.policy.quarantined"
PlanChangeKind = Literal["deploy", "withdraw", "shadow", "promote", "drop", "note"]


class TimeMoved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The clock advanced time to `time` after the event at position `after`."""

    time: int
    after: int
    begins: bool = False
    """There was no reading yet: all policies start here, and silence counts from here."""
    resets: int = 0
    """Number of time resets before."""


class TimeReset(msgspec.Struct, frozen=True, omit_defaults=True):
    """Stream time was restarted after the event at position `after`: it had reached `before`,
    further ahead of the clock at `time` than the allowed skew, so the clock was wrong.
    """

    time: int
    after: int
    before: int
    resets: int
    """Number of time resets, including this one."""
    skew_ms: int
    """Buffered readings further ahead of `time` than this were dropped."""


def late_event(source: str, cause: Cause) -> Event:
    """A reading that arrived after its time was decided."""
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
    """Time was advanced without a reading."""
    parts = ["time", str(moved.time), str(moved.after)]
    if moved.begins:  # differs from a beat at the same time
        parts.append("begins")
    if moved.resets:  # time may reach the same value again after a reset
        parts.append(f"resets {moved.resets}")
    return make_event(
        source=source,
        id=content_id(*parts),
        type=TIME_TYPE,
        time=moved.time,
        data=moved,
    )


def reset_event(source: str, reset: TimeReset) -> Event:
    return make_event(
        source=source,
        id=content_id("reset", str(reset.resets), str(reset.after)),
        type=RESET_TYPE,
        time=reset.time,
        data=reset,
    )


def ahead_problem(stored: StoredEvent) -> Problem:
    """Why a reading whose time lies ahead of the clock is quarantined."""
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
    """The event as a CloudEvent; data that is not JSON is base64, as CloudEvents defines."""
    members = to_cloudevent(event)
    try:
        msgspec.json.decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        del members["data"], members["datacontenttype"]
        members["data_base64"] = base64.b64encode(event.data).decode()
    return members


class StreamPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """After the event at position `after`, and after time had reached `time` following that many
    resets.
    """

    after: int
    time: int
    resets: int = 0

    def __lt__(self, other: StreamPosition) -> bool:
        return self.order() < other.order()

    def __le__(self, other: StreamPosition) -> bool:
        return self.order() <= other.order()

    def order(self) -> tuple[int, int, int]:
        """Sort key; time goes back at a reset."""
        return self.after, self.resets, self.time


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """Other plans run from `place` on; `position` is that of the record.

    `deploy` has the plan to run, `shadow` the plan to run beside; `note` changes nothing.
    """

    place: StreamPosition
    position: int
    act: PlanChangeKind
    policy: str
    plan: PolicyPlan | None = None
    why: str = ""
    """Why a policy is withdrawn: its open situations end with this reason."""


class TablesChange(msgspec.Struct, frozen=True):
    """Other tables apply from `place` on. Only a replay of the whole log meets it, because the
    engine commits before it changes tables.
    """

    place: StreamPosition
    pull: Callable[[], PullData]
    ontology: Ontology


StreamStep = TimeMoved | TimeReset | PlanChange | TablesChange
"""A step that a second pass applies again."""


class PlansAt(msgspec.Struct, frozen=True):
    """The running plans and their shadows."""

    plans: tuple[PolicyPlan, ...] = ()
    shadows: tuple[PolicyPlan, ...] = ()


class PolicyCommand(msgspec.Struct, frozen=True):
    """A request of a policy's action to stop a policy, caused by a detection."""

    what: Literal["delete", "pause"]
    policy: str
    detection: Detection
    skipped: SkippedAction | None = None
    """Set when the detection is too old: the command is recorded but not carried out."""


class PlanSource(Protocol):
    """Provides the plans and their changes; called by the engine while it holds its turn."""

    async def plans_at(self, position: int) -> PlansAt:
        """The plans that ran when the record had reached a position."""

    async def changes_after(self, position: int) -> Sequence[PlanChange]:
        """Later changes, in the order of the record."""

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        """The commands that a detection causes."""

    async def carry_out(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Records a command at this position, exactly once; None when there is no such policy.
        Decides by the policy's state where the detection was found: by the record up to position
        `met`, or `is_stopped` by a detection whose change is recorded later.
        """


class FixedPlans:
    """Plans without a record of changes."""

    def __init__(self, plans: Iterable[PolicyPlan]) -> None:
        self.plans = {plan.policy: plan for plan in plans}

    async def plans_at(self, position: int) -> PlansAt:
        return PlansAt(tuple(self.plans.values()))

    async def changes_after(self, position: int) -> Sequence[PlanChange]:
        return ()

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        return ()

    async def carry_out(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        return None


def position_of(step: StreamStep) -> StreamPosition:
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
    """Sorts recorded steps as they happened; at one position tables come before the plans that use
    them.

    A clock move always reaches a time that was not reached before, so at one position it comes
    before a change that saw that time and after one that did not.
    """

    def key(step: StreamStep) -> tuple[StreamPosition, int, int]:
        if isinstance(step, PlanChange):
            return position_of(step), 2, step.position
        return position_of(step), int(isinstance(step, TablesChange)), 0

    return deque(sorted([*steps, *changes], key=key))
