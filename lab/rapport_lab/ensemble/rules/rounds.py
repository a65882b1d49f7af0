"""The rounds in which a node tells its headers or pulls: on time, complete, none left out.
[EN-3, EN-8]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec

from rapport.ensemble.trace import Kind, NodeFacts, TraceEvent
from rapport_lab.ensemble.rules.breach import Breach
from rapport_lab.ensemble.rules.buffer import Buffer
from rapport_lab.ensemble.rules.index import RECEIVED, TraceIndex
from rapport_lab.ensemble.rules.schedule import Schedule

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
