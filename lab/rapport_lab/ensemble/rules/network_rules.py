"""Rules 1 to 4 and 10: nodes, the network between them, and broadcasting. [EN-3]"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rapport.ensemble.trace import IP, RADIO, Kind, TraceEvent
from rapport_lab.ensemble.rules.breach import Breach
from rapport_lab.ensemble.rules.deliveries import Deliveries
from rapport_lab.ensemble.rules.index import (
    EARLY_MS,
    RECEIVED,
    SENT,
    TraceIndex,
    is_of_groupers,
    version_of,
)

_SEEN_BY_ALL = (
    Kind.PUBLISHED,
    Kind.KNOWLEDGE_RECEIVED,
    Kind.REPLACED,
    Kind.EVALUATED,
    Kind.EXCHANGED,
    Kind.STOPPED,
)
_ALLOWED_TO_DROP = frozenset({"full", "forged", "malformed", "future", "equal_id"})


def no_local_communication(index: TraceIndex) -> Iterator[Breach]:
    """Rule 1: no node talks to itself, and none takes its own component for a replica."""
    for position, event in index.of_kind(Kind.REPLACED):
        if index.world.is_local(event.node, event.component, position):
            yield Breach(1, "a component was replaced by what others say of it", (event,))
    for _position, event in index.of_kind(*RECEIVED, *SENT):
        if index.peer(event) == event.node:
            yield Breach(1, "a node sent to itself, or heard itself", (event,))


def shared_node_interface(index: TraceIndex) -> Iterator[Breach]:
    """Rule 2: a newer version that arrived is the node's at once, the same for all on it."""
    held: defaultdict[str, dict[str, TraceEvent]] = defaultdict(dict)
    for position, event in index.of_kind(*_SEEN_BY_ALL):
        replica = held[event.node].get(event.component)
        if event.kind is Kind.STOPPED:
            held[event.node].clear()
        elif event.kind is Kind.REPLACED:
            if replica is not None and not _may_replace(index, position, replica):
                yield Breach(2, "a version was replaced by one that is not newer", (replica, event))
            held[event.node][event.component] = event
        elif event.kind is Kind.PUBLISHED:
            held[event.node][event.component] = event  # should it ever leave this node
        elif event.kind is Kind.KNOWLEDGE_RECEIVED:
            if _is_newer(index, position, replica) and not _was_taken(index, position):
                yield Breach(2, "a newer version arrived and did not become the replica", (event,))
        elif not event.version or index.world.is_local(event.node, event.component, position):
            continue  # what lives here has no replica: rule 6
        elif replica is None or replica.version != event.version:
            seen = (event,) if replica is None else (replica, event)
            yield Breach(2, "an ensemble saw another version than the node has", seen)


def _is_newer(index: TraceIndex, position: int, replica: TraceEvent | None) -> bool:
    event = index.events[position]
    if is_of_groupers(event) or index.world.is_local(event.node, event.component, position):
        return False
    if event.version > event.wall_ms + index.facts(event.node).ahead_ms:
        return False
    return replica is None or event.version > replica.version


def _may_replace(index: TraceIndex, position: int, replica: TraceEvent) -> bool:
    """Newer, or the node had forgotten the component; what lives here is left to rule 1."""
    event = index.events[position]
    if event.version > replica.version:
        return True
    if event.time_ms >= replica.time_ms + index.facts(event.node).forget_ms:
        return True
    return index.world.is_local(event.node, event.component, position)


def _was_taken(index: TraceIndex, position: int) -> bool:
    """Replaced, or dropped for a reason that has nothing to do with its age."""
    event = index.events[position]
    return any(
        version_of(following) == version_of(event)
        and (
            following.kind is Kind.REPLACED
            or (following.kind is Kind.DROPPED and following.detail in _ALLOWED_TO_DROP)
        )
        for following in index.reaction(position)
    )


def network_topology(index: TraceIndex) -> Iterator[Breach]:
    """Rule 3: what arrives was sent by a node that reached the receiver, and so long ago as the
    network takes; what was sent to a node in reach arrives or is lost.
    """
    deliveries = Deliveries(index)
    for position, event in index.of_kind(*SENT):
        sendings = deliveries.sendings_of(event)
        if not index.is_recorded(index.peer(event)):
            continue
        if not sendings:
            yield Breach(3, "a message arrived that its sender did not send at that time", (event,))
        elif not any(_reaches(index, sending, position) for sending in sendings):
            sent = index.events[sendings[-1]]
            yield Breach(3, "a message arrived at a node that was out of reach", (sent, event))
    for position, event in index.of_kind(*RECEIVED):
        receiver = index.peer(event)
        if event.medium != IP or not _must_arrive(index, position, receiver):
            continue
        if not deliveries.is_accounted_for(event, receiver):
            yield Breach(3, "a message neither arrived nor was lost", (event,))


def _reaches(index: TraceIndex, sending: int, arrival: int) -> bool:
    sent, arrived = index.events[sending], index.events[arrival]
    if sent.medium == IP and index.peer(sent) != arrived.node:
        return False
    links, link = index.world.links, (sent.node, arrived.node, sent.medium)
    # A medium may let a message wait before it is on the air.
    return not links or links.holds_sometime(link, sending, arrival)


def _must_arrive(index: TraceIndex, sending: int, receiver: str) -> bool:
    """Whether the recording shows what became of a message to a node."""
    event, system = index.events[sending], index.system
    until_ms = event.time_ms + system.longest_ms
    if not system.losses or until_ms >= index.end_ms:
        return False
    last = bisect_left(index.events, until_ms + EARLY_MS, key=_time_ms)
    link = (event.node, receiver, event.medium)
    if not index.world.links.holds_throughout(link, sending, last):
        return False
    return all(index.world.runs_on(node, sending, last) for node in (event.node, receiver))


def _time_ms(event: TraceEvent) -> float:
    return event.time_ms


def radio_broadcast(index: TraceIndex) -> Iterator[Breach]:
    """Rule 4: a message on the radio has no addressee and reaches all in range."""
    kinds = [kind for kind in RECEIVED if kind is not Kind.PART_SENT]
    yield from _not_broadcast(index, 4, kinds)


def radio_gossip(index: TraceIndex) -> Iterator[Breach]:
    """Rule 10: so do the parts of a message."""
    yield from _not_broadcast(index, 10, [Kind.PART_SENT])


def _not_broadcast(index: TraceIndex, rule: int, kinds: Sequence[Kind]) -> Iterator[Breach]:
    deliveries = Deliveries(index)
    for position, event in index.of_kind(*kinds):
        if event.medium != RADIO:
            continue
        if event.other:
            yield Breach(rule, "a message on the radio was addressed to one node", (event,))
        for receiver in index.world.in_range(event.node, RADIO, position):
            if _must_arrive(index, position, receiver) and not deliveries.is_accounted_for(
                event, receiver
            ):
                why = f"a message on the radio passed by {receiver}, which was in range"
                yield Breach(rule, why, (event,))
