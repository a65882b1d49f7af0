"""Rules 9 and 11 to 14: times and recipients of publications, and passing on. [EN-3]"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

from rapport.ensemble.trace import IP, RADIO, Kind, TraceEvent
from rapport_lab.ensemble.rules.message_rules import PUTS
from rapport_lab.ensemble.rules.trace_index import Breach, Schedule, TraceIndex, Version, version_of

_CHOSEN_AT_RANDOM = frozenset({"period", "asked", "strategy", "pulled", ""})


def periodic_publish(index: TraceIndex) -> Iterator[Breach]:
    """Rule 9: the knowledge of each component is published at offset + n * period, no round left
    out except while it cannot be published. It speaks of a node's own components: what is passed
    on follows rules 12 and 24.
    """
    rounds: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    schedules: dict[str, Schedule] = {}
    for _position, event in index.of_kind(Kind.PUBLISHED, Kind.WITHHELD):
        schedule = schedules.get(event.node) or _schedule(index, event)
        if schedule is None or event.detail == "asked":
            continue
        if event.kind is Kind.PUBLISHED:
            schedules[event.node] = schedule
            if not schedule.is_kept(event.time_ms):
                yield Breach(9, "knowledge was published when it was not due", (event,))
        rounds[event.node, event.component].add(schedule.round_of(event.time_ms))
    yield from _left_out(index, schedules, rounds)


def _schedule(index: TraceIndex, event: TraceEvent) -> Schedule | None:
    facts = index.facts(event.node)
    if facts.knowledge_ms <= 0:
        return None
    offset = facts.knowledge_offset_ms
    if offset is None:
        offset = event.time_ms % facts.knowledge_ms
    return Schedule(facts.knowledge_ms, offset, index.system.late_ms)


def _left_out(
    index: TraceIndex, schedules: dict[str, Schedule], rounds: dict[tuple[str, str], set[int]]
) -> Iterator[Breach]:
    for node, schedule in schedules.items():
        for component in sorted(index.world.components_of(node)):
            for first, last in index.world.living.switched_on((node, component)):
                for number in _due_while_alive(index, node, schedule, first, last):
                    if not schedule.is_made_up(number, rounds[node, component]):
                        why = f"{component} was not published at {schedule.due_ms(number):.0f} ms"
                        yield Breach(9, why, (index.events[first],))


def _due_while_alive(
    index: TraceIndex, node: str, schedule: Schedule, first: int, last: int | None
) -> Iterator[int]:
    """Rounds that were due while a component lived and its node ran."""
    from_ms = index.events[first].time_ms
    to_ms = index.end_ms if last is None else index.events[last].time_ms
    if node not in index.world.running:
        yield from schedule.rounds_between(from_ms, to_ms)
        return
    for started, stopped in index.world.running.switched_on(node):
        begin = max(from_ms, index.events[started].time_ms)
        end = to_ms if stopped is None else min(to_ms, index.events[stopped].time_ms)
        yield from schedule.rounds_between(begin, end)


def ip_gossip(index: TraceIndex) -> Iterator[Breach]:
    """Rule 11: on IP a version goes to a subset, of the set size, of the nodes that are known."""
    recipients = _recipients(index)
    for position, event in index.of_kind(*PUTS):
        facts = index.facts(event.node)
        sent = recipients.get(position, [])
        others = [index.peer(index.events[at]) for at in sent]
        known = index.world.known_to(event.node, position)
        shown = (event, *(index.events[at] for at in sent[:3]))
        if len(set(others)) < len(others):
            yield Breach(11, "a version was sent to the same node twice", shown)
        if not facts.ip or facts.groups or event.detail not in _CHOSEN_AT_RANDOM:
            continue
        if not index.world.known:
            continue
        if not known.issuperset(others):
            yield Breach(11, "a version was sent to a node that was not known", shown)
        if len(others) not in _allowed_numbers(index, event, known):
            why = (
                f"a version went to {len(others)} of {len(known)} known nodes, not {facts.fan_out}"
            )
            yield Breach(11, why, shown)


def _allowed_numbers(index: TraceIndex, event: TraceEvent, known: set[str]) -> set[int]:
    """As many as the setting says, or as are known. Where a version comes from, which may not be
    recorded, may be drawn, but nothing is passed on to it.
    """
    number = min(index.facts(event.node).fan_out, len(known - {event.node}))
    homes = index.world.homes_of(event.component)
    if event.kind is Kind.PASSED_ON and (not homes or homes & known):
        return {number, number - 1}
    return {number}


def _recipients(index: TraceIndex) -> dict[int, list[int]]:
    """For each time a version was put into the world, where it was then sent on IP. Of parts the
    first stands for all.
    """
    found: defaultdict[int, list[int]] = defaultdict(list)
    for position, event in index.of_kind(Kind.KNOWLEDGE_SENT, Kind.PART_SENT):
        if event.medium != IP or (event.kind is Kind.PART_SENT and event.entries[0][0] != "0"):
            continue
        puts = [index.before(kind, version_of(event), position) for kind in PUTS]
        last = max((put for put in puts if put is not None), default=None)
        if last is not None and index.events[last].time_ms == event.time_ms:
            found[last].append(position)
    return found


def follow_retransmission_strategy(index: TraceIndex) -> Iterator[Breach]:
    """Rule 12: what the strategy says yes to is passed on; what is passed on was received, and the
    strategy said yes, or it was pulled, or the node is a grouper.
    """
    for position, event in index.of_kind(Kind.DECIDED):
        if event.detail == "pass" and not _is_followed(index, position):
            yield Breach(12, "the strategy said yes and the version was not passed on", (event,))
    for position, event in index.of_kind(Kind.PASSED_ON):
        version = version_of(event)
        taken = index.before(Kind.REPLACED, version, position)
        if taken is None and event.detail == "grouper":
            taken = index.before(Kind.KNOWLEDGE_RECEIVED, version, position)
        if taken is None and not index.world.is_local(event.node, event.component, position):
            yield Breach(12, "a version was passed on that the node does not have", (event,))
        if event.detail == "strategy":
            decided = index.before(Kind.DECIDED, version, position)
            if decided is None or index.events[decided].detail != "pass":
                yield Breach(12, "a version was passed on against the strategy", (event,))


def _is_followed(index: TraceIndex, position: int) -> bool:
    version = version_of(index.events[position])
    passed_on = index.after(Kind.PASSED_ON, version, position)
    bounded = index.of_version(Kind.BOUNDED, version)
    return (
        passed_on is not None
        or any(index.events[at].detail == "outside" for at in bounded)
        or index.events[position].time_ms >= index.end_ms
    )


def no_circular_retransmission(index: TraceIndex) -> Iterator[Breach]:
    """Rule 13: a node says a version once; a grouper with a radio once there, and once to other
    groupers. Answers to pulls are not counted, but each needs a pull since the version was last
    said, and what all in range were answered is not passed on to them afterwards.
    """
    said: dict[tuple[Version, bool], int] = {}
    answered: dict[Version, TraceEvent] = {}
    last_said: dict[Version, int] = {}
    pulls = _pulls(index)
    for position, event in index.of_kind(*PUTS):
        version = version_of(event)
        before = last_said.get(version)
        last_said[version] = position
        if event.detail == "answer":
            asked = pulls.get((event.node, event.component), [])
            if not _was_pulled(asked, event.version, -1 if before is None else before, position):
                yield Breach(13, "a version was said again though nobody pulled it", (event,))
            if _goes_by_radio(index, position):
                answered[version] = event
            continue
        if version in answered and event.detail != "grouper":
            why = "a version was passed on after all in range were answered with it"
            yield Breach(13, why, (answered[version], event))
        once = (version, event.detail == "grouper" and index.facts(event.node).radio)
        if once in said:
            shown = (index.events[said[once]], event)
            yield Breach(13, "a version was put into the world twice", shown)
        said[once] = position
    yield from _sent_more_often(index)


def _goes_by_radio(index: TraceIndex, put: int) -> bool:
    version, time_ms = version_of(index.events[put]), index.events[put].time_ms
    following = (index.after(kind, version, put) for kind in (Kind.KNOWLEDGE_SENT, Kind.PART_SENT))
    sent = [index.events[at] for at in following if at is not None]
    return any(one.medium == RADIO and one.time_ms == time_ms for one in sent)


def _pulls(index: TraceIndex) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """For each node and component, where a pull of it arrived, with the version the asker has."""
    pulls: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for position, event in index.of_kind(Kind.PULL_RECEIVED):
        for component, held in event.entries:
            pulls[event.node, component].append((position, held))
    return pulls


def _was_pulled(pulls: list[tuple[int, int]], version: int, first: int, last: int) -> bool:
    between = pulls[bisect_left(pulls, (first, 0)) : bisect_left(pulls, (last, 0))]
    return any(held < version for _position, held in between)


def _sent_more_often(index: TraceIndex) -> Iterator[Breach]:
    """What went over one medium to the same node more often than once and as it was asked for."""
    sent: Counter[tuple[Version, str, str, str]] = Counter()
    for _position, event in index.of_kind(Kind.KNOWLEDGE_SENT, Kind.PART_SENT):
        part = event.entries[0][0] if event.entries else ""
        way = (version_of(event), event.medium, event.other, part)
        sent[way] += 1
        if sent[way] > 1 + _answers(index, way[0]) + (_part_pulls(index, way[0]) if part else 0):
            to = "by radio" if event.medium == RADIO else f"to {event.other}"
            yield Breach(13, f"a version was sent {to} again", (event,))


def _answers(index: TraceIndex, version: Version) -> int:
    put = index.of_version(Kind.PASSED_ON, version)
    return sum(index.events[at].detail == "answer" for at in put)


def _part_pulls(index: TraceIndex, version: Version) -> int:
    return len(index.of_version(Kind.PART_PULL_RECEIVED, version))


def boundary_condition(index: TraceIndex) -> Iterator[Breach]:
    """Rule 14: where the boundary does not hold nothing is passed on, but what was pulled."""
    for position, event in index.of_kind(Kind.PASSED_ON):
        if not index.facts(event.node).boundary or event.detail != "strategy":
            continue
        asked = index.before(Kind.BOUNDED, version_of(event), position)
        if asked is None:
            yield Breach(14, "a version was passed on without a look at the boundary", (event,))
        elif index.events[asked].detail != "inside":
            shown = (index.events[asked], event)
            yield Breach(14, "a version was passed on beyond the boundary", shown)
