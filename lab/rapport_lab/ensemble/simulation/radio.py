"""A radio that all in range share: an output queue, carrier sense, collisions, loss. [EN-11]

After 802.15.4 without beacons: who wants to send waits a drawn time, listens, and sends when it
hears nothing. Who hears two at once, or sends itself, receives neither. A frame is three events,
however many hear it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rapport.core.errors import TooLarge
from rapport.kernel.chance import Chance
from rapport_lab.ensemble.simulation.neighbourhoods import Neighbourhoods, Neighbours
from rapport_lab.ensemble.simulation.radio_settings import RadioCounters, RadioSettings
from rapport_lab.scheduler import Scheduler

Hear = Callable[[int, Any, Sequence[int]], None]
"""Gets the sender's number, the message, and the numbers of those that received it."""
Miss = Callable[[int, Any, Sequence[int], str], None]
"""Gets the sender's number, the message, those that did not receive it (none: nobody did, it was
never on air) and why.
"""


class _Frame:
    """A message on air; `spoiled`: those that heard something else with it."""

    __slots__ = ("ears", "message", "number", "spoiled")

    def __init__(self, number: int, message: Any, ears: tuple[int, ...]) -> None:
        self.number, self.message, self.ears = number, message, ears
        self.spoiled: set[int] | None = None


_Waiting = tuple[float, Any, float]
"""When it may be sent, the message, its time on air."""


