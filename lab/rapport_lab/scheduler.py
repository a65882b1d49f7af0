"""Simulated time: a scheduler of discrete events, and a clock on it. [CX-7, CX-12, EN-10]

The scheduler uses no asyncio: a simulation of a hundred thousand machines is a loop over calls. The
clock is for asyncio code in simulations and tests.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final

from rapport.kernel.clock import Now, settle

Planned = list[Any]
"""What `at` and `after` return, for `cancel` only: due time, number, call, arguments."""

_DAYS_PER_MS: Final = 0.125
"""Of the days that calls are kept by: long enough that one holds some calls, short enough that few
are planned within the present one. A power of two, so that nothing is rounded to another day.
"""
_DUE: Final = 0
_CALL: Final = 2
_ARGUMENTS: Final = 3
_NEVER: Final = float("inf")
_DUE_OF: Final = itemgetter(_DUE)
_NEW: Final = tuple.__new__  # half the time of Now(...)


class Scheduler:
    """Calls in order of their simulated time; those due at the same time in order of planning.

    Time is in ms from `start_ms`, stands still within a call and jumps between calls, so a run
    depends on nothing but what was planned. About a million calls per second: calls are kept by
    the day of 8 ms they are due in and sorted when it begins, which is little since most are in
    order; only those planned within their day are in a heap.
    """

    def __init__(self, start_ms: float = 0.0, *, wall_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = start_ms
        """The simulated steady time."""
        self.ran = 0
        """How many calls were made; within a run up to the present day."""
        self._wall_offset_ms = wall_ms - start_ms
        self._number = 0
        self._cancelled = 0
        self._day = int(start_ms * _DAYS_PER_MS)
        self._today: list[Planned] = []
        """Those of the present day, the next one last."""
        self._soon: list[Planned] = []
        """Those that were planned for it since it began: a heap."""
        self._later: dict[int, list[Planned]] = {}
        self._later_days: list[int] = []

    def __len__(self) -> int:
        """How many calls are planned."""
        later = sum(map(len, self._later.values()))
        return len(self._today) + len(self._soon) + later - self._cancelled

    @property
    def now(self) -> Now:
        """The present moment, as pure machines are told it."""
        time_ms = self.time_ms
        return _NEW(Now, (int(time_ms + self._wall_offset_ms), time_ms))

    def wall_ms_at(self, time_ms: float) -> int:
        """What the wall clock shows at a simulated time."""
        return int(time_ms + self._wall_offset_ms)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Sets the wall clock, forwards or back; what is planned stays due when it was."""
        self._wall_offset_ms = wall_ms - self.time_ms

    def at(self, time_ms: float, call: Callable[..., object], *arguments: Any) -> Planned:
        """Plans a call for a time; a time that has passed means now, after what is due now."""
        if time_ms < self.time_ms:
            time_ms = self.time_ms
        planned = [time_ms, self._number, call, arguments]
        self._number += 1
        day = int(time_ms * _DAYS_PER_MS)
        if day <= self._day:
            heappush(self._soon, planned)
        elif (others := self._later.get(day)) is not None:
            others.append(planned)
        else:
            self._later[day] = [planned]
            heappush(self._later_days, day)
        return planned

    def after(self, delay_ms: float, call: Callable[..., object], *arguments: Any) -> Planned:
        """Plans a call for so much later than now."""
        # As `at`, written out: to hand the arguments on would take a fifth more of the time.
        time_ms = self.time_ms
        if delay_ms > 0:
            time_ms += delay_ms
        planned = [time_ms, self._number, call, arguments]
        self._number += 1
        day = int(time_ms * _DAYS_PER_MS)
        if day <= self._day:
            heappush(self._soon, planned)
        elif (others := self._later.get(day)) is not None:
            others.append(planned)
        else:
            self._later[day] = [planned]
            heappush(self._later_days, day)
        return planned

    def cancel(self, planned: Planned) -> bool:
        """Takes a planned call back; false when it was made or taken back before."""
        if planned[_CALL] is None:
            return False
        planned[_CALL], planned[_ARGUMENTS] = None, ()
        self._cancelled += 1
        return True

    def next_due_ms(self) -> float | None:
        """When the next call is due; none when nothing is planned."""
        while self._fill_today(_NEVER):
            planned = self._first()
            if planned[_CALL] is not None:
                return float(planned[_DUE])
            self._take_first()
            self._cancelled -= 1
        return None

    def run(self, until_ms: float | None = None) -> int:
        """Makes all calls due up to and at a time, then it is that time; without one, until
        nothing is planned. Returns how many. What a call raises ends the run after that call.
        """
        limit = _NEVER if until_ms is None else until_ms
        before = self.ran
        while self._fill_today(limit):
            self._run_today(limit)
        if until_ms is not None and until_ms > self.time_ms:
            self.time_ms = until_ms
        return self.ran - before

    def _run_today(self, limit: float) -> None:
        today, soon = self._today, self._soon  # the same lists until both are empty
        ran = 0
        try:
            while today or soon:
                if soon and (not today or soon[0] < today[-1]):
                    if soon[0][_DUE] > limit:
                        return
                    planned = heappop(soon)
                elif today[-1][_DUE] > limit:
                    return
                else:
                    planned = today.pop()
                call = planned[_CALL]
                if call is None:
                    self._cancelled -= 1
                    continue
                self.time_ms = planned[_DUE]
                planned[_CALL] = None
                ran += 1
                call(*planned[_ARGUMENTS])
        finally:
            self.ran += ran

    def _fill_today(self, limit: float) -> bool:
        """Whether a call is due by the limit, in what is now today."""
        if not self._today and not self._soon:
            days = self._later_days
            if not days or days[0] > limit * _DAYS_PER_MS:
                return False
            self._day = heappop(days)
            self._today = self._later.pop(self._day)
            # As they were planned, and left so where they are due at the same time.
            self._today.sort(key=_DUE_OF)
            self._today.reverse()
        return bool(self._first()[_DUE] <= limit)

    def _first(self) -> Planned:
        """The next one of today, also when it was taken back."""
        today, soon = self._today, self._soon
        return soon[0] if soon and (not today or soon[0] < today[-1]) else today[-1]

    def _take_first(self) -> None:
        if self._soon and self._first() is self._soon[0]:
            heappop(self._soon)
        else:
            self._today.pop()


_MANY_MADE = 100_000
"""Fewer objects are looked through in some milliseconds."""


@contextmanager
def without_collector() -> Iterator[None]:
    """For long runs that make no cycles: with many machines Python's collector of cycles takes two
    thirds of the time to find nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            # How many are frozen is asked last: it is found out by counting them.
            if gc.get_count()[0] > _MANY_MADE and not gc.get_freeze_count():
                # What was made meanwhile counts as old: else it would be looked through at once.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class SimulatedClock:
    """A clock that reads its time from a scheduler. `advance`, or `Scheduler.run` between awaits,
    moves the time.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return self._scheduler.now.wall_ms

    def steady_ns(self) -> int:
        return int(self._scheduler.time_ms * 1_000_000)

    async def sleep(self, duration_ms: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        planned = self._scheduler.after(max(duration_ms, 0), woken.set_result, None)
        try:
            await woken
        finally:
            self._scheduler.cancel(planned)

    async def advance(self, duration_ms: float) -> None:
        """Advances call by call; woken tasks run before the next call."""
        until_ms = self._scheduler.time_ms + duration_ms
        await settle()
        while (due := self._scheduler.next_due_ms()) is not None and due <= until_ms:
            self._scheduler.run(due)
            await settle()
        self._scheduler.run(until_ms)
