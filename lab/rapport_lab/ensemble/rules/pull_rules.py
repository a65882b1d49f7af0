"""Rules 22 to 24: pulling what is outdated, and answering. [EN-3, EN-8]"""

from __future__ import annotations

from collections.abc import Iterator

from rapport.ensemble.trace import IP, Kind, TraceEvent
from rapport_lab.ensemble.rules.breach import Breach
from rapport_lab.ensemble.rules.buffer import Buffer, replayed
from rapport_lab.ensemble.rules.index import EARLY_MS, TraceIndex
from rapport_lab.ensemble.rules.message_rules import PUTS
from rapport_lab.ensemble.rules.rounds import PULLS, rounds_of_all


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
