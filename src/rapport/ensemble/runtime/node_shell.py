"""Connects a node's state machines to sockets, threads and the clock. [EN-10]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from rapport.core.errors import InvalidInput, TooLarge
from rapport.core.knowledge import Knowledge
from rapport.ensemble.model.calls import Call, Outcome
from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.snapshots import WithheldKnowledge
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.protocol import (
    VERSION,
    Message,
    PublishedKnowledge,
    decode,
    encode,
    values_of,
)
from rapport.ensemble.runtime.call_threads import CallThreads
from rapport.ensemble.runtime.gossip_summary import GossipCounters
from rapport.ensemble.runtime.node_status import (
    CONTROL,
    SWIM,
    SWIM_BYTE,
    TO_ALL,
    TO_ALL_BYTE,
    RuntimeSettings,
    StatusAnswer,
    StatusRequest,
    decode_control,
    encode_control,
)
from rapport.ensemble.trace_files import NodeTracer
from rapport.kernel.clock import Clock, DueTimer, Now
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger
from rapport.overlay import swim_protocol
from rapport.overlay.swim import Swim
from rapport.transport.addresses import format_address
from rapport.transport.base import Address, Sender
from rapport.transport.station import Station

_log = get_logger(__name__)

GROUPER_ROLE: Final = "grouper"
"""Role of groupers in the membership, by which all nodes learn of them."""

KnowledgeListener = Callable[[Knowledge], None]
"""Called with each newer version, on the loop; must not block."""
ReportWithheld = Callable[[str, WithheldKnowledge | None], None]
"""Called with a component whose knowledge is withheld from now on, and the reason; with none when
it is published again.
"""


class NodeShell:
    """Runs the machines of a node. After each call of a machine, call `settle`."""

    def __init__(
        self,
        station: Station,
        machine: NodeMachine,
        swim: Swim | None,
        clock: Clock,
        settings: RuntimeSettings,
        recording: NodeTracer | None = None,
    ) -> None:
        self.station, self.machine, self.swim, self.clock = station, machine, swim, clock
        self.counts: Counter[str] = Counter()
        self.tasks = Tasks(clock)
        self.threads = CallThreads(
            self._finished, clock, hangs_ms=settings.host.process_ms, at_once=settings.threads
        )
        self.on_changed: KnowledgeListener | None = None
        """Gets what came from other nodes."""
        self.on_published: KnowledgeListener | None = None
        """Gets what this node published, each version once."""
        self.status_text: Callable[[], str] = lambda: ""
        self.recording = recording
        self.figures = GossipCounters(machine.node, clock.now_ms())
        self._alarm = DueTimer(clock, self.next_due_ms, self._tick)
        self._published: list[PublishedKnowledge] = []
        self.report_withheld: ReportWithheld = _log_withheld
        self._withheld: frozenset[str] = frozenset()
        self._namesakes: frozenset[Address] = frozenset()
        machine.gossip.on_published = self._published.append

    def begin(self) -> None:
        """Starts to receive and to keep time."""
        self.station.receive(self._take)
        self.tasks.start("ensemble alarm", self._alarm.run)
        self.settle(self.now())

    async def close(self) -> None:
        """Sends the outbox, then stops receiving; hanging calls are abandoned."""
        self._send_all(self.now())
        self.threads.close()
        await self.tasks.stop()
        await self.station.close()

    def now(self) -> Now:
        return Now(self.clock.now_ms(), self.clock.steady_ns() / 1e6)

    def next_due_ms(self) -> float | None:
        due_ms = self.machine.next_due_ms()
        swim_ms = self.swim.next_due_ms() if self.swim is not None else None
        if due_ms is None or swim_ms is None:
            return swim_ms if due_ms is None else due_ms
        return min(due_ms, swim_ms)

    def settle(self, now: Now) -> None:
        """Sends and reports what the machines produced, and resets the timer."""
        if self.swim is not None and self.swim.changes:
            self._members_changed(now)
        if self.machine.changed:
            self._notify_changed(now)
        if self._published:
            self._notify_published()
        self._send_all(now)
        self._log_faults()
        self._alarm.look()

    # --- received messages ---

    def _take(self, data: bytes, sender: Sender) -> None:
        kind = data[0] if data else 0
        try:
            if kind == CONTROL:
                self._take_control(data[1:], sender)
            elif sender.kind != "network":
                self.counts["not_a_member"] += 1  # clients send requests; they do not take part
            elif kind == VERSION:
                self._take_message(decode(data), sender)
            elif kind == TO_ALL:
                self._take_message(decode(data[1:]), sender._replace(to_all=True))
            elif kind == SWIM:
                self._take_membership(data[1:], sender)
            else:
                self.counts["not_understood"] += 1
        except InvalidInput:
            self.counts["not_understood"] += 1

    def _take_message(self, message: Message, sender: Sender) -> None:
        now = self.now()
        if self.recording is not None:
            self.recording.received(message, sender, now)
        self.figures.received(message)
        self.machine.handle(message, sender, now)
        self.settle(now)

    def _take_membership(self, data: bytes, sender: Sender) -> None:
        if self.swim is not None:
            now = self.now()
            self.swim.handle(swim_protocol.decode(data), sender.address, now)
            self.settle(now)

    def _take_control(self, data: bytes, sender: Sender) -> None:
        message = decode_control(data)
        if isinstance(message, StatusRequest):
            answer = StatusAnswer(message.id, self.status_text())
            self.station.send(encode_control(answer), sender.address)

    # --- time and finished calls ---

    def _tick(self) -> None:
        now = self.now()
        calls = self.machine.tick(now)
        if self.swim is not None:
            self.swim.tick(now)
        if calls:
            self.threads.run(calls)
        else:
            self.threads.look()
        self.settle(now)

    def _finished(self, call: Call, outcome: Outcome) -> None:
        now = self.now()
        self.machine.finished(call, outcome, now)
        self.settle(now)

    # --- sending ---

    def _send_all(self, now: Now) -> None:
        outbox = self.machine.outbox
        if outbox:
            last: Message | None = None
            data = b""
            for outgoing in outbox:
                if outgoing.message is not last:
                    last, data = outgoing.message, self._encoded(outgoing.message)
                if not data:
                    continue
                if self.recording is not None:
                    self.recording.sent(outgoing, now)
                if self._send(data, outgoing.to):
                    self.figures.sent(outgoing.message)
            outbox.clear()
        if self.swim is not None and self.swim.outbox:
            for message, to in self.swim.outbox:
                self.station.send(SWIM_BYTE + swim_protocol.encode(message), to)
            self.swim.outbox.clear()

    def _encoded(self, message: Message) -> bytes:
        """The bytes, once for all recipients; none for what cannot be sent."""
        try:
            return encode(message)
        except InvalidInput as error:
            self.counts["not_sendable"] += 1
            _log.warning("a message cannot be sent", error=error.message)
            return b""

    def _send(self, data: bytes, to: Address | None) -> bool:
        try:
            if to is None:
                self.station.broadcast(TO_ALL_BYTE + data)
            else:
                self.station.send(data, to)
        except (InvalidInput, TooLarge) as error:
            self.counts["not_sendable"] += 1
            _log.warning("a message cannot be sent", error=error.message)
            return False
        return True

    # --- listeners ---

    def _notify_published(self) -> None:
        """Not derived from the outbox: a version may go in parts, or to no recipient."""
        published = [*self._published]
        self._published.clear()
        if self.on_published is not None:
            for message in published:
                self._notify(self.on_published, message)

    def _notify_changed(self, now: Now) -> None:
        changed = self.machine.changed
        self.figures.replaced(changed, now.wall_ms)
        self.counts["versions_received"] += len(changed)
        if self.on_changed is not None:
            for message in changed:
                self._notify(self.on_changed, message)
        changed.clear()

    def _notify(self, listener: KnowledgeListener, message: PublishedKnowledge) -> None:
        """A listener that fails does not stop the node."""
        try:
            listener(knowledge_of(message))
        except Exception as error:
            self.counts["not_told"] += 1
            _log.error(
                "knowledge could not be handed on", component=message.component, error=repr(error)
            )

    def _members_changed(self, now: Now) -> None:
        assert self.swim is not None
        for change in self.swim.changes:
            self.counts[f"members_{change.kind}"] += 1
            where = format_address(change.address)
            _log.info("member " + change.kind, node=change.name, address=where)
            if change.kind in ("failed", "left") and not self.swim.roster.namesakes(change.name):
                self.machine.node_gone(change.name, change.address, now)
        self.swim.changes.clear()
        self._note_namesakes(now)
        self.machine.know(self.swim.present, self.swim.roster.with_role(GROUPER_ROLE))
        if self.recording is not None:
            self.recording.members(self.swim.present, now)

    def _note_namesakes(self, now: Now) -> None:
        assert self.swim is not None
        node = self.machine.node
        found = frozenset(self.swim.roster.namesakes(node))
        for address in sorted(found - self._namesakes):
            fault = Fault(
                code="ensemble.equal_nodes",
                message=f"the node at {format_address(address)} is called {node!r}, as this one is",
                hint="give each node a name of its own; others take the two for one",
            )
            self.machine.host.faults.add(fault, now.wall_ms)
        self._namesakes = found

    # --- logs ---

    def _log_faults(self) -> None:
        """Logs faults, and each beginning and end of a time in which knowledge is withheld."""
        host = self.machine.host
        for fault in host.faults.take_unreported():
            withheld = host.withheld.get(fault.component)
            if withheld is None or withheld.code != fault.code:
                _log_fault(fault)
        if host.withheld.keys() != self._withheld:
            for component in sorted(host.withheld.keys() ^ self._withheld):
                self.report_withheld(component, host.withheld.get(component))
            self._withheld = frozenset(host.withheld)


def _log_withheld(component: str, withheld: WithheldKnowledge | None) -> None:
    """Both at one level, so that a log never shows a beginning without its end."""
    if withheld is None:
        _log.warning("knowledge is published again", component=component)
        return
    _log.warning(
        "knowledge is withheld",
        component=component,
        code=withheld.code,
        error=withheld.message,
        hint=withheld.hint,
    )


def _log_fault(fault: Fault) -> None:
    shown = {
        "component": fault.component,
        "name": fault.name,
        "place": fault.place,
        "hint": fault.hint,
        "count": fault.count if fault.count > 1 else None,
    }
    given = {name: value for name, value in shown.items() if value}
    _log.warning("ensemble fault", code=fault.code, error=fault.message, **given)


def knowledge_of(message: PublishedKnowledge) -> Knowledge:
    """The knowledge in a message, as programs see it; raises InvalidInput if it cannot be read."""
    return Knowledge(
        component=message.component,
        node=message.node,
        roles=message.roles,
        version=message.version,
        created_ms=message.created_ms,
        values=values_of(message.body),
    )
