"""Places in the stream at which something other than a reading happened, and their order. Pure.
[PO-8, PO-9]

A place is the last position of `events` taken and the largest time reached by then. The second
reading after a crash meets what is on record in the same places, so it comes to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from rapport.core.detection import Detection, SkippedAction
from rapport.policy.engine.events import TimeMoved
from rapport.policy.plan import Plan

Act = Literal["deploy", "withdraw", "shadow", "promote", "drop", "note"]


class Place(msgspec.Struct, frozen=True, order=True):
    """After the events up to position `after`, and after time had reached `time`."""

    after: int
    time: int


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """From `place` on other plans run; `position` is where the change is on record.

    `deploy` has the plan that runs from then on, `shadow` the one that runs beside; `note` changes
    nothing about what runs.
    """

    place: Place
    position: int
    act: Act
    policy: str
    plan: Plan | None = None


Again = TimeMoved | PlanChange
"""What is met again on a second reading."""


class PlansAt(msgspec.Struct, frozen=True):
    """The plans that run, and those that run in the shadow of one of them."""

    plans: tuple[Plan, ...] = ()
    shadows: tuple[Plan, ...] = ()


class Command(msgspec.Struct, frozen=True):
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

    def commands_of(self, detection: Detection) -> Sequence[Command]:
        """What a detection's policy does to policies."""

    async def obey(
        self, command: Command, place: Place, *, met: int, is_stopped: bool
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

    def commands_of(self, detection: Detection) -> Sequence[Command]:
        """None."""
        return ()

    async def obey(
        self, command: Command, place: Place, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Nothing to do."""
        return None


def place_of(step: Again) -> Place:
    """Where it happened."""
    return Place(step.after, step.time) if isinstance(step, TimeMoved) else step.place


def in_order(moved: Iterable[TimeMoved], changes: Iterable[PlanChange]) -> deque[Again]:
    """Both as they happened.

    Moving time on always reaches a time that was not reached before, so at one place it came before
    a change that saw that time, and after one that did not.
    """

    def key(step: Again) -> tuple[int, int, int, int]:
        place = place_of(step)
        if isinstance(step, TimeMoved):
            return place.after, place.time, 0, 0
        return place.after, place.time, 1, step.position

    steps: list[Again] = [*moved, *changes]
    return deque(sorted(steps, key=key))
