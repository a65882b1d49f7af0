"""The neighbours of a broker in v0: joining, leaving, monitoring, pings. [CX-2, CX-4]"""

from __future__ import annotations

from rapport.context.broker.broker_state import TimerQueue
from rapport.context.protocol import BAD_REQUEST, INTERNAL_ERROR, NOT_ALLOWED, PROCESSED, RECEIVED
from rapport.context.v0 import v0_protocol as m
from rapport.context.v0.v0_state import V0Caller, V0Hosts, V0Outbox, V0Settings
from rapport.kernel.clock import Chance, Now
from rapport.overlay.liveness import Liveness, LostNeighbour
from rapport.overlay.membership_steps import SendPing
from rapport.transport.base import Address

_JOINING = m.OPERATIONS[m.JOINING]
_LEAVING = m.OPERATIONS[m.LEAVING]
_MONITORING = m.OPERATIONS[m.MONITORING]
_WHAT = {_JOINING: "join", _LEAVING: "leave", _MONITORING: "monitor"}
_TRIES = 3
_MOST_NAMED = 100
_MOST_JOINS = 16
_MOST_DEPARTED = 256


class _Join:
    """A pending join: the brokers asked, and those that answered."""

    def __init__(self, controller: V0Caller, waiting: list[Address]) -> None:
        self.controller = controller
        self.waiting = dict.fromkeys(waiting)
        self.answered = 0
        self.is_over = False


