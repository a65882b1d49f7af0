"""Detections for people: newest first, of a policy or of a thing, with the concepts of what they
name. [CN-4, CN-5, CN-8]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from rapport.channel.channel import Channel, events_between
from rapport.core.detection import (
    DETECTED,
    ENDED,
    UNDECIDED,
    Detection,
    Undecided,
    situation_key,
)
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY, LATE
from rapport.kernel.tasks import run_blocking
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import SituationPlan

if TYPE_CHECKING:
    from rapport.node.node import Node

_PAGE = 1_000
_MOST_SEEN = 50_000

Concepts = Mapping[str, Mapping[str, str]]
"""By policy and alias."""


class BoundThing(msgspec.Struct, frozen=True):
    """A thing that a detection names."""

    alias: str
    id: str
    concept: str = ""
    """Empty when the policy is gone."""


class FoundSituation(msgspec.Struct, frozen=True, kw_only=True):
    """A detection, the end of a situation, or a match that could not be decided."""

    id: str
    policy: str
    time: int
    found: int
    """When the node found it."""
    kind: Literal["detected", "ended", "undecided"]
    things: list[BoundThing]
    silent: list[str] = []
    began: int = 0
    """Of an end: when the situation began."""
    late: bool = False
    history: bool = False
    """Found in imported readings."""
    causes: int = 0
    position: int = 0


class FoundPage(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first; go on with `before=next`, 0 when there is no more."""

    detections: list[FoundSituation]
    next: int = 0


async def find_situations(
    channel: Channel,
    concepts: Concepts,
    *,
    policy: str = "",
    thing: str = "",
    concept: str = "",
    before: int = 0,
    limit: int = 50,
) -> FoundPage:
    """The newest detections before a position of the channel (0: from the end)."""
    high = before - 1 if before else channel.last_position()
    found: list[FoundSituation] = []
    seen = 0
    while high > 0 and seen < _MOST_SEEN:
        low = max(high - _PAGE, 0)
        for stored in reversed(await events_between(channel, low + 1, high)):
            one = found_situation(stored, concepts)
            if one is None or (policy and one.policy != policy):
                continue
            if thing and not _names(one, concept, thing):
                continue
            found.append(one)
            if len(found) == limit:
                return FoundPage(detections=found, next=stored.position)
        seen, high = seen + _PAGE, low
    return FoundPage(detections=found, next=high + 1 if high > 0 else 0)


def found_situation(stored: StoredEvent, concepts: Concepts) -> FoundSituation | None:
    """A stored event of `detections` for people; None for what is none of the three kinds."""
    event = stored.event
    if event.type in (DETECTED, ENDED):
        detection = Detection.from_event(event)
        kind: Literal["detected", "ended"] = "detected" if event.type == DETECTED else "ended"
        return _shown(stored, detection, kind, concepts, [], detection.began or 0)
    if event.type == UNDECIDED:
        unsure = Undecided.from_event(event)
        return _shown(stored, unsure, "undecided", concepts, list(unsure.silent), 0)
    return None


def _shown(
    stored: StoredEvent,
    found: Detection | Undecided,
    kind: Literal["detected", "ended", "undecided"],
    concepts: Concepts,
    silent: list[str],
    began: int,
) -> FoundSituation:
    event: Event = stored.event
    known = concepts.get(found.policy, {})
    return FoundSituation(
        id=event.id,
        policy=found.policy,
        time=found.time,
        found=stored.received,
        kind=kind,
        things=[BoundThing(a, id, known.get(a, "")) for a, id in sorted(found.bindings.items())],
        silent=silent,
        began=began,
        late=LATE in event.headers,
        history=HISTORY in event.headers,
        causes=len(found.causes),
        position=stored.position,
    )


def _names(found: FoundSituation, concept: str, thing: str) -> bool:
    return any(
        one.id == thing and (not concept or one.concept in ("", concept)) for one in found.things
    )


class OpenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A situation that has begun and not ended."""

    policy: str
    things: list[BoundThing]
    began: int
    detection: str
    """The id of the detection of its beginning."""
    acknowledged_by: str = ""
    """Who looks after it; empty: nobody yet."""


async def open_lines(node: Node, most: int) -> list[OpenLine]:
    """The situations that are open, the newest first; those nobody looks after come first."""
    life = node.policies.life
    known = [one for policy in life.versions() for one in await life.situations.open(policy)]
    concepts, carer = concepts_by_alias(node), life.situations.acknowledged_by

    def lines() -> list[OpenLine]:
        return [
            OpenLine(
                policy=one.policy,
                things=[
                    BoundThing(alias, id, concepts.get(one.policy, {}).get(alias, ""))
                    for alias, id in sorted(one.bindings.items())
                ],
                began=one.began,
                detection=one.detection,
                acknowledged_by=carer(situation_key(one.policy, one.bindings, one.began)),
            )
            for one in known
        ]

    found = await run_blocking(lines)
    return sorted(found, key=lambda one: (bool(one.acknowledged_by), -one.began))[:most]


def plans_in_force(node: Node) -> list[Plan | SituationPlan]:
    """The plans of the policies that exist now and compile."""
    life = node.policies.life
    found = (life.compiled(name, version) for name, version in life.versions().items())
    return [one.plan for one in found if one is not None]


def aliases_of(plan: Plan | SituationPlan) -> dict[str, str]:
    """The concept of each alias of a plan."""
    if isinstance(plan, SituationPlan):
        return {bound.alias: bound.concept for bound in plan.bound_aliases()}
    sides = [side for term in plan.terms for side in (term.first, term.second)]
    return {side.alias: side.concept for side in sides}


def concepts_by_alias(node: Node) -> Concepts:
    """The concept of each alias of the policies in force."""
    return {plan.policy: aliases_of(plan) for plan in plans_in_force(node)}
