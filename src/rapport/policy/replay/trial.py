"""A policy text over the readings of the log before it is saved: its episodes, and how they differ
from those of the version in force. Nothing is written. [PO-9, PO-16, CN-7]

Corrected, released, late and imported readings count at their own time, as after a re-evaluation.
The newest readings are taken, so the cost is bounded. Trials of a node run one after the other and
use the tables' present rows.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from rapport.channel.channel import Channels, pages_of
from rapport.channel.event_lookup import oldest, position_before
from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput, Problem
from rapport.core.event import StoredEvent
from rapport.policy.engine.engine import ALLOWED_SKEW_MS, PolicyEngine
from rapport.policy.explain.evidence import TimeSpan, needed_range
from rapport.policy.ontology import Ontology
from rapport.policy.plan import PolicyPlan
from rapport.policy.replay.history_runner import HistoryRunner, PlanSpan, used_times
from rapport.policy.replay.replay import TimeExtent
from rapport.policy.situation_plan import SituationPlan, longest_look_back_ms

MOST_READINGS = 200_000
"""Readings that one trial reads; some seconds."""
MOST_EPISODES = 2_000
"""Episodes in an answer; the newest are kept."""
_EVENTS = "events"
_DAY_MS = 86_400_000

Change = Literal["same", "moved", "added", "gone"]


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A situation from its beginning to its end, or the moment of a detection."""

    bindings: dict[str, str]
    """Identities by alias."""
    begin: int
    end: int | None
    """None: it is open at the end of the trial. A moment ends when it begins."""
    change: Change
    """Against the version in force: `moved` has another beginning or end, `gone` is found by the
    version in force only.
    """
    begin_before: int | None = None
    """Of `moved`: the beginning by the version in force."""
    end_before: int | None = None


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a text would have found."""

    kind: Literal["situation", "conditions"]
    version: str
    compared: str
    """The version in force that it is compared with; empty: there is none."""
    since: int
    until: int
    readings: int
    """Readings of that time."""
    first: int | None
    """Time of the first reading; None: there is none."""
    last: int | None
    is_whole: bool
    """False: there are more readings of that time than a trial reads, and the oldest were left
    out, or the log no longer holds them.
    """
    counts: dict[str, int]
    """Episodes by their change."""
    episodes: list[Episode]
    """Newest first."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints about the text, and why a version stopped."""


def episodes_of(found: Iterable[Detection], *, has_ends: bool) -> list[Episode]:
    """The episodes of one version, by beginning. `has_ends`: they are of a situation."""
    ends: dict[tuple[tuple[tuple[str, str], ...], int], int] = {}
    begins: list[Detection] = []
    for one in found:
        if one.began is None:
            begins.append(one)
        else:
            ends[_key(one.bindings), one.began] = one.time
    episodes = [
        Episode(
            bindings=one.bindings,
            begin=one.time,
            end=ends.get((_key(one.bindings), one.time)) if has_ends else one.time,
            change="same",
        )
        for one in begins
    ]
    return sorted(episodes, key=lambda one: (one.begin, _key(one.bindings)))


def compare_episodes(tried: Sequence[Episode], in_force: Sequence[Episode] | None) -> list[Episode]:
    """The tried episodes and those that are gone, marked, by beginning. Two are the same situation
    when they are about the same things and overlap. None: no version is in force.
    """
    if in_force is None:
        return [msgspec.structs.replace(one, change="added") for one in tried]
    rows: dict[tuple[tuple[str, str], ...], list[Episode]] = {}
    for one in in_force:
        rows.setdefault(_key(one.bindings), []).append(one)
    begins = {key: [one.begin for one in row] for key, row in rows.items()}
    used: dict[tuple[tuple[str, str], ...], set[int]] = {key: set() for key in rows}
    marked: list[Episode] = []
    for one in tried:
        key = _key(one.bindings)
        row = rows.get(key, [])
        at = _partner(one, row, begins.get(key, []), used.get(key, set()))
        if at is None:
            marked.append(msgspec.structs.replace(one, change="added"))
            continue
        used[key].add(at)
        marked.append(_marked(one, row[at]))
    for key, row in rows.items():
        marked += [
            msgspec.structs.replace(one, change="gone")
            for number, one in enumerate(row)
            if number not in used[key]
        ]
    return sorted(marked, key=lambda one: (one.begin, _key(one.bindings)))


def _marked(tried: Episode, before: Episode) -> Episode:
    if (tried.begin, tried.end) == (before.begin, before.end):
        return tried
    return msgspec.structs.replace(
        tried, change="moved", begin_before=before.begin, end_before=before.end
    )


def _key(bindings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(bindings.items()))


