"""Rules 1 to 8 and 10: nodes, the network, broadcasts, parts and stored knowledge. [EN-3]"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rapport.ensemble.trace import IP, RADIO, Kind, TraceEvent
from rapport_lab.ensemble.rules.trace_index import (
    EARLY_MS,
    RECEIVED,
    SENT,
    Breach,
    Deliveries,
    TraceIndex,
    Version,
    is_of_groupers,
    version_of,
)

PUTS = (Kind.PUBLISHED, Kind.PASSED_ON)
_TO_RADIO = frozenset({"period", "asked", "strategy", "pulled", ""})
_Parts = dict[tuple[Version, str, str], set[int]]


def follow_publish_strategy(index: TraceIndex) -> Iterator[Breach]:
    """Rule 5: what is published is sent whole, with all its parts, then or later."""
    for position, event in index.of_kind(*PUTS):
        facts = index.facts(event.node)
        if facts.radio and event.detail in _TO_RADIO and not _was_sent(index, position, RADIO):
            yield Breach(5, "a version was put into the world and not sent by radio", (event,))
    yield from _incomplete(index)


def _was_sent(index: TraceIndex, position: int, medium: str) -> bool:
    event = index.events[position]
    for kind in (Kind.KNOWLEDGE_SENT, Kind.PART_SENT):
        for sent in index.of_version(kind, version_of(event)):
            if sent > position and index.events[sent].medium == medium:
                return True
    return _ended(index, position)


def _ended(index: TraceIndex, position: int) -> bool:
    """Whether the recording ended then, or the node stopped before it did anything else."""
    event = index.events[position]
    if event.time_ms >= index.end_ms:
        return True
    following = index.next_of_node(position)
    return following is not None and following.kind is Kind.STOPPED


def _incomplete(index: TraceIndex) -> Iterator[Breach]:
    """Messages some of whose parts were sent to somebody who had not asked for these only."""
    sent: _Parts = defaultdict(set)
    last: dict[tuple[Version, str, str], int] = {}
    for position, event in index.of_kind(Kind.PART_SENT):
        way = (version_of(event), event.medium, event.other)
        sent[way].add(int(event.entries[0][0]))
        last[way] = position
    for way, indices in sent.items():
        event = index.events[last[way]]
        if len(indices) == event.entries[0][1] or _ended(index, last[way]):
            continue
        if indices <= _asked_for(index, way) or not _was_put(index, last[way]):
            continue  # answers only, or what rule 8 finds
        yield Breach(5, f"only {len(indices)} of {event.entries[0][1]} parts were sent", (event,))


def _asked_for(index: TraceIndex, way: tuple[Version, str, str]) -> set[int]:
    """The parts of a version that were pulled from a node over a medium, by one node on IP."""
    version, medium, other = way
    pulls = (index.events[at] for at in index.of_version(Kind.PART_PULL_RECEIVED, version))
    return {
        int(number)
        for pull in pulls
        if pull.medium == medium and (not other or pull.other == other)
        for number, _zero in pull.entries
    }


def _was_put(index: TraceIndex, position: int) -> bool:
    version = version_of(index.events[position])
    return any(index.before(kind, version, position) is not None for kind in PUTS)


def local_message(index: TraceIndex) -> Iterator[Breach]:
    """Rule 6: what lives on a node is seen there as it is now, never as a replica."""
    for position, event in index.of_kind(Kind.EVALUATED, Kind.EXCHANGED):
        if not index.world.living:
            continue
        is_local = index.world.is_local(event.node, event.component, position)
        if is_local and event.version:
            yield Breach(6, "a local component was seen through a replica", (event,))
        elif not is_local and not event.version:
            yield Breach(6, "a component of another node was seen without a replica", (event,))
    for _position, event in index.of_kind(Kind.PUBLISHED):
        if abs(event.wall_ms - event.value) > index.system.late_ms + 1:
            yield Breach(6, "a node published what its component was at another time", (event,))


def combine_parts(index: TraceIndex) -> Iterator[Breach]:
    """Rule 7: a version is taken only after all of it arrived."""
    received: defaultdict[Version, set[int]] = defaultdict(set)
    whole: set[Version] = set()
    watched = (Kind.KNOWLEDGE_RECEIVED, Kind.PART_RECEIVED, Kind.REPLACED)
    for _position, event in index.of_kind(*watched):
        version = version_of(event)
        if event.kind is Kind.KNOWLEDGE_RECEIVED:
            whole.add(version)
        elif event.kind is Kind.PART_RECEIVED:
            number, count = event.entries[0]
            received[version].add(int(number))
            if len(received[version]) == count:
                whole.add(version)
        elif version not in whole:
            yield Breach(7, "a version became a replica before all of it arrived", (event,))


def send_what_was_put(index: TraceIndex) -> Iterator[Breach]:
    """Rule 8: knowledge is sent only when the node put it into the world; parts also when asked
    for, and what groupers say of groups, which rules 15 to 17 look at.
    """
    for position, event in index.of_kind(Kind.KNOWLEDGE_SENT, Kind.PART_SENT):
        if _was_put(index, position) or was_asked_for(index, position):
            continue
        if is_of_groupers(event) and index.facts(event.node).grouper:
            continue
        yield Breach(8, "knowledge was sent that the node had not put into the world", (event,))


def was_asked_for(index: TraceIndex, position: int) -> bool:
    """Whether a part was sent to who had pulled it before, over the same medium."""
    event = index.events[position]
    if event.kind is not Kind.PART_SENT:
        return False
    asked = index.of_version(Kind.PART_PULL_RECEIVED, version_of(event))
    wanted = event.entries[0][0]
    return any(
        number == wanted
        for pull in (index.events[at] for at in asked if at < position)
        if pull.medium == event.medium and (not event.other or pull.other == event.other)
        for number, _zero in pull.entries
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
