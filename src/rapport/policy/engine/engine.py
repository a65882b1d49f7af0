"""The live policy engine: reads `events`, runs the plans, appends to `detections`. [PO-7, PO-8,
PO-9, design 14, 15]

Snapshot and position are committed together, after the results are appended. The commit may lag (by
`commit_every_ms` or `commit_every_events`): after a crash the engine reads the events since the
last commit again and finds the same detections, whose ids are the same and which are dropped as
duplicates. Clock decisions and policy changes are recorded with their position in the stream. The
engine reads these records first, so the second pass applies them at the same positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.core.detection import ACT_WITHIN_MS
from rapport.core.errors import Problem
from rapport.core.event import BareStoredEvent, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import DegradedConditions
from rapport.policy.engine.active_plans import ActivePlans, decode_state, encode_state
from rapport.policy.engine.metrics import MOST_LATE, EngineCounts, LateShare, PolicyCounts
from rapport.policy.engine.open_situations import OpenSituation
from rapport.policy.engine.shadow_episodes import ShadowTally
from rapport.policy.engine.spark_policies import SparkPolicies
from rapport.policy.engine.stream_reader import EngineOutput, EngineSchedule, StreamReader
from rapport.policy.engine.stream_steps import FixedPlans, PlanChange, PlanSource, StreamPosition
from rapport.policy.engine.value_record import NeededBy
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.policy.plan import PolicyPlan
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situations.current_states import SituationStates

__all__ = ["EngineCounts", "EngineProgress", "PolicyEngine"]

ALLOWED_SKEW_MS = 60_000
_LATE_LOOK_NS = 1_000_000_000
_UPSTREAM_WAIT_MS = 20
"""How soon to check again when received events have not reached `events` yet."""


class PolicyEngine:
    """Plans running on a node's events. All methods belong to one event loop; call `step` or `run`,
    not both.

    Holds the active plans, a subscription of `events` under the name `policy`, and uncommitted
    state.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        *,
        name: str,
        ontology: Ontology,
        pull: PullData,
        plans: Sequence[PolicyPlan] = (),
        lateness_ms: int,
        skew_ms: int = ALLOWED_SKEW_MS,
        batch: int = 10_000,
        commit_every_ms: int = 200,
        commit_every_events: int = 20_000,
        quiet_ms: int = 100,
        upstream_is_idle: Callable[[], bool] | None = None,
        on_spark: SparkPolicies | None = None,
        act_within_ms: int = ACT_WITHIN_MS,
        conditions: DegradedConditions | None = None,
    ) -> None:
        """Nothing is read before the first step.

        Args:
            name: the source of the detections.
            quiet_ms: the clock advances time only after this long without an event; while events
                flow they advance it themselves, and nothing is late because of a slow transport.
            upstream_is_idle: whether everything received so far has reached `events`; otherwise
                the clock does not advance time.
            on_spark: policies that run elsewhere. For them the clock advances time about once a
                second while no event comes, and records it, because their pending matches are not
                known here.
            act_within_ms: older detections trigger no actions; once the backlog is processed, the
                engine reports which of the detected states are still true.
            conditions: receives the sources with more than one late reading in a hundred.
        """
        self.on_spark = on_spark or SparkPolicies()
        self._channels, self._clock = channels, clock
        self.name, self.ontology, self.pull = name, ontology, pull
        self._fixed = FixedPlans(plans)
        self.lateness_ms, self.skew_ms = lateness_ms, skew_ms
        self._batch = batch
        self._upstream_is_idle = upstream_is_idle or _always
        self._subscription: Subscription | None = None
        self._schedule = EngineSchedule(
            clock.steady_ns(),
            quiet_ms=quiet_ms,
            commit_every_ms=commit_every_ms,
            commit_every_events=commit_every_events,
        )
        running = ActivePlans(
            plans,
            pull,
            ontology,
            lateness_ms=lateness_ms,
            steady_ns=clock.steady_ns,
            elsewhere=self.on_spark,
        )
        self._stream = StreamReader(
            self._fixed,
            running,
            EngineOutput(channels, name),
            self._schedule,
            clock.steady_ns,
            now_ms=clock.now_ms,
            act_within_ms=act_within_ms,
        )
        self._conditions = conditions
        self._late_looked_ns = clock.steady_ns()
        self._late_now: set[str] = set()
        self.busy_ns = 0
        """Time spent in steps, without waiting for events."""
        self.turn = asyncio.Lock()
        """Held while a batch is processed. Hold it to call `progress` or to change plans and
        tables.
        """

    # --- plans ---

    def use_texts(self, needed: NeededBy) -> None:
        """`needed` gives the values that the texts of a version name; they are taken when a
        detection is made. Call it again when texts were changed.
        """
        self._stream.active.use_texts(needed)

    def situations(self, policy: str) -> list[OpenSituation]:
        """The open situations of a policy."""
        return self._stream.active.situations.of(policy)

    def situation_states(self, policy: str) -> SituationStates | None:
        """What is open, pending and unknown of a running policy with a situation, else None. Call
        it while holding `turn`.
        """
        return self._stream.active.situation_states(policy)

    def follow(self, source: PlanSource) -> None:
        """Runs the plans of `source` from the next step on; forgets the plans given before."""
        self._stream.source, self._subscription = source, None

    def deploy(self, plan: PolicyPlan) -> None:
        """Starts a plan and replaces an older version; it sees readings from now on. For an engine
        without a plan source.
        """
        self._fixed.plans[plan.policy] = plan
        self._stream.active.deploy(plan)
        self._stream.count_silence_from(self._clock.now_ms())
        self._schedule.is_dirty = True

    def withdraw(self, policy: str) -> None:
        """Stops a plan and drops its pending matches. Raises UnknownName. For an engine without a
        plan source.
        """
        self._stream.active.withdraw(policy)
        del self._fixed.plans[policy]
        self._schedule.is_dirty = True

    def policies(self) -> dict[str, str]:
        """Names and versions of the running plans."""
        return self._stream.active.runner.policies()

    def failed(self) -> dict[str, Problem]:
        """Policies stopped because a function or table they use raised, with the reason."""
        return self._stream.active.runner.failed()

    @property
    def counts(self) -> EngineCounts:
        return self._stream.output.counts

    def counts_by_policy(self) -> dict[str, PolicyCounts]:
        return self._stream.active.meter.counts(self._stream.active.runner)

    def shadows(self) -> dict[str, ShadowTally]:
        """By policy, the counts of the running version and its shadow."""
        return self._stream.active.shadow_tallies()

    def shadow_situations(self, policy: str) -> SituationStates | None:
        """What is open, pending and unknown of the shadow of a policy; None without one that has a
        situation.
        """
        return self._stream.active.shadow_situations(policy)

    def behind(self) -> int:
        """Number of events not processed yet."""
        return self._channels.channel("events").last_position() - self._stream.position

    def failed_shadows(self) -> dict[str, Problem]:
        """By policy, the reason its shadow was stopped."""
        return self._stream.active.shadow_problems()

    async def next_position(self) -> StreamPosition:
        """The stream position from which a change made now applies. Call it, and act on it, while
        holding `turn`.

        After a crash this lies behind everything that may have been read before, because the
        results of the old plans are already emitted.
        """
        await self._subscribed()
        return self._stream.next_position()

    async def take_change(self, change: PlanChange) -> None:
        """Applies a recorded change. Call it while holding `turn`."""
        await self._stream.take_change(change)
        self._stream.count_silence_from(self._clock.now_ms())

    def end_replaced(self, change: PlanChange) -> None:
        """Ends the plans that a change will end, before the tables change. Call it while holding
        `turn`, then call `take_change`.
        """
        self._stream.active.end_replaced(change)

    @property
    def is_catching_up(self) -> bool:
        """Whether the engine still repeats events that it may have read before a crash. Read it
        while holding `turn`, after `place`.
        """
        return self._stream.is_catching_up

    def return_to_commit(self) -> None:
        """Returns to the last commit and to the recorded changes, for a caller that does not know
        whether a change was recorded.
        """
        self._subscription = None

    async def refresh_pull(self, pull: PullData, ontology: Ontology | None = None) -> None:
        """Uses other tables from the next batch on, and another ontology with the same streams.

        Commits first, so that no reading is evaluated twice with different tables unless the
        process dies and the tables change meanwhile. Costs a snapshot.
        """
        async with self.turn:
            await self.commit()
            self.renew(pull, ontology or self.ontology)

    def renew(self, pull: PullData, ontology: Ontology) -> None:
        """Uses other tables from now on. Call it while holding `turn`, after a commit; plans that
        the new tables cannot serve must be stopped before.
        """
        self.pull, self.ontology = pull, ontology
        self._stream.active.renew_pull(pull, ontology)
        self._stream.count_silence_from(self._clock.now_ms())
        self._schedule.is_dirty = True

    async def run(self) -> None:
        """Runs until cancelled. Started again after a failure it continues from the last commit."""
        self._subscription = None
        while True:
            await self.step()

    async def step(self, *, timeout_ms: int | None = None) -> int:
        """Processes one batch of events, or advances time by the clock when there is none; returns
        the number of events. A batch that arrived while the engine returned to its last commit is
        dropped, because it is read again.

        Waits at most `timeout_ms` (None: until something is due, or a second).
        """
        async with self.turn:
            subscription = await self._subscribed()
        wait = self._wait_ms() if timeout_ms is None else min(timeout_ms, self._wait_ms())
        # Asked before reading: what reaches `events` after an empty batch has not been read.
        was_idle = self._upstream_is_idle()
        if timeout_ms is None and not was_idle:
            wait = max(wait, _UPSTREAM_WAIT_MS)
        next_batch = (
            subscription.next_batch if self._stream.needs_headers else subscription.next_bare_batch
        )
        batch = await next_batch(limit=self._batch, timeout_ms=wait)
        async with self.turn:
            if self._subscription is not subscription:
                # A change failed meanwhile and the engine returned to the last commit: events
                # before the batch are read again first.
                return 0
            began_ns = self._clock.steady_ns()
            try:
                await self._process(batch, upstream_was_idle=was_idle)
            except BaseException:
                # The results may not have been appended: return to the last commit.
                self._subscription = None
                raise
            finally:
                self.busy_ns += self._clock.steady_ns() - began_ns
        return len(batch)

    async def _process(
        self, batch: Sequence[StoredEvent | BareStoredEvent], *, upstream_was_idle: bool
    ) -> None:
        if batch:
            history = self.counts.history
            await self._stream.take(batch, self.ontology, self.skew_ms)
            self._schedule.note_events(self._clock.steady_ns())
            if self.counts.history > history:
                self._schedule.note_history(self._clock.steady_ns())
        elif (
            upstream_was_idle
            and self._upstream_is_idle()
            and self._schedule.quiet_left_ms(self._clock.steady_ns()) <= 0
        ):
            now_ms = self._clock.now_ms()
            is_behind = self._stream.is_ahead_of(now_ms, self.skew_ms)
            is_accepted = self._schedule.is_clock_accepted(
                self._clock.steady_ns(), is_behind=is_behind
            )
            await self._stream.move_on(
                now_ms,
                beating=bool(self.on_spark.names),
                reset_skew_ms=self.skew_ms if is_accepted else None,
            )
            await self._stream.report_still_true()
        if self._stream.history_waits and self._schedule.history_is_gathered(
            self._clock.steady_ns()
        ):
            await self._stream.release_history(self._clock.now_ms())
        if self._schedule.commit_is_due(self._clock.steady_ns()):
            await self.commit()

        self._report_late(self._clock.steady_ns())

    def _report_late(self, now_ns: int) -> None:
        """Starts, updates and ends the conditions of sources whose readings arrive late; checks
        once a second.
        """
        if self._conditions is None or 0 <= now_ns - self._late_looked_ns < _LATE_LOOK_NS:
            return
        self._late_looked_ns = now_ns
        late = {
            source: one
            for source, one in self._stream.late_shares.recent(now_ns).items()
            if one.share > MOST_LATE
        }
        for source in self._late_now - late.keys():
            self._conditions.end(f"policy.late.{source}")
        for source, one in late.items():
            self._conditions.begin(f"policy.late.{source}", one.reason(source))
        self._late_now = set(late)

    def late(self) -> dict[str, int]:
        return dict(self._stream.late_shares.late)

    def recently_late(self) -> dict[str, LateShare]:
        """By source, the readings and late readings of the last minutes."""
        return self._stream.late_shares.recent(self._clock.steady_ns())

    async def progress(self) -> EngineProgress:
        """The engine's progress. Call it, and act on it, while holding `turn`."""
        await self._subscribed()
        running = self._stream.active
        return EngineProgress(
            self._stream.position,
            running.runner.watermark,
            tuple(running.runner.plans()),
            running.known_began(),
        )

    async def adopt(
        self, runners: Iterable[LocalRunner], streams: Collection[str], without: Collection[str]
    ) -> None:
        """Takes over the state of runners that stand at the same watermark and saw more readings,
        drops buffered readings with an id in `without`, and commits. Call it while holding `turn`.
        """
        self._stream.active.adopt(runners, streams)
        self._stream.active.runner.drop_waiting(without)
        await self.commit()

    async def commit(self) -> None:
        subscription = await self._subscribed()
        await subscription.commit(self._stream.position, encode_state(self._stream.state()))
        self._schedule.committed(self._clock.steady_ns())
        self.counts.commits += 1

    async def _subscribed(self) -> Subscription:
        if self._subscription is None:
            subscription = await self._channels.subscribe("events", "policy")
            state = decode_state(subscription.state) if subscription.state else None
            last = self._channels.channel("events").last_position()
            await self._stream.restore(subscription.position, state, last, self._clock.now_ms())
            await self._stream.apply_due()
            self._subscription = subscription
        return self._subscription

    def _wait_ms(self) -> int:
        """Time until something is due by the clock or a commit is due; at most a second."""
        due = self._stream.active.pending_until()
        left = None if due is None else due - self._clock.now_ms()
        return self._schedule.wait_ms(self._clock.steady_ns(), left)


def _always() -> bool:
    return True


class EngineProgress(msgspec.Struct, frozen=True):
    """The last processed position of `events`, the watermark, the running plans, and the deployment
    watermark of those that did not see all readings.
    """

    position: int
    watermark: int
    plans: tuple[PolicyPlan, ...]
    began: dict[str, int]
