"""A load on a simulated network: every request, and what it cost. [CX-12]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rapport.context.protocol import (
    PROCESSED,
    RECEIVED,
    Answer,
    Ask,
    Found,
    Have,
    Heard,
    Message,
    Probe,
    Question,
    Refused,
    Request,
    Status,
)
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.transport.base import Address, Sender
from rapport_lab.context.asked import ASKS, HEARD, PROBES, RETURNS, Asked
from rapport_lab.context.load import Load, Moments, plan_homes, plan_requests, plan_updates
from rapport_lab.context.network import Letter, SimulatedNetwork
from rapport_lab.scheduler import Scheduler, without_collector

CONSUMER: Final = "consumer"
SCOPE: Final = "status"
_FOREVER_MS: Final = 1 << 50
_NOBODYS: Final = [0, 0, 0, 0]
"""Where messages are counted of which nobody knows whose they are."""
_COUNTED: Final[dict[type, int]] = {
    Ask: ASKS,
    Found: RETURNS,
    Refused: RETURNS,
    Probe: PROBES,
    Have: PROBES,
    Heard: HEARD,
}


def run_load(network: SimulatedNetwork, load: Load, *, settle_ms: float = 0.0) -> Asked:
    """Gives brokers their records, lets them settle, makes all requests, and runs until each is
    answered or its deadline has passed.
    """
    running = _Running(network, load)
    with without_collector():
        _run(network.scheduler, running, settle_ms)
    return running.asked


def _run(scheduler: Scheduler, running: _Running, settle_ms: float) -> None:
    running.put_all()
    scheduler.run(scheduler.time_ms + settle_ms)
    running.start()
    last_ms = scheduler.time_ms + float(running.requests.times_ms[-1])
    scheduler.run(last_ms)
    # Then step by step: brokers that watch each other never run out of things to do.
    until_ms = last_ms + running.load.within_ms + 1_000
    while running.asked.answered < running.load.requests and scheduler.time_ms < until_ms:
        scheduler.run(min(scheduler.time_ms + 100, until_ms))


def question_of(key: int) -> Question:
    """What is asked for with a key."""
    return Question(EntityRef("thing", str(key)), SCOPE)


class _Running:
    """The clients of a run. Each request has an address of its own, so that every message that
    names the consumer or the search tells which request it serves.
    """

    def __init__(self, network: SimulatedNetwork, load: Load) -> None:
        brokers = len(network.machines)
        self.load = load
        self.requests = plan_requests(load, brokers)
        self.asked = Asked(self.requests)
        self._network = network
        self._begin_ms = 0.0
        self._updates = plan_updates(load, brokers, float(self.requests.times_ms[-1]))
        self._questions = [question_of(key) for key in range(load.keys)]
        self._searches: dict[int, list[int]] = {}
        self._asking: list[int] | None = None
        network.on_client = self._told
        network.on_send = self._count

    def put_all(self) -> None:
        """Every key's record at its first brokers."""
        homes = plan_homes(self.load, len(self._network.machines))
        for key, row in enumerate(homes.tolist()):
            for broker in row:
                self._put(broker, key)

    def start(self) -> None:
        """The load begins now."""
        self._begin_ms = self._network.scheduler.time_ms
        self._plan_request(0)
        self._plan_update(0)

    # --- providers ---

    def _plan_update(self, number: int) -> None:
        if number < len(self._updates.times_ms):
            self._at(self._updates, number, self._update)

    def _update(self, number: int) -> None:
        self._put(int(self._updates.brokers[number]), int(self._updates.keys[number]))
        self._plan_update(number + 1)

    def _put(self, broker: int, key: int) -> None:
        wall_ms = self._network.scheduler.now.wall_ms
        valid_for_ms = int(self.load.valid_for_ms) if self.load.update_every_ms else _FOREVER_MS
        question = self._questions[key]
        provider, values = f"provider-{key}", {"since": wall_ms}
        until_ms = wall_ms + valid_for_ms
        record = ContextRecord(provider, question.entity, question.scope, wall_ms, until_ms, values)
        self._network.put(broker, record)

    # --- consumers ---

    def _plan_request(self, number: int) -> None:
        if number < len(self.requests.times_ms):
            self._at(self.requests, number, self._request)

    def _request(self, number: int) -> None:
        question = self._questions[int(self.requests.keys[number])]
        message = Request(number, question, self.load.within_ms)
        self._asking = self.asked.counts[number]
        broker = int(self.requests.brokers[number])
        self._network.tell(broker, message, Sender((CONSUMER, number), CONSUMER, "client"))
        self._asking = None
        self._plan_request(number + 1)

    def _told(self, message: Message, to: Address) -> None:
        if to[0] != CONSUMER:
            return
        number, time_ms = to[1], self._network.scheduler.time_ms - self._begin_ms
        if isinstance(message, Answer):
            self.asked.answer(number, PROCESSED, message.hops, time_ms)
        elif isinstance(message, Status) and message.status != RECEIVED:
            self.asked.answer(number, message.status, 0, time_ms)

    # --- both ---

    def _count(self, letters: Sequence[Letter]) -> None:
        last, counts = -1, _NOBODYS
        for message, _to in letters:
            place = _COUNTED.get(type(message))
            if place is None:
                continue
            search: int = message.search  # type: ignore[union-attr]
            if search != last:  # most of what goes out at once is of one search
                last = search
                counts = self._searches.get(search) or self._begin_counting(message)
            counts[place] += 1

    def _begin_counting(self, message: Any) -> list[int]:
        """The first message of a search is sent while its request is handed over, or names its
        consumer.
        """
        counts = self._asking
        if counts is None and isinstance(message, Ask):
            counts = self.asked.counts[message.path[0][1]]
        if counts is None:
            return _NOBODYS
        self._searches[message.search] = counts
        return counts

    def _at(self, moments: Moments, number: int, call: Callable[[int], None]) -> None:
        due_ms = self._begin_ms + float(moments.times_ms[number])
        self._network.scheduler.at(due_ms, call, number)