class Radio:
    """The radios of all nodes and the air between them."""

    def __init__(
        self,
        scheduler: Scheduler,
        neighbourhoods: Neighbourhoods,
        chance: Chance,
        settings: RadioSettings | None = None,
    ) -> None:
        self.settings = settings or RadioSettings()
        self.counters = RadioCounters()
        self.neighbourhoods = neighbourhoods
        self.on_hear: Hear = _nobody_hears
        self.on_miss: Miss | None = None
        self.on_renew: list[Callable[[], None]] = []
        """Called after `neighbours` changed."""
        self._scheduler, self._random = scheduler, chance.random
        count = len(neighbourhoods)
        self.neighbours = self._in_range = neighbourhoods.at(scheduler.time_ms)
        self._groups: Mapping[int, int] | None = None
        self._off = set(range(count))
        self._queues: list[deque[_Waiting]] = [deque() for _ in range(count)]
        nothing = _Frame(-1, None, ())
        self._sending: list[_Frame | None] = [None] * count
        """What each node has on air; it is the first of its queue until it ends."""
        self._heard_from = [0.0] * count
        self._heard_until = [0.0] * count
        self._heard_last = [nothing] * count
        self._prepare(self.settings)
        if neighbourhoods.renew_ms is not None:
            scheduler.after(neighbourhoods.renew_ms, self._renew)

    def _prepare(self, settings: RadioSettings) -> None:
        """Keeps at hand what is needed at every message."""
        least, greatest = settings.least_exponent, settings.greatest_exponent
        self._carrier_sense, self._collisions = settings.carrier_sense, settings.collisions
        self._is_plain = not settings.collisions and not settings.carrier_sense
        self._unit_ms, self._turnaround_ms = settings.unit_ms, settings.turnaround_ms
        self._queue_ms, self._queue_length = settings.queue_ms, settings.queue_length
        self._air_ms, self._byte_ms = settings.air_ms, 8_000.0 / settings.bit_rate
        self._largest_bytes, self._loss = settings.largest_bytes, settings.loss
        self._first_window = 1 << least
        further = range(1, settings.most_back_offs + 1)
        self._windows = [1 << min(least + more, greatest) for more in further]

    # --- nodes ---

    def switch_on(self, number: int) -> None:
        """The node with this number sends and receives from now on."""
        self._off.discard(number)

    def switch_off(self, number: int) -> None:
        """It does no more; what waits in its queue is gone."""
        self._off.add(number)
        queue = self._queues[number]
        # The first of the queue was counted when its sending began.
        self.counters.cut += len(queue) - (self._sending[number] is not None)
        self._sending[number] = None
        queue.clear()

    def part(self, groups: Mapping[int, int] | None) -> None:
        """From now on only those with the same group hear each other, who has none is alone with
        others that have none; without groups all in range do again. What is on air still arrives.
        """
        self._groups = groups
        self._set_neighbours()

    def send(self, number: int, message: Any, size_bytes: int) -> None:
        """Puts a message into the queue of a node; raises TooLarge."""
        counters = self.counters
        if size_bytes > self._largest_bytes:
            raise _too_large(size_bytes, self._largest_bytes)
        counters.sent += 1
        counters.bytes += size_bytes
        air_ms = size_bytes * self._byte_ms if self._air_ms is None else self._air_ms
        ready_ms = self._scheduler.time_ms + self._queue_ms
        if self._is_plain:
            self._scheduler.at(ready_ms + air_ms, self._arrive, number, message, air_ms)
            return
        queue = self._queues[number]
        waiting = (ready_ms, message, air_ms)
        if not queue:
            queue.append(waiting)
            self._begin(number, waiting, ready_ms)
        elif len(queue) < self._queue_length:
            queue.append(waiting)
        else:
            counters.overflowed += 1
            if self.on_miss is not None:
                self.on_miss(number, message, (), "overflowed")

    # --- access to the air ---

    def _begin(self, number: int, waiting: _Waiting, time_ms: float) -> None:
        """The first of a queue has its turn from a time on."""
        if self._carrier_sense:
            time_ms += int(self._random() * self._first_window) * self._unit_ms
            self._scheduler.at(time_ms, self._listen, number, waiting, 0)
        else:
            self._scheduler.at(time_ms, self._start, number, waiting, time_ms)

    def _begin_next(self, number: int, queue: deque[_Waiting]) -> None:
        waiting, time_ms = queue[0], self._scheduler.time_ms
        self._begin(number, waiting, waiting[0] if waiting[0] > time_ms else time_ms)

    def _listen(self, number: int, waiting: _Waiting, back_offs: int) -> None:
        """Sends when it is silent, else waits. When what is heard is known to last beyond the next
        listening, that need not happen: its outcome is certain.
        """
        time_ms = self._scheduler.time_ms
        heard_until_ms = self._heard_until[number]
        if heard_until_ms <= time_ms or self._heard_from[number] > time_ms:
            self._start(number, waiting, time_ms + self._turnaround_ms)
            return
        queue = self._queues[number]
        if not queue or queue[0] is not waiting:
            return  # switched off meanwhile
        windows = self._windows
        before = back_offs
        while time_ms < heard_until_ms:
            if back_offs == len(windows):
                self.counters.back_offs += back_offs - before + 1
                self._scheduler.at(time_ms, self._give_up, number, waiting)
                return
            time_ms += int(self._random() * windows[back_offs]) * self._unit_ms
            back_offs += 1
        self.counters.back_offs += back_offs - before
        self._scheduler.at(time_ms, self._listen, number, waiting, back_offs)

    def _give_up(self, number: int, waiting: _Waiting) -> None:
        queue = self._queues[number]
        if not queue or queue[0] is not waiting:
            return  # switched off meanwhile
        self.counters.gave_up += 1
        message = queue.popleft()[1]
        if self.on_miss is not None:
            self.on_miss(number, message, (), "gave up")
        if queue:
            self._begin_next(number, queue)

    # --- on air ---

    def _start(self, number: int, waiting: _Waiting, begin_ms: float) -> None:
        """A message is on air from a time on, at once or after the turnaround. A silence before it
        that is shorter than the turnaround is not noticed by who listens.
        """
        queue = self._queues[number]
        if not queue or queue[0] is not waiting:
            return  # switched off meanwhile
        scheduler, counters = self._scheduler, self.counters
        time_ms = scheduler.time_ms
        air_ms = waiting[2]
        counters.on_air += 1
        counters.air_ms += air_ms
        end_ms = begin_ms + air_ms
        ears = self.neighbours[number]
        frame = self._sending[number] = _Frame(number, waiting[1], ears)
        heard_from, heard_until, heard_last = self._heard_from, self._heard_until, self._heard_last
        # Who sends hears itself, and so nothing else.
        for ear in (number, *ears):
            until_ms = heard_until[ear]
            if until_ms > begin_ms:
                self._overlap(ear, frame, end_ms)
                continue
            if until_ms <= time_ms:
                heard_from[ear] = begin_ms
            heard_until[ear] = end_ms
            heard_last[ear] = frame
        scheduler.at(end_ms, self._end, frame)

    def _overlap(self, ear: int, frame: _Frame, end_ms: float) -> None:
        """One begins while an ear hears another. If it hears several already, these are spoiled
        there already; if only one, that is the last one that began, or an earlier one that the last
        one has spoiled.
        """
        if self._collisions:
            last = self._heard_last[ear]
            for one in (last, frame):
                if one.spoiled is None:
                    one.spoiled = {ear}
                else:
                    one.spoiled.add(ear)
        if end_ms > self._heard_until[ear]:
            self._heard_until[ear] = end_ms
        self._heard_last[ear] = frame

    def _end(self, frame: _Frame) -> None:
        number = frame.number
        ears: Sequence[int] = frame.ears
        self.counters.offered += len(ears)
        if self._sending[number] is not frame:  # switched off in the midst of it
            self.counters.away += len(ears)
            return
        self._sending[number] = None
        queue = self._queues[number]
        queue.popleft()
        if queue:
            self._begin_next(number, queue)
        if frame.spoiled is not None:
            ears = self._without_spoiled(frame, frame.spoiled)
        self._deliver(number, frame.message, ears)

    def _without_spoiled(self, frame: _Frame, spoiled: set[int]) -> Sequence[int]:
        clear = [ear for ear in frame.ears if ear not in spoiled]
        missed = len(frame.ears) - len(clear)
        self.counters.collided += missed
        if missed and self.on_miss is not None:
            those = [ear for ear in frame.ears if ear in spoiled]
            self.on_miss(frame.number, frame.message, those, "collided")
        return clear

    def _arrive(self, number: int, message: Any, air_ms: float) -> None:
        """The end of a message where nobody disturbs anybody."""
        counters = self.counters
        if number in self._off:
            counters.cut += 1
            return
        ears = self.neighbours[number]
        counters.on_air += 1
        counters.air_ms += air_ms
        counters.offered += len(ears)
        self._deliver(number, message, ears)

    def _deliver(self, number: int, message: Any, ears: Sequence[int]) -> None:
        counters = self.counters
        if self._off:
            there = [ear for ear in ears if ear not in self._off]
            counters.away += len(ears) - len(there)
            ears = there
        if self._loss:
            ears = self._without_lost(number, message, ears)
        counters.delivered += len(ears)
        if ears:
            self.on_hear(number, message, ears)

    def _without_lost(self, number: int, message: Any, ears: Sequence[int]) -> Sequence[int]:
        random, loss = self._random, self._loss
        received: list[int] = []
        lost: list[int] = []
        for ear in ears:
            (lost if random() < loss else received).append(ear)
        self.counters.lost += len(lost)
        if lost and self.on_miss is not None:
            self.on_miss(number, message, lost, "lost")
        return received

    def _renew(self) -> None:
        scheduler, renew_ms = self._scheduler, self.neighbourhoods.renew_ms
        self._in_range = self.neighbourhoods.at(scheduler.time_ms)
        self._set_neighbours()
        if renew_ms is not None:
            scheduler.after(renew_ms, self._renew)

    def _set_neighbours(self) -> None:
        in_range, groups = self._in_range, self._groups
        self.neighbours = in_range if groups is None else _within_groups(in_range, groups)
        for call in self.on_renew:
            call()


def _within_groups(in_range: Neighbours, groups: Mapping[int, int]) -> Neighbours:
    return [
        tuple(other for other in others if groups.get(other) == groups.get(number))
        for number, others in enumerate(in_range)
    ]


def _nobody_hears(number: int, message: Any, ears: Sequence[int]) -> None:
    """Nobody listens."""


def _too_large(size_bytes: int, largest: int) -> TooLarge:
    return TooLarge(
        f"a message of {size_bytes} bytes does not fit the medium, which takes {largest}",
        code="transport.too_large",
        hint="make the parts of the gossip settings smaller",
    )
