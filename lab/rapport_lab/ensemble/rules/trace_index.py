"""A trace indexed for the rules: state of the world, deliveries, rounds, buffers; breaches found.
[EN-3, EN-8]

The index is built once, so that each rule reads only the events that concern it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from math import ceil, floor
from typing import Final

import msgspec

from rapport.ensemble.trace import Kind, NodeFacts, Trace, TraceEvent

MOST_SHOWN = 20


class Breach(msgspec.Struct, frozen=True):
    """One place where a trace breaks a rule."""

    rule: int
    why: str
    events: tuple[TraceEvent, ...]
    """What happened; at most a few, in order of time."""

    def as_text(self) -> str:
        """One line for the reason and one for each event."""
        lines = [f"rule {self.rule}: {self.why}"]
        return "\n".join(lines + [f"    {event_text(event)}" for event in self.events])


def event_text(event: TraceEvent) -> str:
    """An event in one line, empty fields left out."""
    words = [f"{event.time_ms:.0f} ms", event.node, event.kind.value]
    if event.component:
        words.append(f"{event.component} v{event.version}")
    words += [
        f"{name}={value}"
        for name, value in (
            ("other", event.other),
            ("medium", event.medium),
            ("detail", event.detail),
            ("value", event.value),
            ("entries", ", ".join(f"{name} {number}" for name, number in event.entries[:8])),
        )
        if value
    ]
    return " ".join(words)


def report(breaches: Iterable[Breach]) -> str:
    """For people: how often each rule was broken, then the first breaches in full."""
    found = list(breaches)
    if not found:
        return "no rule was broken"
    counts: dict[int, int] = {}
    for breach in found:
        counts[breach.rule] = counts.get(breach.rule, 0) + 1
    lines = [f"rule {rule}: {counts[rule]} times" for rule in sorted(counts)]
    lines += ["", *(breach.as_text() for breach in found[:MOST_SHOWN])]
    if len(found) > MOST_SHOWN:
        lines.append(f"... and {len(found) - MOST_SHOWN} more")
    return "\n".join(lines)


class Timeline:
    """Facts that are switched on and off; asked for any position in O(log changes)."""

    def __init__(self) -> None:
        self._changes: dict[Hashable, tuple[list[int], list[bool]]] = {}

    def __bool__(self) -> bool:
        """Whether anything was recorded; what was not recorded cannot be held against anybody."""
        return bool(self._changes)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._changes

    def switch(self, key: Hashable, position: int, on: bool) -> None:
        """Positions have to come in order."""
        positions, states = self._changes.setdefault(key, ([], []))
        positions.append(position)
        states.append(on)

    def holds(self, key: Hashable, position: int) -> bool:
        """Whether it held just after what happened at a position."""
        positions, states = self._changes.get(key, ((), ()))
        change = bisect_right(positions, position)
        return change > 0 and states[change - 1]

    def holds_throughout(self, key: Hashable, first: int, last: int) -> bool:
        """Whether it held at a position and was not switched off up to another."""
        positions, states = self._changes.get(key, ((), ()))
        start, end = bisect_right(positions, first), bisect_right(positions, last)
        return start > 0 and all(states[start - 1 : end])

    def holds_sometime(self, key: Hashable, first: int, last: int) -> bool:
        """Whether it held at a position, or was switched on after it and up to another."""
        positions, states = self._changes.get(key, ((), ()))
        start, end = bisect_right(positions, first), bisect_right(positions, last)
        return any(states[max(start - 1, 0) : end])

    def switched_on(self, key: Hashable) -> Iterator[tuple[int, int | None]]:
        """The stretches in which it held: first position, and the one that ended it (or none)."""
        positions, states = self._changes.get(key, ((), ()))
        began: int | None = None
        for position, on in zip(positions, states, strict=True):
            if on and began is None:
                began = position
            elif not on and began is not None:
                yield began, position
                began = None
        if began is not None:
            yield began, None


ON: Final = {Kind.STARTED, Kind.DEPLOYED, Kind.LINKED, Kind.KNOWN}


class RecordedWorld:
    """Read from the facts in a trace. What was never recorded is unknown and breaks no rule."""

    def __init__(self, index: TraceIndex) -> None:
        self.running, self.living = Timeline(), Timeline()
        self.links, self.known = Timeline(), Timeline()
        self._reached: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._acquainted: defaultdict[str, set[str]] = defaultdict(set)
        self._lives_on: defaultdict[str, set[str]] = defaultdict(set)
        self._homes: defaultdict[str, set[str]] = defaultdict(set)
        for position, event in index.of_kind(Kind.STARTED, Kind.STOPPED):
            self.running.switch(event.node, position, event.kind in ON)
        for position, event in index.of_kind(Kind.DEPLOYED, Kind.REMOVED):
            self.living.switch((event.node, event.component), position, event.kind in ON)
            self._lives_on[event.node].add(event.component)
            self._homes[event.component].add(event.node)
        for position, event in index.of_kind(Kind.LINKED, Kind.UNLINKED):
            self._link(position, event.node, index.peer(event), event.medium, event.kind in ON)
        for position, event in index.of_kind(Kind.KNOWN, Kind.FORGOTTEN):
            self.known.switch((event.node, index.peer(event)), position, event.kind in ON)
            self._acquainted[event.node].add(index.peer(event))

    def _link(self, position: int, node: str, other: str, medium: str, on: bool) -> None:
        self.links.switch((node, other, medium), position, on)
        self._reached[node, medium].add(other)

    def runs(self, node: str, position: int) -> bool:
        """Whether a node ran; one whose start was not recorded always did."""
        return node not in self.running or self.running.holds(node, position)

    def runs_on(self, node: str, first: int, last: int) -> bool:
        """Whether a node ran from one position to another without a stop."""
        return node not in self.running or self.running.holds_throughout(node, first, last)

    def is_local(self, node: str, component: str, position: int) -> bool:
        """Whether a component lived on a node."""
        return self.living.holds((node, component), position)

    def components_of(self, node: str) -> set[str]:
        """All that ever lived on a node."""
        return self._lives_on.get(node, set())

    def homes_of(self, component: str) -> set[str]:
        """All nodes that a component ever lived on."""
        return self._homes.get(component, set())

    def in_range(self, node: str, medium: str, position: int) -> Iterator[str]:
        """Whom a node reached, among those that ran; costs as many as it ever reached."""
        for other in sorted(self._reached.get((node, medium), ())):
            if self.links.holds((node, other, medium), position) and self.runs(other, position):
                yield other

    def known_to(self, node: str, position: int) -> set[str]:
        """Whose addresses a node knew."""
        return {
            other
            for other in self._acquainted.get(node, ())
            if self.known.holds((node, other), position)
        }


RECEIVED: Final = {
    Kind.KNOWLEDGE_SENT: Kind.KNOWLEDGE_RECEIVED,
    Kind.HEADERS_SENT: Kind.HEADERS_RECEIVED,
    Kind.PULL_SENT: Kind.PULL_RECEIVED,
    Kind.PART_SENT: Kind.PART_RECEIVED,
    Kind.PART_PULL_SENT: Kind.PART_PULL_RECEIVED,
}
"""Each kind of sending and the kind of its arrival."""
SENT: Final = {received: sent for sent, received in RECEIVED.items()}

Version = tuple[str, str, int]
"""Node, component and version."""
EARLY_MS: Final = 0.001
"""What the sum of many periods may be off."""


def is_of_groupers(event: TraceEvent) -> bool:
    """Whether it is about what groupers say to each other and to members: rules 15 to 17."""
    return event.component.startswith("grouper/")


def version_of(event: TraceEvent) -> Version:
    """At which node which version of which component."""
    return event.node, event.component, event.version


class TraceIndex:
    """Positions of events by kind, node and version, and what the world was like; O(n) to make."""

    def __init__(self, trace: Trace) -> None:
        self.system = trace.system
        self.events = trace.events
        self.by_kind: defaultdict[Kind, list[int]] = defaultdict(list)
        self.by_node: defaultdict[str, list[int]] = defaultdict(list)
        self._by_version: defaultdict[tuple[Kind, Version], list[int]] = defaultdict(list)
        self._rank: list[int] = []
        self._names = {facts.address: node for node, facts in self.system.nodes.items()}
        last_ms = self.events[-1].time_ms if self.events else 0.0
        self.end_ms = last_ms if self.system.end_ms is None else self.system.end_ms
        for position, event in enumerate(self.events):
            of_node = self.by_node[event.node]
            self._rank.append(len(of_node))
            of_node.append(position)
            self.by_kind[event.kind].append(position)
            if event.component:
                self._by_version[event.kind, version_of(event)].append(position)
        self.world = RecordedWorld(self)

    def of_kind(self, *kinds: Kind) -> list[tuple[int, TraceEvent]]:
        """Events of some kinds with their positions, in order."""
        positions = [position for kind in kinds for position in self.by_kind[kind]]
        if len(kinds) > 1:
            positions.sort()
        return [(position, self.events[position]) for position in positions]

    def of_version(self, kind: Kind, version: Version) -> list[int]:
        """Where a kind of event concerned a version at a node."""
        return self._by_version.get((kind, version), [])

    def before(self, kind: Kind, version: Version, position: int) -> int | None:
        """The last such event before a position."""
        positions = self.of_version(kind, version)
        found = bisect_left(positions, position)
        return positions[found - 1] if found else None

    def after(self, kind: Kind, version: Version, position: int) -> int | None:
        """The first such event after a position."""
        positions = self.of_version(kind, version)
        found = bisect_left(positions, position + 1)
        return positions[found] if found < len(positions) else None

    def reaction(self, position: int) -> list[TraceEvent]:
        """What the same node did at the same time, up to what it received next."""
        return [self.events[at] for at in self._reaction_positions(position)]

    def _reaction_positions(self, position: int) -> list[int]:
        event = self.events[position]
        of_node, first = self.by_node[event.node], self._rank[position] + 1
        last = first
        while last < len(of_node):
            following = self.events[of_node[last]]
            if following.time_ms != event.time_ms or following.kind in SENT:
                break
            last += 1
        return of_node[first:last]

    def next_of_node(self, position: int) -> TraceEvent | None:
        """The next event of the same node that is later, or its stop."""
        event = self.events[position]
        of_node = self.by_node[event.node]
        for rank in range(self._rank[position] + 1, len(of_node)):
            following = self.events[of_node[rank]]
            if following.time_ms > event.time_ms or following.kind is Kind.STOPPED:
                return following
        return None

    def is_recorded(self, node: str) -> bool:
        """Whether the node wrote into this trace; what another sent or published is not known."""
        return node in self.system.nodes or node in self.by_node

    def facts(self, node: str) -> NodeFacts:
        """What a node was told to do; the defaults for one that is not named."""
        return self.system.nodes.get(node, _UNKNOWN)

    def peer(self, event: TraceEvent) -> str:
        """The other node of an event, by name also where the event has its address."""
        return self.name_of(event.other) if event.other else ""

    def name_of(self, address: str) -> str:
        """The node at an address; a name stays as it is."""
        return self._names.get(address, address)


_UNKNOWN: Final = NodeFacts()


class Schedule(msgspec.Struct, frozen=True):
    """The times `offset_ms + n * period_ms`, each kept when not more than `late_ms` late."""

    period_ms: float
    offset_ms: float
    late_ms: float = 0.0

    def round_of(self, time_ms: float) -> int:
        """The number of the last round due at a time."""
        return floor((time_ms - self.offset_ms + EARLY_MS) / self.period_ms)

    def due_ms(self, round_number: int) -> float:
        """When a round is due."""
        return self.offset_ms + round_number * self.period_ms

    def is_kept(self, time_ms: float) -> bool:
        """Whether something that happened at a time was due."""
        lateness = time_ms - self.due_ms(self.round_of(time_ms))
        return lateness <= self.late_ms + 2 * EARLY_MS

    def is_made_up(self, round_number: int, kept: Collection[int]) -> bool:
        """Whether a round was kept, or one that was due while this one was not too late yet: a node
        that is late by more than a period leaves out what it slept through.
        """
        last = self.round_of(self.due_ms(round_number) + self.late_ms)
        return any(number in kept for number in range(round_number, last + 1))

    def rounds_between(self, after_ms: float, before_ms: float) -> range:
        """The numbers of rounds that were due, and are too late, strictly between two times."""
        first = floor((after_ms - self.offset_ms + EARLY_MS) / self.period_ms) + 1
        last = ceil((before_ms - self.late_ms - self.offset_ms - EARLY_MS) / self.period_ms)
        return range(max(first, 0), last)


_Content = tuple[Kind, str, int, tuple[tuple[str, int], ...], str]
EVERYBODY = "*"


class Deliveries:
    """Sendings, arrivals and losses by what was sent, each found in O(log n)."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index
        self._sendings: defaultdict[tuple[str, _Content], list[int]] = defaultdict(list)
        self._arrivals: defaultdict[tuple[str, str, _Content], list[float]] = defaultdict(list)
        self._losses: defaultdict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        for position, event in index.of_kind(*RECEIVED):
            self._sendings[event.node, _content(event, event.kind)].append(position)
        for _position, event in index.of_kind(*SENT):
            key = (event.node, index.peer(event), _content(event, SENT[event.kind]))
            self._arrivals[key].append(event.time_ms)
        for _position, event in index.of_kind(Kind.LOST):
            loss = (event.node, index.peer(event), event.component, event.version)
            self._losses[loss].append(event.time_ms)

    def sendings_of(self, arrival: TraceEvent) -> list[int]:
        """Where its sender sent just this, so long before that it may have arrived by now."""
        index, system = self._index, self._index.system
        sender = index.peer(arrival)
        positions = self._sendings.get((sender, _content(arrival, SENT[arrival.kind])), [])
        earliest = arrival.time_ms - system.longest_ms - EARLY_MS
        latest = arrival.time_ms - system.shortest_ms + EARLY_MS
        first = bisect_left(positions, earliest, key=self._time_ms)
        last = bisect_right(positions, latest, key=self._time_ms)
        return positions[first:last]

    def is_accounted_for(self, sending: TraceEvent, receiver: str) -> bool:
        """Whether it arrived at a node in time, or was recorded as lost."""
        content = _content(sending, sending.kind)
        what = (sending.component, sending.version)
        return (
            self._within(self._arrivals.get((receiver, sending.node, content)), sending)
            or self._within(self._losses.get((receiver, sending.node, *what)), sending)
            or self._within(self._losses.get((EVERYBODY, sending.node, *what)), sending)
        )

    def _within(self, times: list[float] | None, sending: TraceEvent) -> bool:
        if times is None:
            return False
        found = bisect_left(times, sending.time_ms - EARLY_MS)
        latest = sending.time_ms + self._index.system.longest_ms + EARLY_MS
        return found < len(times) and times[found] <= latest

    def _time_ms(self, position: int) -> float:
        return self._index.events[position].time_ms


