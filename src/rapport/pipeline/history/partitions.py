"""How a history is divided: slices of time, buckets of identities, or one piece. [PI-5, PO-8]

Parts give together what the whole gives. A plan that uses nothing up is cut into slices of time. A
slice owns the detections whose time lies in it, and reads as much before and after it as can have
a part in them. Other plans need everything before: those that use events up (rule 1 of the
meaning), durations and silence (rule 6), `at most once per`, absence that a silent source makes
undecided (rule 8), and situations. They are divided by identities (`keys.py`) if they have a key,
else they run in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.times import format_duration
from rapport.pipeline.history.arrival import GroupAt
from rapport.pipeline.history.keys import Key, choose_key, joint_share
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.operators.plan_shape import longest_window_ms, uncertainty_ms
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import (
    Absent,
    Clause,
    CorrelationTerm,
    LastingTerm,
    Plan,
    PolicyPlan,
    Positive,
    SilentTerm,
)
from rapport.policy.plan import Sequence as FollowedBy
from rapport.policy.runner.deployed_plans import gather_families
from rapport.policy.situation_plan import SituationPlan

_CLOCKS = 4
"""Each end of a followed-by may be wrong either way, and so may what must not lie between."""


def used_up_terms(plan: Plan) -> tuple[int, ...]:
    """Correlation terms that stand anywhere without NOT: their events are used at most once."""
    positive = {term for clause in plan.clauses for term in _positive_terms(clause)}
    return tuple(sorted(t for t in positive if isinstance(plan.terms[t], CorrelationTerm)))


def why_in_one_piece(plan: PolicyPlan, sources: Mapping[str, PushSource]) -> str:
    """The reason why a plan is not cut; empty when it is."""
    if isinstance(plan, SituationPlan):
        return "its situation may have begun long before"
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
    if plan.guard is not None:
        return "'while' depends on the last values before"
    if plan.once_per_ms is not None:
        return "'at most once per' depends on what was reported before"
    watched = watched_sources(plan, sources)
    if watched:
        return (
            f"its absence is undecided while {' or '.join(watched)} is silent, and that may have "
            "begun long before"
        )
    return ""


def look_back_ms(plan: PolicyPlan, sources: Mapping[str, PushSource] | None = None) -> int:
    """How long before a detection's time an event can lie that has a part in it (exclusive); 0 for
    situations, which need all of them.

    Ends of a match lie within one window before its `t0`. The other part of a followed-by lies up
    to another window before its end, and a correlation under its NOT begins up to a third before.
    The detection comes at `t0`, or up to a window later when absence is awaited, or two when a
    mixed clause takes a followed-by whose own absence is awaited.
    """
    if isinstance(plan, SituationPlan):
        return 0
    sequences = [child for child in _children(plan) if isinstance(child, FollowedBy)]
    windows = 1 + bool(sequences)
    windows += any(
        isinstance(plan.terms[term], CorrelationTerm)
        for child in sequences
        for term in _negated_terms(child)
    )
    reach_ms = (windows + _delay_windows(plan)) * longest_window_ms(plan)
    return reach_ms + _CLOCKS * uncertainty_ms(plan, sources or {})


def look_ahead_ms(plan: PolicyPlan, sources: Mapping[str, PushSource] | None = None) -> int:
    """How long after a detection's time an event can lie that has a part in it (exclusive).

    Mostly none. But a match may turn out not to be minimal, or a mixed clause may have an earlier
    occurrence, by an `X FOLLOWED-BY NOT Y` that is decided up to two windows later. And where a
    mixed clause is satisfied by an absence among tables, that holds from `t0` on, but counts only
    when nothing positive came within a window.
    """
    if isinstance(plan, SituationPlan):
        return 0
    unsure_ms = _CLOCKS * uncertainty_ms(plan, sources or {})
    awaited = any(isinstance(c, FollowedBy) and c.second_negated for c in _children(plan))
    if awaited:
        return 2 * longest_window_ms(plan) + unsure_ms
    windows = any(_is_mixed(clause) for clause in plan.clauses)
    return windows * longest_window_ms(plan) + unsure_ms


def explain_partitioning(
    plan: PolicyPlan, sources: Mapping[str, PushSource] | None = None, pull: PullData | None = None
) -> str:
    """One sentence for people: how this plan is spread over Spark and why. Without the tables
    nobody can tell by which identity.
    """
    known = sources or {}
    reason = why_in_one_piece(plan, known)
    if not reason and isinstance(plan, Plan):
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


BEGIN_OF_TIME = -END_OF_TIME
_SAMPLES = 65_536
_WORTH = 0.9

Shared = tuple[tuple[Key, ...], tuple[int, ...]]
"""Plans that run together, and the key of each; no keys: they are not parted."""


class HistoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a history: the plans that run over it, the rows they read, what they own."""

    plans: tuple[int, ...] = ()
    """Indices into the job's plans."""
    begin: int = BEGIN_OF_TIME
    """It owns detections from this time on..."""
    until: int = END_OF_TIME
    """...up to before this one."""
    read_from: int = BEGIN_OF_TIME
    """It reads rows from this time on..."""
    read_until: int = END_OF_TIME
    """...and decides up to before this one."""
    bucket: int = 0
    """It owns the identities of this bucket..."""
    buckets: int = 1
    """...of so many."""
    keys: tuple[Key, ...] = ()
    """By which its plans are divided, one for each; none: they are not."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a job."""

    parts: tuple[HistoryPart, ...]
    bounds: tuple[int, ...] = ()
    """Where the slices meet; empty when there is one slice or none."""
    slices: int = 0
    look_back_ms: int = 0
    """How much before its begin a slice reads."""
    look_ahead_ms: int = 0
    """How much after its end a slice reads."""
    reasons: dict[str, str] = {}
    """Of each policy that is not cut into slices why, and what is done instead."""


