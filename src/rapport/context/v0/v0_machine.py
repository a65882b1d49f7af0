"""A broker of protocol v0 as a pure state machine: datagrams in, datagrams out. [CX-2, CX-3]

It stands in front of a v1 broker: it answers from the same table, hands updates over to be stored,
and searches the v1 network for records that no v0 broker has.
"""

from __future__ import annotations

from collections.abc import Callable

from rapport.context.broker.broker_state import AuditEffect, TimerQueue
from rapport.context.protocol import BAD_REQUEST, NOT_ALLOWED, PROCESSED, RECEIVED, Question
from rapport.context.records import RecordTable
from rapport.context.v0 import v0_protocol as m
from rapport.context.v0.v0_neighbourhood import V0Neighbourhood
from rapport.context.v0.v0_protocol import operation_of, read
from rapport.context.v0.v0_search import V0Allows, V0Search, V0SearchFunction
from rapport.context.v0.v0_state import (
    V0Caller,
    V0Counters,
    V0Hosts,
    V0Outbox,
    V0RateLimit,
    V0Settings,
)
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address

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
        records: RecordTable,
        keep: Keep,
        search: V0SearchFunction | None = None,
        allows: V0Allows = _everything,
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
        self._agenda, self._outgoing = TimerQueue(), V0Outbox(settings.identity)
        self._neighbourhood = V0Neighbourhood(
            address, settings, chance, self._outgoing, self._agenda
        )
        self._searching = V0Search(
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
        self._clients = V0Hosts(settings.clients)
        self._named = V0Hosts((*settings.clients, *settings.brokers, *settings.controllers))
        self._pace = V0RateLimit(settings.datagrams_per_second)
        self._strangers = V0RateLimit(settings.strangers_per_second)

    @property
    def outbox(self) -> list[tuple[bytes, Address]]:
        """Datagrams to send, in order."""
        return self._outgoing.outbox

    @property
    def effects(self) -> list[AuditEffect]:
        """Operations to audit; updates are audited where they are stored."""
        return self._outgoing.effects

    @property
    def counters(self) -> V0Counters:
        """Counters."""
        return self._outgoing.counters

    @property
    def neighbours(self) -> tuple[Address, ...]:
        """The neighbours in v0."""
        return self._neighbourhood.addresses

    @property
    def searches(self) -> int:
        """The number of pending searches."""
        return self._searching.under_way

    def handle(self, datagram: bytes, sender: Address, now: Now) -> None:
        """Takes a datagram; whatever it holds, nothing is raised."""
        counters = self._outgoing.counters
        is_named = sender[0] in self._named or sender in self.neighbours
        if not self._is_heard(sender, is_named, now):
            counters.dropped += 1
            return
        counters.heard += 1
        caller = V0Caller(sender, None if is_named else len(datagram))
        try:
            message = read(datagram)
        except InvalidInput:
            counters.bad += 1
            operation = operation_of(datagram)
            if operation is not None:
                self._outgoing.refuse(caller, BAD_REQUEST, operation, now)
            return
        self._neighbourhood.mark_alive(sender, now)
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

    def _act(self, message: m.V0Message, caller: V0Caller, now: Now) -> None:
        match message:
            case m.V0Request():
                self._searching.request(message, caller, now)
            case m.V0Update():
                self._update(message, caller, now)
            case m.V0Response():
                self._searching.response(message, caller, now)
            case m.V0Ping():
                host = self.address[0]
                self._outgoing.reply(m.V0PingResponse(now.wall_ms, host), caller)
            case m.V0Acknowledgement():
                self._neighbourhood.acknowledged(message, caller, now)
            case m.V0Refusal(operation="BrokerJoining"):
                self._neighbourhood.refused(caller, now)
            case m.V0Refusal():
                self._searching.refusal(message, caller, now)
            case m.V0JoinMessage():
                self._neighbourhood.join(message, caller, now)
            case m.V0LeaveMessage():
                self._neighbourhood.leave(message, caller, now)
            case m.V0StartMonitoring():
                self._neighbourhood.monitor(caller, now)
            case m.V0PingResponse():
                pass  # a sign of life, which was noted before

    def _update(self, message: m.V0Update, caller: V0Caller, now: Now) -> None:
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
