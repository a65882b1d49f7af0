"""A broker as v0 knows it: datagrams in, datagrams out, no sockets and no clock. [CX-2, CX-3]

It stands before a broker of v1: it answers from the same table, hands updates over to be kept, and
asks the v1 network for what no v0 broker has.
"""

from __future__ import annotations

from collections.abc import Callable

from rapport.context.broker.agenda import Agenda
from rapport.context.broker.effects import Audited
from rapport.context.messages import BAD_REQUEST, NOT_ALLOWED, PROCESSED, RECEIVED, Question
from rapport.context.table import Records
from rapport.context.v0 import messages as m
from rapport.context.v0.admission import Caller, Hosts, Pace
from rapport.context.v0.neighbourhood import Neighbourhood
from rapport.context.v0.outgoing import Outgoing, V0Counters
from rapport.context.v0.reading import operation_of, read
from rapport.context.v0.searching import Allows, Search, Searching
from rapport.context.v0.settings import V0Settings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport.transport.base import Address, Now

Keep = Callable[[ContextRecord, bool, Callable[[int, Now], None]], None]
"""Takes a record (and whether it was advertised), then calls back once: PROCESSED when it is on
disk, else a status of refusal.
"""
_UPDATE = m.OPERATIONS[m.UPDATE]
_STRANGERS = "*"


def _everything(_identity: str, _right: str, _entity: EntityRef, _scope: str) -> bool:
    return True


class V0Broker:
    """The machine. The shell takes and clears `outbox` and `effects` after each call."""

    def __init__(
        self,
        address: Address,
        settings: V0Settings,
        chance: Chance,
        *,
        records: Records,
        keep: Keep,
        search: Search | None = None,
        allows: Allows = _everything,
        holder: Address | None = None,
    ) -> None:
        """
        Args:
            address: as others see it: walks know by it where they were.
            keep: what takes updates.
            search: what looks in the v1 network.
            holder: the address in v1 of the broker behind, which stands for replicas made here.
        """
        self.address, self.settings = address, settings
        self._keep, self._allows = keep, allows
        self._agenda, self._outgoing = Agenda(), Outgoing(settings.identity)
        self._neighbourhood = Neighbourhood(address, settings, chance, self._outgoing, self._agenda)
        self._searching = Searching(
            address,
            settings,
            chance,
            self._outgoing,
            self._agenda,
            self._neighbourhood,
            records=records,
            search=search,
            allows=allows,
            holder=holder or address,
        )
        self._clients = Hosts(settings.clients)
        self._named = Hosts((*settings.clients, *settings.brokers, *settings.controllers))
        self._pace = Pace(settings.datagrams_per_second)
        self._strangers = Pace(settings.strangers_per_second)

    @property
    def outbox(self) -> list[tuple[bytes, Address]]:
        """What to send, in order."""
        return self._outgoing.outbox

    @property
    def effects(self) -> list[Audited]:
        """What was done for whom; updates are audited by who keeps them."""
        return self._outgoing.effects

    @property
    def counters(self) -> V0Counters:
        """What was done."""
        return self._outgoing.counters

    @property
    def neighbours(self) -> tuple[Address, ...]:
        """The neighbours in v0."""
        return self._neighbourhood.addresses

    @property
    def searches(self) -> int:
        """Searches under way."""
        return self._searching.under_way

    def handle(self, datagram: bytes, sender: Address, now: Now) -> None:
        """Takes a datagram; whatever it holds, nothing is raised."""
        counters = self._outgoing.counters
        is_named = sender[0] in self._named or sender in self.neighbours
        if not self._is_heard(sender, is_named, now):
            counters.dropped += 1
            return
        counters.heard += 1
        caller = Caller(sender, None if is_named else len(datagram))
        try:
            message = read(datagram)
        except InvalidInput:
            counters.bad += 1
            operation = operation_of(datagram)
            if operation is not None:
                self._outgoing.refuse(caller, BAD_REQUEST, operation, now)
            return
        self._neighbourhood.heard(sender, now)
        self._act(message, caller, now)

    def tick(self, now: Now) -> None:
        """Does what is due."""
        self._agenda.run(now)
        self._neighbourhood.tick(now)

    def next_due_ms(self) -> float | None:
        """The steady time of the earliest thing to do."""
        times = (self._agenda.next_due_ms(), self._neighbourhood.next_due_ms())
        return min((time for time in times if time is not None), default=None)

    def _is_heard(self, sender: Address, is_named: bool, now: Now) -> bool:
        if sender == self.address:
            return False  # forged: we do not send to ourselves
        if not is_named and not self._strangers.takes(_STRANGERS, now):
            return False
        return self._pace.takes(sender[0], now)

    def _act(self, message: m.V0Message, caller: Caller, now: Now) -> None:
        match message:
            case m.Request():
                self._searching.request(message, caller, now)
            case m.Update():
                self._update(message, caller, now)
            case m.Response():
                self._searching.response(message, caller, now)
            case m.Ping():
                host = self.address[0]
                self._outgoing.tell(m.PingResponse(now.wall_ms, host), caller)
            case m.Acknowledgement():
                self._neighbourhood.acknowledged(message, caller, now)
            case m.Refusal(operation="BrokerJoining"):
                self._neighbourhood.refused(caller, now)
            case m.Refusal():
                self._searching.refusal(message, caller, now)
            case m.Joining():
                self._neighbourhood.join(message, caller, now)
            case m.Leaving():
                self._neighbourhood.leave(message, caller, now)
            case m.StartMonitoring():
                self._neighbourhood.monitor(caller, now)
            case m.PingResponse():
                pass  # a sign of life, which was noted before

    def _update(self, message: m.Update, caller: Caller, now: Now) -> None:
        """2: 101 at once, 102 when it is kept. An update without an advertisement adds."""
        record = message.record
        identity = self.settings.identity
        allowed = self._allows(identity, "write", record.entity, record.scope)
        if caller.address[0] not in self._clients or not allowed:
            self._outgoing.audit("put", caller, NOT_ALLOWED, Question(record.entity, record.scope))
            self._outgoing.refuse(caller, NOT_ALLOWED, _UPDATE, now)
            return
        self._outgoing.acknowledge(caller, RECEIVED, _UPDATE, now)

        def kept(status: int, now: Now) -> None:
            if status == PROCESSED:
                self._outgoing.acknowledge(caller, PROCESSED, _UPDATE, now)
            else:
                self._outgoing.refuse(caller, status, _UPDATE, now)

        self._keep(record, message.advertises, kept)
