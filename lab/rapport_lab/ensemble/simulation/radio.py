"""A radio shared by all nodes in range: output queue, carrier sense, collisions, loss. [EN-11]

After 802.15.4 without beacons: a sender waits a drawn time, listens, and sends when the channel is
free. A node that receives two frames at once, or sends itself, receives neither. A frame costs
three events, however many nodes receive it. Range follows from the distance of moving actors, or
from given links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from rapport.core.errors import InvalidInput, TooLarge
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.mobility import Positions, Whereabouts
from rapport_lab.scheduler import Scheduler


class RadioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the radio is like; every part can be switched off."""

    queue_ms: float = 100.0
    """What is to be sent waits so long before it is tried to send it."""
    queue_length: int = 100
    """Messages of one node that wait; more are dropped."""
    bit_rate: float = 250_000.0
    """Bits per second, for the time on air."""
    air_ms: float | None = None
    """The time on air of every message, whatever its size."""
    largest_bytes: int = 1_152
    """More does not fit a message, who sends it has to part it: 1,024 bytes of content, and names
    and numbers around it.
    """
    carrier_sense: bool = True
    unit_ms: float = 0.32
    """The unit of back-off."""
    least_exponent: int = 3
    """The first wait is drawn from 0 to 2**this - 1 units; one more after each time it was busy, up
    to: """
    greatest_exponent: int = 5
    most_back_offs: int = 4
    """Waits after the first; still busy then, the message is dropped."""
    turnaround_ms: float = 0.192
    """From listening to sending; two in range that listen within it collide."""
    collisions: bool = True
    """Who hears two at once, or sends itself, receives neither."""
    loss: float = 0.0
    """The chance that one receiver does not receive a message, for any other reason."""

    def __post_init__(self) -> None:
        times = (self.queue_ms, self.air_ms or 0.0, self.unit_ms, self.turnaround_ms)
        counts = (self.queue_length - 1, self.largest_bytes - 1, self.most_back_offs)
        exponents = 0 <= self.least_exponent <= self.greatest_exponent <= 20
        if min(*times, *counts) < 0 or not exponents or not 0 <= self.loss <= 1:
            raise _bad_settings(self)
        if not self.bit_rate > 0:
            raise _bad_settings(self)


def _bad_settings(settings: RadioSettings) -> InvalidInput:
    return InvalidInput(
        f"no radio is like this: {settings}",
        code="ensemble.bad_radio",
        hint="times and counts of 0 or more, a bit rate above 0, a loss from 0 to 1",
    )


EXACT: Final = RadioSettings(air_ms=1.0, carrier_sense=False, collisions=False)
"""One hop takes exactly 101 ms and nothing is ever lost."""


class RadioCounters(msgspec.Struct):
    """What became of messages; only ever growing.

    sent = on_air + gave_up + overflowed + cut + those that wait.
    offered = delivered + collided + lost + away.
    """

    sent: int = 0
    on_air: int = 0
    gave_up: int = 0
    """Dropped, because the air was never free."""
    overflowed: int = 0
    """Dropped, because the queue was full."""
    cut: int = 0
    """Waited when their node was switched off."""
    back_offs: int = 0
    """Times that somebody listened and heard another."""
    bytes: int = 0
    air_ms: float = 0.0
    """The time on air of all together."""
    offered: int = 0
    """Messages on air times those in range."""
    delivered: int = 0
    collided: int = 0
    lost: int = 0
    away: int = 0
    """In range, but switched off; or the sender was, in the midst of it."""


Neighbours = Sequence[tuple[int, ...]]
"""For each number the numbers that hear it, in order."""

_FEW: Final = 64
"""Up to here all distances at once are quicker than cells."""


class Neighbourhoods(Protocol):
    """What the radio asks."""

    renew_ms: float | None
    """How often to ask; none: it never changes."""

    def __len__(self) -> int:
        """How many there are."""

    def at(self, time_ms: float) -> Neighbours:
        """Who hears whom at a time."""


