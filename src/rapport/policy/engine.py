"""The live policy engine: reads `events`, runs the plans, appends to `detections`. [PO-7, PO-8,
PO-9, design 14, 15]

Snapshot and cursor are committed together, after what was found has been appended. The commit may
lag behind (by `commit_every_ms`, or by `commit_every_events`): after a crash the events since the
last one are read again and give the same detections, which have the same ids and are dropped as
duplicates. What the clock decided and what changed about policies is on record with its place in
the stream, and read back before going on, so the second reading meets the same in the same places.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from rapport.channel.channel import Channels, Subscription
from rapport.core.detection import Cause, Detection
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.policy.engine_counts import PolicyCounts
from rapport.policy.engine_events import TimeMoved, ahead_problem
from rapport.policy.engine_output import Output
from rapport.policy.engine_pace import Pace
from rapport.policy.engine_places import (
    Again,
    Command,
    FixedPlans,
    Place,
    PlanChange,
    PlanSource,
    in_order,
    place_of,
)
from rapport.policy.engine_running import Running
from rapport.policy.engine_state import (
    EngineCounts,
    EngineState,
    Standing,
    decode_state,
    encode_state,
)
from rapport.policy.engine_told import Told
from rapport.policy.life.shadow import Tally
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner

__all__ = ["EngineCounts", "PolicyEngine", "Standing"]

ALLOWED_SKEW_MS = 60_000
_UPSTREAM_WAIT_MS = 20
"""How soon to look again when time may not move on because received events are still on the way."""


class PolicyEngine:
    """Plans running on a node's events. All methods belong to one event loop; `step` it or `run`
    it, not both.

    Holds what runs, a subscription of `events` under the name `policy`, and what was not yet
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
        plans: Sequence[Plan] = (),
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
        self._fixed = FixedPlans(plans)
        self._source: PlanSource = self._fixed
        self.lateness_ms, self.skew_ms = lateness_ms, skew_ms
        self._batch = batch
        self._upstream_is_idle = upstream_is_idle or _always
        self._running = Running(
            plans, pull, ontology, lateness_ms=lateness_ms, steady_ns=clock.steady_ns
        )
        self._subscription: Subscription | None = None
        self._position = self._changes_at = self._read_before = 0
        self._pace = Pace(
            clock.steady_ns(),
            quiet_ms=quiet_ms,
            commit_every_ms=commit_every_ms,
            commit_every_events=commit_every_events,
        )
        self._again: deque[Again] = deque()
        """What the second reading has yet to meet."""
        self._stopped: set[str] = set()
        """Policies that a detection stopped before the place where that is on record."""
        self._output = Output(channels, name)
        self.turn = asyncio.Lock()
        """Held while a batch is taken; who asks for `standing` or changes what is known takes it
        too."""

    # --- which plans run ---

    def follow(self, source: PlanSource) -> None:
        """From the next step on runs what `source` says; the plans given before are forgotten."""
        self._source, self._subscription = source, None

    def deploy(self, plan: Plan) -> None:
        """Starts a plan, in the place of an older version if there is one; it sees what comes from
        now on. For an engine that follows nobody.
        """
        self._fixed.plans[plan.policy] = plan
        self._running.deploy(plan)
        self._pace.is_dirty = True

    def withdraw(self, policy: str) -> None:
        """Stops a plan; what it waited for is forgotten. Raises UnknownName. For an engine that
        follows nobody.
        """
        self._running.withdraw(policy)
        del self._fixed.plans[policy]
        self._pace.is_dirty = True

    def policies(self) -> dict[str, str]:
        """Names and versions of the plans running."""
        return self._running.runner.policies()

    @property
    def counts(self) -> EngineCounts:
        """What happened since the start."""
        return self._output.counts

    def counts_by_policy(self) -> dict[str, PolicyCounts]:
        """What each policy that runs read, found and cost since the start."""
        return self._running.counts()

    def shadows(self) -> dict[str, Tally]:
        """By policy what it and the version in its shadow found."""
        return self._running.shadows.tallies()

    async def place(self) -> Place:
        """Where a change made now holds from. Call it, and act on it, while holding `turn`.

        After a crash that is behind everything that may have been read before: what the old plans
        found there was told already.
        """
        await self._subscribed()
        before = Place(self._read_before, -END_OF_TIME)
        return max([self._here(), before, *(place_of(step) for step in self._again)])

    async def take_change(self, change: PlanChange) -> None:
        """Takes over a change that is on record. Call it while holding `turn`."""
        if self._again or change.place > self._here():
            self._again.append(change)
        else:
            await self._change(change)

    def _here(self) -> Place:
        return Place(self._position, self._running.runner.latest)

    def start_over(self) -> None:
        """Goes back to the last commit and to what is on record: for who does not know whether a
        change was recorded.
        """
        self._subscription = None

    async def refresh_pull(self, pull: PullData, ontology: Ontology | None = None) -> None:
        """Looks instances up in other tables from the next batch on, and reads by another ontology
        with the same streams.

        Commits first: no reading is judged again by other tables than it was, unless the process
        dies and the tables change meanwhile. Costs a snapshot.
        """
        async with self.turn:
            await self.renew(pull, ontology or self.ontology)

    async def renew(self, pull: PullData, ontology: Ontology) -> None:
        """The same. Call it while holding `turn`."""
        await self.commit()
        self.pull, self.ontology = pull, ontology
        self._running.renew_pull(pull, ontology)
        self._pace.is_dirty = True

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
            self._pace.heard(self._clock.steady_ns())
        elif self._pace.quiet_left_ms(self._clock.steady_ns()) <= 0 and self._upstream_is_idle():
            await self._move_on(self._clock.now_ms())
        if self._pace.commit_is_due(self._clock.steady_ns()):
            await self.commit()

    async def standing(self) -> Standing:
        """Where the engine is. Call it, and act on it, while holding `turn`."""
        await self._subscribed()
        runner = self._running.runner
        return Standing(
            self._position, runner.watermark, tuple(runner.plans()), self._running.known_began()
        )

    async def adopt(
        self, runners: Iterable[LocalRunner], streams: Collection[str], without: Collection[str]
    ) -> None:
        """Goes on with what runners know that stand at the same watermark and saw more, and commits
        that; waiting readings with an id in `without` are dropped. Call it while holding `turn`.
        """
        self._running.adopt(runners, streams)
        self._running.runner.drop_waiting(without)
        await self.commit()

    async def commit(self) -> None:
        """Saves snapshot and cursor now."""
        subscription = await self._subscribed()
        state = EngineState(
            self._running.runner.snapshot(),
            self._output.reached(),
            self._running.began,
            self._changes_at,
            self._running.shadows.saved(),
            sorted(self._stopped),
        )
        await subscription.commit(self._position, encode_state(state))
        self._pace.committed(self._clock.steady_ns())
        self.counts.commits += 1

    async def _subscribed(self) -> Subscription:
        if self._subscription is None:
            subscription = await self._channels.subscribe("events", "policy")
            await self._restore(subscription)
            self._subscription = subscription
        return self._subscription

    async def _restore(self, subscription: Subscription) -> None:
        """Goes back to the last commit, and finds what was decided and changed after it."""
        state = decode_state(subscription.state) if subscription.state else None
        self._position = subscription.position
        self._changes_at = state.changes if state is not None else 0
        at = await self._source.plans_at(self._changes_at)
        self._running.restore(at, state)
        self._stopped = set(state.stopped) if state is not None else set()
        for policy in self._stopped:
            self._running.stop(policy)
        moved = await self._output.times_after(state.detections if state is not None else 0)
        changes = await self._source.changes_after(self._changes_at)
        self._again = in_order(moved, changes)
        is_second = state is not None or bool(changes)
        self._read_before = self._channels.channel("events").last_position() if is_second else 0

    async def _take(self, batch: list[StoredEvent]) -> None:
        """Feeds a batch, cut where something else happened when it was read for the first time."""
        while batch:
            cut = len(batch)
            if self._again:
                after = place_of(self._again[0]).after
                cut = sum(stored.position <= after for stored in batch)
            if cut:
                await self._feed(batch[:cut])
                batch = batch[cut:]
            while self._again and self._is_due(self._again[0], batch):
                await self._meet_again()

    def _is_due(self, step: Again, batch: list[StoredEvent]) -> bool:
        """Whether everything before it was taken, `batch` being what comes next."""
        after = place_of(step).after
        return self._position >= after or (bool(batch) and batch[0].position > after)

    async def _meet_again(self) -> None:
        """What happened here when this was read for the first time happens again."""
        step = self._again.popleft()
        if isinstance(step, TimeMoved):
            await self._append(self._running.advance(step.time))
        else:
            await self._change(step)

    async def _change(self, change: PlanChange) -> None:
        self._running.apply(change)
        self._changes_at = change.position
        self._stopped.discard(change.policy)
        self._pace.is_dirty = True
        await self._append([])

    async def _feed(self, batch: list[StoredEvent]) -> None:
        """Quarantines what cannot be used, feeds the rest, and appends what became certain."""
        ahead = [item for item in batch if item.event.time > item.received + self.skew_ms]
        usable = [item.event for item in batch if item.event.time <= item.received + self.skew_ms]
        readings, rejected = split_events(usable, self.ontology)
        aside = [(item.event, ahead_problem(item)) for item in ahead] + rejected
        await self._output.set_aside(aside)
        found = self._running.feed(readings)
        self._position = batch[-1].position
        self._pace.took(len(batch))
        self.counts.read += len(batch)
        await self._append(found, self._running.runner.take_late())

    async def _move_on(self, now_ms: int) -> None:
        """Lets time pass as far as what is pending needs it, never beyond the clock."""
        while self._again:
            await self._meet_again()
        found: list[Detection] = []
        reached: int | None = None
        while (due := self._running.pending_until()) is not None and due <= now_ms:
            found += self._running.advance(due)
            reached = due
        if reached is not None:
            await self._append(found, moved=TimeMoved(reached, self._position))
            self._pace.is_dirty = True
            self.counts.moved_by_clock += 1

    async def _append(
        self,
        found: list[Detection],
        late: Sequence[Cause] = (),
        moved: TimeMoved | None = None,
    ) -> None:
        """Appends what was found, then does what detections say about policies.

        A detection that stops a policy stops it at the detection's time: what the policy finds
        later, in the order of detections, is not told.
        """
        differences = self._running.differences(found)
        told = Told(self._source, found, self._running.take_undecided())
        await self._output.tell(told, differences, late, moved)
        self._running.meter.found(told.detections, told.undecided)
        for command in told.commands:
            await self._obey(command)

    async def _obey(self, command: Command) -> None:
        """Stops a policy because of a detection, at once. Met again that is on record already, and
        maybe at a later place, since events were cut otherwise.
        """
        change = await self._source.obey(command, await self.place())
        if change is None:
            self._running.meter.failed(command.detection.policy)
        elif change.position > self._changes_at:
            self._running.stop(change.policy)
            self._pace.is_dirty = True
            if not self._again and change.place <= self._here():
                self._changes_at = change.position
                return
            self._stopped.add(change.policy)
            if change not in self._again:
                self._again.append(change)

    def _wait_ms(self) -> int:
        """Until something is due by the clock, or a commit is; a second at most."""
        due = self._running.pending_until()
        left = None if due is None else due - self._clock.now_ms()
        return self._pace.wait_ms(self._clock.steady_ns(), left)


def _always() -> bool:
    return True
