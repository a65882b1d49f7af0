"""Processes the event stream so that a second pass gives the same results (readings, clock moves
and plan changes, each at its recorded position), and appends the results; and the engine's
schedule. [PO-7, PO-8, PO-9, PO-10]"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from rapport.channel.channel import Channels, events_between
from rapport.core.detection import Cause, Detection, SkippedAction, Undecided, still_lasts_event
from rapport.core.errors import Problem
from rapport.core.event import BareStoredEvent, Event, StoredEvent, content_id, make_event
from rapport.core.event_columns import BlockEvents
from rapport.core.release import HISTORY, NOTIFY, RELEASE_DONE, RELEASES, ReleaseDone
from rapport.core.times import format_time
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.active_plans import (
    ActivePlans,
    EngineState,
    is_state,
)
from rapport.policy.engine.metrics import EngineCounts, LateShares
from rapport.policy.engine.shadow_episodes import ShadowResult, shadow_event
from rapport.policy.engine.stream_steps import (
    RESET_TYPE,
    TIME_TYPE,
    PlanChange,
    PlanSource,
    PolicyCommand,
    StreamPosition,
    StreamStep,
    TablesChange,
    TimeMoved,
    TimeReset,
    ahead_problem,
    late_event,
    merge_steps,
    position_of,
    quarantine_event,
    reset_event,
    time_event,
)
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.readings import bare_readings, received_readings, split_events

_MOST_WARNINGS = 1_000
_TIMES: dict[str, type[TimeMoved | TimeReset]] = {TIME_TYPE: TimeMoved, RESET_TYPE: TimeReset}


class EmittedResults:
    """Detections and undecided matches to emit, and the policy commands among the detections.

    Costs one lookup per detection. Results of a policy after a detection that stopped it (in the
    order of detections) are dropped, so the result does not depend on batch boundaries.
    """

    def __init__(
        self, source: PlanSource, found: Sequence[Detection], undecided: Sequence[Undecided]
    ) -> None:
        self.commands: list[PolicyCommand] = []
        self.skipped: list[SkippedAction] = []
        self.detections: list[Detection] = []
        stopped: dict[str, int] = {}
        for detection in found:
            if detection.policy in stopped:
                continue
            self.detections.append(detection)
            for command in source.commands_of(detection):
                if command.skipped is not None:
                    self.skipped.append(command.skipped)
                    continue
                self.commands.append(command)
                stopped.setdefault(command.policy, detection.time)
        self.undecided = [
            unsure
            for unsure in undecided
            if unsure.policy not in stopped or unsure.time <= stopped[unsure.policy]
        ]


class EngineOutput:
    """Appends events under the engine's name, and counts them."""

    def __init__(self, channels: Channels, name: str) -> None:
        self._channels, self._name = channels, name
        self.counts = EngineCounts()
        self._warned: set[tuple[str, str]] = set()

    async def append_results(
        self,
        results: EmittedResults,
        differences: Sequence[ShadowResult],
        late: Sequence[Cause],
        moved: TimeMoved | TimeReset | None,
    ) -> None:
        """Appends all results to `detections` in one call."""
        events = [detection.to_event(source=self._name) for detection in results.detections]
        events += [item.to_event(source=self._name) for item in results.undecided]
        events += [item.to_event(source=self._name) for item in results.skipped]
        events += [late_event(self._name, cause) for cause in late]
        events += [shadow_event(self._name, one) for one in differences]
        if isinstance(moved, TimeReset):
            events.append(reset_event(self._name, moved))
        elif moved is not None:
            events.append(time_event(self._name, moved))
        if events:
            await self._channels.channel("detections").append(events)
        self.counts.detections += len(results.detections)
        self.counts.undecided += len(results.undecided)
        self.counts.late += len(late)

    async def report_still_true(self, lasting: Sequence[Detection], act_within_ms: int) -> None:
        """Appends that states are still true, except those that were detected in time before a
        crash.
        """
        detections, events = self._channels.channel("detections"), []
        for one in lasting:
            stored = await self._channels.find_event(one.id())
            first = min((item.received for name, item in stored if name == "detections"), default=0)
            if first - one.time > act_within_ms:
                events.append(still_lasts_event(one, source=self._name))
        if events:
            await detections.append(events)

    async def release_history(self, done: ReleaseDone, now_ms: int) -> None:
        """Requests the evaluation of imported readings in `releases`."""
        event = make_event(
            source=self._name,
            id=content_id(RELEASE_DONE, done.release, str(done.through)),
            type=RELEASE_DONE,
            subject=f"release/{done.release}",
            time=now_ms,
            data=done,
        )
        await self._channels.channel(RELEASES).append([event])

    async def whole(self, batch: Sequence[StoredEvent | BareStoredEvent]) -> list[StoredEvent]:
        """The events of a batch with their headers; reads those again that came without."""
        whole = [item for item in batch if isinstance(item, StoredEvent)]
        if len(whole) == len(batch):
            return whole
        first, last = batch[0].position, batch[-1].position
        return await events_between(self._channels.channel("events"), first, last)

    async def quarantine(self, aside: Sequence[tuple[Event, Problem]]) -> None:
        """Appends unusable events to `quarantine`."""
        if not aside:
            return
        events = [quarantine_event(self._name, event, problem) for event, problem in aside]
        await self._channels.channel("quarantine").append(events)
        self.counts.quarantined += len(events)
        for event, problem in aside:
            self._warn_once(event, problem)

    def _warn_once(self, event: Event, problem: Problem) -> None:
        """Logs the first event of each source and reason; `quarantine` has all of them."""
        kind = (event.source, problem.code)
        if kind in self._warned or len(self._warned) >= _MOST_WARNINGS:
            return
        self._warned.add(kind)
        _log.warning(
            "reading quarantined",
            source=event.source,
            id=event.id,
            reason=problem.message,
            hint=problem.hint,
        )

    def reached(self) -> int:
        """The last position of `detections`."""
        return self._channels.channel("detections").last_position()

    async def steps_after(self, position: int) -> list[TimeMoved | TimeReset | TablesChange]:
        """The recorded moves and resets of time after a position of `detections`."""
        found: list[TimeMoved | TimeReset | TablesChange] = []
        detections = self._channels.channel("detections")
        while batch := await detections.read_after(position):
            position = batch[-1].position
            for stored in batch:
                if stored.event.source != self._name:
                    continue
                self.see(stored.event)
                if stored.event.type in _TIMES:
                    found.append(stored.event.payload_as(_TIMES[stored.event.type]))
        return found

    def see(self, event: Event) -> None:
        """Hook, called for each own event that `steps_after` reads."""


