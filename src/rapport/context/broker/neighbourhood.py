"""Membership of a broker in words of the protocol: pings, joins, departures, commands.
[CX-3, CX-4, CX-11]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.context.broker.broker_state import (
    AuditEffect,
    BrokerState,
    JoinFailed,
    NeighbourLost,
    NetworkJoined,
)
from rapport.context.broker.walks import NeighbourProbes
from rapport.context.protocol import (
    BAD_REQUEST,
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    RECEIVED,
    TOO_BUSY,
    Command,
    Departure,
    Join,
    Message,
    Ping,
    Pong,
    Status,
    Welcome,
)
from rapport.kernel.clock import Now
from rapport.overlay.membership_steps import (
    IsolationNotice,
    JoinedNetwork,
    MembershipStep,
    SendDeparted,
    SendJoin,
    SendPing,
)
from rapport.overlay.membership_steps import NeighbourLost as Lost
from rapport.transport.base import Address, Sender

_MOST_CONTROLLERS = 64


class BrokerNeighbourhood:
    """Turns what membership wants into messages, and messages into its inputs."""

    __slots__ = ("_controllers", "_probes", "_state", "load", "lost")

    lost: Callable[[Address, Now], None]
    """Called when a neighbour is one no more; set by the machine."""
    load: Callable[[], float]
    """How loaded this broker is; set by the machine."""

    def __init__(self, state: BrokerState, probes: NeighbourProbes) -> None:
        self._state, self._probes = state, probes
        self._controllers: list[tuple[int, Address]] = []
        """Controllers that wait for the result of a join."""

    def pinged(self, ping: Ping, sender: Sender, now: Now) -> None:
        """Anybody may ask; neighbours learn what can be found here."""
        near = sender.kind == "network" and sender.address in self._state.membership.neighbours
        known = self._probes.own_filter(now) if near else b""
        self._state.send(Pong(ping.id, round(self.load(), 3), known), sender.address)

    def ponged(self, pong: Pong, sender: Sender, now: Now) -> None:
        """An answer to a ping of ours."""
        self.carry_out(self._state.membership.answered(sender.address, pong.id, now), now)
        self._probes.learned(sender.address, pong.filter)

    def join_requested(self, join: Join, sender: Sender, now: Now) -> None:
        """Another broker wants to be a neighbour."""
        membership = self._state.membership
        admission = membership.join_requested(sender.address, now, by_hand=join.by_hand)
        welcome = Welcome(join.id, admission.accepted, admission.others)
        self._state.send(welcome, sender.address)
        self.carry_out(admission.steps, now)

    def welcomed(self, welcome: Welcome, sender: Sender, now: Now) -> None:
        """Another broker answers whether it is a neighbour now."""
        membership = self._state.membership
        steps = membership.welcomed(sender.address, welcome.accepted, welcome.others, now)
        self.carry_out(steps, now)

    def departed(self, departed: Departure, sender: Sender, now: Now) -> None:
        """Word came that a broker is gone."""
        steps = self._state.membership.departed(
            departed.broker, departed.id, departed.ttl, departed.abrupt, sender.address, now
        )
        self.carry_out(steps, now)

    def commanded(self, command: Command, sender: Sender, now: Now) -> None:
        """A command of a controller: `join` the nearest of these, `connect` to exactly these,
        `leave`, or `monitor` the neighbours.
        """
        status, why = self._judge(command, sender)
        self._state.send(Status(command.id, status, why), sender.address)
        if (command.id, sender.address) in self._controllers:
            return  # repeated because the search takes its time; begun anew it would never end
        if self._state.settings.audits:
            audited = AuditEffect(command.what[:16], sender.identity, sender.address, status)
            self._state.effects.append(audited)
        if status != RECEIVED:
            return
        if command.what in ("join", "connect"):
            self._controllers.append((command.id, sender.address))
        membership = self._state.membership
        match command.what:
            case "join":
                self.carry_out(membership.start(command.brokers, now), now)
            case "connect":
                self.carry_out(membership.connect(command.brokers, now), now)
            case "leave":
                self.carry_out(membership.leave(now), now)
            case _:
                self.carry_out(membership.monitor(now), now)

    def carry_out(self, steps: Sequence[MembershipStep], now: Now) -> None:
        """Messages into the outbox, news to the shell."""
        state = self._state
        for step in steps:
            match step:
                case SendPing(to=to, number=number):
                    message: Message = Ping(number)
                    state.send(message, to)
                case SendJoin(to=to, number=number):
                    state.send(Join(number, step.by_hand), to)
                case SendDeparted(to=to):
                    message = Departure(step.number, step.broker, step.ttl, step.abrupt)
                    state.send(message, to)
                case Lost(address=address):
                    self._probes.forget(address)
                    state.effects.append(NeighbourLost(address, step.abrupt))
                    self.lost(address, now)
                case JoinedNetwork(neighbours=neighbours):
                    state.effects.append(NetworkJoined(neighbours))
                    self._notify_controllers(PROCESSED, "")
                case IsolationNotice():
                    state.effects.append(JoinFailed(step.answered, step.needed))
                    why = f"{step.answered} brokers answered, {step.needed} are needed"
                    self._notify_controllers(NOT_FOUND, why)

    def _judge(self, command: Command, sender: Sender) -> tuple[int, str]:
        if not self._state.allows(sender.identity, "control", None, ""):
            self._state.counts["not_allowed"] += 1
            return NOT_ALLOWED, "no right to control this broker"
        if command.what not in ("join", "connect", "leave", "monitor"):
            return BAD_REQUEST, "a command is join, connect, leave or monitor"
        if len(self._controllers) >= _MOST_CONTROLLERS:
            return TOO_BUSY, "too many controllers wait for a join"
        return RECEIVED, ""

    def _notify_controllers(self, status: int, why: str) -> None:
        for id, address in self._controllers:
            self._state.send(Status(id, status, why), address)
        self._controllers.clear()
