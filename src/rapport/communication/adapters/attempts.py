"""Attempts of a dispatch: their marks, their outcomes as data and as events of `control`, and the
committed position. [CO-8, CO-10]

The order is: a delivery is marked, sent, its outcome marked, then reported, and only then does the
committed position pass it. So a crash at any point either sends nothing again, or leaves a mark
without an outcome: then the attempt's fate is reported as `unknown`. Marks, reports and commits
happen in groups: deliveries that begin or end together cost one write.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Generic, TypeVar, overload

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.delivery_state import OutcomeState
from rapport.communication.peers import adapter_of, shown_address
from rapport.core.errors import Corrupt
from rapport.core.event import CAUSE, Event, cause_text, check_envelope, content_id
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import run_blocking
from rapport.store.base import Change, Delete, Put, RecordStore, all_records

OUTCOME = "rapport.control.outcome"
_shown = lru_cache(maxsize=16_384)(shown_address)
_ENCODER = msgspec.json.Encoder()


class OutcomeData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The outcome of one attempt; the address is in its shown form. After a crash the same outcome
    may be reported again, with the same `id`.
    """

    message: str
    peer: str
    address: str
    attempt: int
    state: OutcomeState
    reason: str = ""
    retry: bool = False
    unavailable: bool = False
    id: str = ""
    """Adapter, position in its channel, state."""
    case: str = ""
    """See Delivery; as the next."""
    share: str = ""
    delivery: Delivery | None = None
    """The whole delivery where it is `plain`: there is no other record of it."""


Report = Callable[[Sequence[OutcomeData]], Awaitable[None]]
"""Takes outcomes in order; durable when it returns. They may come again after a crash."""


def attempt_data(
    delivery: Delivery,
    state: OutcomeState,
    reason: str = "",
    *,
    retry: bool = False,
    unavailable: bool = False,
    position: int = 0,
    starts: int = 0,
) -> OutcomeData:
    """The outcome of an attempt. `starts`: how often earlier processes began it and died."""
    name = adapter_of(delivery.address)
    return OutcomeData(
        message=delivery.message,
        peer=delivery.peer,
        address=_shown(delivery.address),
        attempt=delivery.attempt,
        state=state,
        reason=reason,
        retry=retry,
        unavailable=unavailable,
        id=f"{name}.{position}.{state}.{starts}" if position else "",
        case=delivery.case,
        share=delivery.share,
        delivery=delivery if delivery.plain else None,
    )


def outcome_data(delivery: Delivery, outcome: Outcome, position: int = 0) -> OutcomeData:
    if isinstance(outcome, Failed):
        return attempt_data(
            delivery,
            "failed",
            outcome.reason,
            retry=outcome.retry,
            unavailable=outcome.unavailable,
            position=position,
        )
    state: OutcomeState = "handed" if isinstance(outcome, Sent) else "confirmed"
    return attempt_data(delivery, state, outcome.reference, position=position)


class SentOutcomes(Sequence[OutcomeData]):
    """The outcomes of fast-path deliveries that were simply sent, which are most by far: each is
    made when it is read.
    """

    __slots__ = ("deliveries", "positions")

    def __init__(self, deliveries: Sequence[Delivery], positions: Sequence[int]) -> None:
        self.deliveries, self.positions = deliveries, positions

    def __len__(self) -> int:
        return len(self.deliveries)

    @overload
    def __getitem__(self, place: int) -> OutcomeData: ...
    @overload
    def __getitem__(self, place: slice) -> SentOutcomes: ...
    def __getitem__(self, place: int | slice) -> OutcomeData | SentOutcomes:
        if isinstance(place, slice):
            return SentOutcomes(self.deliveries[place], self.positions[place])
        return attempt_data(self.deliveries[place], "handed", position=self.positions[place])

    @staticmethod
    def joined(parts: Sequence[Sequence[OutcomeData]]) -> Sequence[OutcomeData]:
        handed = [part for part in parts if isinstance(part, SentOutcomes)]
        if len(handed) < len(parts):
            return [data for part in parts for data in part]
        if len(handed) == 1:
            return handed[0]
        return SentOutcomes(
            [delivery for part in handed for delivery in part.deliveries],
            [position for part in handed for position in part.positions],
        )


def outcomes_data(
    deliveries: Sequence[Delivery], outcomes: Sequence[Outcome], positions: Sequence[int]
) -> Sequence[OutcomeData]:
    """`outcome_data` for each."""
    if all([type(outcome) is Sent and not outcome.reference for outcome in outcomes]) and all(
        [delivery.plain and not delivery.case for delivery in deliveries]
    ):
        return SentOutcomes(deliveries, positions)
    return [
        outcome_data(delivery, outcome, position)
        for delivery, outcome, position in zip(deliveries, outcomes, positions, strict=True)
    ]