def _content(event: TraceEvent, kind: Kind) -> _Content:
    return kind, event.component, event.version, event.entries, event.medium


class Buffer:
    """What one node had in its buffer, as its machine told."""

    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts
        self.global_ms: dict[str, int] = {}
        """The latest reception by anybody, for each component in the buffer."""
        self.local_ms: dict[str, int] = {}
        """The time of the version that is held; of the first header while none is."""
        self.held: dict[str, int] = {}
        """The version of each replica."""
        self.flagged_ms: dict[str, float] = {}
        """Which components somebody pulls, and the steady time of the last pull."""
        self.ended: set[str] = set()
        """Components that lived here and do no more: their last version is not told again."""

    def apply(self, event: TraceEvent) -> None:
        """Takes note of one event of the node."""
        component = event.component
        match event.kind:
            case Kind.HEADER_ADDED:
                if component not in self.global_ms and event.detail != "knowledge":
                    self.local_ms[component] = event.value
                self.global_ms[component] = event.value
            case Kind.HEADER_EXPIRED:
                self.global_ms.pop(component, None)
            case Kind.FLAG_SET:
                self.flagged_ms[component] = event.time_ms
            case Kind.FLAG_CLEARED:
                self.flagged_ms.pop(component, None)
            case Kind.REMOVED:
                self.ended.add(component)
            case Kind.REPLACED:
                self.ended.discard(component)
                self.held[component] = event.version
                self.local_ms[component] = self.time_of(event)
            case Kind.PUBLISHED:
                self.ended.discard(component)
                self.held[component] = event.version
            case Kind.STOPPED:
                for kept in (self.global_ms, self.local_ms, self.held, self.flagged_ms):
                    kept.clear()

    def time_of(self, replaced: TraceEvent) -> int:
        """What counts as the time of a version's reception; never later than now."""
        if self._facts.times == "created":
            return min(replaced.value, replaced.wall_ms)
        return replaced.wall_ms

    def is_flagged(self, component: str, time_ms: float) -> bool:
        """Whether somebody pulled it not longer ago than the global time-out."""
        flagged_ms = self.flagged_ms.get(component)
        return flagged_ms is not None and time_ms < flagged_ms + self._facts.global_ms

    def live(self, wall_ms: int) -> dict[str, int]:
        """The headers that are not older than the global time-out."""
        oldest_ms = wall_ms - self._facts.global_ms
        return {component: told for component, told in self.global_ms.items() if told >= oldest_ms}

    def outdated(self, wall_ms: int) -> dict[str, int]:
        """Of these, the ones older than the local time-out, with the version that is held."""
        oldest_ms = wall_ms - self._facts.local_ms
        return {
            component: self.held.get(component, 0)
            for component in self.live(wall_ms)
            if self.local_ms[component] < oldest_ms
        }


