"""How the work on a history is divided: slices of time, buckets of identities, plans in one piece,
and who answers for which row group. [PI-5, PO-8]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.keys import Key, choose_key, joint_share
from rapport.pipeline.history.lateness import GroupAt
from rapport.pipeline.history.partitioning import look_ahead_ms, look_back_ms, why_in_one_piece
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME, PullData
from rapport.policy.plan import Plan
from rapport.policy.runner.deployed_plans import gather_families

BEGIN_OF_TIME = -END_OF_TIME
_SAMPLES = 65_536
_WORTH = 0.9

Shared = tuple[tuple[Key, ...], tuple[int, ...]]
"""Plans that run together, and the key of each; no keys: they are not parted."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker does at a time: runs plans over a part of history and keeps what it owns."""

    plans: tuple[int, ...] = ()
    """Indices into the job's plans; none: it only judges row groups."""
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
    """By which its plans are parted, one for each; none: they are not."""
    own: tuple[int, ...] = ()
    """The row groups that it answers for: facts, faults, late readings."""

    def reads(self, at: GroupAt) -> bool:
        """Whether rows of the group may lie in what it reads."""
        return at.first < self.read_until and at.last >= self.read_from


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks of a job."""

    tasks: tuple[Task, ...]
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
    plans: Sequence[Plan],
    pull: PullData | None,
    groups: Sequence[GroupAt],
    *,
    partitions: int,
    buckets: int,
    sources: Mapping[str, PushSource] | None = None,
    end: int = END_OF_TIME,
    bounds: tuple[int, ...] | None = None,
) -> Layout:
    """Tasks for all plans, those that take longest first: whole histories, then slices that hold
    about equally many rows, or meet at `bounds`. Everything is decided up to before `end`.

    `pull`: None when tables change in the history; then no plan is cut by identity, since who is
    whose depends on them.
    """
    known = sources or {}
    reasons = {plan.policy: reason for plan in plans if (reason := why_in_one_piece(plan, known))}
    sliced = tuple(i for i, plan in enumerate(plans) if plan.policy not in reasons)
    tasks: list[Task] = []
    for keys, own in _together(plans, reasons, pull, known, buckets):
        parts = buckets if keys else 1
        tasks += [
            Task(plans=own, keys=keys, bucket=part, buckets=parts, read_until=end)
            for part in range(parts)
        ]
    back = max((look_back_ms(plans[i], known) for i in sliced), default=0)
    ahead = max((look_ahead_ms(plans[i], known) for i in sliced), default=0)
    if bounds is None or not sliced:
        bounds = slice_bounds(_sampled(groups), partitions) if sliced else ()
    if sliced:
        tasks += [
            Task(
                plans=sliced,
                begin=begin,
                until=until,
                read_from=begin if begin == BEGIN_OF_TIME else begin - back,
                read_until=min(until + ahead, end),
            )
            for begin, until in pairwise((BEGIN_OF_TIME, *bounds, END_OF_TIME))
        ]
    return Layout(
        tasks=tuple(tasks),
        bounds=bounds,
        slices=len(bounds) + 1 if sliced else 0,
        look_back_ms=back,
        look_ahead_ms=ahead,
        reasons=reasons,
    )


def with_owners(
    layout: Layout,
    read_by: Sequence[Iterable[int]],
    more: int,
    unread: Collection[int] = frozenset(),
) -> Layout:
    """The layout in which one task answers for each group: one that reads it anyway (`read_by`
    says for each which do), else one of at most `more` further tasks that only judge. For those
    `unread` that no task reads nobody answers.
    """
    own: list[list[int]] = [[] for _ in layout.tasks]
    left: list[int] = []
    for number, readers in enumerate(read_by):
        chosen = min(readers, key=lambda task: len(own[task]), default=None)
        if chosen is not None:
            own[chosen].append(number)
        elif number not in unread:
            left.append(number)
    tasks = [
        msgspec.structs.replace(task, own=tuple(mine))
        for task, mine in zip(layout.tasks, own, strict=True)
    ]
    for part in np.array_split(left, min(more, len(left))) if left and more else ():
        tasks.append(Task(own=tuple(int(number) for number in part)))
    return msgspec.structs.replace(layout, tasks=tuple(tasks))


def slice_bounds(times: npt.NDArray[np.int64], partitions: int) -> tuple[int, ...]:
    """Where to cut so that each part has about equally many of the times."""
    if partitions < 2 or not len(times):
        return ()
    ordered = np.sort(times)
    cuts = ordered[np.arange(1, partitions) * len(ordered) // partitions]
    return tuple(int(cut) for cut in np.unique(cuts) if cut > ordered[0])


def _together(
    plans: Sequence[Plan],
    reasons: Mapping[str, str],
    pull: PullData | None,
    sources: Mapping[str, PushSource],
    most: int,
) -> list[Shared]:
    """Plans that are not sliced, with their keys: who wants the same readings at the same places
    runs together. Plans without a key make at most `most` pieces, families staying together.
    """
    keyed: list[tuple[list[Key], list[int]]] = []
    alone: list[Plan] = []
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
    for _, family in gather_families(alone):
        min(pieces, key=len).extend(numbers[plan.policy] for plan in family)
    whole: list[Shared] = [((), tuple(piece)) for piece in pieces if piece]
    return [*whole, *((tuple(keys), tuple(own)) for keys, own in keyed)]


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
