"""How much of its time a node spends on policies, which of them cost most, and when it is time to
move to Spark. [PO-14]

Pure: samples of running totals go in, a report comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rapport.policy.engine.counts import PolicyCounts

SPAN_MS = 60_000
"""What the figures are averages of."""
TREND_MS = 600_000
"""What the trend is taken from."""
FULL = 0.7
"""Busy for more than this share of the time, a node has too little room for a rush."""
SOON = 0.4
"""From here on a rising trend is looked at."""
_AHEAD_MS = 3_600_000
_LEAST_TREND_MS = 120_000
_COSTS_EVERY_MS = 5_000

LoadState = Literal["measuring", "fine", "soon", "move"]


class LoadSample(msgspec.Struct, frozen=True):
    """Totals since the start, at a time of the steady clock.

    `busy_ms`: time in which the engine was at work. `read`: events it took. `behind`: events that
    waited for it just then.
    """

    at_ms: float
    busy_ms: float
    read: int
    behind: int = 0


class PolicyLoad(msgspec.Struct, frozen=True):
    """What one policy cost in the last minute: its share of all time, and time per event read; and
    since it started how many steps it wanted, and its share of those that were computed for it.
    """

    policy: str
    share: float
    us_per_event: float
    read: int
    steps_wanted: int = 0
    steps_computed: float = 0.0


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a node's policies, over the last minute."""

    busy: float
    """Share of the time in which the engine was at work, from 0 to 1."""
    events_per_second: float
    headroom: float | None
    """Further events per second that would fill the rest of the time; None while there are too few
    to tell.
    """
    behind: int
    trend_per_hour: float
    """How much `busy` grows in an hour at the pace of the last ten minutes."""
    state: LoadState
    advice: str
    policies: list[PolicyLoad]
    """Most expensive first."""
    steps_wanted: int = 0
    """Steps of batches that the policies would have computed since they started, each alone."""
    steps_computed: int = 0
    """Those that had to be computed: the others were the same for several policies."""


class LoadMeter:
    """The samples of the last ten minutes."""

    def __init__(self) -> None:
        self._samples: deque[LoadSample] = deque()
        self._costs: deque[tuple[float, Mapping[str, PolicyCounts]]] = deque()

    def take(self, sample: LoadSample, costs: Mapping[str, PolicyCounts]) -> None:
        """One more sample; those older than the trend needs are dropped."""
        self._samples.append(sample)
        while self._samples[0].at_ms < sample.at_ms - TREND_MS:
            self._samples.popleft()
        if not self._costs or sample.at_ms - self._costs[-1][0] >= _COSTS_EVERY_MS:
            self._costs.append((sample.at_ms, costs))
            while len(self._costs) > 1 and self._costs[1][0] <= sample.at_ms - SPAN_MS:
                self._costs.popleft()

    def last_busy(self) -> float:
        """The share of the time since the last sample but one, for who puts values together
        itself.
        """
        return _busy(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else 0.0

    def last_rate(self) -> float:
        """Events per second since the last sample but one."""
        return _rate(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else 0.0

    def report(self, costs: Mapping[str, PolicyCounts]) -> LoadReport:
        """The load of the last minute, `costs` being those of now."""
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
        """The samples at the ends of the last minute."""
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
        """Growth of `busy` per hour: the slope of the line nearest to it, minute by minute."""
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
    """The plain sentence."""
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
    """How much a count grew; one that began anew counts from nothing."""
    return now - before if now >= before else now


def _by_steps(samples: list[LoadSample]) -> list[tuple[float, float]]:
    """How busy each half minute was, with its end."""
    found: list[tuple[float, float]] = []
    since = samples[0] if samples else None
    for sample in samples:
        assert since is not None
        if sample.at_ms - since.at_ms >= SPAN_MS / 2:
            found.append((sample.at_ms, _busy(since, sample)))
            since = sample
    return found