class V0Neighbourhood:
    """The neighbours, and pending joins."""

    def __init__(
        self,
        address: Address,
        settings: V0Settings,
        chance: Chance,
        outgoing: V0Outbox,
        agenda: TimerQueue,
    ) -> None:
        self._address, self._settings = address, settings
        self._outgoing, self._agenda = outgoing, agenda
        self._liveness = Liveness(settings.membership, chance)
        self._allowed = V0Hosts(settings.brokers)
        self._controllers = V0Hosts(settings.controllers)
        self._neighbours: dict[Address, None] = dict.fromkeys(settings.neighbours)
        self._departed: dict[Address, None] = {}
        self._joins: list[_Join] = []
        self.is_monitoring = False
        self.addresses: tuple[Address, ...] = tuple(self._neighbours)

    def is_broker(self, address: Address) -> bool:
        """Whether a sender counts as a broker: a neighbour, or one that the site names."""
        return address in self._neighbours or address[0] in self._allowed

    def passes_on(self, address: Address) -> bool:
        """Whether an answer may be handed to it: a broker that has not left."""
        return self.is_broker(address) and address not in self._departed

    def mark_alive(self, address: Address, now: Now) -> None:
        """Any message of a broker is a sign of life."""
        self._departed.pop(address, None)
        if address in self._neighbours:
            self._liveness.mark_alive(address, now)

    def monitor(self, caller: V0Caller, now: Now) -> None:
        """The command 0: from now on silent neighbours are found."""
        if self._may_command(caller, _MONITORING, now):
            self._outgoing.acknowledge(caller, RECEIVED, _MONITORING, now)
            self.is_monitoring = True
            for address in self._neighbours:
                self._liveness.watch(address, now)

    def leave(self, message: m.V0LeaveMessage, caller: V0Caller, now: Now) -> None:
        """7: a neighbour leaves, or (a command) this broker does. It is not passed on."""
        if message.is_brokers:
            self._drop(caller.address)
        elif self._may_command(caller, _LEAVING, now):
            self._outgoing.acknowledge(caller, RECEIVED, _LEAVING, now)
            for address in self.addresses:
                self._outgoing.send(m.V0LeaveMessage(now.wall_ms, is_brokers=True), address)
                self._drop(address)

    def join(self, message: m.V0JoinMessage, caller: V0Caller, now: Now) -> None:
        """8: a broker asks to be a neighbour, or a controller sends a list to join."""
        if message.is_brokers:
            self._admit(caller, now)
        elif self._may_command(caller, _JOINING, now):
            self._begin_join(message.brokers, caller, now)

    def acknowledged(self, message: m.V0Acknowledgement, caller: V0Caller, now: Now) -> None:
        """5: the first ACK of one that was asked to be a neighbour makes it one."""
        if message.operation == _JOINING:
            self._answered(caller.address, now, accepts=True)

    def refused(self, caller: V0Caller, now: Now) -> None:
        """6 for joining: it does not want to."""
        self._answered(caller.address, now, accepts=False)

    def tick(self, now: Now) -> None:
        """Pings neighbours that are watched; drops those that are silent."""
        for step in self._liveness.tick(now):
            if isinstance(step, SendPing):
                self._outgoing.send(m.V0Ping(now.wall_ms), step.to)
            elif isinstance(step, LostNeighbour):
                self._drop(step.address)

    def next_due_ms(self) -> float | None:
        """When `tick` has something to do."""
        return self._liveness.next_due_ms()

    def _may_command(self, caller: V0Caller, operation: str, now: Now) -> bool:
        may = caller.address[0] in self._controllers
        what = _WHAT[operation]
        self._outgoing.audit(what, caller, PROCESSED if may else NOT_ALLOWED, None)
        if not may:
            self._outgoing.refuse(caller, NOT_ALLOWED, operation, now)
        return may

    def _admit(self, caller: V0Caller, now: Now) -> None:
        address = caller.address
        if address[0] not in self._allowed and address not in self._neighbours:
            self._outgoing.refuse(caller, BAD_REQUEST, _JOINING, now)
        elif not self._add(address, now):
            self._outgoing.refuse(caller, INTERNAL_ERROR, _JOINING, now)
        else:
            self._outgoing.acknowledge(caller, RECEIVED, _JOINING, now)
            self._outgoing.acknowledge(caller, PROCESSED, _JOINING, now)

    def _begin_join(self, named: tuple[str, ...], caller: V0Caller, now: Now) -> None:
        places = [self._place(text) for text in named]
        wanted = [place for place in dict.fromkeys(places) if place and place != self._address]
        if not wanted or None in places or len(wanted) > _MOST_NAMED:
            self._outgoing.refuse(caller, BAD_REQUEST, _JOINING, now)
            return
        if len(self._joins) >= _MOST_JOINS:
            self._outgoing.refuse(caller, INTERNAL_ERROR, _JOINING, now)
            return
        self._outgoing.acknowledge(caller, RECEIVED, _JOINING, now)
        join = _Join(caller, wanted)
        self._joins.append(join)
        self._agenda.at(now.steady_ms + self._settings.join_within_ms, self._end, join)
        self._ask_to_join(join, _TRIES, now)

    def _ask_to_join(self, join: _Join, tries: int, now: Now) -> None:
        if join.is_over or not tries:
            return
        for address in join.waiting:
            self._outgoing.send(m.V0JoinMessage(now.wall_ms, is_brokers=True), address)
        again_ms = now.steady_ms + self._settings.join_within_ms / _TRIES
        self._agenda.at(again_ms, self._ask_to_join, join, tries - 1)

    def _answered(self, address: Address, now: Now, *, accepts: bool) -> None:
        for join in list(self._joins):
            if address in join.waiting:
                del join.waiting[address]
                join.answered += accepts and self._add(address, now)
                if not join.waiting:
                    self._end(join, now)

    def _end(self, join: _Join, now: Now) -> None:
        if join.is_over:
            return
        join.is_over = True
        self._joins.remove(join)
        if join.answered:
            self._outgoing.acknowledge(join.controller, PROCESSED, _JOINING, now)
        else:
            self._outgoing.refuse(join.controller, INTERNAL_ERROR, _JOINING, now)

    def _add(self, address: Address, now: Now) -> bool:
        """Adds a neighbour, if there is room; returns whether it is one."""
        if address not in self._neighbours:
            if len(self._neighbours) >= self._settings.at_most:
                return False
            self._neighbours[address] = None
            self._departed.pop(address, None)
            self.addresses = tuple(self._neighbours)
        if self.is_monitoring:
            self._liveness.watch(address, now)
        return True

    def _drop(self, address: Address) -> None:
        """It left or fell silent: no neighbour, and nothing is handed to it."""
        if self.is_broker(address):
            self._departed[address] = None
            if len(self._departed) > _MOST_DEPARTED:
                del self._departed[next(iter(self._departed))]
        if address in self._neighbours:
            del self._neighbours[address]
            self.addresses = tuple(self._neighbours)
            self._liveness.forget(address)

    def _place(self, text: str) -> Address | None:
        """`HOST`, at the port of this broker because the appendix gives none; or `HOST:PORT`."""
        host, colon, port = text.rpartition(":")
        if not colon or (":" in host and not host.endswith("]")):
            host, port = text, str(self._address[1])
        host = host.removeprefix("[").removesuffix("]")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535
        return (host, int(port)) if host and is_port else None
