"""The link of a client to its brokers: one socket, requests with retries, choice of the broker.
[CX-2, CX-3, CX-11]

A client uses the nearest broker that is not loaded, and changes it with hysteresis. It sends three
pings to each broker at the start and one now and then later. A broker that does not answer is
pinged at once, and counts as gone after several unanswered pings. Providers, consumers and
controllers use the link.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec

from rapport.context.connections import (
    ClientSettings,
    check_sealed,
    no_broker,
    open_station,
    own_side,
    refusal,
)
from rapport.context.protocol import (
    NOT_FOUND,
    RECEIVED,
    Answer,
    Message,
    Notice,
    Ping,
    Pong,
    Status,
    decode,
    encode,
)
from rapport.core.errors import Conflict, InvalidInput
from rapport.kernel.clock import Chance, Clock, DueTimer, SystemClock, steady_ms
from rapport.kernel.tasks import Tasks
from rapport.transport.addresses import format_address, resolve
from rapport.transport.base import Address, Sender
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, Station, direct_link

Finish = Callable[[Answer | Status | None], None]
"""Gets the answer, or None when time is up."""

_AT_WORK_MS = 200.0
"""The pause before a request is repeated to a broker that has acknowledged it."""
_TRIES_IN_TIME = 12
_LEAST_PAUSE_MS = 50.0
"""Pauses grow, but not beyond this part of the time there is: were each twice the one before to the
end, a deadline would see few tries, and of those some are lost and some come before the answer.
"""


class Call(msgspec.Struct):
    """One request."""

    id: int
    finish: Finish
    began_ms: float
    deadline_ms: float
    retry_ms: float
    """How long until the next repetition."""
    due_ms: float
    to: Address | None = None
    """The only broker to ask; none: the client's current broker."""
    tries: int = 1
    received_ends: bool = False
    """Whether 101 is the final answer."""

    def longest_pause_ms(self) -> float:
        """Between two tries."""
        return max((self.deadline_ms - self.began_ms) / _TRIES_IN_TIME, _LEAST_PAUSE_MS)


class PendingCalls:
    """The pending requests of one client."""

    def __init__(self, longest_retry_ms: float) -> None:
        self._longest_retry_ms = longest_retry_ms
        self._calls: dict[int, Call] = {}
        self._order: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> None:
        """A request that is sent now."""
        self._calls[call.id] = call
        heapq.heappush(self._order, (min(call.due_ms, call.deadline_ms), call.id))

    def abandon(self, id: int) -> None:
        self._calls.pop(id, None)

    def answered(self, message: Answer | Status, sender: Address, now_ms: float) -> None:
        """Applies an answer; drops answers to unknown requests or from another broker."""
        call = self._calls.get(message.id)
        if call is None or call.to not in (None, sender):
            return
        is_received = isinstance(message, Status) and message.status == RECEIVED
        if is_received and not call.received_ends:
            # It is at work, and its final answer may be lost as well.
            call.retry_ms = min(_AT_WORK_MS, self._longest_retry_ms)
            call.due_ms = now_ms + call.retry_ms
            return
        del self._calls[message.id]
        call.finish(message)

    def due(self, now_ms: float) -> list[Call]:
        """The requests to repeat now; those that are too late are finished with None."""
        repeated: list[Call] = []
        while self._order and self._order[0][0] <= now_ms:
            _, id = heapq.heappop(self._order)
            call = self._calls.get(id)
            if call is None:
                continue
            if call.deadline_ms <= now_ms:
                del self._calls[id]
                call.finish(None)
                continue
            if call.due_ms <= now_ms:
                repeated.append(call)
                call.tries += 1
                longest_ms = min(self._longest_retry_ms, call.longest_pause_ms())
                call.retry_ms = max(call.retry_ms, min(call.retry_ms * 2, longest_ms))
                call.due_ms = now_ms + call.retry_ms
            heapq.heappush(self._order, (min(call.due_ms, call.deadline_ms), id))
        return repeated

    def next_due_ms(self) -> float | None:
        """When `due` may have something to do."""
        while self._order and self._order[0][1] not in self._calls:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def all(self) -> list[Call]:
        return list(self._calls.values())