def replayed(index: TraceIndex) -> Iterator[tuple[int, TraceEvent, Buffer]]:
    """Each event with its position and the buffer of its node as it was just before."""
    buffers = {node: Buffer(index.facts(node)) for node in index.by_node}
    for position, event in enumerate(index.events):
        buffer = buffers[event.node]
        yield position, event, buffer
        buffer.apply(event)


Entries = tuple[tuple[str, int], ...]
Round = dict[tuple[str, str], list[TraceEvent]]
"""The messages of one round by medium and addressee."""


class Task(msgspec.Struct, frozen=True):
    """One of a node's periodic tasks, and what it has to say."""

    rule: int
    kind: Kind
    times: Callable[[NodeFacts], tuple[float, float | None]]
    """Its period and offset."""
    expected: Callable[[Buffer, int], dict[str, int]]
    """What has to be said at a wall time, component and number, by the state of the buffer."""
    is_told_to_all: bool
    """Every addressee gets the whole, not only all of them together."""


class NodeRounds:
    """The rounds of one task of one node."""

    def __init__(self, index: TraceIndex, task: Task, node: str, suspects: set[int]) -> None:
        self._index, self._task, self._node = index, task, node
        sent = [at for at in index.by_node[node] if index.events[at].kind is task.kind]
        self.schedule = self._schedule([at for at in sent if at not in suspects])
        self.forwarded = {at for at in sent if at in suspects and not self._is_due(at)}
        """Positions of messages that are no round of the node's own."""
        self._rounds: dict[int, Round] = {}
        firsts: dict[float, int] = {}
        for at in sent:
            if at not in self.forwarded:
                event = index.events[at]
                messages = self._rounds.setdefault(firsts.setdefault(event.time_ms, at), {})
                messages.setdefault((event.medium, event.other), []).append(event)

    def _schedule(self, sent: list[int]) -> Schedule | None:
        """As the node was told; where the offset was drawn, as its first message shows. None for
        a node that never does this, or that should not.
        """
        period_ms, offset_ms = self._task.times(self._index.facts(self._node))
        if period_ms <= 0 or (offset_ms is None and not sent):
            return None
        if offset_ms is None:
            offset_ms = self._index.events[sent[0]].time_ms % period_ms
        return Schedule(period_ms, offset_ms, self._index.system.late_ms)

    def _is_due(self, position: int) -> bool:
        time_ms = self._index.events[position].time_ms
        return self.schedule is not None and self.schedule.is_kept(time_ms)

    def breaches(self) -> Iterator[Breach]:
        """Costs the node's events, and what it had to say in each round."""
        index, schedule = self._index, self.schedule
        buffer, last = Buffer(index.facts(self._node)), None
        kept: set[int] = set()
        for position in index.by_node[self._node]:
            event = index.events[position]
            if last is not None:
                yield from self._left_out(buffer, last, event.time_ms, kept)
            if position in self._rounds:
                if schedule is not None:
                    kept.add(schedule.round_of(event.time_ms))
                yield from self._wrong(buffer, position)
            buffer.apply(event)
            last = None if event.kind is Kind.STOPPED else event
        if last is not None:
            yield from self._left_out(buffer, last, index.end_ms, kept)

    def _left_out(
        self, buffer: Buffer, last: TraceEvent, until_ms: float, kept: set[int]
    ) -> Iterator[Breach]:
        """Rounds between two events of the node in which there was something to say."""
        schedule = self.schedule
        if schedule is None or not self._index.facts(self._node).radio:
            return
        for number in schedule.rounds_between(last.time_ms, until_ms):
            wall_ms = last.wall_ms + int(schedule.due_ms(number) - last.time_ms)
            if not buffer.live(wall_ms):
                return
            expected = self._expected(buffer, wall_ms)
            if expected and not schedule.is_made_up(number, kept):
                why = f"nothing was said at {schedule.due_ms(number):.0f} ms of {_names(expected)}"
                yield Breach(self._task.rule, why, (last,))

    def _wrong(self, buffer: Buffer, position: int) -> Iterator[Breach]:
        first, messages = self._index.events[position], self._rounds[position]
        if not self._is_due(position):
            yield Breach(self._task.rule, "a message was sent when it was not due", (first,))
            return
        expected = self._expected(buffer, first.wall_ms)
        together: set[tuple[str, int]] = set()
        for some in messages.values():
            said = [entry for message in some for entry in self._of_others(message.entries)]
            together.update(said)
            if len({name for name, _number in said}) < len(said):
                yield Breach(self._task.rule, "a round names a component twice", tuple(some[:3]))
            if self._task.is_told_to_all:
                yield from self._unsaid(expected, set(said), some)
        if not self._task.is_told_to_all and self._reaches_somebody(position):
            yield from self._unsaid(expected, together, [first])
        extra = {name: number for name, number in together if expected.get(name) != number}
        if extra:
            why = f"a round has what it should not: {_names(extra)}"
            yield Breach(self._task.rule, why, (first,))

    def _unsaid(
        self, expected: dict[str, int], said: set[tuple[str, int]], shown: list[TraceEvent]
    ) -> Iterator[Breach]:
        missing = {name: number for name, number in expected.items() if (name, number) not in said}
        if missing:
            yield Breach(self._task.rule, f"a round leaves out {_names(missing)}", tuple(shown[:3]))

    def _reaches_somebody(self, position: int) -> bool:
        """On IP a node that knows nobody can only ask the nodes of components themselves."""
        facts = self._index.facts(self._node)
        return facts.radio or bool(self._index.world.known_to(self._node, position))

    def _expected(self, buffer: Buffer, wall_ms: int) -> dict[str, int]:
        return dict(self._of_others(tuple(self._task.expected(buffer, wall_ms).items())))

    def _of_others(self, entries: Entries) -> Entries:
        """Without the node's own components, which are told on some media and not on others."""
        own = self._index.world.components_of(self._node)
        return tuple(entry for entry in entries if entry[0] not in own) if own else entries


