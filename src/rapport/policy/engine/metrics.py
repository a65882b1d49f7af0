"""Counts per policy, load of the node, and late readings per source. [PO-7, PO-9, PO-14, UX-5]

Pure: running totals and the steady clock's nanoseconds are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import Detection, Undecided
from rapport.core.times import rough_duration
from rapport.policy.operators.shared_cache import StepCounts
from rapport.policy.plan import PolicyPlan
from rapport.policy.runner.local import LateCount, LocalRunner

SPAN_MS = 60_000
"""The span that figures are averages of."""
TREND_MS = 600_000
"""The span that the trend is computed from."""
FULL = 0.7
"""A node that is busy for more than this share has too little room for bursts."""
SOON = 0.4
"""From this share on a rising trend matters."""
_AHEAD_MS = 3_600_000
_LEAST_TREND_MS = 120_000
_COSTS_EVERY_MS = 5_000
LoadState = Literal["measuring", "fine", "soon", "move"]
WINDOW_MINUTES = 10
MOST_LATE = 0.01
"""A larger share is a fault of the source or of its connection."""
UNDECLARED = "(sources without a declaration)"
_MINUTE_NS = 60_000_000_000


class PolicyCounts(msgspec.Struct, frozen=True):
    """Counts of one policy since the node started.

    `read`: readings of its streams. `errors`: failed commands of its actions, and its own failure.
    `cost_ms`: time spent on it. `steps_wanted`: batch steps that it would have computed alone;
    `steps_computed`: its share of those that were computed.
    """

    read: int = 0
    detections: int = 0
    undecided: int = 0
    suppressed: int = 0
    errors: int = 0
    cost_ms: float = 0.0
    steps_wanted: int = 0
    steps_computed: float = 0.0


class PolicyMeter:
    """Counts by policy; drops those of a deleted policy."""

    def __init__(self) -> None:
        self._streams: dict[str, int] = {}
        self._read_before: dict[str, dict[str, int]] = {}
        self._counts: dict[str, list[int]] = {}
        self._spent_before: dict[str, int] = {}

    def deployed(self, plan: PolicyPlan, spent_ns: int) -> None:
        """Starts counting for a policy; `spent_ns` is its cost so far according to the runner."""
        self._read_before[plan.policy] = dict(self._streams)
        self._counts[plan.policy] = [0, 0, 0]
        self._spent_before[plan.policy] = spent_ns

    def took(self, readings: pa.RecordBatch) -> None:
        """Counts the readings of a batch in one pass, however many policies there are."""
        if not len(readings):
            return
        for row in pc.value_counts(readings.column("stream")).to_pylist():
            stream = row["values"]
            self._streams[stream] = self._streams.get(stream, 0) + row["counts"]

    def found(self, found: Iterable[Detection], undecided: Iterable[Undecided]) -> None:
        for detection in found:
            self._of(detection.policy)[0] += 1
        for unsure in undecided:
            self._of(unsure.policy)[1] += 1

    def failed(self, policy: str) -> None:
        """Counts an action of the policy that failed."""
        self._of(policy)[2] += 1

    def counts(self, runner: LocalRunner) -> dict[str, PolicyCounts]:
        """By name, for policies that run or have failed."""
        suppressed, failed, steps = runner.suppressed(), runner.failed(), runner.steps
        spent_ns, found = runner.spent_ns, dict[str, PolicyCounts]()
        for plan in (*runner.plans(), *runner.failed_plans()):
            name = plan.policy
            before = self._read_before.get(name, {})
            detections, undecided, errors = self._of(name)
            wanted, computed = steps.get(name, StepCounts())
            spent = spent_ns.get(name, 0) - self._spent_before.get(name, 0)
            found[name] = PolicyCounts(
                read=sum(self._streams.get(one, 0) - before.get(one, 0) for one in plan.streams()),
                detections=detections,
                undecided=undecided,
                suppressed=suppressed.get(name, 0),
                errors=errors + (name in failed),
                cost_ms=round(spent / 1e6, 3),
                steps_wanted=wanted,
                steps_computed=round(computed, 2),
            )
        return found

    def _of(self, policy: str) -> list[int]:
        return self._counts.setdefault(policy, [0, 0, 0])


class EngineCounts(msgspec.Struct):
    """Totals of the engine since the start."""

    read: int = 0
    detections: int = 0
    undecided: int = 0
    late: int = 0
    history: int = 0
    """Readings imported as history, which the re-evaluation handles."""
    quarantined: int = 0
    moved_by_clock: int = 0
    commits: int = 0
    resets: int = 0


class LoadSample(msgspec.Struct, frozen=True):
    """Totals since the start, at a time of the steady clock.

    `busy_ms`: time spent in steps. `read`: events processed. `behind`: events waiting at that time.
    """

    at_ms: float
    busy_ms: float
    read: int
    behind: int = 0


class PolicyLoad(msgspec.Struct, frozen=True):
    """Cost of one policy in the last minute: its share of all time and time per event; and since
    its start, the steps it wanted and its share of the computed ones.
    """

    policy: str
    share: float
    us_per_event: float
    read: int
    steps_wanted: int = 0
    steps_computed: float = 0.0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    busy: float
    """Share of the time spent in steps, from 0 to 1."""
    events_per_second: float
    headroom: float | None
    """Additional events per second until the node is full; None with too few events."""
    behind: int
    trend_per_hour: float
    """Growth of `busy` per hour, by the last ten minutes."""
    state: LoadState
    advice: str
    policies: list[PolicyLoad]
    """Most expensive first."""
    steps_wanted: int = 0
    """Batch steps that the policies would have computed since they started, each alone."""
    steps_computed: int = 0
    """Steps that were computed; the others were shared by several policies."""


class LoadMeter:
    def __init__(self) -> None:
        self._samples: deque[LoadSample] = deque()
        self._costs: deque[tuple[float, Mapping[str, PolicyCounts]]] = deque()

    def take(self, sample: LoadSample, costs: Mapping[str, PolicyCounts]) -> None:
        """Adds a sample and drops those older than the trend needs."""
        self._samples.append(sample)
        while self._samples[0].at_ms < sample.at_ms - TREND_MS:
            self._samples.popleft()
        if not self._costs or sample.at_ms - self._costs[-1][0] >= _COSTS_EVERY_MS:
            self._costs.append((sample.at_ms, costs))
            while len(self._costs) > 1 and self._costs[1][0] <= sample.at_ms - SPAN_MS:
                self._costs.popleft()

    def last_busy(self) -> float:
        """The busy share between the last two samples, for callers that aggregate themselves."""
        return _busy(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else 0.0

    def last_rate(self) -> float:
        """Events per second between the last two samples."""
        return _rate(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else 0.0

    def report(self, costs: Mapping[str, PolicyCounts]) -> LoadReport:
        """The load of the last minute; `costs` are the current ones."""
        first, last = self._minute()
        busy, rate = _busy(first, last), _rate(first, last)
        policies = self._policies(costs, last.at_ms)
        trend = self._trend()
        behind_grew = last.behind > first.behind and last.behind > rate
        state = self._state(busy, trend, behind_grew)
        return LoadReport(
            busy=round(busy, 4),
            events_per_second=round(rate, 1),
            headroom=round(rate * (1 - busy) / busy, 1) if busy > 0.001 and rate else None,
            behind=last.behind,
            trend_per_hour=round(trend, 4),
            state=state,
            advice=advice(state, busy, trend, policies, is_behind=behind_grew),
            policies=policies,
            steps_wanted=sum(one.steps_wanted for one in costs.values()),
            steps_computed=round(sum(one.steps_computed for one in costs.values())),
        )

    def _minute(self) -> tuple[LoadSample, LoadSample]:
        """The first and the last sample of the last minute."""
        if not self._samples:
            nothing = LoadSample(0, 0, 0)
            return nothing, nothing
        last = self._samples[-1]
        first = next(one for one in self._samples if one.at_ms >= last.at_ms - SPAN_MS)
        return first, last

    def _policies(self, costs: Mapping[str, PolicyCounts], now_ms: float) -> list[PolicyLoad]:
        if not self._costs:
            return []
        since_ms, before = self._costs[0]
        passed = max(now_ms - since_ms, 1.0)
        nothing = PolicyCounts()
        found = []
        for name, now in costs.items():
            earlier = before.get(name, nothing)
            spent = _grown(earlier.cost_ms, now.cost_ms)
            read = int(_grown(earlier.read, now.read))
            per_event = round(1_000 * spent / read, 3) if read else 0.0
            computed = round(now.steps_computed, 1)
            found.append(
                PolicyLoad(
                    name, round(spent / passed, 5), per_event, read, now.steps_wanted, computed
                )
            )
        return sorted(found, key=lambda one: (-one.share, one.policy))

    def _trend(self) -> float:
        """Growth of `busy` per hour: the slope of the regression line over half minutes."""
        points = _by_steps(list(self._samples))
        if len(points) < 3 or points[-1][0] - points[0][0] < _LEAST_TREND_MS:
            return 0.0
        middle = sum(at for at, _busy in points) / len(points)
        level = sum(busy for _at, busy in points) / len(points)
        above = sum((at - middle) * (busy - level) for at, busy in points)
        return above / sum((at - middle) ** 2 for at, _busy in points) * 3_600_000

    def _state(self, busy: float, trend: float, behind_grew: bool) -> LoadState:
        first, last = self._minute()
        if last.at_ms - first.at_ms < SPAN_MS / 2:
            return "measuring"
        if busy >= FULL or behind_grew:
            return "move"
        return "soon" if busy >= SOON and busy + trend * _AHEAD_MS / 3_600_000 >= 1 else "fine"


def advice(
    state: LoadState,
    busy: float,
    trend: float,
    policies: Sequence[PolicyLoad],
    *,
    is_behind: bool = False,
) -> str:
    """The advice as a sentence."""
    share = f"{busy:.0%} of the time"
    heaviest = f"; {policies[0].policy} costs most ({policies[0].share:.0%})" if policies else ""
    match state:
        case "measuring":
            return "Measuring: ask again in half a minute."
        case "fine":
            return f"This node can stay as it is: policies keep it busy {share}."
        case "soon":
            hours = (1 - busy) / trend
            return (
                f"Plan to move policies to Spark: they keep this node busy {share}, and at this "
                f"pace it is full in {hours * 60:.0f} min{heaviest}."
            )
        case "move":
            why = "falls behind what comes in" if is_behind else f"is busy {share}"
            return f"It is time to move policies to Spark: this node {why}{heaviest}."


def _busy(first: LoadSample, last: LoadSample) -> float:
    passed = last.at_ms - first.at_ms
    return min(max((last.busy_ms - first.busy_ms) / passed, 0.0), 1.0) if passed > 0 else 0.0


def _rate(first: LoadSample, last: LoadSample) -> float:
    passed = last.at_ms - first.at_ms
    return 1_000 * (last.read - first.read) / passed if passed > 0 else 0.0


def _grown(before: float, now: float) -> float:
    """Growth of a counter; a counter that restarted counts from zero."""
    return now - before if now >= before else now


def _by_steps(samples: list[LoadSample]) -> list[tuple[float, float]]:
    """The busy share of each half minute, with its end."""
    found: list[tuple[float, float]] = []
    since = samples[0] if samples else None
    for sample in samples:
        assert since is not None
        if sample.at_ms - since.at_ms >= SPAN_MS / 2:
            found.append((sample.at_ms, _busy(since, sample)))
            since = sample
    return found


class LateShare(msgspec.Struct, frozen=True):
    """Readings of a source in the window; `behind_ms`: the largest delay of a late reading behind
    the reached time.
    """

    read: int
    late: int
    behind_ms: int

    @property
    def share(self) -> float:
        return self.late / self.read if self.read else 0.0

    def reason(self, source: str) -> str:
        percent = f"{100 * self.share:.2g} %" if self.late < self.read else "all"
        return (
            f"{self.late:,} of {self.read:,} readings of {source} in the last {WINDOW_MINUTES} min "
            f"came late ({percent}), up to {rough_duration(self.behind_ms)} behind: policies do "
            "not use them"
        )


class LateShares:
    """Counts of the last minutes by source. Undeclared sources count as one, so that their names
    cannot fill the memory.
    """

    def __init__(self) -> None:
        self._minutes: dict[str, deque[tuple[int, list[int]]]] = {}
        self.late: dict[str, int] = {}

    def add(
        self,
        readings: pa.RecordBatch,
        late: dict[str, LateCount],
        declared: Collection[str],
        now_ns: int,
    ) -> None:
        """Adds a batch and its late readings in one pass."""
        if not len(readings):
            return
        for row in pc.value_counts(readings.column("source")).to_pylist():
            source = row["values"]
            counted = late.get(source, LateCount())
            name = source if source in declared else UNDECLARED
            minute = self._minute(name, now_ns // _MINUTE_NS)
            minute[0] += row["counts"]
            minute[1] += counted.readings
            minute[2] = max(minute[2], counted.behind_ms)
            if counted.readings:
                self.late[name] = self.late.get(name, 0) + counted.readings

    def recent(self, now_ns: int) -> dict[str, LateShare]:
        """By source, for sources with readings in the window."""
        oldest = now_ns // _MINUTE_NS - WINDOW_MINUTES
        found: dict[str, LateShare] = {}
        for source, minutes in list(self._minutes.items()):
            while minutes and minutes[0][0] <= oldest:
                minutes.popleft()
            if not minutes:
                del self._minutes[source]
                continue
            counts = [count for _number, count in minutes]
            found[source] = LateShare(
                read=sum(count[0] for count in counts),
                late=sum(count[1] for count in counts),
                behind_ms=max(count[2] for count in counts),
            )
        return found

    def _minute(self, source: str, number: int) -> list[int]:
        minutes = self._minutes.setdefault(source, deque(maxlen=WINDOW_MINUTES + 1))
        if not minutes or minutes[-1][0] != number:
            minutes.append((number, [0, 0, 0]))
        return minutes[-1][1]
