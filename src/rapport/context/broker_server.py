"""A running broker: its state machine on a socket, a clock and channels.
[CX-2, CX-3, CX-4, CX-8, CX-9]

`BrokerShell` decodes messages, calls the machine, sends its outbox, carries out its effects and
keeps its time. `ContextBroker` is the interface for the process that runs the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.context.audit import OWN_PROCESS, BrokerAudit
from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import BrokerSettings, check_on_sockets
from rapport.context.broker.broker_state import (
    AuditEffect,
    JoinFailed,
    NeighbourLost,
    NetworkJoined,
    StoreRecord,
)
from rapport.context.broker_status import (
    BrokerStatus,
    BrokerSummary,
    ResponseTimes,
    short_status,
)
from rapport.context.clients.consumer import LocatedRecord
from rapport.context.connections import open_station, refusal
from rapport.context.persistence import OWNER, RecordPersistence
from rapport.context.protocol import (
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    RECEIVED,
    Answer,
    Command,
    FoundRecord,
    Message,
    Put,
    Question,
    Request,
    SearchRefusal,
    Status,
    check_question,
    check_record,
    decode,
    encode,
)
from rapport.context.rights import LOCAL, ContextRights
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import Conflict, InvalidInput, RapportError, TooLarge, Unavailable
from rapport.kernel.clock import Chance, Clock, DueTimer, Now
from rapport.kernel.tasks import Tasks, close_all
from rapport.kernel.telemetry import get_logger
from rapport.transport.addresses import format_address, ip_of, resolve
from rapport.transport.base import Address, Sender
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station, direct_link

STATUS = "status"
"""The command that the shell answers with the broker's status."""
_BUSY_EVERY_MS = 1_000

_log = get_logger(__name__)


