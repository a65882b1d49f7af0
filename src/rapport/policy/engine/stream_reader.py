"""Where a batch of events shows that the node's clock jumped back. Pure. [PO-7]

Reading the stream so that a second time comes to the same: readings, moves of time and changes
of plans, each in its place. [PO-7, PO-8, PO-9, PO-10]
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from rapport.core.detection import Cause, Detection
from rapport.core.errors import Problem
from rapport.core.event import BareStored, Event, StoredEvent
from rapport.core.event_blocks import BlockEvents
from rapport.core.ids import content_id
from rapport.core.release import HISTORY, NOTIFY, ReleaseDone
from rapport.core.times import format_time
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.active_plans import ActivePlans, EngineState
from rapport.policy.engine.metrics import (
    LateShares,
)
from rapport.policy.engine.output import EmittedResults, EngineOutput
from rapport.policy.engine.stream_steps import (
    PlanChange,
    PlanSource,
    PolicyCommand,
    StreamPosition,
    StreamStep,
    TablesChange,
    TimeMoved,
    TimeReset,
    ahead_problem,
    merge_steps,
    position_of,
)
from rapport.policy.ontology import Ontology
from rapport.policy.readings import bare_readings, received_readings, split_events
from rapport.policy.runners.base import END_OF_TIME

Times = npt.NDArray[np.int64]
_NEVER = -(2**62)


def first_clock_jump(
    batch: Sequence[StoredEvent | BareStored],
    streams: Collection[str],
    latest: int,
    skew_ms: int,
) -> int:
    """The first event of a stream at whose arrival time had reached more than the allowed skew
    beyond the clock, `latest` being the time reached before the batch; the length of the batch
    when there is none.

    Readings themselves move time no further than to their arrival, so only a clock that was ahead
    before can be the cause. Readings too far ahead of their arrival are not used, and tell nothing.
    Costs two passes over the times of arrival unless there may be one.
    """
    arrived = _arrived(batch)
    if not len(arrived) or int(arrived.min()) + skew_ms >= max(latest, int(arrived.max())):
        return len(batch)
    times = _times(batch)
    is_used = _is_of(batch, streams) & (times <= arrived + skew_ms)
    reached = np.where(is_used, np.minimum(times, arrived), _NEVER)
    before = np.maximum.accumulate(np.concatenate((np.array([latest], np.int64), reached)))[:-1]
    jumps = np.flatnonzero(is_used & (before > arrived + skew_ms))
    return int(jumps[0]) if len(jumps) else len(batch)


def _arrived(batch: Sequence[StoredEvent | BareStored]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.received
    return np.array([item.received for item in batch], np.int64)


def _times(batch: Sequence[StoredEvent | BareStored]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.columns.times
    return np.array([min(max(item.event.time, _NEVER), -_NEVER) for item in batch], np.int64)


def _is_of(
    batch: Sequence[StoredEvent | BareStored], streams: Collection[str]
) -> npt.NDArray[np.bool_]:
    if isinstance(batch, BlockEvents):
        return np.full(len(batch), batch.columns.type in streams)
    return np.array([item.event.type in streams for item in batch], np.bool_)


Batch = Sequence[StoredEvent | BareStored]
BEAT_MS = 900
"""So much later than the newest reading, or the last beat, is the next one: about a second, which
is how often a quiet engine looks."""
_position = attrgetter("position")
_log = get_logger(__name__)
_WHOLE_BATCHES = 100
"""So many are read with their headers after one that needed them."""


class StreamReader:
    """How far the stream was taken, what runs there, and what is yet to be met again."""

    def __init__(
        self,
        source: PlanSource,
        running: ActivePlans,
        output: EngineOutput,
        pace: EngineSchedule,
        steady_ns: Callable[[], int],
        *,
        now_ms: Callable[[], int],
        act_within_ms: int,
    ) -> None:
        self.source, self.running, self.output = source, running, output
        self._pace, self._steady_ns = pace, steady_ns
        self._now_ms, self._act_within_ms = now_ms, act_within_ms
        self.late_shares = LateShares()
        self.position = self._changes_at = self._read_before = 0
        self._again: deque[StreamStep] = deque()
        """What the second reading has yet to meet."""
        self._stopped: set[str] = set()
        """Policies that a detection stopped before the place where that is on record."""
        self._whole_left = 0
        self._unheard_since: int | None = None
        """By the clock: since when silence counts without any reading; None once there was one, or
        time has begun without."""
        self._overdue: dict[tuple[str, ...], Detection] = {}
        """Detections of lasting states that were found too late to act on them."""
        self._history: dict[bool, ReleaseDone] = {}
        """Imported readings that wait to be evaluated, by whether people are notified."""
        self._resets = 0

    @property
    def needs_headers(self) -> bool:
        """Whether events should come whole for a while: some had to be read twice."""
        return self._whole_left > 0

    # --- places ---

    def place(self) -> StreamPosition:
        """Where a change made now holds from: behind everything that may have been read before a
        crash, since what the old plans found there was told already.
        """
        before = StreamPosition(self._read_before, -END_OF_TIME)
        return max([self._here(), before, *(position_of(step) for step in self._again)])

    @property
    def reads_again(self) -> bool:
        """Whether a change made now would hold from a later place only."""
        return bool(self._again) or self.place() > self._here()

    async def take_change(self, change: PlanChange) -> None:
        """Takes over a change that is on record, now or when its place is reached."""
        if self._again or change.place > self._here():
            self._again.append(change)
        else:
            await self._change(change)

    def state(self) -> EngineState:
        """What is committed with the position."""
        return EngineState(
            self.running.runner.snapshot(),
            self.output.reached(),
            self.running.began,
            self._changes_at,
            self.running.shadows.saved(),
            sorted(self._stopped),
            self._unheard_since,
            list(self._overdue.values()),
            list(self._history.values()),
            self._resets,
        )

    async def go_to(self, position: int, state: EngineState | None, last: int, now_ms: int) -> None:
        """Goes to a commit, or to the beginning, and finds what was decided and changed after it.

        `last`: how far `events` goes; what was read before a crash lies before that.
        """
        self.position = position
        self._changes_at = state.changes if state is not None else 0
        self._resets = state.resets if state is not None else 0
        at = await self.source.plans_at(self._changes_at)
        self.running.restore(at, state)
        known = None if state is None else state.unheard_since
        is_unheard = state is None or self._here().time == -END_OF_TIME
        self._unheard_since = now_ms if known is None and is_unheard else known
        self._stopped = set(state.stopped) if state is not None else set()
        overdue = state.overdue if state is not None else []
        self._overdue = {_state_of(one): one for one in overdue}
        waiting = state.history if state is not None else []
        self._history = {span.notify: span for span in waiting}
        for policy in self._stopped:
            self.running.stop(policy)
        steps = await self.output.steps_after(state.detections if state is not None else 0)
        changes = await self.source.changes_after(self._changes_at)
        if changes:  # when they were made by the clock is not on record: no earlier than they were
            self.count_silence_from(now_ms)
        self._again = merge_steps(steps, changes)
        is_second = state is not None or bool(changes)
        self._read_before = last if is_second else 0

    def _here(self) -> StreamPosition:
        return StreamPosition(self.position, self.running.runner.latest, self._resets)

    # --- what happens ---

    async def take(self, batch: Batch, ontology: Ontology, skew_ms: int) -> None:
        """Feeds a batch, cut where something else happened when it was read for the first time, and
        where the clock had jumped back.
        """
        while batch:
            cut = len(batch)
            if self._again:
                after = position_of(self._again[0]).after
                cut = bisect_right(batch, after, key=_position)
            cut = min(cut, self._jump_in(batch, ontology, skew_ms))
            if cut:
                await self._feed(batch[:cut], ontology, skew_ms)
                batch = batch[cut:]
            await self.meet_due(batch)
            if batch and self._jump_in(batch[:1], ontology, skew_ms) == 0:
                await self._reset(batch[0].received, skew_ms)

    def _jump_in(self, batch: Batch, ontology: Ontology, skew_ms: int) -> int:
        """The first reading of a batch that shows that the clock jumped back: time has gone
        further ahead of its arrival than the skew. The batch's length when there is none.
        """
        return first_clock_jump(batch, ontology.streams(), self.running.runner.latest, skew_ms)

    async def meet_due(self, batch: Batch = ()) -> None:
        """What happened before `batch`, given what was taken, happens again."""
        while self._again and self._is_due(self._again[0], batch):
            await self._meet_again()

    def _is_due(self, step: StreamStep, batch: Batch) -> bool:
        """Whether everything before it was taken, `batch` being what comes next."""
        after = position_of(step).after
        return self.position >= after or (bool(batch) and batch[0].position > after)

    async def _meet_again(self) -> None:
        """What happened here when this was read for the first time happens again."""
        step = self._again.popleft()
        if isinstance(step, TimeMoved):
            await self._append(self._move_to(step))
        elif isinstance(step, TimeReset):
            await self._begin_anew(step)
        elif isinstance(step, TablesChange):
            self.running.renew_pull(step.pull(), step.ontology)
        else:
            await self._change(step)

    async def _reset(self, clock_ms: int, skew_ms: int) -> None:
        """Time begins anew since the clock jumped back; that goes on record."""
        reset = TimeReset(
            time=clock_ms,
            after=self.position,
            before=self.running.runner.latest,
            resets=self._resets + 1,
            skew_ms=skew_ms,
        )
        _log.warning(
            "the clock jumped back: policies begin anew",
            reached=format_time(reset.before),
            clock=format_time(clock_ms),
        )
        self.output.counts.resets += 1
        await self._begin_anew(reset)

    async def _begin_anew(self, reset: TimeReset) -> None:
        dropped = self.running.reset(reset.time, reset.skew_ms)
        self._resets, self._unheard_since = reset.resets, reset.time
        self._pace.is_dirty = True
        await self._append([], dropped, reset)

    async def _change(self, change: PlanChange) -> None:
        self.running.apply(change)
        self._changes_at = change.position
        self._stopped.discard(change.policy)
        self._pace.is_dirty = True
        await self._append([])

    async def _feed(self, batch: Batch, ontology: Ontology, skew_ms: int) -> None:
        """Quarantines what cannot be used, feeds the rest, and appends what became certain."""
        received = bare_readings(batch, ontology, skew_ms)
        if received is None:
            whole = await self.output.whole(batch)
            is_bare = any(isinstance(item, BareStored) for item in batch)
            self._whole_left = _WHOLE_BATCHES if is_bare else max(self._whole_left - 1, 0)
            ahead = [item for item in whole if item.event.time > item.received + skew_ms]
            usable = [item for item in whole if item.event.time <= item.received + skew_ms]
            live = [item for item in usable if HISTORY not in item.event.headers]
            received, rejected = received_readings(live, ontology)
            if len(live) < len(usable):
                rejected += self._note_history(usable, ontology)
            aside = [(item.event, ahead_problem(item)) for item in ahead] + rejected
            await self.output.set_aside(aside)
        found = self.running.feed(received.readings, received.times)
        self.late_shares.add(
            received.readings,
            self.running.runner.take_late_by_source(),
            ontology.sources,
            self._steady_ns(),
        )
        if len(received.readings):
            self._unheard_since = None
        self.position = batch[-1].position
        self._pace.took(len(batch))
        self.output.counts.read += len(batch)
        await self._append(found, self.running.runner.take_late())

    def _note_history(
        self, batch: Sequence[StoredEvent], ontology: Ontology
    ) -> list[tuple[Event, Problem]]:
        """Notes which times of which streams the imported readings among these touch; returns
        those that are no readings.
        """
        found = [item for item in batch if HISTORY in item.event.headers]
        _readings, rejected = split_events([item.event for item in found], ontology)
        streams = ontology.streams().keys()
        for item in found:
            if item.event.type in streams:
                notify = NOTIFY in item.event.headers
                span = self._history.get(notify)
                if span is None:
                    release = content_id("history", str(item.position), str(notify))
                    span = ReleaseDone(
                        release=release, history=True, since=item.position, notify=notify
                    )
                    self._history[notify] = span
                span.touch(item.event.type, item.event.time)
                span.through, span.released = item.position, span.released + 1
                self.output.counts.history += 1
        return rejected

    def _note_overdue(self, detections: Sequence[Detection]) -> None:
        """Keeps of the states that were found too late to act on them the newest of each."""
        oldest_ms = self._now_ms() - self._act_within_ms
        overdue = [one for one in detections if one.time < oldest_ms]
        if overdue:
            plans = {plan.policy: plan for plan in self.running.runner.plans()}
            lasting = {name for name, plan in plans.items() if plan.is_lasting()}
            states = [one for one in overdue if one.policy in lasting]
            self._overdue |= {_state_of(one): one for one in states}

    async def tell_still_lasting(self) -> None:
        """Everything received was taken: reports which of the states that were found too late to
        act on them are still true.
        """
        if self._overdue:
            overdue, self._overdue = list(self._overdue.values()), {}
            lasting = [one for one in overdue if self.running.runner.still_lasts(one)]
            await self.output.tell_still_lasting(lasting, self._act_within_ms)
            self._pace.is_dirty = True

    @property
    def history_waits(self) -> bool:
        """Whether readings imported as history wait to be evaluated."""
        return bool(self._history)

    async def release_history(self, now_ms: int) -> None:
        """Has the imported readings evaluated that came so far; those of silent imports first."""
        for notify in sorted(self._history):
            await self.output.release_history(self._history[notify], now_ms)
        self._history = {}
        self._pace.is_dirty = True

    def is_ahead_of(self, now_ms: int, skew_ms: int) -> bool:
        """Whether time has gone further ahead of the clock than the skew."""
        return self.running.runner.latest > now_ms + skew_ms

    async def move_on(
        self, now_ms: int, *, beating: bool = False, reset_skew_ms: int | None = None
    ) -> None:
        """Lets time pass as far as what is pending needs it, never beyond the clock; when it is
        `beating`, up to the clock if that is far enough ahead. With `reset_skew_ms` time begins
        anew if it is so much ahead of the clock.
        """
        while self._again:
            await self._meet_again()
        if reset_skew_ms is not None and self.is_ahead_of(now_ms, reset_skew_ms):
            await self._reset(now_ms, reset_skew_ms)
        if (since := self._begun_at(now_ms)) is not None:
            begun = TimeMoved(since, self.position, begins=True, resets=self._resets)
            await self._tell_moved(self._move_to(begun), begun)
        found: list[Detection] = []
        reached: int | None = None
        while (due := self.running.pending_until()) is not None and due <= now_ms:
            found += self.running.advance(due)
            reached = due
        if beating and now_ms - self.running.runner.latest >= BEAT_MS:
            found += self.running.advance(now_ms)
            reached = now_ms
        if reached is not None:
            await self._tell_moved(found, TimeMoved(reached, self.position, resets=self._resets))

    def count_silence_from(self, now_ms: int) -> None:
        """Plans or tables are others: as long as nothing was heard, silence counts from now on."""
        if self._unheard_since is not None:
            self._unheard_since = now_ms

    def _begun_at(self, now_ms: int) -> int | None:
        """When time began without a reading: as soon as somebody who was never heard of may have
        been silent for long enough. Not before: who brings old readings is not late by it.
        """
        since = self._unheard_since
        if since is None:
            return None
        shortest_ms = self.running.shortest_silence_ms()
        return since if shortest_ms is not None and now_ms >= since + shortest_ms else None

    def _move_to(self, moved: TimeMoved) -> list[Detection]:
        if not moved.begins:
            return self.running.advance(moved.time)
        self._unheard_since = None
        return self.running.begin(moved.time)

    async def _tell_moved(self, found: list[Detection], moved: TimeMoved) -> None:
        await self._append(found, moved=moved)
        self._pace.is_dirty = True
        self.output.counts.moved_by_clock += 1

    async def _append(
        self,
        found: list[Detection],
        late: Sequence[Cause] = (),
        moved: TimeMoved | TimeReset | None = None,
    ) -> None:
        """Appends what was found, then does what detections say about policies.

        A detection that stops a policy stops it at the detection's time: what the policy finds
        later, in the order of detections, is not told.
        """
        differences = self.running.differences(found)
        told = EmittedResults(self.source, found, self.running.take_undecided())
        await self.output.tell(told, differences, late, moved)
        self.running.meter.found(told.detections, told.undecided)
        self._note_overdue(told.detections)
        for command in told.commands:
            await self._obey(command)

    async def _obey(self, command: PolicyCommand) -> None:
        """Stops a policy because of a detection, at once. Met again that is on record already, and
        maybe at a later place, since events were cut otherwise.
        """
        change = await self.source.obey(
            command,
            self.place(),
            met=self._changes_at,
            is_stopped=command.policy in self._stopped,
        )
        if change is None:
            self.running.meter.failed(command.detection.policy)
        elif change.position > self._changes_at:
            self.running.stop(change.policy)
            self._pace.is_dirty = True
            if not self._again and change.place <= self._here():
                self._changes_at = change.position
                return
            self._stopped.add(change.policy)
            if change not in self._again:
                self._again.append(change)


def _state_of(detection: Detection) -> tuple[str, ...]:
    """What a state is of: the policy, and who is bound."""
    pairs = sorted(detection.bindings.items())
    return (detection.policy, *(part for pair in pairs for part in pair))


_LONGEST_WAIT_MS = 1_000


_GATHER_MS = 2_000
"""Readings of history that come within so long of each other are evaluated together."""


_BELIEVED_AFTER_MS = 600_000
"""A clock that stands so long behind the time that was reached is believed without a reading, as
`kernel/believed_time.py` does: one that is set right after a start costs no policy what it knows.
"""


class EngineSchedule:
    """How long ago events came and what was taken was committed."""

    def __init__(
        self, now_ns: int, *, quiet_ms: int, commit_every_ms: int, commit_every_events: int
    ) -> None:
        self._quiet_ms = quiet_ms
        self._commit_every_ms, self._commit_every_events = commit_every_ms, commit_every_events
        self._committed_ns = now_ns
        self._quiet_since_ns = now_ns - quiet_ms * 1_000_000
        self._uncommitted = 0
        self._history_ns = now_ns
        self.is_dirty = False
        """Whether there is something to commit."""
        self._behind_since_ns: int | None = None

    def took(self, events: int) -> None:
        """Events were taken."""
        self._uncommitted += events
        self.is_dirty = True

    def heard(self, now_ns: int) -> None:
        """Events came just now."""
        self._quiet_since_ns = now_ns

    def took_history(self, now_ns: int) -> None:
        """Readings of history came just now."""
        self._history_ns = now_ns

    def history_is_gathered(self, now_ns: int) -> bool:
        """Whether no reading of history came for so long that the import has paused or ended."""
        return now_ns - self._history_ns >= _GATHER_MS * 1_000_000

    def committed(self, now_ns: int) -> None:
        """Everything is committed."""
        self._uncommitted, self.is_dirty = 0, False
        self._committed_ns = now_ns

    def commit_is_due(self, now_ns: int) -> bool:
        """Whether it is time to commit."""
        if not self.is_dirty:
            return False
        many = self._uncommitted >= self._commit_every_events
        return many or self._since_commit_ms(now_ns) >= self._commit_every_ms

    def quiet_left_ms(self, now_ns: int) -> int:
        """How much longer no event must come before the clock may move time on."""
        return self._quiet_ms - (now_ns - self._quiet_since_ns) // 1_000_000

    def wait_ms(self, now_ns: int, due_in_ms: int | None) -> int:
        """Until something is due by the clock, or a commit is; a second at most."""
        wait = _LONGEST_WAIT_MS
        if due_in_ms is not None:
            wait = min(wait, max(due_in_ms, self.quiet_left_ms(now_ns)))
        if self.is_dirty:
            wait = min(wait, self._commit_every_ms - self._since_commit_ms(now_ns))
        return max(wait, 0)

    def clock_is_believed(self, now_ns: int, *, is_behind: bool) -> bool:
        """Whether the clock has stood behind the time that was reached for long enough; to be told
        at each look whether it does.
        """
        if not is_behind:
            self._behind_since_ns = None
        elif self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        since_ns = self._behind_since_ns
        return since_ns is not None and now_ns - since_ns >= _BELIEVED_AFTER_MS * 1_000_000

    def _since_commit_ms(self, now_ns: int) -> int:
        return (now_ns - self._committed_ns) // 1_000_000