Times = npt.NDArray[np.int64]
_NEVER = -(2**62)
Batch = Sequence[StoredEvent | BareStoredEvent]
BEAT_MS = 900
"""Distance of one beat from the newest reading or the last beat: about a second, which is how often
an idle engine runs.
"""
_position = attrgetter("position")
_log = get_logger(__name__)
_WHOLE_BATCHES = 100
"""Batches that are read with headers after one that needed them."""
_LONGEST_WAIT_MS = 1_000
_GATHER_MS = 2_000
"""Imported readings that arrive within this time of each other are evaluated together."""
_BELIEVED_AFTER_MS = 600_000
"""A clock that stays this long behind stream time is accepted without a reading, as in
`kernel/clock.py`. So a clock that is corrected soon after a start costs no policy its
state.
"""


def first_clock_jump(
    batch: Sequence[StoredEvent | BareStoredEvent],
    streams: Collection[str],
    latest: int,
    skew_ms: int,
) -> int:
    """Index of the first event that shows that the node's clock jumped back: on its arrival, stream
    time was further ahead of the clock than the allowed skew. Returns the batch length when there
    is none. `latest` is the time reached before the batch.

    Readings move time no further than their arrival, so only a clock that was ahead before can be
    the cause. Readings too far ahead of their arrival are not used and prove nothing. Costs two
    passes over the times of arrival in the normal case.
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


def _arrived(batch: Sequence[StoredEvent | BareStoredEvent]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.received
    return np.array([item.received for item in batch], np.int64)


def _times(batch: Sequence[StoredEvent | BareStoredEvent]) -> Times:
    if isinstance(batch, BlockEvents):
        return batch.columns.times
    return np.array([min(max(item.event.time, _NEVER), -_NEVER) for item in batch], np.int64)


def _is_of(
    batch: Sequence[StoredEvent | BareStoredEvent], streams: Collection[str]
) -> npt.NDArray[np.bool_]:
    if isinstance(batch, BlockEvents):
        return np.full(len(batch), batch.columns.type in streams)
    return np.array([item.event.type in streams for item in batch], np.bool_)


class StreamReader:
    """The position in the stream, the plans that run there, and the recorded steps still to be
    applied.
    """

    def __init__(
        self,
        source: PlanSource,
        active: ActivePlans,
        output: EngineOutput,
        schedule: EngineSchedule,
        steady_ns: Callable[[], int],
        *,
        now_ms: Callable[[], int],
        act_within_ms: int,
    ) -> None:
        self.source, self.active, self.output = source, active, output
        self._schedule, self._steady_ns = schedule, steady_ns
        self._now_ms, self._act_within_ms = now_ms, act_within_ms
        self.late_shares = LateShares()
        self.position = self._changes_position = self._repeat_until = 0
        self._steps: deque[StreamStep] = deque()
        """Recorded steps that the second pass has yet to apply."""
        self._stopped: set[str] = set()
        """Policies that a detection stopped before the position at which that change is recorded.
        """
        self._whole_batches_left = 0
        self._silent_since: int | None = None
        """Clock time from which silence counts without a reading; None after the first reading or
        after time was started by the clock.
        """
        self._overdue: dict[tuple[str, ...], Detection] = {}
        """Detections of states that were found too late to act on them."""
        self._history: dict[bool, ReleaseDone] = {}
        """Imported readings that wait for evaluation, by whether people are notified."""
        self._resets = 0

    @property
    def needs_headers(self) -> bool:
        """Whether to read whole events for a while, because some batches had to be read twice."""
        return self._whole_batches_left > 0

    # --- positions ---

    def next_position(self) -> StreamPosition:
        """The position from which a change made now applies: behind everything that may have been
        read before a crash, because the results of the old plans are already emitted.
        """
        before = StreamPosition(self._repeat_until, -END_OF_TIME)
        return max([self._here(), before, *(position_of(step) for step in self._steps)])

    @property
    def is_catching_up(self) -> bool:
        """Whether a change made now would apply from a later position only."""
        return bool(self._steps) or self.next_position() > self._here()

    async def take_change(self, change: PlanChange) -> None:
        """Applies a recorded change now, or when its position is reached."""
        if self._steps or change.place > self._here():
            self._steps.append(change)
        else:
            await self._change(change)

    def state(self) -> EngineState:
        return EngineState(
            self.active.runner.snapshot(),
            self.output.reached(),
            self.active.began,
            self._changes_position,
            self.active.shadow_states(),
            sorted(self._stopped),
            self._silent_since,
            list(self._overdue.values()),
            list(self._history.values()),
            self._resets,
            self.active.situations.state(),
            self.active.values.state(self.active.runner.watermark),
        )

    async def restore(
        self, position: int, state: EngineState | None, last: int, now_ms: int
    ) -> None:
        """Restores a commit, or the beginning, and reads the steps recorded after it.

        `last`: the last position of `events`; everything read before a crash lies before it.
        """
        self.position = position
        self._changes_position = state.changes if state is not None else 0
        self._resets = state.resets if state is not None else 0
        at = await self.source.plans_at(self._changes_position)
        self.active.restore(at, state)
        known = None if state is None else state.unheard_since
        is_unheard = state is None or self._here().time == -END_OF_TIME
        self._silent_since = now_ms if known is None and is_unheard else known
        self._stopped = set(state.stopped) if state is not None else set()
        overdue = state.overdue if state is not None else []
        self._overdue = {_state_of(one): one for one in overdue}
        waiting = state.history if state is not None else []
        self._history = {span.notify: span for span in waiting}
        for policy in self._stopped:
            self.active.stop(policy)
        steps = await self.output.steps_after(state.detections if state is not None else 0)
        changes = await self.source.changes_after(self._changes_position)
        if changes:  # their clock time is not recorded, so silence counts from now
            self.count_silence_from(now_ms)
        self._steps = merge_steps(steps, changes)
        is_second = state is not None or bool(changes)
        self._repeat_until = last if is_second else 0

    def _here(self) -> StreamPosition:
        return StreamPosition(self.position, self.active.runner.latest, self._resets)

    # --- events and time ---

    async def take(self, batch: Batch, ontology: Ontology, skew_ms: int) -> None:
        """Feeds a batch, split where a recorded step applies and where the clock jumped back."""
        while batch:
            cut = len(batch)
            if self._steps:
                after = position_of(self._steps[0]).after
                cut = bisect_right(batch, after, key=_position)
            cut = min(cut, self._jump_in(batch, ontology, skew_ms))
            if cut:
                await self._feed(batch[:cut], ontology, skew_ms)
                batch = batch[cut:]
            await self.apply_due(batch)
            if batch and self._jump_in(batch[:1], ontology, skew_ms) == 0:
                await self._reset(batch[0].received, skew_ms)

    def _jump_in(self, batch: Batch, ontology: Ontology, skew_ms: int) -> int:
        return first_clock_jump(batch, ontology.streams(), self.active.runner.latest, skew_ms)

    async def apply_due(self, batch: Batch = ()) -> None:
        """Applies the recorded steps that come before `batch`."""
        while self._steps and self._is_due(self._steps[0], batch):
            await self._apply_next()

    def _is_due(self, step: StreamStep, batch: Batch) -> bool:
        """Whether everything before the step is processed; `batch` comes next."""
        after = position_of(step).after
        return self.position >= after or (bool(batch) and batch[0].position > after)

    async def _apply_next(self) -> None:
        step = self._steps.popleft()
        if isinstance(step, TimeMoved):
            await self._append(self._move_to(step))
        elif isinstance(step, TimeReset):
            await self._apply_reset(step)
        elif isinstance(step, TablesChange):
            self.active.renew_pull(step.pull(), step.ontology)
        else:
            await self._change(step)

    async def _reset(self, clock_ms: int, skew_ms: int) -> None:
        """Restarts stream time after a clock jump and records that."""
        reset = TimeReset(
            time=clock_ms,
            after=self.position,
            before=self.active.runner.latest,
            resets=self._resets + 1,
            skew_ms=skew_ms,
        )
        _log.warning(
            "the clock jumped back: policies begin anew",
            reached=format_time(reset.before),
            clock=format_time(clock_ms),
        )
        self.output.counts.resets += 1
        await self._apply_reset(reset)

    async def _apply_reset(self, reset: TimeReset) -> None:
        dropped = self.active.reset(reset.time, reset.skew_ms)
        self._resets, self._silent_since = reset.resets, reset.time
        self._schedule.is_dirty = True
        await self._append([], dropped, reset)

    async def _change(self, change: PlanChange) -> None:
        self.active.apply(change)
        self._changes_position = change.position
        self._stopped.discard(change.policy)
        self._schedule.is_dirty = True
        await self._append([])

    async def _feed(self, batch: Batch, ontology: Ontology, skew_ms: int) -> None:
        """Quarantines unusable events, feeds the rest, and appends the results."""
        received = bare_readings(batch, ontology, skew_ms)
        if received is None:
            whole = await self.output.whole(batch)
            is_bare = any(isinstance(item, BareStoredEvent) for item in batch)
            self._whole_batches_left = (
                _WHOLE_BATCHES if is_bare else max(self._whole_batches_left - 1, 0)
            )
            ahead = [item for item in whole if item.event.time > item.received + skew_ms]
            usable = [item for item in whole if item.event.time <= item.received + skew_ms]
            live = [item for item in usable if HISTORY not in item.event.headers]
            received, rejected = received_readings(live, ontology)
            if len(live) < len(usable):
                rejected += self._collect_history(usable, ontology)
            aside = [(item.event, ahead_problem(item)) for item in ahead] + rejected
            await self.output.quarantine(aside)
        found = self.active.feed(received.readings, received.times)
        self.late_shares.add(
            received.readings,
            self.active.runner.take_late_by_source(),
            ontology.sources,
            self._steady_ns(),
        )
        if len(received.readings):
            self._silent_since = None
        self.position = batch[-1].position
        self._schedule.note_taken(len(batch))
        self.output.counts.read += len(batch)
        await self._append(found, self.active.runner.take_late())

    def _collect_history(
        self, batch: Sequence[StoredEvent], ontology: Ontology
    ) -> list[tuple[Event, Problem]]:
        """Collects streams and times of the imported readings of a batch; returns those that are no
        readings.
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
        """Keeps the newest late detection of each state."""
        for one in detections:
            if one.began is not None:
                self._overdue.pop(_state_of(one), None)
        oldest_ms = self._now_ms() - self._act_within_ms
        overdue = [one for one in detections if one.time < oldest_ms]
        if overdue:
            plans = {plan.policy: plan for plan in self.active.runner.plans()}
            lasting = {name for name, plan in plans.items() if is_state(plan)}
            states = [one for one in overdue if one.policy in lasting and one.began is None]
            self._overdue |= {_state_of(one): one for one in states}

    async def report_still_true(self) -> None:
        """After the backlog is processed, reports the late-detected states that are still true."""
        if self._overdue:
            overdue, self._overdue = list(self._overdue.values()), {}
            lasting = [one for one in overdue if self.active.still_lasts(one)]
            await self.output.report_still_true(lasting, self._act_within_ms)
            self._schedule.is_dirty = True

    @property
    def history_waits(self) -> bool:
        return bool(self._history)

    async def release_history(self, now_ms: int) -> None:
        """Requests evaluation of the imported readings so far, silent imports first."""
        for notify in sorted(self._history):
            await self.output.release_history(self._history[notify], now_ms)
        self._history = {}
        self._schedule.is_dirty = True

    def is_ahead_of(self, now_ms: int, skew_ms: int) -> bool:
        return self.active.runner.latest > now_ms + skew_ms

    async def move_on(
        self, now_ms: int, *, beating: bool = False, reset_skew_ms: int | None = None
    ) -> None:
        """Advances time as far as pending matches need it, never beyond the clock; with `beating`,
        up to the clock if that is far enough ahead. With `reset_skew_ms`, restarts time if it is
        further ahead of the clock than that.
        """
        while self._steps:
            await self._apply_next()
        if reset_skew_ms is not None and self.is_ahead_of(now_ms, reset_skew_ms):
            await self._reset(now_ms, reset_skew_ms)
        if (since := self._silence_start(now_ms)) is not None:
            begun = TimeMoved(since, self.position, begins=True, resets=self._resets)
            await self._append_move(self._move_to(begun), begun)
        found: list[Detection] = []
        reached: int | None = None
        while (due := self.active.pending_until()) is not None and due <= now_ms:
            found += self.active.advance(due)
            reached = due
        if beating and now_ms - self.active.runner.latest >= BEAT_MS:
            found += self.active.advance(now_ms)
            reached = now_ms
        if reached is not None:
            await self._append_move(found, TimeMoved(reached, self.position, resets=self._resets))

    def count_silence_from(self, now_ms: int) -> None:
        """Plans or tables changed: while there was no reading, silence counts from now on."""
        if self._silent_since is not None:
            self._silent_since = now_ms

    def _silence_start(self, now_ms: int) -> int | None:
        """When time starts without a reading: once a silence may have lasted long enough. Not
        earlier, so that old readings published now are not late.
        """
        since = self._silent_since
        if since is None:
            return None
        shortest_ms = self.active.shortest_silence_ms()
        return since if shortest_ms is not None and now_ms >= since + shortest_ms else None

    def _move_to(self, moved: TimeMoved) -> list[Detection]:
        if not moved.begins:
            return self.active.advance(moved.time)
        self._silent_since = None
        return self.active.begin(moved.time)

    async def _append_move(self, found: list[Detection], moved: TimeMoved) -> None:
        await self._append(found, moved=moved)
        self._schedule.is_dirty = True
        self.output.counts.moved_by_clock += 1

    async def _append(
        self,
        found: list[Detection],
        late: Sequence[Cause] = (),
        moved: TimeMoved | TimeReset | None = None,
    ) -> None:
        """Appends the results, then carries out the commands of detections.

        A detection that stops a policy does so at the detection's time: later results of the
        policy, in the order of detections, are not emitted.
        """
        differences = self.active.differences(found)
        new = self.active.new_results(found) + self.active.new_ends()
        results = EmittedResults(self.source, new, self.active.runner.take_undecided())
        await self.output.append_results(results, differences, late, moved)
        self.active.emitted(results.detections)
        self.active.meter.found(results.detections, results.undecided)
        self._note_overdue(results.detections)
        for command in results.commands:
            await self._carry_out(command)
        if self.active.has_ends:
            await self._append([])

    async def _carry_out(self, command: PolicyCommand) -> None:
        """Stops a policy because of a detection, at once. On a second pass the change is already
        recorded, possibly at a later position, because batches were cut differently.
        """
        change = await self.source.carry_out(
            command,
            self.next_position(),
            met=self._changes_position,
            is_stopped=command.policy in self._stopped,
        )
        if change is None:
            self.active.meter.failed(command.detection.policy)
        elif change.position > self._changes_position:
            self.active.stop(change.policy, change.why)
            self._schedule.is_dirty = True
            if not self._steps and change.place <= self._here():
                self._changes_position = change.position
                return
            self._stopped.add(change.policy)
            if change not in self._steps:
                self._steps.append(change)


