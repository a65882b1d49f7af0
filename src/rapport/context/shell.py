"""The thin shell around a broker's machine: it decodes and encodes, calls the machine, sends its
outbox, carries out its effects, and wakes it in time. [CX-2, CX-8, CX-9]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rapport.context.auditing import OWN_PROCESS, BrokerAudit
from rapport.context.broker.effects import (
    Audited,
    Kept,
    NeighbourLost,
    NetworkJoined,
    NotJoined,
)
from rapport.context.broker.machine import BrokerMachine
from rapport.context.codec import decode, encode
from rapport.context.keeping import OWNER, Keeping
from rapport.context.messages import (
    NOT_ALLOWED,
    PROCESSED,
    Answer,
    Command,
    Message,
    Request,
    Status,
)
from rapport.context.response_times import ResponseTimes
from rapport.context.rights import ContextRights
from rapport.core.context_record import ContextRecord
from rapport.core.errors import InvalidInput, RapportError, TooLarge
from rapport.kernel.clock import Clock, DueTimer, Now
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger
from rapport.transport.addresses import format_address
from rapport.transport.base import Address, Sender
from rapport.transport.station import Station

STATUS = "status"
"""The command that the shell answers: how the broker is."""
_BUSY_EVERY_MS = 1_000

_log = get_logger(__name__)


class BrokerShell:
    """A machine that runs. After each call of the machine, `settle`."""

    def __init__(
        self,
        station: Station,
        machine: BrokerMachine,
        clock: Clock,
        rights: ContextRights,
        keeping: Keeping | None,
    ) -> None:
        self.station, self.machine, self.clock = station, machine, clock
        self.rights, self.keeping = rights, keeping
        self.audit = BrokerAudit(clock, is_kept=keeping is not None)
        self.times = ResponseTimes(format_address(machine.address), clock.now_ms())
        self._moment_ms = 0.0
        self.tasks = Tasks(clock)
        self._alarm = DueTimer(clock, machine.next_due_ms, self._tick)
        self.tell_own: Callable[[Message], None] = lambda _message: None
        """Gets what the machine answers to this very process."""
        self.tell_joined: Callable[[NetworkJoined | NotJoined], None] = lambda _joined: None
        self.tell_status: Callable[[], str] = lambda: ""
        self.put_headers: Mapping[str, str] = {}
        """What goes with the event of the record that is being put."""

    def begin(self, recalled: Sequence[ContextRecord]) -> None:
        """Takes up what was kept, then hears."""
        now = self.now()
        if self.keeping is not None:
            self.machine.ownership.recall(self.keeping.owners)
            self.keeping.owner_of = self.machine.ownership.owner
        for record in recalled:
            self.machine.put(record, now)
        self.settle()
        if self.keeping is not None:
            self.keeping.audit = self.audit.due
            self.keeping.told = self.audit.trail.add
            self.keeping.batch_kept = self.settle
            self.tasks.start("context keeping", self.keeping.run)
            self.tasks.start("context care", self.keeping.tend)
        self.tasks.start("context alarm", self._alarm.run)
        self.tasks.start("context load", self._measure_load)
        self.station.receive(self._take)

    async def close(self) -> None:
        """Hears no more, keeps what waits. Channels stay open."""
        await self.tasks.stop()
        await self.station.close()
        if self.keeping is not None:
            await self.keeping.close()
            self.machine.outbox.clear()

    def now(self) -> Now:
        """This moment, which a machine is told next."""
        self._moment_ms = self.clock.steady_ns() / 1e6
        return Now(self.clock.now_ms(), self._moment_ms)

    def settle(self) -> None:
        """Sends what the machine wants sent, does what it wants done, looks when it is due."""
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
            self.tell_own(message)
            return
        try:
            self.station.send(encode(message), to)
        except (InvalidInput, TooLarge) as error:
            self.machine.counts["not_sendable"] += 1
            _log.warning("a message cannot be sent", error=error.message)

    def _answer_status(self, command: Command, sender: Sender) -> None:
        if self.rights.allows(sender.identity, "control", None, ""):
            answer = Status(command.id, PROCESSED, self.tell_status())
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
                case Audited():
                    self.audit.note(effect)
                    if effect.what == "request":
                        self._note_time(effect)
                case Kept():
                    self._keep(effect)
                case NetworkJoined() | NotJoined():
                    self._know_neighbours()
                    self.tell_joined(effect)
                case NeighbourLost():
                    self._know_neighbours()
                    _log.info("neighbour lost", broker=format_address(effect.address))

    def _note_time(self, effect: Audited) -> None:
        """The answer is sent: what the machine was told of, and what has passed since."""
        took_ms = effect.took_ms + self.clock.steady_ns() / 1e6 - self._moment_ms
        self.times.note(effect.status, effect.hops, took_ms)

    def _keep(self, effect: Kept) -> None:
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
        """Those of a broker that lost all are still worth asking after a restart."""
        if self.keeping is not None and self.machine.neighbours:
            self.keeping.neighbours = self.machine.neighbours

    async def _measure_load(self) -> None:
        """The part of a second in which this thread worked: clients go where there is room."""
        while True:
            worked_ns, began_ns = time.thread_time_ns(), self.clock.steady_ns()
            await self.clock.sleep(_BUSY_EVERY_MS)
            passed_ns = max(self.clock.steady_ns() - began_ns, 1)
            self.machine.busy = min((time.thread_time_ns() - worked_ns) / passed_ns, 1.0)
