"""Rules 5 to 8: parts, the node's storage, and that what is said is what was put there. [EN-3]"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rapport.ensemble.trace import RADIO, Kind
from rapport_lab.ensemble.rules.breach import Breach
from rapport_lab.ensemble.rules.index import TraceIndex, Version, is_of_groupers, version_of

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