class FixedLinks:
    """Who hears whom is given, in both directions, and never changes."""

    renew_ms: float | None = None

    def __init__(self, count: int, links: Iterable[tuple[int, int]]) -> None:
        heard: list[set[int]] = [set() for _ in range(count)]
        for one, other in links:
            if not (0 <= one < count and 0 <= other < count) or one == other:
                raise InvalidInput(
                    f"no link joins {one} and {other}",
                    code="ensemble.bad_link",
                    hint=f"two different numbers from 0 to {count - 1}",
                )
            heard[one].add(other)
            heard[other].add(one)
        self._neighbours = [tuple(sorted(others)) for others in heard]

    def __len__(self) -> int:
        return len(self._neighbours)

    def at(self, time_ms: float) -> Neighbours:
        """See Neighbourhoods."""
        return self._neighbours


class InRange:
    """Those hear each other that are near enough.

    Costs about 0.4 ms per renewal for 200 actors and 40 ms for 10,000. With `keep` what was found
    for a time is kept, so that several runs over the same movement look only once.
    """

    def __init__(
        self,
        whereabouts: Whereabouts,
        range_metres: float,
        *,
        renew_ms: float = 1_000.0,
        keep: bool = False,
    ) -> None:
        self.whereabouts = whereabouts
        self.renew_ms: float | None = renew_ms
        self._range_metres = range_metres
        self._kept: dict[float, Neighbours] | None = {} if keep else None

    def __len__(self) -> int:
        return len(self.whereabouts)

    def at(self, time_ms: float) -> Neighbours:
        """See Neighbourhoods."""
        found = self._kept.get(time_ms) if self._kept is not None else None
        if found is None:
            found = neighbours_in_range(self.whereabouts.positions_at(time_ms), self._range_metres)
            if self._kept is not None:
                self._kept[time_ms] = found
        return found


def neighbours_in_range(positions: Positions, range_metres: float) -> Neighbours:
    """For each position the numbers of those at most so far off, in order, without itself."""
    count = len(positions)
    if count == 0:
        return []
    find = _pairs_of_few if count <= _FEW else _pairs_by_cells
    ones, others = find(positions, range_metres)
    ends = np.cumsum(np.bincount(ones, minlength=count)).tolist()
    found = others.tolist()
    starts = [0, *ends[:-1]]
    return [tuple(found[start:end]) for start, end in zip(starts, ends, strict=True)]


def _pairs_of_few(positions: Positions, range_metres: float) -> tuple[Any, Any]:
    east, north = positions[:, 0], positions[:, 1]
    apart_east, apart_north = east[:, None] - east, north[:, None] - north
    is_near = apart_east * apart_east + apart_north * apart_north <= range_metres * range_metres
    np.fill_diagonal(is_near, val=False)
    ones, others = np.nonzero(is_near)
    return ones, others


def _pairs_by_cells(positions: Positions, range_metres: float) -> tuple[Any, Any]:
    """Cells as large as the range are numbered row by row, with a free column between rows: the
    three cells of a row that touch one's own are then one stretch of the sorted numbers.
    """
    cells = np.floor(positions / range_metres).astype(np.int64)
    cells -= cells.min(axis=0)
    row_length = int(cells[:, 0].max()) + 3
    keys = cells[:, 1] * row_length + cells[:, 0]
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    parts = [
        _near_pairs(positions, range_metres, order, *_stretch(sorted_keys, keys + row))
        for row in (-row_length, 0, row_length)
    ]
    ones = np.concatenate([part[0] for part in parts])
    others = np.concatenate([part[1] for part in parts])
    in_order = np.argsort(ones * len(positions) + others)
    return ones[in_order], others[in_order]


def _stretch(sorted_keys: Any, keys: Any) -> tuple[Any, Any]:
    first = np.searchsorted(sorted_keys, keys - 1, side="left")
    last = np.searchsorted(sorted_keys, keys + 1, side="right")
    return first, last - first


def _near_pairs(
    positions: Positions, range_metres: float, order: Any, first: Any, counts: Any
) -> tuple[Any, Any]:
    ones = np.repeat(np.arange(len(positions)), counts)
    within = np.arange(len(ones)) - np.repeat(np.cumsum(counts) - counts, counts)
    others = order[np.repeat(first, counts) + within]
    apart = positions[ones] - positions[others]
    is_near = (apart * apart).sum(axis=1) <= range_metres * range_metres
    is_near &= ones != others
    return ones[is_near], others[is_near]


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
