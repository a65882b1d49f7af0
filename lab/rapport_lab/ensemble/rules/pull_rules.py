"""Rules 18 to 25: headers and the reception buffer, pulls and their answers. [EN-3, EN-8]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.ensemble.trace import IP, Kind, NodeFacts, TraceEvent
from rapport_lab.ensemble.rules.message_rules import PUTS
from rapport_lab.ensemble.rules.trace_index import (
    EARLY_MS,
    HEADERS,
    PULLS,
    Breach,
    Buffer,
    TraceIndex,
    replayed,
    rounds_of_all,
)


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


def pull_outdated_messages(index: TraceIndex) -> Iterator[Breach]:
    """Rule 22: what is outdated is pulled at offset + n * period, all of it."""
    for rounds in rounds_of_all(index, PULLS):
        yield from rounds.breaches()


def receive_pull_request(index: TraceIndex) -> Iterator[Breach]:
    """Rule 23: what somebody pulls on the radio is flagged. What is pulled on IP, or where answers
    are immediate, is answered at once if it is held, unless it was just said.
    """
    for position, event, buffer in replayed(index):
        if event.kind is not Kind.PULL_RECEIVED:
            continue
        facts, reaction = index.facts(event.node), index.reaction(position)
        for component, has in event.entries:
            is_held = component not in buffer.ended and buffer.held.get(component, 0) > has
            if is_held and (facts.immediate or event.medium == IP):
                if not _was_said(index, position, component, buffer.held[component]):
                    yield Breach(23, f"{component} was pulled and not answered", (event,))
            elif event.medium == IP or index.world.is_local(event.node, component, position):
                continue  # its node publishes it in the next period anyway
            elif not _is_flagged(reaction, component):
                yield Breach(23, f"{component} was pulled and not flagged", (event,))


def _is_flagged(reaction: list[TraceEvent], component: str) -> bool:
    return any(
        event.component == component
        and (event.kind is Kind.FLAG_SET or (event.kind is Kind.DROPPED and event.detail == "full"))
        for event in reaction
    )


def _was_said(index: TraceIndex, position: int, component: str, version: int) -> bool:
    """Whether a node says a version in reaction to a pull, or did not long before."""
    event = index.events[position]
    key = (event.node, component, version)
    since_ms = event.time_ms - index.facts(event.node).answer_gap_ms - EARLY_MS
    for kind in PUTS:
        before, after = index.before(kind, key, position), index.after(kind, key, position)
        if before is not None and index.events[before].time_ms > since_ms:
            return True
        if after is not None and index.events[after].time_ms == event.time_ms:
            return True
    return False


def retransmit_pulled_message(index: TraceIndex) -> Iterator[Breach]:
    """Rule 24: a newer version of what is flagged is passed on, beyond the boundary too, as it was
    asked for; only that, or time, clears the flag.
    """
    for position, event, buffer in replayed(index):
        component = event.component
        if event.kind is Kind.REPLACED and buffer.is_flagged(component, event.time_ms):
            if not _is_passed_on(index.reaction(position), event):
                yield Breach(24, "a pulled version arrived and was not passed on", (event,))
        elif event.kind is Kind.PASSED_ON and event.detail == "pulled":
            if not _was_flagged(index, position, buffer):
                yield Breach(24, "a version was passed on as pulled that nobody pulled", (event,))
        elif event.kind is Kind.FLAG_CLEARED and event.detail == "time":
            is_listed = component in buffer.global_ms
            if is_listed and buffer.is_flagged(component, event.time_ms):
                yield Breach(24, "a flag was cleared before its time", (event,))


def _is_passed_on(reaction: list[TraceEvent], replaced: TraceEvent) -> bool:
    return any(
        event.kind is Kind.PASSED_ON
        and event.component == replaced.component
        and event.version == replaced.version
        for event in reaction
    )


def _was_flagged(index: TraceIndex, position: int, buffer: Buffer) -> bool:
    """The flag may be cleared just before the version goes out, or just after."""
    event = index.events[position]
    if buffer.is_flagged(event.component, event.time_ms):
        return True
    cleared = index.before(Kind.FLAG_CLEARED, (event.node, event.component, 0), position)
    return (
        cleared is not None
        and index.events[cleared].time_ms == event.time_ms
        and index.events[cleared].detail == "forwarded"
    )