def outcome_event(data: OutcomeData, *, now_ms: int) -> Event:
    """The event for `control`; the same outcome always has the same id."""
    name = data.id or content_id(
        "outcome", data.message, data.peer, data.address, str(data.attempt), data.state, data.reason
    )
    event = Event(
        source=f"adapter/{adapter_of(data.address)}",
        id=name,
        type=OUTCOME,
        subject=data.message,
        time=now_ms,
        data=_ENCODER.encode(data),
        headers={CAUSE: cause_text(data.message)},
    )
    check_envelope(event)
    return event


def report_to_control(channels: Channels, clock: Clock) -> Report:
    """A report that appends to `control`, once for all outcomes."""

    async def report(outcomes: Sequence[OutcomeData]) -> None:
        now_ms = clock.now_ms()
        events = [outcome_event(data, now_ms=now_ms) for data in outcomes]
        await channels.channel("control").append(events)

    return report


# --- marks and progress ---


_TABLE = "communication.sending"
_COMMIT_EVERY = 1_000
_OPEN_AHEAD = 4
"""How many times the limit of pending deliveries may be open: those that wait for an earlier one,
or behind a call that hangs. After a crash each costs a look at its mark, or another sending where
that does no harm.
"""
T = TypeVar("T")


class StartMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A delivery that is about to be sent, for the `starts`-th time."""

    position: int
    starts: int


class EndMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    """One record: the deliveries that began and ended at the same moment. Most begin for the first
    time and are simply sent; of these the position is enough.
    """

    begun: Sequence[StartMark] = ()
    ended: Sequence[EndMark] = ()
    first: Sequence[int] = ()
    """Positions of deliveries that begin for the first time."""
    handed: Sequence[int] = ()
    """Positions of deliveries that were sent without a reference."""

    @staticmethod
    def joined(notes: Sequence[MarkBatch]) -> MarkBatch:
        return MarkBatch(
            [entry for note in notes for entry in note.begun],
            [entry for note in notes for entry in note.ended],
            [position for note in notes for position in note.first],
            [position for note in notes for position in note.handed],
        )

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.first or self.handed)

    def highest(self) -> int:
        """The last position in it."""
        begun = [entry.position for entry in self.begun]
        ended = [entry.position for entry in self.ended]
        return max(max(part) for part in (begun, ended, self.first, self.handed) if part)


class MarkRecords:
    """The marks of one adapter, by position in its channel. Blocks; one thread at a time."""

    def __init__(self, adapter: str, records: RecordStore) -> None:
        self._prefix, self._records = f"{adapter}/", records
        self._groups: list[tuple[int, str]] = []
        """Highest position and key of each record, as a heap."""
        self._next = 0

    def load(self, committed: int) -> dict[int, DeliveryMark]:
        """The marks after the committed position; earlier ones are deleted. Raises Corrupt."""
        self._groups, self._next = [], 0
        marks: dict[int, DeliveryMark] = {}
        for key, value in all_records(self._records, _TABLE, prefix=self._prefix):
            self._take(key, _decode(key, value), marks)
        self.note(MarkBatch(), committed)
        return {position: mark for position, mark in marks.items() if position > committed}

    def note(self, noted: MarkBatch, committed: int) -> None:
        """Writes marks, and deletes those that the committed position has passed: one durable
        write, all or nothing.
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
            f"the mark {key!r} of pending deliveries cannot be read: {error}",
            code="adapter.bad_mark",
            hint="it was written by another version; let that one send what waits, then update",
        ) from None


class GroupCommit(Generic[T]):
    """Group commit: while one group is being written, the next one gathers. A group costs one call
    of `work`, whatever its size.
    """

    def __init__(self, work: Callable[[list[T]], Awaitable[None]]) -> None:
        self._work = work
        self._waiting: list[T] = []
        self._news = asyncio.Event()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, entry: T) -> asyncio.Future[None]:
        """Adds to the next group; the future ends with it, or never if `run` failed."""
        self._waiting.append(entry)
        self._news.set()
        return self._done

    async def run(self) -> None:
        """Works until cancelled, or until `work` raises; then the entries gathered are lost."""
        while True:
            await self._news.wait()
            self._news.clear()
            group, self._waiting = self._waiting, []
            done, self._done = self._done, asyncio.get_running_loop().create_future()
            await self._work(group)
            done.set_result(None)


