"""Trace files: JSON lines, the system first, then one event a line; recording of a running node.
[EN-3, EN-10]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from rapport.core.errors import StoreUnavailable
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.protocol import Message, OutgoingMessage
from rapport.ensemble.trace import (
    IP,
    RADIO,
    Kind,
    NodeFacts,
    Recorder,
    System,
    Trace,
    TraceEvent,
    address_text,
)
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender


def facts_of(
    settings: GossipSettings,
    *,
    address: Address | None = None,
    boundary: bool = False,
    groups: bool = False,
    grouper: bool = False,
) -> NodeFacts:
    """The facts of a node with these settings. Drawn offsets stay unknown: the first message of
    each kind shows them.
    """
    return NodeFacts(
        radio=settings.radio,
        ip=settings.ip,
        address=address_text(address) if address is not None else "",
        knowledge_ms=settings.knowledge_ms,
        header_ms=settings.header_ms,
        pull_ms=settings.pull_ms,
        knowledge_offset_ms=settings.knowledge_offset_ms,
        header_offset_ms=settings.header_offset_ms,
        pull_offset_ms=settings.pull_offset_ms,
        local_ms=settings.local_ms,
        global_ms=settings.global_ms,
        times=settings.times,
        fan_out=settings.fan_out,
        immediate=settings.answers == "immediate",
        answer_gap_ms=settings.answer_gap_ms,
        ahead_ms=settings.ahead_ms,
        forget_ms=settings.forget_ms,
        boundary=boundary,
        groups=groups,
        grouper=grouper,
    )


_encoder = msgspec.json.Encoder()


class TraceWriter:
    """Writes a trace while it arises; a file that is there is replaced."""

    def __init__(self, path: Path, system: System) -> None:
        """Raises StoreUnavailable when the file cannot be written."""
        self._path = path
        self._write(lambda file: file.write(_encoder.encode(system) + b"\n"), "wb")

    def append(self, events: Iterable[TraceEvent]) -> None:
        """Writes events, which have to be in order of time; raises StoreUnavailable."""
        lines = b"".join(_encoder.encode(event) + b"\n" for event in events)
        if lines:
            self._write(lambda file: file.write(lines), "ab")

    def _write(self, write: Callable[[BinaryIO], object], mode: Literal["wb", "ab"]) -> None:
        try:
            with self._path.open(mode) as file:
                write(file)
        except OSError as error:
            raise StoreUnavailable(
                f"the trace {self._path} cannot be written: {error.strerror or error}",
                hint="name a file that can be written",
            ) from None


def write_trace(trace: Trace, path: Path) -> None:
    """Writes a trace, about a million events in two seconds; a file that is there is replaced."""
    TraceWriter(path, trace.system).append(trace.events)


_LATE_MS = 1_000.0
"""How late a node on a real machine may act before the rules call it a breach."""


class TraceFile:
    """Writes the trace of one running node to a file.

    The outcome of a process is recorded when it ends, with the time at which it began. So events
    younger than the longest process wait in memory, and are written in order.
    """

    def __init__(self, path: Path, recorder: Recorder, machine: NodeMachine) -> None:
        """Raises StoreUnavailable when the file cannot be written."""
        self._recorder = recorder
        self._delay_ms = machine.host.settings.process_ms + _LATE_MS
        self._writer = TraceWriter(
            path,
            System(nodes={machine.node: _facts_of_node(machine)}, late_ms=_LATE_MS, losses=False),
        )

    def write_due(self, now: Now) -> None:
        """Writes the events that no earlier event can follow any more."""
        self._write_before(now.steady_ms - self._delay_ms)

    def write_all(self) -> None:
        """Writes the rest; the node has ended."""
        self._write_before(float("inf"))

    def _write_before(self, time_ms: float) -> None:
        events = self._recorder.events
        events.sort(key=lambda event: event.time_ms)
        count = bisect_left(events, time_ms, key=lambda event: event.time_ms)
        self._writer.append(events[:count])
        del events[:count]


def _facts_of_node(machine: NodeMachine) -> NodeFacts:
    return facts_of(
        machine.gossip.settings_drawn,
        address=machine.address,
        boundary=any(plan.boundary is not None for plan in machine.host.ensembles),
        groups=machine.grouping is not None,
        grouper=isinstance(machine.grouping, GrouperMachine),
    )


class NodeTracer:
    """The recorder of one node's shell."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self.recorder, self._node = recorder, node
        self._known: frozenset[Address] = frozenset()

    def note(self, kind: Kind, now: Now, *, component: str = "", other: str = "") -> None:
        """Records an event of the environment."""
        self.recorder(
            TraceEvent(now.steady_ms, now.wall_ms, kind, self._node, component, other=other)
        )

    def received(self, message: Message, sender: Sender, now: Now) -> None:
        """Records a message about to be handled."""
        other = self.recorder.name_of(sender.address)
        medium = RADIO if sender.to_all else IP
        self.recorder.received(self._node, message, other, medium, now)

    def sent(self, outgoing: OutgoingMessage, now: Now) -> None:
        """Records a message about to be sent."""
        self.recorder.sent(self._node, outgoing, now)

    def members(self, present: Iterable[Address], now: Now) -> None:
        """Records changes of the known members."""
        known = frozenset(present)
        for address in sorted(known - self._known):
            self.note(Kind.KNOWN, now, other=self.recorder.name_of(address))
        for address in sorted(self._known - known):
            self.note(Kind.FORGOTTEN, now, other=self.recorder.name_of(address))
        self._known = known