def _state_of(detection: Detection) -> tuple[str, ...]:
    """The state that a detection is about: policy and bindings."""
    pairs = sorted(detection.bindings.items())
    return (detection.policy, *(part for pair in pairs for part in pair))


class EngineSchedule:
    """When to commit, and when the clock may advance time. Pure: the clock's nanoseconds are
    arguments.
    """

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

    def note_taken(self, events: int) -> None:
        self._uncommitted += events
        self.is_dirty = True

    def note_events(self, now_ns: int) -> None:
        self._quiet_since_ns = now_ns

    def note_history(self, now_ns: int) -> None:
        self._history_ns = now_ns

    def history_is_gathered(self, now_ns: int) -> bool:
        """Whether the import has paused or ended."""
        return now_ns - self._history_ns >= _GATHER_MS * 1_000_000

    def committed(self, now_ns: int) -> None:
        self._uncommitted, self.is_dirty = 0, False
        self._committed_ns = now_ns

    def commit_is_due(self, now_ns: int) -> bool:
        if not self.is_dirty:
            return False
        many = self._uncommitted >= self._commit_every_events
        return many or self._since_commit_ms(now_ns) >= self._commit_every_ms

    def quiet_left_ms(self, now_ns: int) -> int:
        """Remaining idle time before the clock may advance time."""
        return self._quiet_ms - (now_ns - self._quiet_since_ns) // 1_000_000

    def wait_ms(self, now_ns: int, due_in_ms: int | None) -> int:
        """Time until something is due by the clock or a commit is due; at most a second."""
        wait = _LONGEST_WAIT_MS
        if due_in_ms is not None:
            wait = min(wait, max(due_in_ms, self.quiet_left_ms(now_ns)))
        if self.is_dirty:
            wait = min(wait, self._commit_every_ms - self._since_commit_ms(now_ns))
        return max(wait, 0)

    def is_clock_accepted(self, now_ns: int, *, is_behind: bool) -> bool:
        """Whether the clock has been behind stream time for long enough; call it at each check."""
        if not is_behind:
            self._behind_since_ns = None
        elif self._behind_since_ns is None:
            self._behind_since_ns = now_ns
        since_ns = self._behind_since_ns
        return since_ns is not None and now_ns - since_ns >= _BELIEVED_AFTER_MS * 1_000_000

    def _since_commit_ms(self, now_ns: int) -> int:
        return (now_ns - self._committed_ns) // 1_000_000
