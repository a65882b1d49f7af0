"""Marks of deliveries under way: what a restart must know so as not to send blindly again. [CO-10]

A mark is written before deliveries are handed to the medium and completed with the outcomes after
it. One found without an outcome means that the process died in between: the attempt's fate is
unknown. Marks come in groups, one record for all that begins or ends together, so that a thousand
deliveries cost one write.

Group commit for anything: while one group is worked on, the next gathers. [CO-4, design 1]

The books of a dispatch: marks before and after, outcomes told, the place moved on. [CO-10]

In this order: a delivery is marked, sent, its outcome marked, then told, and only then does the
committed place pass it. So a crash at any point either sends nothing again or says `unknown`.
Everything is done in groups: what ends together with what begins costs one write.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from rapport.channel.channel import Subscription
from rapport.communication.adapters.outcome_events import OutcomeData, Report, SentOutcomes
from rapport.communication.aside import run_aside
from rapport.communication.delivering.steps import OutcomeState
from rapport.core.errors import Corrupt
from rapport.store.base import Change, Delete, Put, RecordStore

_TABLE = "communication.sending"
_PAGE = 100


class StartMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that is about to be handed over, for the `starts`-th time."""

    position: int
    starts: int


class EndMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that came to an end."""

    position: int
    state: OutcomeState
    reason: str
    retry: bool
    unavailable: bool = False


class DeliveryMark(msgspec.Struct, frozen=True):
    """How often a delivery was begun, and how it ended if it did."""

    starts: int
    outcome: EndMark | None = None


class MarkBatch(msgspec.Struct, frozen=True, array_like=True):
    """One record: what began and what ended at the same moment. Most begin for the first time and
    are simply handed over; of these the position says all.
    """

    begun: Sequence[StartMark] = ()
    ended: Sequence[EndMark] = ()
    first: Sequence[int] = ()
    """Positions of those that begin for the first time."""
    handed: Sequence[int] = ()
    """Positions of those that the medium took without a word."""

    @staticmethod
    def joined(notes: Sequence[MarkBatch]) -> MarkBatch:
        """All of them as one."""
        return MarkBatch(
            [entry for note in notes for entry in note.begun],
            [entry for note in notes for entry in note.ended],
            [position for note in notes for position in note.first],
            [position for note in notes for position in note.handed],
        )

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.first or self.handed)

    def highest(self) -> int:
        """The last position that it speaks of."""
        begun = [entry.position for entry in self.begun]
        ended = [entry.position for entry in self.ended]
        return max(max(part) for part in (begun, ended, self.first, self.handed) if part)


class MarkRecords:
    """The marks of one adapter, by position in its channel. Blocking: used from a thread, by one at
    a time.
    """

    def __init__(self, adapter: str, records: RecordStore) -> None:
        self._prefix, self._records = f"{adapter}/", records
        self._groups: list[tuple[int, str]] = []
        """Highest position and key of each record, as a heap."""
        self._next = 0

    def load(self, committed: int) -> dict[int, DeliveryMark]:
        """The marks after the committed position; those before are forgotten. Raises Corrupt."""
        self._groups, self._next = [], 0
        marks: dict[int, DeliveryMark] = {}
        after = ""
        while page := self._records.find(_TABLE, prefix=self._prefix, after=after, limit=_PAGE):
            for key, value in page:
                self._take(key, _decode(key, value), marks)
            after = page[-1][0]
        self.note(MarkBatch(), committed)
        return {position: mark for position, mark in marks.items() if position > committed}

    def note(self, noted: MarkBatch, committed: int) -> None:
        """Writes what begins and what ended, and lets go of what the committed position has passed:
        all or nothing, one write, durable when it returns.
        """
        changes: list[Change] = []
        while self._groups and self._groups[0][0] <= committed:
            changes.append(Delete(_TABLE, heapq.heappop(self._groups)[1]))
        if noted:
            key = f"{self._prefix}{self._next:020d}"
            changes.append(Put(_TABLE, key, msgspec.msgpack.encode(noted)))
            heapq.heappush(self._groups, (noted.highest(), key))
            self._next += 1
        if changes:
            self._records.apply(changes)

    def _take(self, key: str, group: MarkBatch, marks: dict[int, DeliveryMark]) -> None:
        heapq.heappush(self._groups, (group.highest(), key))
        self._next = int(key.removeprefix(self._prefix)) + 1
        for begun in group.begun:
            marks[begun.position] = DeliveryMark(begun.starts)
        marks.update(dict.fromkeys(group.first, DeliveryMark(1)))
        for ended in group.ended:
            marks[ended.position] = DeliveryMark(1, ended)
        for position in group.handed:
            marks[position] = DeliveryMark(1, EndMark(position, "handed", "", False))


def _decode(key: str, value: bytes) -> MarkBatch:
    try:
        return msgspec.msgpack.decode(value, type=MarkBatch)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the mark {key!r} of deliveries under way cannot be read: {error}",
            code="adapter.bad_mark",
            hint="it was written by another version; let that one send what waits, then update",
        ) from None


T = TypeVar("T")


class GroupCommit(Generic[T]):
    """Holds what came in since the last group began. A group costs one call of `work`, however many
    brought something; who waits for it wakes once.
    """

    def __init__(self, work: Callable[[list[T]], Awaitable[None]]) -> None:
        self._work = work
        self._waiting: list[T] = []
        self._news = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, entry: T) -> asyncio.Future[None]:
        """Adds to the next group; the future ends with it, and never when `run` failed."""
        self._waiting.append(entry)
        self._news.set()
        return self._done

    async def run(self) -> None:
        """Works until cancelled, or until `work` raises: what gathered is lost then, and whoever
        restarts it begins with a new gathering.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            group, self._waiting = self._waiting, []
            done, self._done = self._done, asyncio.get_running_loop().create_future()
            await self._work(group)
            done.set_result(None)