class BrokerShell:
    """Runs the machine of a broker. After each call of the machine, call `settle`."""

    def __init__(
        self,
        station: Station,
        machine: BrokerMachine,
        clock: Clock,
        rights: ContextRights,
        keeping: RecordPersistence | None,
    ) -> None:
        self.station, self.machine, self.clock = station, machine, clock
        self.rights, self.keeping = rights, keeping
        self.audit = BrokerAudit(clock, is_kept=keeping is not None)
        self.times = ResponseTimes(format_address(machine.address), clock.now_ms())
        self._moment_ms = 0.0
        self.tasks = Tasks(clock)
        self._alarm = DueTimer(clock, machine.next_due_ms, self._tick)
        self.on_answer: Callable[[Message], None] = lambda _message: None
        """Gets the machine's answers to this process."""
        self.on_joined: Callable[[NetworkJoined | JoinFailed], None] = lambda _joined: None
        self.status_text: Callable[[], str] = lambda: ""
        self.put_headers: Mapping[str, str] = {}
        """Headers of the event of the record being put."""

    def begin(self, recalled: Sequence[ContextRecord]) -> None:
        """Restores stored records, then starts to receive."""
        now = self.now()
        if self.keeping is not None:
            self.machine.ownership.recall(self.keeping.owners)
            self.keeping.owner_of = self.machine.ownership.owner
        for record in recalled:
            self.machine.put(record, now)
        self.settle()
        if self.keeping is not None:
            self.keeping.audit = self.audit.due
            self.keeping.on_line = self.audit.trail.add
            self.keeping.batch_kept = self.settle
            self.tasks.start("context keeping", self.keeping.run)
            self.tasks.start("context care", self.keeping.tend)
        self.tasks.start("context alarm", self._alarm.run)
        self.tasks.start("context load", self._measure_load)
        self.station.receive(self._take)

    async def close(self) -> None:
        """Stops receiving and stores waiting updates. Channels stay open."""
        await self.tasks.stop()
        await self.station.close()
        if self.keeping is not None:
            await self.keeping.close()
            self.machine.outbox.clear()

    def now(self) -> Now:
        """The current time, for the next call of the machine."""
        self._moment_ms = self.clock.steady_ns() / 1e6
        return Now(self.clock.now_ms(), self._moment_ms)

    def settle(self) -> None:
        """Sends the outbox, carries out effects, and resets the timer."""
        outbox = self.machine.outbox
        if outbox:
            for message, to in outbox:
                self._send(message, to)
            outbox.clear()
        if self.machine.effects:
            self._carry_out()
        self._alarm.look()

    # --- what comes in, what is due, what goes out ---

    def _take(self, data: bytes, sender: Sender) -> None:
        try:
            message = decode(data)
        except InvalidInput:
            self.machine.counts["not_understood"] += 1
            return
        if type(message) is Command and message.what == STATUS:
            self._answer_status(message, sender)
            return
        machine = self.machine
        machine.handle(message, sender, self.now())
        outbox = machine.outbox
        if len(outbox) == 1 and type(outbox[0][0]) is Answer and type(message) is Request:
            # The usual case, answered from the table: it leaves nothing to be done later.
            answer, to = outbox.pop()
            self._send(answer, to)
            if machine.effects:
                self._carry_out()
            return
        self.settle()

    def _tick(self) -> None:
        self.machine.tick(self.now())
        self.settle()

    def _send(self, message: Message, to: Address) -> None:
        if to == OWN_PROCESS:
            self.on_answer(message)
            return
        try:
            self.station.send(encode(message), to)
        except (InvalidInput, TooLarge) as error:
            self.machine.counts["not_sendable"] += 1
            _log.warning("a message cannot be sent", error=error.message)

    def _answer_status(self, command: Command, sender: Sender) -> None:
        if self.rights.allows(sender.identity, "control", None, ""):
            answer = Status(command.id, PROCESSED, self.status_text())
        else:
            self.audit.note_status(sender.identity, sender.address)
            answer = Status(command.id, NOT_ALLOWED, "no right to see how this broker is")
        self._send(answer, sender.address)

    def _carry_out(self) -> None:
        effects = self.machine.effects
        todo = effects[:]
        effects.clear()
        for effect in todo:
            match effect:
                case AuditEffect():
                    self.audit.note(effect)
                    if effect.what == "request":
                        self._note_time(effect)
                case StoreRecord():
                    self._keep(effect)
                case NetworkJoined() | JoinFailed():
                    self._know_neighbours()
                    self.on_joined(effect)
                case NeighbourLost():
                    self._know_neighbours()
                    _log.info("neighbour lost", broker=format_address(effect.address))

    def _note_time(self, effect: AuditEffect) -> None:
        """Records the response time of a request: its search, and the time since."""
        took_ms = effect.took_ms + self.clock.steady_ns() / 1e6 - self._moment_ms
        self.times.note(effect.status, effect.hops, took_ms)

    def _keep(self, effect: StoreRecord) -> None:
        assert self.keeping is not None

        def done(error: RapportError | None) -> None:
            if error is None:
                self.machine.kept(effect.token, self.now())
            else:
                self.machine.not_kept(effect.token, error.message, self.now())

        headers = dict(self.put_headers)
        if effect.owner:
            headers[OWNER] = effect.owner
        self.keeping.keep(effect.record, effect.identity, done, headers)

    def _know_neighbours(self) -> None:
        """Remembers the last neighbours: a broker that lost all contacts them after a restart."""
        if self.keeping is not None and self.machine.neighbours:
            self.keeping.neighbours = self.machine.neighbours

    async def _measure_load(self) -> None:
        """Measures the share of time in which this thread worked: clients prefer idle brokers."""
        while True:
            worked_ns, began_ns = time.thread_time_ns(), self.clock.steady_ns()
            await self.clock.sleep(_BUSY_EVERY_MS)
            passed_ns = max(self.clock.steady_ns() - began_ns, 1)
            self.machine.busy = min((time.thread_time_ns() - worked_ns) / passed_ns, 1.0)


_JOIN_AGAIN_MS, _JOIN_SELDOM_MS = 5_000, 30_000


