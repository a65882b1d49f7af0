"""Contents of a node's page: counts, newest detections, deliveries, quarantined readings. [UX-6]"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.channel.channel import events_between
from rapport.channel.event_lookup import stage_of
from rapport.communication.ledger_rows import LedgerRow
from rapport.communication.texts import shown_sender, shown_text
from rapport.core.detection import DETECTED, UNDECIDED, Detection, Undecided
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY, LATE
from rapport.kernel.telemetry import DegradedCondition
from rapport.node.found_situations import (
    FoundSituation,
    OpenLine,
    concepts_by_alias,
    find_situations,
    open_lines,
)
from rapport.node.node import Node
from rapport.node.troubles import RejectedReading, Trouble, troubles_of
from rapport.policy.lifecycle.registry import PolicyView

_NEWEST = 12
_LOOK_BACK = 500
_MOST_PEOPLE = 20
_MOST_OPEN = 50


class ChannelCount(msgspec.Struct, frozen=True):
    """A channel and how many events it has taken."""

    name: str
    count: int


class DetectionLine(msgspec.Struct, frozen=True):
    """A detection for the page, or an undecided one because of the sources in `silent`."""

    id: str
    time: int
    policy: str
    bindings: dict[str, str]
    causes: list[str]
    silent: list[str] = []
    late: bool = False
    """Found by a second look."""
    history: bool = False
    """As of the past: found in readings that were imported."""


class DeliveryLine(msgspec.Struct, frozen=True):
    """What became of one message at one person or address."""

    time: int
    message: str
    peer: str
    adapter: str
    state: str
    text: str


class HeldBackLine(msgspec.Struct, frozen=True):
    """A reading in quarantine."""

    time: int
    source: str
    reason: str
    hint: str


class HeldCount(msgspec.Struct, frozen=True):
    """The number of quarantined readings of one source for one reason."""

    source: str
    reason: str
    count: int


class NotifiedPerson(msgspec.Struct, frozen=True):
    """How far a message got with one person."""

    peer: str
    state: str
    time: int
    answer: str = ""
    reason: str = ""


class NotifiedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A message and the people it goes to."""

    message: str
    time: int
    text: str
    state: str
    urgent: bool = False
    policy: str = ""
    sender: str = ""
    detection: str = ""
    answered_by: str = ""
    answer: str = ""
    people: list[NotifiedPerson] = []


class Overview(msgspec.Struct, frozen=True):
    """Everything the page shows; bounded, whatever the node holds."""

    channels: list[ChannelCount]
    detections: list[DetectionLine]
    deliveries: list[DeliveryLine]
    quarantine: list[HeldBackLine]
    held: list[HeldCount] = []
    policies: list[PolicyView] = []
    policies_in_all: int = 0
    conditions: list[DegradedCondition] = []
    """Why the node is degraded; empty when it is not."""
    troubles: list[Trouble] = []
    """Everything that is wrong, the worst first."""
    open: list[OpenLine] = []
    """Situations that have begun and not ended."""
    situations: list[FoundSituation] = []
    """The newest detections, with the concepts of what they name."""
    notified: list[NotifiedLine] = []
    """The newest messages, and who answered."""


async def overview(node: Node) -> Overview:
    """The state of now; cost does not depend on the length of the logs."""
    await node.ledger.refresh()
    await node.things.refresh()
    found = await find_situations(
        node.channels.channel("detections"), concepts_by_alias(node), limit=_NEWEST
    )
    names = sorted(node.channels.names(), key=lambda name: (stage_of(name), name))
    policies = node.policies.life.policies()
    return Overview(
        channels=[ChannelCount(n, node.channels.channel(n).last_position()) for n in names],
        detections=await _detections(node),
        deliveries=await asyncio.to_thread(_deliveries, node),
        quarantine=[_quarantine_line(item) for item in await _newest(node, "quarantine")],
        held=await _quarantine_counts(node),
        policies=sorted(policies, key=_worth_a_look)[:_NEWEST],
        policies_in_all=len(policies),
        conditions=node.conditions.current(),
        troubles=await troubles_of(node),
        open=await open_lines(node, _MOST_OPEN),
        situations=found.detections,
        notified=await asyncio.to_thread(_notified, node),
    )


