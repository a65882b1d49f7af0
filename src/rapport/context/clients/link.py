"""A client's tie to the network: one socket, the broker of its choice, requests that are repeated
until answered. Providers, consumers and controllers stand on it. [CX-3, CX-11]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rapport.context.clients.calls import Call, Calls
from rapport.context.clients.choice import BrokerChoice
from rapport.context.codec import decode, encode
from rapport.context.faults import no_broker, refusal
from rapport.context.messages import (
    NOT_FOUND,
    Answer,
    Message,
    Notice,
    Pong,
    Status,
)
from rapport.context.settings import ClientSettings, check_sealed
from rapport.context.stations import open_station, own_side
from rapport.core.errors import Conflict, InvalidInput
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock, DueTimer, SystemClock, steady_ms
from rapport.kernel.tasks import Tasks
from rapport.transport.addresses import format_address, resolve
from rapport.transport.base import Address, Sender
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station, direct_link

_LEAST_RETRY_MS = 10.0

Make = Callable[[int, int], Message]
"""Makes the request anew for each try: of its id, and of the ms that are left for it."""
Changed = Callable[[Address, Address | None], None]
"""Is told the broker of choice, and the one before."""


class BrokerLink:
    """Sends requests to the broker of choice; changes it when it is gone or much worse than
    another. Lives on the loop it was opened on.
    """

    def __init__(
        self,
        station: Station,
        brokers: Sequence[Address],
        *,
        clock: Clock,
        chance: Chance,
        settings: ClientSettings,
    ) -> None:
        self.brokers, self.clock, self.settings = tuple(brokers), clock, settings
        self._station = station
        self.choice = BrokerChoice(brokers, settings, chance, steady_ms(clock))
        self._calls = Calls(settings.longest_retry_ms)
        self._makes: dict[int, Make] = {}
        self._ids = chance.getrandbits(44) << 18
        self._alarm = DueTimer(clock, self._next_due_ms, self._tick)
        self._tasks = Tasks(clock)
        self._is_closed = False
        self.on_change: list[Changed] = []
        self.on_notice: dict[int, Callable[[Notice, Address], None]] = {}
        """By the id of the subscription."""
        station.receive(self._take)
        self._tasks.start("context client", self._alarm.run)

    @staticmethod
    async def open(
        brokers: Sequence[Address],
        *,
        keys: DatagramKeys | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        settings: ClientSettings | None = None,
        link: EndpointWrapper = direct_link,
    ) -> BrokerLink:
        """Opens a socket on a free port and begins to measure the brokers.

        Raises InvalidInput for no brokers, and for brokers off this machine without keys.
        """
        if not brokers:
            raise InvalidInput(
                "there is no broker to talk to",
                code="context.no_brokers",
                hint="name one: --broker 127.0.0.1:7411",
            )
        check_sealed(brokers, has_keys=keys is not None)
        found = tuple(dict.fromkeys([await resolve(address) for address in brokers]))
        clock = clock or SystemClock()
        return BrokerLink(
            await open_station(own_side(found, keys), keys, clock, link),
            found,
            clock=clock,
            chance=chance or Chance.from_machine(),
            settings=settings or ClientSettings(),
        )

    @property
    def broker(self) -> Address | None:
        """The broker of choice; none while none has answered."""
        return self.choice.current

    def new_id(self) -> int:
        """An id that this client used for nothing else, and no other client is likely to."""
        self._ids += 1
        return self._ids

    async def call(
        self,
        make: Make,
        *,
        within_ms: int,
        what: str,
        to: Address | None = None,
        id: int | None = None,
        received_ends: bool = False,
    ) -> Answer | Status:
        """Asks until there is an answer, of which 101 is none unless `received_ends`; raises what
        a refusal stands for, and Unavailable when nobody answers in time.
        """
        if self._is_closed:
            raise Conflict("this client is closed", code="context.closed", hint="open a new one")
        done: asyncio.Future[Answer | Status | None] = asyncio.get_running_loop().create_future()
        call = self._new_call(within_ms, to, done, self.new_id() if id is None else id)
        call.received_ends = received_ends
        self._begin(call, make)
        try:
            answer = await done
        finally:
            self._calls.abandon(call.id)
            self._makes.pop(call.id, None)
        if answer is None:
            raise self._silence(what, call)
        if isinstance(answer, Status) and answer.status > 200:
            raise refusal(answer.status, answer.why, what)
        return answer

    def post(self, message: Message, to: Address) -> None:
        """Sends once, and hopes."""
        self._station.send(encode(message), to)

    async def close(self) -> None:
        """Closes the socket; who still waits is told that nobody answered."""
        self._is_closed = True
        for call in self._calls.all():
            self._calls.abandon(call.id)
            call.finish(None)
        await self._tasks.stop()
        await self._station.close()

    def _new_call(
        self,
        within_ms: int,
        to: Address | None,
        done: asyncio.Future[Answer | Status | None],
        id: int,
    ) -> Call:
        now, retry_ms = steady_ms(self.clock), self._first_retry_ms()
        return Call(
            id=id,
            finish=lambda answer: None if done.done() else done.set_result(answer),
            began_ms=now,
            deadline_ms=now + within_ms,
            retry_ms=retry_ms,
            due_ms=now + retry_ms,
            to=to,
        )

    def _begin(self, call: Call, make: Make) -> None:
        self._makes[call.id] = make
        try:
            self._send(call, steady_ms(self.clock))
        except BaseException:
            del self._makes[call.id]
            raise
        self._calls.begin(call)
        self._alarm.look()

    def _first_retry_ms(self) -> float:
        known = self.choice.candidates.get(self.choice.current) if self.choice.current else None
        if known is None or not known.answers:
            return self.settings.first_retry_ms
        return min(max(4 * known.round_trip_ms, _LEAST_RETRY_MS), self.settings.first_retry_ms)

    def _send(self, call: Call, now: float) -> None:
        to = call.to or self.choice.current
        if to is not None:
            left_ms = max(int(call.deadline_ms - now), 1)
            self._station.send(encode(self._makes[call.id](call.id, left_ms)), to)

    def _silence(self, what: str, call: Call) -> Exception:
        names = ", ".join(format_address(one) for one in ([call.to] if call.to else self.brokers))
        known = self.choice.candidates.get(self.choice.current) if self.choice.current else None
        is_there = known is not None and known.heard_ms >= call.began_ms
        if call.to is None and is_there and not self._is_closed:
            return refusal(NOT_FOUND, "the deadline has passed", what)
        return no_broker(names, what)

    # --- what comes in, and what is due ---

    def _take(self, data: bytes, sender: Sender) -> None:
        try:
            message = decode(data)
        except InvalidInput:
            return  # none of ours, or of a version that we do not speak
        now, before = steady_ms(self.clock), self.choice.current
        address = sender.address
        self.choice.heard(address, now)
        if isinstance(message, Answer | Status):
            self._calls.answered(message, address, now)
        elif isinstance(message, Pong):
            self.choice.answered(address, message.id, message.load, now)
            self._follow(before, now)
        elif isinstance(message, Notice) and message.id in self.on_notice:
            self.on_notice[message.id](message, address)
        self._alarm.look()

    def _tick(self) -> None:
        now, before = steady_ms(self.clock), self.choice.current
        pings = self.choice.due(now)
        for call in self._calls.due(now):
            self._send(call, now)
            to = call.to or self.choice.current
            doubted = [to] if to is not None else self.brokers
            pings += [ping for one in doubted for ping in self.choice.doubt(one, now)]
        for ping, to in pings:
            self.post(ping, to)
        self._follow(before, now)

    def _follow(self, before: Address | None, now: float) -> None:
        """Whoever waits asks the new broker of choice at once."""
        current = self.choice.current
        if current is None or current == before:
            return
        for call in self._calls.all():
            if call.to is None:
                self._send(call, now)
        for told in self.on_change:
            told(current, before)

    def _next_due_ms(self) -> float | None:
        calls = self._calls.next_due_ms()
        pings = self.choice.next_due_ms() if self.choice.candidates else None
        known = [due for due in (calls, pings) if due is not None]
        return min(known, default=None)
