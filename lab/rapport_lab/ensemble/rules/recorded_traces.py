"""Reads recorded traces, and puts those of several nodes together. [EN-3]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.trace import NodeFacts, System, Trace, TraceEvent

Read = TypeVar("Read")

MAX_LINE: Final = 4 * 1024 * 1024
_system = msgspec.json.Decoder(System)
_event = msgspec.json.Decoder(TraceEvent)


def merge_traces(traces: Sequence[Trace]) -> Trace:
    """One trace of what several nodes recorded by one clock, as processes of one machine do; raises
    InvalidInput for two of the same node.
    """
    nodes: dict[str, NodeFacts] = {}
    for trace in traces:
        for node, facts in trace.system.nodes.items():
            if node in nodes:
                raise InvalidInput(
                    f"two of the traces are of the node {node!r}", code="ensemble.bad_trace"
                )
            nodes[node] = facts
    systems = [trace.system for trace in traces]
    ends = [_end_ms(trace) for trace in traces]
    merged = System(
        nodes=nodes,
        shortest_ms=min(system.shortest_ms for system in systems),
        longest_ms=max(system.longest_ms for system in systems),
        late_ms=max(system.late_ms for system in systems),
        end_ms=min(ends),
        losses=all(system.losses for system in systems),
    )
    events = sorted(
        (event for trace in traces for event in trace.events), key=lambda event: event.time_ms
    )
    return Trace(merged, events)


def _end_ms(trace: Trace) -> float:
    if trace.system.end_ms is not None:
        return trace.system.end_ms
    return trace.events[-1].time_ms if trace.events else 0.0


def read_trace(path: Path) -> Trace:
    """The trace in a file; raises InvalidInput with the line that cannot be read."""
    try:
        with path.open("rb") as file:
            return read_lines(file)
    except OSError as error:
        raise InvalidInput(
            f"the trace {path} cannot be read: {error.strerror}", code="ensemble.bad_trace"
        ) from None


def read_lines(lines: Iterable[bytes]) -> Trace:
    """The trace in the lines of a file."""
    numbered = enumerate(lines, 1)
    first = next(numbered, None)
    if first is None:
        raise _bad(1, "there is nothing in it")
    system = _read(_system, *first)
    return Trace(system, list(_events(numbered)))


def _events(numbered: Iterator[tuple[int, bytes]]) -> Iterator[TraceEvent]:
    last_ms = float("-inf")
    for number, line in numbered:
        event = _read(_event, number, line)
        if event.time_ms < last_ms:
            raise _bad(number, f"{event.time_ms:g} ms comes after {last_ms:g} ms")
        last_ms = event.time_ms
        yield event


def _read(decoder: msgspec.json.Decoder[Read], number: int, line: bytes) -> Read:
    if len(line) > MAX_LINE:
        raise _bad(number, f"it has {len(line)} bytes, at most {MAX_LINE} are read")
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(number, str(error)) from None


def _bad(number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"line {number} is not of a trace: {why}",
        code="ensemble.bad_trace",
        hint="traces are JSON lines, the system first and then events in order of time",
    )
