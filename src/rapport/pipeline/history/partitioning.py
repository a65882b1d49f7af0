"""How a plan's history is cut so that the parts give together what the whole gives. [PI-5, PO-8]

A plan that uses nothing up is cut into slices of time. A slice owns the detections whose time lies
in it, and reads as much before and after it as can have a part in them. A plan that uses events up
(rule 1 of the meaning) is not: which pairs are left depends on everything before. Nor is a plan
whose absence a silent source makes undecided (rule 8): how long a source has been silent may depend
on events much further back. Nor are durations and silence (rule 6): when a state began, or the last
event came, may lie anywhere before; and `at most once per`: what is left out depends on what was
reported, which depends on what was before. These are parted by identities (`keys.py`) where they
have a key, else they run in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rapport.core.times import format_duration
from rapport.pipeline.history.keys import Key, choose_key
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.plan_shape import longest_window_ms, uncertainty_ms
from rapport.policy.operators.uncertainty import watched_sources
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

BEGIN_OF_TIME = -(2**63)
_CLOCKS = 4
"""Each end of a followed-by may be wrong either way, and so may what must not lie between."""


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


def explain_partitioning(
    plan: Plan, sources: Mapping[str, PushSource] | None = None, pull: PullData | None = None
) -> str:
    """One sentence for people: how this plan is spread over Spark and why. Without the tables
    nobody can tell by which identity.
    """
    known = sources or {}
    reason = why_in_one_piece(plan, known)
    if not reason:
        return _explain_slices(plan, known)
    if pull is None:
        return f"{plan.policy}: not in slices of time, because {reason}"
    key = choose_key(plan, pull, known)
    if isinstance(key, str):
        return f"{plan.policy}: one partition, because {reason}; and {key}"
    return f"{plan.policy}: {_explain_key(key)}; not in slices of time, because {reason}"


def _explain_slices(plan: Plan, sources: Mapping[str, PushSource]) -> str:
    back_ms, ahead_ms = look_back_ms(plan, sources), look_ahead_ms(plan, sources)
    overlap = f"{format_duration(back_ms)} before its begin"
    if ahead_ms:
        overlap += f" and {format_duration(ahead_ms)} after its end"
    return (
        f"{plan.policy}: slices of time, each reading {overlap}, because nothing is used up "
        "and no event further away has a part in a detection"
    )


def _explain_key(key: Key) -> str:
    told = f"buckets of identities of {key.alias}, for every detection names one"
    if key.others:
        told += f"; at most {1 - key.share:.0%} of the identities are needed in every bucket"
    if key.watched:
        told += f"; every bucket hears when {' and '.join(key.watched)} spoke"
    return told


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
