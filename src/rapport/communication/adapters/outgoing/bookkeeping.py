"""The books of a dispatch: marks before and after, outcomes told, the place moved on. [CO-10]

In this order: a delivery is marked, sent, its outcome marked, then told, and only then does the
committed place pass it. So a crash at any point either sends nothing again or says `unknown`.
Everything is done in groups: what ends together with what begins costs one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import Subscription
from rapport.communication.adapters.outgoing.gathering import Gathering
from rapport.communication.adapters.outgoing.marks import Ended, Mark, Marks, Noted
from rapport.communication.adapters.outgoing.outcomes import HandedOutcomes, OutcomeData, Report
from rapport.communication.blocking import run_blocking

_COMMIT_EVERY = 1_000
_OPEN_AHEAD = 4
"""So many times as many as may be under way may be open, be it that they wait for one before them,
or behind a call that hangs. After a crash each costs a look at its mark, or another sending where
that does no harm.
"""


class Told(msgspec.Struct, frozen=True):
    """Outcomes and the positions they end; none for outcomes that end nothing."""

    outcomes: Sequence[OutcomeData]
    positions: Sequence[int]


class _Note(msgspec.Struct, frozen=True):
    """What is to be marked: deliveries that begin, or that ended and are to be told."""

    noted: Noted
    told: Told | None = None


class Bookkeeping:
    """Holds which positions are open. Made anew each time a dispatch starts."""

    def __init__(self, subscription: Subscription, report: Report, marks: Marks | None) -> None:
        """`marks`: None for an adapter that may send twice."""
        self._subscription, self._report, self._marks = subscription, report, marks
        self._committed = self._opened_until = subscription.position
        self._open: dict[int, bool] = {}
        """Positions in order, each with whether it has ended."""
        self._ended = 0
        """How many of these have."""
        self._freed = asyncio.Event()
        self._noting = Gathering(self._note)
        self._telling = Gathering(self._tell)

    async def load(self) -> dict[int, Mark]:
        """What the last process left: marks of deliveries that the committed place has not passed,
        all of them begun, some ended.
        """
        if self._marks is None:
            return {}
        return await run_blocking(partial(self._marks.load, self._committed))

    async def run(self) -> None:
        """Does the writing until cancelled; raises what the stores raise."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._noting.run())
            group.create_task(self._telling.run())

    # --- what the dispatch says ---

    def open(self, positions: Sequence[int]) -> None:
        """These were read, in order, and are now on their way."""
        self._open.update(dict.fromkeys(positions, False))
        self._opened_until = positions[-1]

    async def begin(self, begun: Noted) -> None:
        """Returns when it is durable that these are about to be sent."""
        if self._marks is not None and begun:
            await self._noting.put(_Note(begun))

    def end(self, outcomes: Sequence[OutcomeData], positions: Sequence[int]) -> None:
        """These have ended; the outcome is marked, told and the place moved on, soon."""
        told = Told(outcomes, positions)
        if self._marks is None:
            self._telling.put(told)
            return
        if isinstance(outcomes, HandedOutcomes):
            noted = Noted(handed=positions)
        else:
            noted = Noted(
                ended=[
                    Ended(position, data.state, data.reason, data.retry, data.unavailable)
                    for position, data in zip(positions, outcomes, strict=True)
                ]
            )
        self._noting.put(_Note(noted, told))

    async def tell(self, outcomes: Sequence[OutcomeData], ending: Sequence[int] = ()) -> None:
        """Returns when the outcomes are told; they are not marked."""
        await self._telling.put(Told(outcomes, ending))

    @property
    def committed(self) -> int:
        """Up to here everything is done and told."""
        return self._committed

    @property
    def count(self) -> int:
        """How many are on their way or wait for one before them."""
        return len(self._open)

    @property
    def under_way(self) -> int:
        """How many have not ended."""
        return len(self._open) - self._ended

    async def wait_for_room(self, limit: int, stuck: Callable[[], int]) -> None:
        """Returns when fewer than `limit` are under way, `stuck` ones left out, and not too many
        are open: a call that hangs keeps nothing else from being read.
        """
        while self.under_way - stuck() >= limit or len(self._open) >= limit * _OPEN_AHEAD:
            self._freed.clear()
            await self._freed.wait()

    def look_again(self) -> None:
        """Wakes who waits for room: more may be stuck now."""
        self._freed.set()

    async def wait_below(self, limit: int) -> None:
        """Returns when fewer than `limit` are open."""
        while len(self._open) >= limit:
            self._freed.clear()
            await self._freed.wait()

    # --- groups ---

    async def _note(self, notes: list[_Note]) -> None:
        assert self._marks is not None, "without marks nothing is noted"
        noted = Noted.joined([note.noted for note in notes])
        await run_blocking(partial(self._marks.note, noted, self._committed))
        for note in notes:
            if note.told is not None:
                self._telling.put(note.told)

    async def _tell(self, told: list[Told]) -> None:
        outcomes = HandedOutcomes.joined([entry.outcomes for entry in told if entry.outcomes])
        if outcomes:
            await self._report(outcomes)
        for entry in told:
            self._open.update(dict.fromkeys(entry.positions, True))
            self._ended += len(entry.positions)
        await self._move_on()

    async def _move_on(self) -> None:
        """Commits as far as everything before is done, too: when nothing is left, or now and then.

        The place may lag, because the marks tell a restart what has ended already.
        """
        ended = self._ended_at_the_front()
        left = len(self._open) - len(ended)
        done_until = ended[-1] if ended else self._committed
        if ended and not left:
            done_until = self._opened_until
        ahead = done_until - self._committed
        if ahead >= _COMMIT_EVERY or (ahead > 0 and not left):
            await self._subscription.commit(done_until)
            self._committed = done_until
        for position in ended:
            del self._open[position]
        self._ended -= len(ended)
        self._freed.set()

    def _ended_at_the_front(self) -> list[int]:
        """Positions that have ended, as far as nothing before them is under way."""
        ended = []
        for position, has_ended in self._open.items():
            if not has_ended:
                break
            ended.append(position)
        return ended
