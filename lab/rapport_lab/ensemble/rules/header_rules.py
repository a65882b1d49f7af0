"""Rules 18 to 21 and 25: headers and the buffer that holds them. [EN-3, EN-8]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.ensemble.trace import Kind, NodeFacts, TraceEvent
from rapport_lab.ensemble.rules.breach import Breach
from rapport_lab.ensemble.rules.buffer import Buffer, replayed
from rapport_lab.ensemble.rules.index import TraceIndex
from rapport_lab.ensemble.rules.rounds import HEADERS, PULLS, rounds_of_all


def no_header_or_pull_retransmission(index: TraceIndex) -> Iterator[Breach]:
    """Rule 18: nobody passes on headers or pulls. A node that learns of a component by them says
    so in rounds of its own.
    """
    for task in (HEADERS, PULLS):
        for rounds in rounds_of_all(index, task):
            for position in sorted(rounds.forwarded):
                event = index.events[position]
                yield Breach(18, "a node passed on headers or a pull that it received", (event,))


def received_message(index: TraceIndex) -> Iterator[Breach]:
    """Rule 19: with a newer version comes its header, received now."""
    for position, event, buffer in replayed(index):
        if event.kind is not Kind.REPLACED or not _has_buffer(index.facts(event.node)):
            continue
        header = _added(index.reaction(position), event.component)
        if header is None:
            if not _was_full(index.reaction(position), event.component):
                yield Breach(19, "a version arrived and its header is not in the buffer", (event,))
        elif header.version != event.version:
            yield Breach(19, "the header is not of the version that arrived", (event, header))
        elif header.value != max(buffer.time_of(event), buffer.global_ms.get(event.component, 0)):
            yield Breach(19, "the header has not the time of the reception", (event, header))


def publish_headers(index: TraceIndex) -> Iterator[Breach]:
    """Rule 20: the headers in the buffer are told at offset + n * period, all of them."""
    for rounds in rounds_of_all(index, HEADERS):
        yield from rounds.breaches()


def process_headers(index: TraceIndex) -> Iterator[Breach]:
    """Rule 21: headers that arrive are in the buffer, with the later of both times."""
    for position, event, buffer in replayed(index):
        if event.kind is not Kind.HEADERS_RECEIVED or not _has_buffer(index.facts(event.node)):
            continue
        reaction = index.reaction(position)
        for component, said_ms in event.entries:
            told_ms = min(said_ms, event.wall_ms)
            if _may_ignore(index, position, component, told_ms):
                continue
            known_ms = buffer.global_ms.get(component, 0)
            header = _added(reaction, component)
            if header is None and known_ms < told_ms and not _was_full(reaction, component):
                yield Breach(21, f"the header of {component} was not taken", (event,))
            elif header is not None and header.value != max(known_ms, told_ms):
                yield Breach(21, "a header has not the later of two times", (event, header))


def _may_ignore(index: TraceIndex, position: int, component: str, told_ms: int) -> bool:
    """Of components that live or lived on it, and of what is too old, a node needs no headers."""
    event = index.events[position]
    if component in index.world.components_of(event.node):
        return True
    return event.wall_ms - told_ms > index.facts(event.node).global_ms


def up_to_date_messages(index: TraceIndex) -> Iterator[Breach]:
    """Rule 25: a header older than the global time-out is never told, pulled or flagged, and none
    is removed for its age before.
    """
    for _position, event, buffer in replayed(index):
        oldest_ms = event.wall_ms - index.facts(event.node).global_ms
        match event.kind, event.detail:
            case Kind.HEADERS_SENT, _ if any(told < oldest_ms for _name, told in event.entries):
                yield Breach(25, "a header was told after its time", (event,))
            case Kind.PULL_SENT, _ if _any_old(buffer, event, oldest_ms):
                yield Breach(25, "a component was pulled after its time", (event,))
            case Kind.HEADER_EXPIRED, "time" if event.value >= oldest_ms:
                yield Breach(25, "a header was removed before its time", (event,))


def _any_old(buffer: Buffer, pull: TraceEvent, oldest_ms: float) -> bool:
    return any(buffer.global_ms.get(name, oldest_ms) < oldest_ms for name, _held in pull.entries)


def _has_buffer(facts: NodeFacts) -> bool:
    return facts.header_ms > 0 or facts.pull_ms > 0


def _added(reaction: list[TraceEvent], component: str) -> TraceEvent | None:
    for event in reaction:
        if event.kind is Kind.HEADER_ADDED and event.component == component:
            return event
    return None


def _was_full(reaction: list[TraceEvent], component: str) -> bool:
    return any(
        event.component == component
        and event.kind in (Kind.DROPPED, Kind.HEADER_EXPIRED)
        and event.detail == "full"
        for event in reaction
    )