def lay_out_history(
    plans: Sequence[PolicyPlan],
    pull: PullData | None,
    groups: Sequence[GroupAt],
    *,
    partitions: int,
    buckets: int,
    sources: Mapping[str, PushSource] | None = None,
    bounds: tuple[int, ...] | None = None,
) -> Layout:
    """Parts for all plans, those that take longest first: whole histories, then slices that hold
    about equally many rows, or meet at `bounds`.

    `pull`: None if tables change in the history; then no plan is divided by identity, since
    buckets depend on the tables.
    """
    known = sources or {}
    reasons = {plan.policy: reason for plan in plans if (reason := why_in_one_piece(plan, known))}
    sliced = tuple(i for i, plan in enumerate(plans) if plan.policy not in reasons)
    parts: list[HistoryPart] = []
    for keys, own in _together(plans, reasons, pull, known, buckets):
        count = buckets if keys else 1
        parts += [
            HistoryPart(plans=own, keys=keys, bucket=part, buckets=count) for part in range(count)
        ]
    back = max((look_back_ms(plans[i], known) for i in sliced), default=0)
    ahead = max((look_ahead_ms(plans[i], known) for i in sliced), default=0)
    if bounds is None or not sliced:
        bounds = slice_bounds(_sampled(groups), partitions) if sliced else ()
    if sliced:
        parts += [
            HistoryPart(
                plans=sliced,
                begin=begin,
                until=until,
                read_from=begin if begin == BEGIN_OF_TIME else begin - back,
                read_until=min(until + ahead, END_OF_TIME),
            )
            for begin, until in pairwise((BEGIN_OF_TIME, *bounds, END_OF_TIME))
        ]
    return Layout(
        parts=tuple(parts),
        bounds=bounds,
        slices=len(bounds) + 1 if sliced else 0,
        look_back_ms=back,
        look_ahead_ms=ahead,
        reasons=reasons,
    )


def slice_bounds(times: npt.NDArray[np.int64], partitions: int) -> tuple[int, ...]:
    """Where to cut so that each part has about equally many of the times."""
    if partitions < 2 or not len(times):
        return ()
    ordered = np.sort(times)
    cuts = ordered[np.arange(1, partitions) * len(ordered) // partitions]
    return tuple(int(cut) for cut in np.unique(cuts) if cut > ordered[0])


def _together(
    plans: Sequence[PolicyPlan],
    reasons: Mapping[str, str],
    pull: PullData | None,
    sources: Mapping[str, PushSource],
    most: int,
) -> list[Shared]:
    """Plans that are not sliced, with their keys: who wants the same readings at the same places
    runs together. Plans without a key make at most `most` pieces; families stay together, and so do
    situations that read the same streams, which share their values.
    """
    keyed: list[tuple[list[Key], list[int]]] = []
    alone: list[PolicyPlan] = []
    for number, plan in enumerate(plans):
        if plan.policy not in reasons:
            continue
        key = "" if pull is None else choose_key(plan, pull, sources)
        if isinstance(key, str) or pull is None:
            alone.append(plan)
            continue
        home = next((own for own in keyed if _fits(own[0], key, pull)), None)
        if home is None:
            keyed.append(([key], [number]))
        else:
            home[0].append(key)
            home[1].append(number)
    numbers = {plan.policy: number for number, plan in enumerate(plans)}
    pieces: list[list[int]] = [[] for _ in range(most)]
    for family in _families(alone):
        min(pieces, key=len).extend(numbers[plan.policy] for plan in family)
    whole: list[Shared] = [((), tuple(piece)) for piece in pieces if piece]
    return [*whole, *((tuple(keys), tuple(own)) for keys, own in keyed)]


def _families(plans: Sequence[PolicyPlan]) -> list[list[PolicyPlan]]:
    found: list[list[PolicyPlan]] = [
        list(family)
        for _, family in gather_families([plan for plan in plans if isinstance(plan, Plan)])
    ]
    by_streams: dict[tuple[str, ...], list[PolicyPlan]] = {}
    for plan in plans:
        if isinstance(plan, SituationPlan):
            by_streams.setdefault(plan.streams(), []).append(plan)
    return [*found, *by_streams.values()]


def _fits(together: Sequence[Key], key: Key, pull: PullData) -> bool:
    """Whether one more plan beside others makes few readings go to more buckets than before."""
    if any((key.own, key.others) == (other.own, other.others) for other in together):
        return True
    least = min(key.share, *(other.share for other in together))
    return joint_share([*together, key], pull) >= _WORTH * least


def _sampled(groups: Sequence[GroupAt]) -> npt.NDArray[np.int64]:
    """Times spread over row groups as their rows may be."""
    total = sum(at.facts.rows for at in groups if at.facts.first is not None)
    step = max(total // _SAMPLES, 1)
    parts = [
        np.linspace(at.first, at.last, max(at.facts.rows // step, 2)).astype(np.int64)
        for at in groups
        if at.facts.first is not None
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
