"""The UDP endpoint for clients and brokers of protocol v0, in front of a running broker.
[CX-2, CX-3]

It is off unless a site enables it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rapport.context.broker.broker_state import AuditEffect
from rapport.context.protocol import BAD_REQUEST, INTERNAL_ERROR, PROCESSED, TOO_BUSY, Question
from rapport.context.records import RecordTable
from rapport.context.v0.v0_machine import V0Broker
from rapport.context.v0.v0_protocol import MAX_DATAGRAM
from rapport.context.v0.v0_search import V0Allows
from rapport.context.v0.v0_state import V0Settings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, RapportError
from rapport.kernel.clock import Chance, Clock, DueTimer, Now
from rapport.kernel.tasks import Tasks
from rapport.transport.addresses import format_address, ip_of, resolve
from rapport.transport.base import Address, Endpoint
from rapport.transport.station import EndpointWrapper, direct_link
from rapport.transport.udp import UdpEndpoint

_MOST_AT_ONCE = 10_000
"""Pending updates and v1 searches; beyond it, 201."""


class _Found(Protocol):
    @property
    def record(self) -> ContextRecord:
        """What was found."""


class _Machine(Protocol):
    table: RecordTable


class V0Backend(Protocol):
    """The broker behind the endpoint; `ContextBroker` is one."""

    address: Address

    @property
    def machine(self) -> _Machine:
        """Whose table is answered from."""

    async def put(self, record: ContextRecord, *, identity: str) -> None:
        """Returned = on disk."""

    async def ask(self, entity: EntityRef, scope: str, *, within_ms: int, identity: str) -> _Found:
        """From here or from the network; raises RapportError when there is none."""


class V0Endpoint:
    """An open endpoint. Lives on the loop it was opened on."""

    def __init__(
        self,
        endpoint: Endpoint,
        broker: V0Backend,
        settings: V0Settings,
        clock: Clock,
        chance: Chance,
        allows: V0Allows,
        audit: Callable[[AuditEffect], None] | None,
    ) -> None:
        self.address = endpoint.address
        self.machine = V0Broker(
            endpoint.address,
            settings,
            chance,
            records=broker.machine.table,
            keep=self._keep,
            search=self._search,
            allows=allows,
            holder=broker.address,
        )
        self._endpoint, self._broker, self._clock, self._audit = endpoint, broker, clock, audit
        self._identity = settings.identity
        self._alarm = DueTimer(clock, self.machine.next_due_ms, self._tick)
        self._tasks = Tasks(clock)
        self._at_once: set[asyncio.Task[None]] = set()

    @staticmethod
    async def open(
        listen: Address,
        broker: V0Backend,
        *,
        clock: Clock,
        chance: Chance,
        allows: V0Allows,
        settings: V0Settings | None = None,
        audit: Callable[[AuditEffect], None] | None = None,
        link: EndpointWrapper = direct_link,
    ) -> V0Endpoint:
        """Receives v0 from now on, and answers the senders that `settings` names.

        `allows` is called with the identity `settings.identity`. `audit` records reads and
        commands; updates are audited by the broker.
        Raises InvalidInput, Unavailable when the address cannot be had.
        """
        place = await resolve(listen)
        found = ip_of(place[0])
        if found is not None and found.is_unspecified:
            raise InvalidInput(
                f"{format_address(place)} is every address of this machine, and walks need one",
                code="context.bad_address",
                hint="listen on the address by which the others reach this machine",
            )
        endpoint = link(await UdpEndpoint.open(*place, max_datagram=MAX_DATAGRAM))
        opened = V0Endpoint(
            endpoint, broker, settings or V0Settings(), clock, chance, allows, audit
        )
        opened._tasks.start("context v0 alarm", opened._alarm.run)
        endpoint.receive(opened._take)
        return opened

    async def close(self) -> None:
        """Closes the endpoint; the broker goes on. A second call is no error."""
        await self._tasks.stop()
        await self._endpoint.close()
        waiting = list(self._at_once)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _take(self, datagram: bytes, sender: Address) -> None:
        self.machine.handle(datagram, sender, self._now())
        self._settle()

    def _tick(self) -> None:
        self.machine.tick(self._now())
        self._settle()

    def _settle(self) -> None:
        """After every call of the machine: sends, writes the audit, resets the timer."""
        outbox, effects = self.machine.outbox, self.machine.effects
        for datagram, to in outbox:
            self._endpoint.send(datagram, to)
        outbox.clear()
        if self._audit is not None:
            for effect in effects:
                self._audit(effect)
        effects.clear()
        self._alarm.look()

    def _keep(
        self, record: ContextRecord, _advertises: bool, done: Callable[[int, Now], None]
    ) -> None:
        async def keep() -> None:
            try:
                await self._broker.put(record, identity=self._identity)
                status = PROCESSED
            except InvalidInput:
                status = BAD_REQUEST
            except RapportError:
                status = INTERNAL_ERROR
            done(status, self._now())
            self._settle()

        if not self._start(keep):
            done(TOO_BUSY, self._now())

    def _search(
        self,
        question: Question,
        within_ms: int,
        found: Callable[[ContextRecord | None, Now], None],
    ) -> None:
        async def search() -> None:
            record: ContextRecord | None = None
            try:
                answer = await self._broker.ask(
                    question.entity, question.scope, within_ms=within_ms, identity=self._identity
                )
                record = answer.record
            except RapportError:
                record = None  # whatever the reason: v0 has no other status than 202
            found(record, self._now())
            self._settle()

        if not self._start(search):
            found(None, self._now())

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        if len(self._at_once) >= _MOST_AT_ONCE:
            return False
        task = asyncio.create_task(work())
        self._at_once.add(task)
        task.add_done_callback(self._at_once.discard)
        return True

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.steady_ns() / 1e6)
