"""How a plan's history is cut so that the parts give together what the whole gives. [PI-5, PO-8]

A plan that uses nothing up is cut into slices of time. A slice owns the detections whose time lies
in it, and reads as much before and after it as can have a part in them. A plan that uses events up
(rule 1 of the meaning) runs in one piece: which pairs are left depends on everything before. So
does a plan whose absence a silent source makes undecided (rule 8): how long a source has been
silent may depend on events much further back. So do durations and silence (rule 6): when a state
began, or the last event came, may lie anywhere before; and `at most once per`: what is left out
depends on what was reported, which depends on what was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.times import format_duration
from rapport.policy.ontology import PushSource
from rapport.policy.plan import (
    Absent,
    Clause,
    CorrelationTerm,
    LastingTerm,
    Plan,
    Positive,
    SilentTerm,
)
from rapport.policy.plan import Sequence as FollowedBy
from rapport.policy.runners.base import END_OF_TIME
from rapport.policy.runners.operators.reaches import longest_window_ms, uncertainty_ms
from rapport.policy.runners.silence import watched_sources

BEGIN_OF_TIME = -(2**63)
_CLOCKS = 4
"""Each end of a followed-by may be wrong either way, and so may what must not lie between."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one Spark task does: runs these plans and keeps the detections it owns."""

    plans: tuple[int, ...]
    """Indices into the job's plans."""
    begin: int
    """It owns detections from this time on..."""
    until: int
    """...up to before this one."""
    read_until: int
    """It reads and decides up to before this time."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks of a job: first the slices of time, then one per plan that runs in one piece."""

    tasks: tuple[Task, ...]
    bounds: tuple[int, ...]
    """Where the slices meet; empty when there is one slice or none."""
    slices: int
    look_back_ms: int
    """How much before its begin a slice reads."""
    look_ahead_ms: int
    """How much after its end a slice reads."""


def used_up_terms(plan: Plan) -> tuple[int, ...]:
    """Correlation terms that stand anywhere without NOT: their events are used at most once."""
    positive = {term for clause in plan.clauses for term in _positive_terms(clause)}
    return tuple(sorted(t for t in positive if isinstance(plan.terms[t], CorrelationTerm)))


def why_in_one_piece(plan: Plan, sources: Mapping[str, PushSource]) -> str:
    """The reason why a plan is not cut; empty when it is."""
    used_up = used_up_terms(plan)
    if used_up:
        term = plan.terms[used_up[0]]
        name = f"{term.first.alias} {term.function or 'compared with'} {term.second.alias}"
        return (
            f"'{name}' uses each event once per pair ({plan.consumption}), so what is left depends "
            "on the whole history before"
        )
    lasting = [term for term in plan.terms if isinstance(term, LastingTerm | SilentTerm)]
    if lasting:
        what = "the silence" if isinstance(lasting[0], SilentTerm) else "the state"
        return f"{what} of {lasting[0].first.alias} may have begun long before"
    if plan.once_per_ms is not None:
        return "'at most once per' depends on what was reported before"
    watched = watched_sources(plan, sources)
    if watched:
        return (
            f"its absence is undecided while {' or '.join(watched)} is silent, and that may have "
            "begun long before"
        )
    return ""


def look_back_ms(plan: Plan, sources: Mapping[str, PushSource] | None = None) -> int:
    """How long before a detection's time an event can lie that has a part in it (exclusive).

    Ends of a match lie within one window before its `t0`. The other part of a followed-by lies up
    to another window before its end, and a correlation under its NOT begins up to a third before.
    The detection comes at `t0`, or up to a window later when absence is awaited, or two when a
    mixed clause takes a followed-by whose own absence is awaited.
    """
    sequences = [child for child in _children(plan) if isinstance(child, FollowedBy)]
    windows = 1 + bool(sequences)
    windows += any(
        isinstance(plan.terms[term], CorrelationTerm)
        for child in sequences
        for term in _negated_terms(child)
    )
    reach_ms = (windows + _delay_windows(plan)) * longest_window_ms(plan)
    return reach_ms + _CLOCKS * uncertainty_ms(plan, sources or {})