def rounds_of_all(index: TraceIndex, task: Task) -> Iterator[NodeRounds]:
    """The rounds of a task at each node."""
    suspects = _as_received(index, task.kind)
    for node in sorted(index.by_node):
        yield NodeRounds(index, task, node, suspects)


def _as_received(index: TraceIndex, kind: Kind) -> set[int]:
    """Positions where a node sent just what it had received at that time: passed on, unless it
    was its turn to say so.
    """
    heard: defaultdict[str, dict[Entries, float]] = defaultdict(dict)
    found = set()
    for position, event in index.of_kind(kind, RECEIVED[kind]):
        contents = heard[event.node]
        if event.kind is not kind:
            if contents and next(iter(contents.values())) != event.time_ms:
                contents.clear()
            contents[event.entries] = event.time_ms
        elif event.time_ms <= contents.get(event.entries, -1.0) + index.system.late_ms:
            found.add(position)
    return found


def _names(entries: dict[str, int]) -> str:
    names = [f"{name} {number}" for name, number in sorted(entries.items())]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _header_times(facts: NodeFacts) -> tuple[float, float | None]:
    return facts.header_ms, facts.header_offset_ms


def _pull_times(facts: NodeFacts) -> tuple[float, float | None]:
    return facts.pull_ms, facts.pull_offset_ms


HEADERS = Task(20, Kind.HEADERS_SENT, _header_times, Buffer.live, True)
PULLS = Task(22, Kind.PULL_SENT, _pull_times, Buffer.outdated, False)