_COMMIT_EVERY = 1_000
_OPEN_AHEAD = 4
"""So many times as many as may be under way may be open, be it that they wait for one before them,
or behind a call that hangs. After a crash each costs a look at its mark, or another sending where
that does no harm.
"""


class OutcomeReport(msgspec.Struct, frozen=True):
    """Outcomes and the positions they end; none for outcomes that end nothing."""

    outcomes: Sequence[OutcomeData]
    positions: Sequence[int]


class _MarkRequest(msgspec.Struct, frozen=True):
    """What is to be marked: deliveries that begin, or that ended and are to be told."""

    noted: MarkBatch
    told: OutcomeReport | None = None


class DispatchProgress:
    """Holds which positions are open. Made anew each time a dispatch starts."""

    def __init__(
        self, subscription: Subscription, report: Report, marks: MarkRecords | None
    ) -> None:
        """`marks`: None for an adapter that may send twice."""
        self._subscription, self._report, self._marks = subscription, report, marks
        self._committed = self._opened_until = subscription.position
        self._open: dict[int, bool] = {}
        """Positions in order, each with whether it has ended."""
        self._ended = 0
        """How many of these have."""
        self._freed = asyncio.Event()
        self._noting = GroupCommit(self._note)
        self._telling = GroupCommit(self._tell)

    async def load(self) -> dict[int, DeliveryMark]:
        """What the last process left: marks of deliveries that the committed place has not passed,
        all of them begun, some ended.
        """
        if self._marks is None:
            return {}
        return await run_aside(partial(self._marks.load, self._committed))

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

    async def begin(self, begun: MarkBatch) -> None:
        """Returns when it is durable that these are about to be sent."""
        if self._marks is not None and begun:
            await self._noting.put(_MarkRequest(begun))

    def end(self, outcomes: Sequence[OutcomeData], positions: Sequence[int]) -> None:
        """These have ended; the outcome is marked, told and the place moved on, soon."""
        told = OutcomeReport(outcomes, positions)
        if self._marks is None:
            self._telling.put(told)
            return
        if isinstance(outcomes, SentOutcomes):
            noted = MarkBatch(handed=positions)
        else:
            noted = MarkBatch(
                ended=[
                    EndMark(position, data.state, data.reason, data.retry, data.unavailable)
                    for position, data in zip(positions, outcomes, strict=True)
                ]
            )
        self._noting.put(_MarkRequest(noted, told))

    async def tell(self, outcomes: Sequence[OutcomeData], ending: Sequence[int] = ()) -> None:
        """Returns when the outcomes are told; they are not marked."""
        await self._telling.put(OutcomeReport(outcomes, ending))

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

    async def _note(self, notes: list[_MarkRequest]) -> None:
        assert self._marks is not None, "without marks nothing is noted"
        noted = MarkBatch.joined([note.noted for note in notes])
        await run_aside(partial(self._marks.note, noted, self._committed))
        for note in notes:
            if note.told is not None:
                self._telling.put(note.told)

    async def _tell(self, told: list[OutcomeReport]) -> None:
        outcomes = SentOutcomes.joined([entry.outcomes for entry in told if entry.outcomes])
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
