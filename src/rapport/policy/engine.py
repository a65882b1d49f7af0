"""The live policy engine: reads `events`, runs the plans, appends to `detections`. [PO-7, PO-8,
design 14, 15]

Snapshot and cursor are committed together, after what was found has been appended. The commit may
lag behind (by `commit_every_ms`, or by `commit_every_events`): after a crash the events since the
last one are read again and give the same detections, which have the same ids and are dropped as
duplicates. What the clock decided is appended as `rapport.policy.time` with the position it came
after, and read back before going on, so the second reading meets the same times in the same places.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.core.detection import Cause, Detection
from rapport.core.errors import Corrupt, Problem
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine_events import (
    TIME_TYPE,
    TimeMoved,
    late_event,
    quarantine_event,
    time_event,
)
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner

_log = get_logger(__name__)

ALLOWED_SKEW_MS = 60_000
_LONGEST_WAIT_MS = 1_000
_UPSTREAM_WAIT_MS = 20
"""How soon to look again when time may not move on because received events are still on the way."""


class EngineCounts(msgspec.Struct):
    """What happened since the start."""

    read: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    quarantined: int = 0
    moved_by_clock: int = 0
    commits: int = 0


class Standing(msgspec.Struct, frozen=True):
    """Where the engine is: the last position of `events` taken, the time before which everything is
    decided, its plans, and since when they are deployed (those that saw all are not named).
    """

    position: int
    watermark: int
    plans: tuple[Plan, ...]
    began: dict[str, int]


class _State(msgspec.Struct):
    """What is committed with the cursor; `detections` is how far that channel went then."""

    runner: bytes
    detections: int
    began: dict[str, int] = {}


class PolicyEngine:
    """Plans running on a node's events. All methods belong to one event loop; `step` it or `run`
    it, not both.

    Holds a runner, a subscription of `events` under the name `policy`, and what was not yet
    committed.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        *,
        name: str,
        ontology: Ontology,
        pull: PullData,
        plans: Sequence[Plan],
        lateness_ms: int,
        skew_ms: int = ALLOWED_SKEW_MS,
        batch: int = 5_000,
        commit_every_ms: int = 200,
        commit_every_events: int = 20_000,
        quiet_ms: int = 100,
        upstream_is_idle: Callable[[], bool] | None = None,
    ) -> None:
        """Nothing is read before the first step.

        Args:
            name: the source of the detections.
            quiet_ms: the clock moves time on only after so long without an event; while events
                flow they do it themselves, and nothing is late because of a slow transport.
            upstream_is_idle: whether everything received so far has reached `events`; while it has
                not, the clock does not move time on.
        """
        self._channels, self._clock = channels, clock
        self.name, self.ontology, self.pull = name, ontology, pull
        self.lateness_ms, self.skew_ms = lateness_ms, skew_ms
        self._batch = batch
        self._commit_every_ms, self._commit_every_events = commit_every_ms, commit_every_events
        self._quiet_ms = quiet_ms
        self._upstream_is_idle = upstream_is_idle or _always
        self._runner = LocalRunner(plans, pull, lateness_ms=lateness_ms, sources=ontology.sources)
        self._subscription: Subscription | None = None
        self._position = 0
        self._uncommitted = 0
        self._is_dirty = False
        self._committed_ns = clock.steady_ns()
        self._quiet_since_ns = clock.steady_ns() - quiet_ms * 1_000_000
        self._moved_before: deque[TimeMoved] = deque()
        self._began: dict[str, int] = {}
        self.counts = EngineCounts()
        self.turn = asyncio.Lock()
        """Held while a batch is taken; who asks for `standing` or changes what is known takes it
        too."""

    def deploy(self, plan: Plan) -> None:
        """Starts a plan, in the place of an older version if there is one; it sees what comes from
        now on.
        """
        if plan.policy in self._runner.policies():
            self._runner.withdraw(plan.policy)
        self._runner.deploy(plan)
        self._began[plan.policy] = self._runner.watermark
        self._is_dirty = True

    def withdraw(self, policy: str) -> None:
        """Stops a plan; what it waited for is forgotten. Raises UnknownName."""
        self._runner.withdraw(policy)
        self._began.pop(policy, None)
        self._is_dirty = True

    def policies(self) -> dict[str, str]:
        """Names and versions of the plans running."""
        return self._runner.policies()

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it goes on from the last commit."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Takes one batch of events, or lets the clock move time on when there is none; returns the
        events taken.

        Waits at most `timeout_ms` (None: until something is due or a second has passed).
        """
        async with self.turn:
            subscription = await self._subscribed()
        wait = self._wait_ms() if timeout_ms is None else min(timeout_ms, self._wait_ms())
        if timeout_ms is None and not self._upstream_is_idle():
            wait = max(wait, _UPSTREAM_WAIT_MS)
        batch = await subscription.next_batch(limit=self._batch, timeout_ms=wait)
        async with self.turn:
            try:
                await self._take_step(batch)
            except BaseException:
                # What was taken may not have been appended: the last commit holds, for all.
                self._subscription = None
                raise
        return len(batch)

    async def _take_step(self, batch: list[StoredEvent]) -> None:
        if batch:
            await self._take(batch)
            self._quiet_since_ns = self._clock.steady_ns()
        elif self._quiet_left_ms() <= 0 and self._upstream_is_idle():
            await self._move_on(self._clock.now_ms())
        if self._commit_is_due():
            await self.commit()

    async def standing(self) -> Standing:
        """Where the engine is. Call it, and act on it, while holding `turn`."""
        await self._subscribed()
        began = {name: at for name, at in self._began.items() if at > -END_OF_TIME}
        plans = tuple(self._runner.plans())
        return Standing(self._position, self._runner.watermark, plans, began)

    async def adopt(
        self, runners: Iterable[LocalRunner], streams: Collection[str], without: Collection[str]
    ) -> None:
        """Goes on with what runners know that stand at the same watermark and saw more, and commits
        that; waiting readings with an id in `without` are dropped. Call it while holding `turn`.
        """
        for runner in runners:
            self._runner.adopt(runner, streams)
        self._runner.drop_waiting(without)
        await self.commit()

    async def commit(self) -> None:
        """Saves snapshot and cursor now."""
        subscription = await self._subscribed()
        reached = self._channels.channel("detections").last_position()
        state = msgspec.msgpack.encode(_State(self._runner.snapshot(), reached, self._began))
        await subscription.commit(self._position, state)
        self._uncommitted, self._is_dirty = 0, False
        self._committed_ns = self._clock.steady_ns()
        self.counts.commits += 1

    async def _subscribed(self) -> Subscription:
        if self._subscription is None:
            subscription = await self._channels.subscribe("events", "policy")
            await self._restore(subscription)
            self._subscription = subscription
        return self._subscription

    async def _restore(self, subscription: Subscription) -> None:
        """Goes back to the last commit, and finds what the clock had decided after it."""
        self._position, reached = subscription.position, 0
        if subscription.state:
            try:
                state = msgspec.msgpack.decode(subscription.state, type=_State)
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
                raise Corrupt(
                    f"the state of the policy engine cannot be read: {error}",
                    code="policy.bad_snapshot",
                ) from None
            self._runner = self._runner.renewed()
            anew = self._runner.restore_known(state.runner)
            reached = state.detections
            running = self._runner.policies().keys() - set(anew)
            self._began = {name: at for name, at in state.began.items() if name in running}
            self._began |= dict.fromkeys(anew, self._runner.watermark)
            if anew:
                _log.info("policies begin anew", policies=anew)
        else:
            self._runner, self._began = self._runner.renewed(), {}
        self._moved_before = await self._times_after(reached)

    async def _times_after(self, position: int) -> deque[TimeMoved]:
        found: deque[TimeMoved] = deque()
        detections = self._channels.channel("detections")
        while batch := await detections.read_after(position):
            position = batch[-1].position
            for stored in batch:
                if stored.event.type == TIME_TYPE and stored.event.source == self.name:
                    found.append(stored.event.payload_as(TimeMoved))
        return found

    async def _take(self, batch: list[StoredEvent]) -> None:
        """Feeds a batch, cut where the clock had moved time on when it was read for the first
        time.
        """
        while batch:
            cut = len(batch)
            if self._moved_before:
                after = self._moved_before[0].after
                cut = sum(stored.position <= after for stored in batch)
            if cut:
                await self._feed(batch[:cut])
                batch = batch[cut:]
            if self._moved_before and (batch or self._position >= self._moved_before[0].after):
                moved = self._moved_before.popleft()
                await self._append(self._runner.advance(moved.time))

    async def _feed(self, batch: list[StoredEvent]) -> None:
        """Quarantines what cannot be used, feeds the rest, and appends what became certain."""
        ahead = [item for item in batch if item.event.time > item.received + self.skew_ms]
        usable = [item.event for item in batch if item.event.time <= item.received + self.skew_ms]
        readings, rejected = split_events(usable, self.ontology)
        aside = [(item.event, _ahead(item)) for item in ahead] + rejected
        if aside:
            await self._set_aside(aside)
        found = self._runner.feed(readings)
        self._position = batch[-1].position
        self._uncommitted += len(batch)
        self._is_dirty = True
        self.counts.read += len(batch)
        await self._append(found, self._runner.take_late())

    async def _set_aside(self, aside: list[tuple[Event, Problem]]) -> None:
        events = [quarantine_event(self.name, event, problem) for event, problem in aside]
        await self._channels.channel("quarantine").append(events)
        self.counts.quarantined += len(events)

    async def _move_on(self, now_ms: int) -> None:
        """Lets time pass as far as what is pending needs it, never beyond the clock."""
        while self._moved_before:
            moved = self._moved_before.popleft()
            await self._append(self._runner.advance(moved.time))
        found: list[Detection] = []
        reached: int | None = None
        while (due := self._runner.pending_until()) is not None and due <= now_ms:
            found += self._runner.advance(due)
            reached = due
        if reached is not None:
            await self._append(found, moved=TimeMoved(reached, self._position))
            self._is_dirty = True
            self.counts.moved_by_clock += 1

    async def _append(
        self,
        found: list[Detection],
        late: Sequence[Cause] = (),
        moved: TimeMoved | None = None,
    ) -> None:
        undecided = self._runner.take_undecided()
        events = [detection.to_event(source=self.name) for detection in found]
        events += [item.to_event(source=self.name) for item in undecided]
        events += [late_event(self.name, cause) for cause in late]
        if moved is not None:
            events.append(time_event(self.name, moved))
        if events:
            await self._channels.channel("detections").append(events)
        self.counts.detections += len(found)
        self.counts.undecided += len(undecided)
        self.counts.late += len(late)

    def _wait_ms(self) -> int:
        """Until something is due by the clock, or a commit is; a second at most."""
        wait = _LONGEST_WAIT_MS
        due = self._runner.pending_until()
        if due is not None:
            wait = min(wait, max(due - self._clock.now_ms(), self._quiet_left_ms()))
        if self._is_dirty:
            wait = min(wait, self._commit_every_ms - self._since_commit_ms())
        return max(wait, 0)

    def _quiet_left_ms(self) -> int:
        """How much longer no event must come before the clock may move time on."""
        return self._quiet_ms - (self._clock.steady_ns() - self._quiet_since_ns) // 1_000_000

    def _since_commit_ms(self) -> int:
        return (self._clock.steady_ns() - self._committed_ns) // 1_000_000

    def _commit_is_due(self) -> bool:
        if not self._is_dirty:
            return False
        many = self._uncommitted >= self._commit_every_events
        return many or self._since_commit_ms() >= self._commit_every_ms


def _always() -> bool:
    return True


def _ahead(stored: StoredEvent) -> Problem:
    ahead_ms = stored.event.time - stored.received
    return Problem(
        code="policy.ahead_of_clock",
        message=f"the reading's time lies {ahead_ms} ms ahead of the clock",
        hint="set the source's clock, or allow more skew",
    )