def _worth_a_look(policy: PolicyView) -> tuple[bool, bool, float, str]:
    """Sorts by that: broken ones first, then those that are tried out, then those that cost
    most.
    """
    is_sound, is_alone = not policy.problems, not policy.shadow
    return is_sound, is_alone, -policy.counts.cost_ms, policy.name


async def _quarantine_counts(node: Node) -> list[HeldCount]:
    """Readings in quarantine now, most first; released ones do not count."""
    quarantined = node.releasing.index
    await quarantined.refresh()
    return [HeldCount(*key, count) for key, count in quarantined.counts().most_common(_NEWEST)]


async def _newest(node: Node, name: str, count: int = _NEWEST) -> list[StoredEvent]:
    channel = node.channels.channel(name)
    last = channel.last_position()
    return list(reversed(await events_between(channel, max(last - count, 0) + 1, last)))


async def _detections(node: Node) -> list[DetectionLine]:
    """The newest; the channel also holds late readings and moves of the clock."""
    found = map(_detection, await _newest(node, "detections", _LOOK_BACK))
    return [line for line in found if line is not None][:_NEWEST]


def _detection(stored: StoredEvent) -> DetectionLine | None:
    event = stored.event
    if event.type == DETECTED:
        return _line(event, Detection.from_event(event), [])
    if event.type == UNDECIDED:
        unsure = Undecided.from_event(event)
        return _line(event, unsure, list(unsure.silent))
    return None


def _line(event: Event, found: Detection | Undecided, silent: list[str]) -> DetectionLine:
    causes = [cause for _, cause in found.causes]
    return DetectionLine(
        id=event.id,
        time=found.time,
        policy=found.policy,
        bindings=found.bindings,
        causes=causes,
        silent=silent,
        late=LATE in event.headers,
        history=HISTORY in event.headers,
    )


def _deliveries(node: Node) -> list[DeliveryLine]:
    lines = [
        DeliveryLine(
            time=row.time,
            message=message.message,
            peer=row.peer,
            adapter=row.adapter or "-",
            state=row.state,
            text=message.text,
        )
        for message in node.ledger.messages(limit=_NEWEST)
        for row in node.ledger.rows(message=message.message)
        if row.peer
    ]
    return sorted(lines, key=lambda line: -line.time)[: 2 * _NEWEST]


def _notified(node: Node) -> list[NotifiedLine]:
    return [
        NotifiedLine(
            message=one.message,
            time=one.time,
            text=shown_text(one.type, one.subtype, one.text),
            state=one.state,
            urgent=one.urgent,
            policy=one.policy,
            sender=shown_sender(one.sender, one.policy),
            detection=one.detection,
            answered_by=one.answered_by,
            answer=one.answer,
            people=_people(node.ledger.rows(message=one.message)),
        )
        for one in node.ledger.messages(limit=_NEWEST)
    ]


def _people(rows: list[LedgerRow]) -> list[NotifiedPerson]:
    """Each person once: by what they answered, else by what became of it last."""
    newest: dict[str, LedgerRow] = {}
    for row in sorted(rows, key=lambda row: (row.state == "answered", row.position)):
        if row.peer:
            newest[row.peer] = row
    return [
        NotifiedPerson(row.peer, row.state, row.time, row.answer, row.reason)
        for row in newest.values()
    ][:_MOST_PEOPLE]


def _quarantine_line(stored: StoredEvent) -> HeldBackLine:
    try:
        data: RejectedReading = stored.event.payload_as(RejectedReading)
    except InvalidInput:
        data = RejectedReading()
    reason = data.reason or stored.event.type
    return HeldBackLine(stored.received, data.source or stored.event.source, reason, data.hint)