class _Findings(NamedTuple):
    """Of one pass of some plans over the log."""

    extent: TimeExtent
    """The readings of the time to try."""
    episodes: list[list[Episode]]
    """Of each plan."""
    is_whole: bool = True
    problems: Sequence[Problem] = ()


class PolicyTrials:
    """Tries texts over the log of a node, one at a time."""

    def __init__(self, channels: Channels, engine: PolicyEngine, lateness_ms: int) -> None:
        self._channels, self._engine, self._lateness_ms = channels, engine, lateness_ms
        self._turn = asyncio.Lock()

    async def run(
        self,
        plan: PolicyPlan,
        in_force: PolicyPlan | None,
        span: TimeSpan,
        *,
        problems: tuple[Problem, ...] = (),
        most: int = MOST_READINGS,
    ) -> TrialResult:
        """The episodes of a plan in `span`, and the differences to the one in force. Raises
        InvalidInput for a span that ends before it begins.
        """
        if span.start >= span.end:
            raise InvalidInput(
                "the time to try has no length",
                code="replay.bad_span",
                hint="choose a beginning before the end",
            )
        plans = [plan] if in_force is None else [plan, in_force]
        async with self._turn:
            found = await self._find(plans, span, most)
        tried = found.episodes
        marked = compare_episodes(tried[0], tried[1] if in_force is not None else None)
        changes: tuple[Change, ...] = ("same", "moved", "added", "gone")
        return TrialResult(
            kind="situation" if isinstance(plan, SituationPlan) else "conditions",
            version=plan.version(),
            compared="" if in_force is None else in_force.version(),
            since=span.start,
            until=span.end,
            readings=found.extent.count,
            first=found.extent.first,
            last=found.extent.last,
            is_whole=found.is_whole,
            counts={name: sum(one.change == name for one in marked) for name in changes},
            episodes=marked[: -MOST_EPISODES - 1 : -1],
            problems=(*problems, *found.problems),
        )

    async def _find(self, plans: Sequence[PolicyPlan], span: TimeSpan, most: int) -> _Findings:
        """Runs the plans over the newest readings, at most `most`."""
        extent, ontology = TimeExtent(), self._engine.ontology
        if _EVENTS not in self._channels.names():
            return _Findings(extent, [[] for _ in plans])
        start = min(_start(plan, ontology, span) for plan in plans)
        events = self._channels.channel(_EVENTS)
        wanted = await position_before(events, start - ALLOWED_SKEW_MS) if start > 0 else 0
        last = events.last_position()
        after = max(wanted, last - most)
        first = await oldest(events)
        is_cut = first is not None and first.position > 1 and after < first.position
        history = HistoryRunner(
            [
                PlanSpan(plan=plan, start=start, began=None, judged_from=start, end=span.end)
                for plan in plans
            ],
            self._engine.pull,
            ontology,
            lateness_ms=self._lateness_ms,
            skew_ms=ALLOWED_SKEW_MS,
            with_imported=True,
        )

        def take(page: list[StoredEvent]) -> None:
            times = used_times(page, ontology, ALLOWED_SKEW_MS)
            extent.note([time for time in times if span.start <= time < span.end])

        try:
            await history.run(
                lambda: pages_of(events, after, limit=last - after, last=last),
                is_whole=after == 0 and not is_cut,
                until_ms=span.end,
                take=take,
            )
        finally:
            history.close()
        episodes = [
            [
                one
                for one in episodes_of(run.found, has_ends=isinstance(plan, SituationPlan))
                if one.begin < span.end and (one.end is None or one.end >= span.start)
            ]
            for plan, run in zip(plans, history.runs, strict=True)
        ]
        return _Findings(extent, episodes, after == wanted and not is_cut, history.problems())


def _start(plan: PolicyPlan, ontology: Ontology, span: TimeSpan) -> int:
    """The oldest reading that can matter: by windows and durations, and at least a day, since the
    last value of an attribute holds until the next.
    """
    if isinstance(plan, SituationPlan):
        back = span.start - longest_look_back_ms(plan)
    else:
        back = needed_range(plan, ontology.sources, span).start
    return min(back, span.start - _DAY_MS)


def _partner(
    one: Episode, row: Sequence[Episode], begins: Sequence[int], used: set[int]
) -> int | None:
    """The index of the unused episode in `row` that overlaps most recently; None without one. One
    version's episodes of the same things do not overlap each other.
    """
    last = len(row) if one.end is None else bisect_left(begins, one.end + 1)
    for at in range(min(last, len(row)) - 1, -1, -1):
        before = row[at]
        if before.end is not None and before.end < one.begin:
            return None
        if at not in used:
            return at
    return None