class OutcomeReport(msgspec.Struct, frozen=True):
    """Outcomes, and the positions of the deliveries that end with them."""

    outcomes: Sequence[OutcomeData]
    positions: Sequence[int]


class _MarkRequest(msgspec.Struct, frozen=True):
    """Marks to write, and outcomes to report afterwards."""

    marks: MarkBatch
    report: OutcomeReport | None = None


class DispatchProgress:
    """The open positions of a dispatch; created each time it starts."""

    def __init__(
        self, subscription: Subscription, report: Report, marks: MarkRecords | None
    ) -> None:
        """`marks`: None for an adapter that may send twice."""
        self._subscription, self._report, self._marks = subscription, report, marks
        self._committed = self._opened_until = subscription.position
        self._open: dict[int, bool] = {}
        """Positions in order; True = ended."""
        self._ended = 0
        """Open positions that have ended."""
        self._freed = asyncio.Event()
        self._mark_writer = GroupCommit(self._write_marks)
        self._reporter = GroupCommit(self._report_outcomes)

    async def load(self) -> dict[int, DeliveryMark]:
        """The marks that the last process left beyond the committed position."""
        if self._marks is None:
            return {}
        return await run_blocking(partial(self._marks.load, self._committed))

    async def run(self) -> None:
        """Writes until cancelled; raises what the stores raise."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._mark_writer.run())
            group.create_task(self._reporter.run())

    def open(self, positions: Sequence[int]) -> None:
        """These deliveries were read, in order."""
        self._open.update(dict.fromkeys(positions, False))
        self._opened_until = positions[-1]

    async def begin(self, begun: MarkBatch) -> None:
        """Returns when the start marks are durable."""
        if self._marks is not None and begun:
            await self._mark_writer.put(_MarkRequest(begun))

    def end(self, outcomes: Sequence[OutcomeData], positions: Sequence[int]) -> None:
        """These deliveries have ended; their outcomes are marked and reported soon."""
        report = OutcomeReport(outcomes, positions)
        if self._marks is None:
            self._reporter.put(report)
            return
        if isinstance(outcomes, SentOutcomes):
            marks = MarkBatch(handed=positions)
        else:
            marks = MarkBatch(
                ended=[
                    EndMark(position, data.state, data.reason, data.retry, data.unavailable)
                    for position, data in zip(positions, outcomes, strict=True)
                ]
            )
        self._mark_writer.put(_MarkRequest(marks, report))

    async def report(self, outcomes: Sequence[OutcomeData], ending: Sequence[int] = ()) -> None:
        """Returns when the outcomes are reported; they are not marked."""
        await self._reporter.put(OutcomeReport(outcomes, ending))

    @property
    def committed(self) -> int:
        """Everything up to this position has ended and is reported."""
        return self._committed

    @property
    def pending(self) -> int:
        """Open positions that have not ended."""
        return len(self._open) - self._ended

    async def wait_for_room(self, limit: int, blocked: Callable[[], int]) -> None:
        """Returns when fewer than `limit` are pending, without `blocked` ones, and not too many are
        open: a call that hangs does not stop reading.
        """
        while self.pending - blocked() >= limit or len(self._open) >= limit * _OPEN_AHEAD:
            self._freed.clear()
            await self._freed.wait()

    def wake(self) -> None:
        """Makes `wait_for_room` check again: more may be blocked now."""
        self._freed.set()

    async def wait_below(self, limit: int) -> None:
        """Returns when fewer than `limit` are open."""
        while len(self._open) >= limit:
            self._freed.clear()
            await self._freed.wait()

    # --- groups ---

    async def _write_marks(self, requests: list[_MarkRequest]) -> None:
        assert self._marks is not None, "without marks nothing is requested"
        marks = MarkBatch.joined([request.marks for request in requests])
        await run_blocking(partial(self._marks.note, marks, self._committed))
        for request in requests:
            if request.report is not None:
                self._reporter.put(request.report)

    async def _report_outcomes(self, reports: list[OutcomeReport]) -> None:
        outcomes = SentOutcomes.joined([one.outcomes for one in reports if one.outcomes])
        if outcomes:
            await self._report(outcomes)
        for one in reports:
            self._open.update(dict.fromkeys(one.positions, True))
            self._ended += len(one.positions)
        await self._advance()

    async def _advance(self) -> None:
        """Commits the position before the first pending delivery: when nothing is pending, or now
        and then. It may lag, because the marks show a restart which deliveries have ended.
        """
        ended = list(itertools.takewhile(self._open.__getitem__, self._open))
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