_SMOOTHING = 0.25
_LEAST_PATIENCE_MS, _MOST_PATIENCE_MS = 50.0, 500.0
_CHANGE_AT_ONCE = 0.5
"""Of those clients that would gain by a change, this part changes each round: all at once would
only move the load."""


class Candidate(msgspec.Struct):
    """Measurements of a broker."""

    address: Address
    answers: int = 0
    round_trip_ms: float = 0.0
    load: float = 0.0
    misses: int = 0
    """Unanswered in a row."""
    ping: int = 0
    """The number of the pending ping; 0 for none."""
    pinged_ms: float = 0.0
    late: int = 0
    """The last ping that was given up, which may be answered all the same by one far away."""
    late_ms: float = 0.0
    better_rounds: int = 0
    heard_ms: float = -math.inf
    """When it last sent anything."""

    def patience_ms(self) -> float:
        """How long an answer is waited for."""
        if not self.answers:
            return _MOST_PATIENCE_MS / 2
        return min(max(4 * self.round_trip_ms, _LEAST_PATIENCE_MS), _MOST_PATIENCE_MS)

    def score(self, settings: ClientSettings) -> float:
        """The lower the better."""
        if not self.answers or self.misses >= settings.dead_after:
            return math.inf
        return (self.round_trip_ms + settings.near_ms) * (1 + settings.load_weight * self.load)


class BrokerChoice:
    """The choice of a broker by round trips and load. `due` returns the pings to send, `answered`
    takes the answers.

    `current` is none until one is chosen; a broker that is gone stays current while no other one
    answers.
    """

    def __init__(
        self, brokers: Sequence[Address], settings: ClientSettings, chance: Chance, now_ms: float
    ) -> None:
        self.candidates = {address: Candidate(address) for address in brokers}
        self.current: Address | None = None
        self.changes = 0
        self._settings, self._chance = settings, chance
        self._began_ms, self._round_ms = now_ms, now_ms
        self._numbers = chance.getrandbits(48) << 8
        if len(brokers) == 1:
            self._change_to(brokers[0])  # there is nothing to choose

    def due(self, now_ms: float) -> list[tuple[Ping, Address]]:
        """The pings to send now; unanswered ones are counted, and the choice is made anew."""
        for one in self.candidates.values():
            if one.ping and now_ms - one.pinged_ms >= one.patience_ms():
                one.late, one.late_ms, one.ping = one.ping, one.pinged_ms, 0
                one.misses += 1
        self._decide(now_ms)
        is_round = now_ms >= self._round_ms
        if is_round:
            self._round_ms = now_ms + self._settings.look_every_ms
        return [
            (self._pinged(one, now_ms), one.address)
            for one in self.candidates.values()
            if not one.ping and (is_round or self._is_wanted(one))
        ]

    def next_due_ms(self) -> float:
        """When `due` has something to do."""
        waits = [one.pinged_ms + one.patience_ms() for one in self.candidates.values() if one.ping]
        if self.current is None and waits:
            waits.append(self._began_ms + self._settings.choose_within_ms)
        return min([*waits, self._round_ms])

    def answered(self, address: Address, number: int, load: float, now_ms: float) -> None:
        one = self.candidates.get(address)
        if one is None or number not in (one.ping, one.late) or not number:
            return
        if number == one.ping:
            since_ms, one.ping = one.pinged_ms, 0
        else:
            since_ms, one.late = one.late_ms, 0
        took_ms = max(now_ms - since_ms, 0.0)
        one.misses, one.load = 0, min(max(load, 0.0), 1.0)
        share = 1 / (one.answers + 1) if one.answers < self._settings.pings else _SMOOTHING
        one.round_trip_ms += share * (took_ms - one.round_trip_ms)
        one.answers += 1
        if self.current is None:
            self._decide(now_ms)
        elif address == self.current or one.answers > self._settings.pings:
            self._compare(one)

    def mark_alive(self, address: Address, now_ms: float) -> None:
        """A broker sent something: it lives."""
        if (one := self.candidates.get(address)) is not None:
            one.misses, one.heard_ms = 0, now_ms

    def doubt(self, address: Address, now_ms: float) -> list[tuple[Ping, Address]]:
        """Pings a broker that did not answer a request in time."""
        one = self.candidates.get(address)
        if one is None or one.ping:
            return []
        return [(self._pinged(one, now_ms), address)]

    def _pinged(self, one: Candidate, now_ms: float) -> Ping:
        self._numbers += 1
        one.ping, one.pinged_ms = self._numbers, now_ms
        return Ping(self._numbers)

    def _is_wanted(self, one: Candidate) -> bool:
        """Not well known yet, or in doubt, and not given up until the next round."""
        settings = self._settings
        if one.misses:
            return one.misses < settings.dead_after
        return one.answers < settings.pings

    def _decide(self, now_ms: float) -> None:
        """Chooses a broker when none is chosen, or the current one is gone and another answers."""
        settings, current = self._settings, self.current
        if current is not None and self.candidates[current].misses < settings.dead_after:
            return
        known = [one for one in self.candidates.values() if one.score(settings) < math.inf]
        is_whole = all(
            one.answers >= settings.pings or one.misses >= settings.dead_after
            for one in self.candidates.values()
        )
        is_time = now_ms - self._began_ms >= settings.choose_within_ms
        if known and (is_whole or is_time or self.changes):
            self._choose(known)

    def _choose(self, known: list[Candidate]) -> None:
        settings = self._settings
        best = min(one.score(settings) for one in known)
        good = [one for one in known if one.score(settings) <= best * settings.similar]
        self._change_to(self._chance.choice(good).address)

    def _compare(self, one: Candidate) -> None:
        """Counts the rounds in which another broker is much better than the current one."""
        settings, current = self._settings, self.current
        if current is None or one.address == current:
            return
        own, other = self.candidates[current].score(settings), one.score(settings)
        is_better = other < own * settings.better_factor and other < own - settings.better_ms
        one.better_rounds = one.better_rounds + 1 if is_better else 0
        enough = one.better_rounds >= settings.better_rounds
        if enough and self._chance.random() < _CHANGE_AT_ONCE:
            self._change_to(one.address)

    def _change_to(self, address: Address) -> None:
        self.current = address
        self.changes += 1
        for one in self.candidates.values():
            one.better_rounds = 0


