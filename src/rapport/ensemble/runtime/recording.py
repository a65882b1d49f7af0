"""What the shell of a node writes into a trace: what crossed its edge, and whom it knows. [EN-3,
EN-10]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from rapport.ensemble.grouping.machine import GrouperMachine
from rapport.ensemble.messages import Message, Outgoing
from rapport.ensemble.node import NodeMachine
from rapport.ensemble.trace import IP, RADIO, Kind, NodeFacts, Recorder, System, TraceEvent
from rapport.ensemble.trace_facts import facts_of
from rapport.ensemble.trace_files import TraceWriter
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender

_LATE_MS = 1_000.0
"""So late may a node on a real machine do what is due before the rules call it a breach."""


class TraceFile:
    """The trace of one running node in a file, written as it arises.

    The outcome of a process is told when it ended, with the time at which it began. So what is not
    older than a process may take waits in memory, and is written in order.
    """

    def __init__(self, path: Path, recorder: Recorder, machine: NodeMachine) -> None:
        """Raises StoreUnavailable when the file cannot be written."""
        self._recorder = recorder
        self._held_back_ms = machine.host.settings.process_ms + _LATE_MS
        self._writer = TraceWriter(
            path,
            System(nodes={machine.node: _facts_of_node(machine)}, late_ms=_LATE_MS, losses=False),
        )

    def write_due(self, now: Now) -> None:
        """Writes what nothing earlier can follow any more."""
        self._write_before(now.steady_ms - self._held_back_ms)

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


class Recording:
    """The recorder as one node uses it."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self.recorder, self._node = recorder, node
        self._known: frozenset[Address] = frozenset()

    def note(self, kind: Kind, now: Now, *, component: str = "", other: str = "") -> None:
        """Something that the world did."""
        self.recorder(
            TraceEvent(now.steady_ms, now.wall_ms, kind, self._node, component, other=other)
        )

    def received(self, message: Message, sender: Sender, now: Now) -> None:
        """What is about to be handled."""
        other = self.recorder.name_of(sender.address)
        medium = RADIO if sender.to_all else IP
        self.recorder.received(self._node, message, other, medium, now)

    def sent(self, outgoing: Outgoing, now: Now) -> None:
        """What is about to be sent."""
        self.recorder.sent(self._node, outgoing, now)

    def members(self, present: Iterable[Address], now: Now) -> None:
        """Whom the node knows from now on."""
        known = frozenset(present)
        for address in sorted(known - self._known):
            self.note(Kind.KNOWN, now, other=self.recorder.name_of(address))
        for address in sorted(self._known - known):
            self.note(Kind.FORGOTTEN, now, other=self.recorder.name_of(address))
        self._known = known
