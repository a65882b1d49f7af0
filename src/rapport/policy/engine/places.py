"""Places in the stream at which something other than a reading happened, and their order. Pure.
[PO-8, PO-9]

A place is the last position of `events` taken and the largest time reached by then. The second
reading after a crash meets what is on record in the same places, so it comes to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from rapport.core.detection import Detection, SkippedAction
from rapport.policy.engine.events import TimeMoved, TimeReset
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.runners.base import END_OF_TIME, PullData

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