def look_ahead_ms(plan: Plan, sources: Mapping[str, PushSource] | None = None) -> int:
    """How long after a detection's time an event can lie that has a part in it (exclusive).

    Mostly none. But a match may turn out not to be minimal, or a mixed clause may have an earlier
    occurrence, by an `X FOLLOWED-BY NOT Y` that is decided up to two windows later. And where a
    mixed clause is satisfied by an absence among tables, that holds from `t0` on, but counts only
    when nothing positive came within a window.
    """
    unsure_ms = _CLOCKS * uncertainty_ms(plan, sources or {})
    awaited = any(isinstance(c, FollowedBy) and c.second_negated for c in _children(plan))
    if awaited:
        return 2 * longest_window_ms(plan) + unsure_ms
    windows = any(_is_mixed(clause) for clause in plan.clauses)
    return windows * longest_window_ms(plan) + unsure_ms


def explain_partitioning(plan: Plan, sources: Mapping[str, PushSource] | None = None) -> str:
    """One sentence for people: how this plan is spread over Spark and why."""
    known = sources or {}
    reason = why_in_one_piece(plan, known)
    if reason:
        return f"{plan.policy}: one partition, because {reason}"
    back_ms, ahead_ms = look_back_ms(plan, known), look_ahead_ms(plan, known)
    overlap = f"{format_duration(back_ms)} before its begin"
    if ahead_ms:
        overlap += f" and {format_duration(ahead_ms)} after its end"
    return (
        f"{plan.policy}: slices of time, each reading {overlap}, because nothing is used up "
        "and no event further away has a part in a detection"
    )


def lay_out(
    plans: Sequence[Plan],
    times: npt.NDArray[np.int64],
    partitions: int,
    end: int = END_OF_TIME,
    sources: Mapping[str, PushSource] | None = None,
) -> Layout:
    """Tasks for all plans: at most `partitions` slices holding about equally many of `times`.

    Everything is decided up to before `end`.
    """
    known = sources or {}
    sliced = tuple(i for i, plan in enumerate(plans) if not why_in_one_piece(plan, known))
    whole = tuple(i for i in range(len(plans)) if i not in sliced)
    bounds = _bounds(times, partitions) if sliced else ()
    back = max((look_back_ms(plans[i], known) for i in sliced), default=0)
    ahead = max((look_ahead_ms(plans[i], known) for i in sliced), default=0)
    tasks = [
        Task(plans=sliced, begin=begin, until=until, read_until=min(until + ahead, end))
        for begin, until in _between(bounds)
        if sliced
    ]
    slices = len(tasks)
    tasks += [
        Task(plans=(i,), begin=BEGIN_OF_TIME, until=END_OF_TIME, read_until=end) for i in whole
    ]
    return Layout(
        tasks=tuple(tasks), bounds=bounds, slices=slices, look_back_ms=back, look_ahead_ms=ahead
    )


def _bounds(times: npt.NDArray[np.int64], partitions: int) -> tuple[int, ...]:
    if partitions < 2 or not len(times):
        return ()
    ordered = np.sort(times)
    cuts = ordered[np.arange(1, partitions) * len(ordered) // partitions]
    return tuple(int(cut) for cut in np.unique(cuts) if cut > ordered[0])


def _between(bounds: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    edges = (BEGIN_OF_TIME, *bounds, END_OF_TIME)
    return pairwise(edges)


def _children(plan: Plan) -> Iterator[object]:
    return (child for clause in plan.clauses for child in clause.children)


def _positive_terms(clause: Clause) -> Iterator[int]:
    for child in clause.children:
        if isinstance(child, Positive):
            yield child.term
        elif isinstance(child, FollowedBy):
            if not child.first_negated:
                yield child.first
            if not child.second_negated:
                yield child.second


def _negated_terms(child: FollowedBy) -> Iterator[int]:
    if child.first_negated:
        yield child.first
    if child.second_negated:
        yield child.second


def _delay_windows(plan: Plan) -> int:
    """How many windows after `t0` a detection may come."""
    delay = 0
    for clause in plan.clauses:
        awaited = any(isinstance(c, FollowedBy) and c.second_negated for c in clause.children)
        absent = any(_is_absence(child) for child in clause.children)
        delay = max(delay, 2 if _is_mixed(clause) and awaited else int(awaited or absent))
    return delay


def _is_mixed(clause: Clause) -> bool:
    absences = [_is_absence(child) for child in clause.children]
    return any(absences) and not all(absences)


def _is_absence(child: object) -> bool:
    if isinstance(child, FollowedBy):
        return child.first_negated and child.second_negated
    return isinstance(child, Absent)
