"""Writes down what happens in a world: the request log, and the trace that rules are checked on.
[EN-3, EN-11]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rapport.ensemble.protocol import Message, Outgoing, Part, Published
from rapport.ensemble.trace import IP, RADIO, Kind, Recorder
from rapport.kernel.clock import Now
from rapport.transport.base import Address
from rapport_lab.ensemble.simulation.neighbourhoods import Neighbours
from rapport_lab.ensemble.simulation.request_log import RequestLog

if TYPE_CHECKING:
    from rapport_lab.ensemble.simulation.world import World

EVERYBODY = "*"


class Witness:
    """Sees every message of a world; about 2 us for each that is sent and each that arrives."""

    def __init__(self, *, log: RequestLog | None = None, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        """Also what machines are given as `trace`, where rules are to be checked."""
        self._log = log
        self._linked: Neighbours = ()
        self._alive: set[int] = set()

    def watch(self, world: World) -> None:
        """Begins; called by the world."""
        self._world = world
        if world.radio is not None:
            world.radio.on_miss = self._missed_radio
            world.radio.on_renew.append(self._note_links)
        if world.ip is not None:
            world.ip.on_miss = self._missed_ip

    @property
    def _now(self) -> Now:
        return self._world.scheduler.now

    # --- nodes ---

    def started(self, number: int) -> None:
        """A node runs from now."""
        self._alive.add(number)
        if self.recorder is not None:
            self.recorder.happened(Kind.STARTED, self._world.names[number], self._now)
            self._note_links()

    def stopped(self, number: int) -> None:
        """It does no more."""
        self._alive.discard(number)
        if self.recorder is not None:
            self._note_links()
            self.recorder.happened(Kind.STOPPED, self._world.names[number], self._now)

    def _note_links(self) -> None:
        """Tells the trace which links came and went since it was last told."""
        if self.recorder is None or self._world.radio is None:
            return
        now, alive = self._now, self._alive
        neighbours = self._world.radio.neighbours
        present = [
            tuple(other for other in others if other in alive) if number in alive else ()
            for number, others in enumerate(neighbours)
        ]
        before = self._linked or [()] * len(present)
        for number, (old, new) in enumerate(zip(before, present, strict=True)):
            if old != new:
                self._tell(Kind.UNLINKED, number, sorted(set(old) - set(new)), now)
                self._tell(Kind.LINKED, number, sorted(set(new) - set(old)), now)
        self._linked = present

    def _tell(self, kind: Kind, number: int, others: Sequence[int], now: Now) -> None:
        names = self._world.names
        for other in others:
            if self.recorder is not None:
                node, name = names[number], names[other]
                self.recorder.happened(kind, node, now, other=name, medium=RADIO)

    # --- messages ---

    def sent(self, number: int, outgoing: Outgoing, size_bytes: int) -> None:
        """A node sends something."""
        node, now = self._world.names[number], self._now
        if self.recorder is not None:
            self.recorder.sent(node, outgoing, now)
        if self._log is not None:
            medium, other = RADIO, ""
            if outgoing.to is not None:
                medium, other = IP, self._name_at(outgoing.to)
            message = outgoing.message
            self._log.write(now.steady_ms, "sent", node, other, medium, message, size_bytes)

    def received(
        self, number: int, message: Message, sender: int, medium: str, size_bytes: int
    ) -> None:
        """Something is about to be handed to a node."""
        names, now = self._world.names, self._now
        node, other = names[number], names[sender]
        if self.recorder is not None:
            self.recorder.received(node, message, other, medium, now)
        if self._log is not None:
            self._log.write(now.steady_ms, "received", node, other, medium, message, size_bytes)

    def aged(self, number: int, published: Published, age_ms: int) -> None:
        """A newer version took the place of one of this age."""
        if self._log is not None:
            node, time_ms = self._world.names[number], self._world.scheduler.time_ms
            self._log.write(time_ms, "aged", node, published.node, "", published, 0, age_ms)

    def _missed_radio(
        self, sender: int, message: Message, receivers: Sequence[int], why: str
    ) -> None:
        names = self._world.names
        missing = [names[number] for number in receivers if number in self._alive]
        for node in missing if receivers else [EVERYBODY]:
            self._missed(node, names[sender], message, RADIO, why)

    def _missed_ip(self, sender: int, message: Message, to: Address, why: str) -> None:
        self._missed(self._name_at(to), self._world.names[sender], message, IP, why)

    def _missed(self, node: str, other: str, message: Message, medium: str, why: str) -> None:
        now = self._now
        if self._log is not None:
            self._log.write(now.steady_ms, why, node, other, medium, message, 0)
        if self.recorder is not None:
            about: dict[str, Any] = {}
            if isinstance(message, Published | Part):
                about = {"component": message.component, "version": message.version}
            self.recorder.happened(
                Kind.LOST, node, now, other=other, medium=medium, detail=why, **about
            )

    def _name_at(self, address: Address) -> str:
        if self.recorder is not None:
            return self.recorder.name_of(address)
        return f"{address[0]}:{address[1]}"