_LEAST_RETRY_MS = 10.0

Make = Callable[[int, int], Message]
"""Makes the request anew for each try: of its id, and of the ms that are left for it."""
Changed = Callable[[Address, Address | None], None]
"""Called with the new broker, and the one before."""


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
        self._calls = PendingCalls(settings.longest_retry_ms)
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
        """The current broker; none while none has answered."""
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
        """Repeats a request until it is answered; 101 is an answer only with `received_ends`.
        Raises the error of a refusal, and Unavailable without an answer in time.
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
        """Sends a message once, without retries."""
        self._station.send(encode(message), to)

    async def close(self) -> None:
        """Closes the socket; pending requests fail."""
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
        self.choice.mark_alive(address, now)
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
        """Sends pending requests to the new broker at once."""
        current = self.choice.current
        if current is None or current == before:
            return
        for call in self._calls.all():
            if call.to is None:
                self._send(call, now)
        for changed in self.on_change:
            changed(current, before)

    def _next_due_ms(self) -> float | None:
        calls = self._calls.next_due_ms()
        pings = self.choice.next_due_ms() if self.choice.candidates else None
        known = [due for due in (calls, pings) if due is not None]
        return min(known, default=None)


class ContextClient:
    """What providers, consumers and controllers share: a link to their brokers."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link

    @classmethod
    async def open(
        cls,
        brokers: Sequence[Address],
        *,
        keys: DatagramKeys | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        settings: ClientSettings | None = None,
        link: EndpointWrapper = direct_link,
    ) -> Self:
        """A client that uses one of these brokers; raises as `BrokerLink.open` does."""
        return cls(
            await BrokerLink.open(
                brokers, keys=keys, clock=clock, chance=chance, settings=settings, link=link
            )
        )

    @property
    def broker(self) -> Address | None:
        """The broker of its choice."""
        return self._link.broker

    async def close(self) -> None:
        """Ends."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