class ContextBroker:
    """A running broker. Lives on the loop it was opened on.

    With channels, an update is acknowledged when it is on disk and what is valid survives a
    restart; without, all is in memory only.
    """

    def __init__(self, shell: BrokerShell) -> None:
        self.address: Address = shell.station.address
        self.machine = shell.machine
        self._shell = shell
        self._puts: dict[int, asyncio.Future[Status]] = {}
        self._ids = 0
        self._joining: list[asyncio.Future[NetworkJoined | JoinFailed]] = []
        self._wanted: tuple[Address, ...] = ()
        self._promised: set[asyncio.Future[Any]] = set()
        self._is_closed = False
        shell.on_answer, shell.on_joined = self._answered, self._joined
        shell.status_text = lambda: short_status(self.status())

    @staticmethod
    async def open(
        listen: Address,
        *,
        clock: Clock,
        chance: Chance,
        settings: BrokerSettings | None = None,
        keys: DatagramKeys | None = None,
        channels: Channels | None = None,
        rights: ContextRights | None = None,
        link: EndpointWrapper = direct_link,
    ) -> ContextBroker:
        """A broker that serves its clients at once; `join` makes it part of a network.

        Without `rights` every holder of a key reads and writes, and members control; without keys
        every sender on this machine has every right.
        Raises InvalidInput for an address that others reach while there are no keys, Unavailable
        when it cannot be had.
        """
        if settings is not None:
            check_on_sockets(settings)
        place = await resolve(listen)
        _check_place(place)
        station = await open_station(place, keys, clock, link)
        try:
            keeping = (
                await RecordPersistence.open(channels, clock) if channels is not None else None
            )
            recalled = await keeping.recall() if keeping is not None else []
            held = rights or _usual_rights(keys)
            is_kept = keeping is not None
            wanted = msgspec.structs.replace(
                settings or BrokerSettings(), durable=is_kept, audits=is_kept
            )
            former = keeping.neighbours if keeping is not None else ()
            machine = BrokerMachine(
                station.address, wanted, chance, allows=held.allows, former=former
            )
        except BaseException:
            await station.close()
            raise
        if keys is not None:
            machine.reserve_names(lambda name: name in keys.owners)
        shell = BrokerShell(station, machine, clock, held, keeping)
        broker = ContextBroker(shell)
        shell.begin(recalled)
        if former:
            broker.keep_joining(former)
        return broker

    @property
    def rights(self) -> ContextRights:
        """The rights in force; other endpoints of this broker use them too."""
        return self._shell.rights

    def note(self, operation: AuditEffect) -> None:
        """Writes an operation at another endpoint into the audit log."""
        self._shell.audit.note(operation)

    async def put(
        self,
        record: ContextRecord,
        *,
        identity: str = LOCAL,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Takes a record as a provider's; returned = on disk. `headers` go with its event, such as
        what caused it.

        Raises InvalidInput (not a record, too large, past its validity), NotAllowed, Unavailable.
        """
        check_record(record)
        encode(Put(self._ids, record))  # a record that fits no message could be sent to no client
        shell = self._shell
        self._ids += 1
        done: asyncio.Future[Status] = self._promise()
        self._puts[self._ids] = done
        shell.put_headers = headers or {}
        try:
            sender = Sender(OWN_PROCESS, identity, "client")
            self.machine.handle(Put(self._ids, record), sender, shell.now())
            shell.settle()
        finally:
            shell.put_headers = {}
        status = await done
        if status.status != PROCESSED:
            raise refusal(status.status, status.why, f"{record.entity} {record.scope}")

    async def ask(
        self, entity: EntityRef, scope: str, *, within_ms: int = 2_000, identity: str = LOCAL
    ) -> LocatedRecord:
        """What is true now, from here or from the network; raises ContextNotFound, NotAllowed, and
        InvalidInput for what is no question.
        """
        check_question(question := Question(entity, scope))
        shell, what = self._shell, f"{entity} {scope}"
        now = shell.now()
        if not shell.rights.allows(identity, "read", entity, scope):
            shell.audit.note_request(identity, entity, scope, NOT_ALLOWED)
            shell.times.note(NOT_ALLOWED, 0, 0.0)
            raise refusal(NOT_ALLOWED, "no right to read this", what)
        done: asyncio.Future[FoundRecord | SearchRefusal] = self._promise()
        self.machine.ask(
            question,
            now,
            answer=lambda ended: None if done.done() else done.set_result(ended),
            within_ms=within_ms,
            identity=identity,
        )
        shell.settle()
        ended = await done
        status = ended.status if isinstance(ended, SearchRefusal) else PROCESSED
        shell.audit.note_request(identity, entity, scope, status)
        then, now = now, shell.now()
        hops = ended.hops if isinstance(ended, FoundRecord) else 0
        shell.times.note(status, hops, now.steady_ms - then.steady_ms)
        if isinstance(ended, SearchRefusal):
            raise refusal(ended.status, ended.why, what)
        if ended.record.valid_until <= now.wall_ms:
            raise refusal(NOT_FOUND, "its validity ended on the way here", what)
        return LocatedRecord(
            record=ended.record,
            hops=ended.hops,
            holder=ended.holder,
            asked_ms=then.wall_ms,
            took_ms=now.steady_ms - then.steady_ms,
            broker=self.address,
        )

    async def join(self, brokers: Sequence[Address]) -> tuple[Address, ...]:
        """Looks for neighbours among these; returns their addresses. Raises Unavailable when too
        few answer: then it waits for a new list.
        """
        known = [one for one in [await resolve(one) for one in brokers] if one != self.address]
        done: asyncio.Future[NetworkJoined | JoinFailed] = self._promise()
        self._joining.append(done)
        self.machine.join(known, self._shell.now())
        self._shell.settle()
        ended = await done
        if isinstance(ended, JoinFailed):
            names = ", ".join(format_address(one) for one in known)
            raise Unavailable(
                f"too few brokers answered: {ended.answered}, {ended.needed} are needed",
                code="context.not_joined",
                hint=f"are they running, and with the same keys? {names}",
            )
        return ended.neighbours

    def keep_joining(self, brokers: Sequence[Address]) -> None:
        """Joins in the background, again and again until enough of them have answered; for brokers
        that start in any order. Lists add up.
        """
        is_first = not self._wanted
        self._wanted = tuple(dict.fromkeys((*self._wanted, *brokers)))
        if is_first and self._wanted:
            self._shell.tasks.start("context join", self._join_until_done)

    @property
    def has_left(self) -> bool:
        """Whether it was commanded to leave, and has not joined since."""
        return self.machine.has_left

    async def leave(self) -> None:
        """Says goodbye to the neighbours, and ends trying to join; clients are still served."""
        self.machine.leave(self._shell.now())
        self._shell.settle()

    def monitor(self) -> None:
        """Pings the neighbours from now on."""
        self.machine.monitor(self._shell.now())
        self._shell.settle()

    def status(self) -> BrokerStatus:
        """The status of the broker, for people and metrics."""
        found, keeping = self.machine.status(), self._shell.keeping
        return msgspec.structs.replace(
            found,
            queued=keeping.queued if keeping is not None else 0,
            counters={**found.counters, **self._transport_counters()},
        )

    def take_summary(self) -> BrokerSummary | None:
        """The response times since the last call, for the log; none without requests."""
        return self._shell.times.take(self._shell.clock.now_ms())

    async def close(self) -> None:
        """Leaves, keeps what waits, and closes; a second call is no error. Channels stay open."""
        if self._is_closed:
            return
        self._is_closed = True
        await close_all(
            [
                ("context.leave", self.leave),
                ("context.shell", self._shell.close),
                ("context.promises", self._break_promises),
            ]
        )

    def _break_promises(self) -> None:
        for waiting in list(self._promised):
            waiting.cancel()

    def _promise(self) -> asyncio.Future[Any]:
        """A future, cancelled when the broker closes. Raises Conflict after that."""
        if self._is_closed:
            raise Conflict("this broker is closed", code="context.closed", hint="open it anew")
        promise: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._promised.add(promise)
        promise.add_done_callback(self._promised.discard)
        return promise

    def _transport_counters(self) -> dict[str, int]:
        station = self._shell.station
        counters = {
            "messages_received": station.counters.received,
            "messages_sent": station.counters.sent,
        }
        if station.unseal is not None:
            unheard: dict[str, Any] = msgspec.to_builtins(station.unseal.counters)
            counters |= {f"datagrams_{name}": int(count) for name, count in unheard.items()}
        return counters

    def _answered(self, message: Message) -> None:
        if isinstance(message, Status) and message.status != RECEIVED:
            done = self._puts.pop(message.id, None)
            if done is not None and not done.done():
                done.set_result(message)

    def _joined(self, effect: NetworkJoined | JoinFailed) -> None:
        waiting, self._joining = self._joining, []
        for done in waiting:
            if not done.done():
                done.set_result(effect)

    async def _join_until_done(self) -> None:
        # Not merely until it has neighbours: who joined this one meanwhile may be as cut off as it.
        reported, pause_ms = "", _JOIN_AGAIN_MS
        wanted: tuple[Address, ...] = ()
        while wanted != self._wanted:  # a list may have come while the one before was joined
            wanted = self._wanted
            try:
                neighbours = await self.join(wanted)
                _log.info("joined", neighbours=[format_address(one) for one in neighbours])
                continue
            except Unavailable as error:
                if error.message != reported:
                    reported = error.message
                    _log.warning("not joined yet", error=reported)
            wanted = ()
            if not self.has_left:
                await self._shell.clock.sleep(pause_ms)
                pause_ms = min(2 * pause_ms, _JOIN_SELDOM_MS)
            if self.has_left:
                break  # it was commanded to leave
        self._wanted = ()


def _usual_rights(keys: DatagramKeys | None) -> ContextRights:
    if keys is None:
        return ContextRights.of_this_machine()
    return ContextRights.of_key_holders(
        lambda owner: any(key.owner == owner and key.kind == "network" for key in keys)
    )


def _check_place(place: Address) -> None:
    """The address is sent to neighbours, so it must be a specific one."""
    found = ip_of(place[0])
    if found is not None and found.is_unspecified:
        raise InvalidInput(
            f"{format_address(place)} is every address of this machine, and others need one",
            code="context.bad_address",
            hint="listen on the address by which the others reach this machine",
        )
