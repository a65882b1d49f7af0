"""Turns decided matches into detections: with bindings and causes, in output order, without
uncertain and throttled ones. [PO-3, PO-7, PO-13]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np

from rapport.core.detection import Detection, Undecided, detection_order, each_once
from rapport.policy.operators.columns import Array, Columns, Rows, take
from rapport.policy.operators.events import causes_of_rows
from rapport.policy.operators.plan_shape import PlanShape
from rapport.policy.operators.uncertainty import SourceSilence, absence_uncertainty
from rapport.policy.operators.variants import FamilyMembers, VaryingProperty
from rapport.policy.operators.window import Window
from rapport.policy.plan import Plan

_time = attrgetter("time")


def in_output_order(found: Iterable[Detection]) -> list[Detection]:
    """Sorted by `detection_order`; compares more than the time only for equal times, since that is
    expensive."""
    by_time = groupby(sorted(found, key=_time), _time)
    return [item for _, some in by_time for item in _of_one_time(list(some))]


def _of_one_time(found: list[Detection]) -> list[Detection]:
    return sorted(found, key=detection_order) if len(found) > 1 else found


Bindings = tuple[tuple[str, str], ...]
SuppressionFilter = Callable[[Detection], bool]


class Throttle:
    """`at most once per`: passes detections on in output order unless equal bindings were reported
    less than `once_per_ms` before.

    A detection may be found after a later one, so each is held until no earlier one can come.
    Remembers the bindings reported within `once_per_ms`.
    """

    def __init__(self, once_per_ms: int, counts: SuppressionFilter | None = None) -> None:
        """`counts`: whether a suppressed detection is counted; None: always."""
        self._once_per_ms, self._counts = once_per_ms, counts
        self._held: list[Detection] = []
        self._reported: dict[Bindings, int] = {}
        self.suppressed = 0

    def take(self, found: list[Detection]) -> None:
        self._held += found

    def release(self, before: int) -> list[Detection]:
        """The detections to report before a time; all of them must have been added."""
        due = [item for item in self._held if item.time < before]
        if not due:
            return []
        self._held = [item for item in self._held if item.time >= before]
        kept = [item for item in each_detection_once(due) if self._is_news(item)]
        self._forget(before - self._once_per_ms)
        return kept

    def earliest(self) -> int | None:
        """The time of the first held detection."""
        return min((item.time for item in self._held), default=None)

    def state(self) -> dict[str, Any]:
        return {
            "held": [[item.time, item.bindings, item.causes] for item in self._held],
            "reported": [[time, key] for key, time in self._reported.items()],
            "suppressed": self.suppressed,
        }

    def restore(self, state: dict[str, Any], policy: str, version: str) -> None:
        self._held = [
            Detection(
                policy=policy,
                version=version,
                time=time,
                bindings=dict(bindings),
                causes=tuple((at, id) for at, id in causes),
            )
            for time, bindings, causes in state["held"]
        ]
        self._reported = {
            tuple((alias, id) for alias, id in key): time for time, key in state["reported"]
        }
        self.suppressed = state["suppressed"]

    def _is_news(self, item: Detection) -> bool:
        key = tuple(sorted(item.bindings.items()))
        last = self._reported.get(key)
        if last is not None and item.time - last < self._once_per_ms:
            self.suppressed += self._counts is None or self._counts(item)
            return False
        # Reinserted, so that the oldest come first.
        self._reported.pop(key, None)
        self._reported[key] = item.time
        return True

    def _forget(self, until: int) -> None:
        stale = []
        for key, time in self._reported.items():
            if time > until:
                break
            stale.append(key)
        for key in stale:
            del self._reported[key]


def each_detection_once(found: list[Detection]) -> list[Detection]:
    """Distinct detections of one policy in output order; different occurrences may give
    equal ones."""
    if len({item.time for item in found}) == len(found):  # usually all differ
        return sorted(found, key=_time)
    unique = {(item.time, tuple(item.bindings.items()), item.causes): item for item in found}
    return in_output_order(unique.values())


class DetectionReport:
    """The detections of one plan."""

    def __init__(
        self,
        plan: Plan,
        shape: PlanShape,
        window: Window,
        silence: SourceSilence | None,
        counts: SuppressionFilter | None = None,
    ) -> None:
        """`counts`: which suppressed detections are counted; None: all."""
        self._plan, self._window, self._version = plan, window, plan.version()
        self._doubt = absence_uncertainty(plan, shape, silence, window.uncertainty_ms)
        self._throttle = None if plan.once_per_ms is None else Throttle(plan.once_per_ms, counts)
        self._undecided: list[Undecided] = []
        self._found: list[Detection] = []

    def take(self, frame: Columns, times: Array) -> None:
        """Adds decided matches with the times of their detections."""
        if not len(times):
            return
        found = detections_of(self._window, self._plan.policy, self._version, frame, times)
        self._found += self._certain(found, frame)

    def release(self, settled_until: int) -> list[Detection]:
        """The detections to emit now. No detection before `settled_until` will be added; with a
        throttle, later ones wait."""
        found, self._found = self._found, []
        if self._throttle is None:
            return each_detection_once(found) if len(found) > 1 else found
        self._throttle.take(found)
        return self._throttle.release(settled_until)

    def take_undecided(self) -> list[Undecided]:
        """Uncertain detections since the last call."""
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

    @property
    def holds_back(self) -> bool:
        """Whether detections wait until no earlier one can come."""
        return self._throttle is not None

    @property
    def suppressed(self) -> int:
        """The number of suppressed detections."""
        return 0 if self._throttle is None else self._throttle.suppressed

    def pending_until(self, watermark: int) -> int | None:
        """When the next waiting detection is emitted; one that is overdue waits for an undecided
        match."""
        held = None if self._throttle is None else self._throttle.earliest()
        return None if held is None or held < watermark else held + 1

    def state(self) -> dict[str, Any] | None:
        return None if self._throttle is None else self._throttle.state()

    def restore(self, state: dict[str, Any] | None) -> None:
        if self._throttle is not None and state is not None:
            self._throttle.restore(state, self._plan.policy, self._version)

    def _certain(self, found: list[Detection], frame: Columns) -> list[Detection]:
        """Keeps detections that a silent source makes uncertain as undecided; returns the
        others."""
        if self._doubt is None:
            return found
        doubts = self._doubt.silent(found, frame)
        self._undecided += [
            Undecided.of(item, silent) for item, silent in zip(found, doubts, strict=True) if silent
        ]
        return [item for item, silent in zip(found, doubts, strict=True) if not silent]


def detections_of(
    window: Window, policy: str, version: str, frame: Columns, times: Array
) -> list[Detection]:
    """One detection per row, including repeated ones."""
    names = [name for name in frame if name.startswith(("event", "other"))]
    numbers = np.column_stack([frame[name] for name in names])
    causes = causes_of_rows(window.events, window.sets, numbers)
    return [
        Detection(policy=policy, time=time, bindings=bound, causes=own, version=version)
        for time, bound, own in zip(times.tolist(), _bindings(window, frame), causes, strict=True)
    ]


def _bindings(window: Window, frame: Columns) -> list[dict[str, str]]:
    """Aliases and ids of each row; -1 marks a missing alias."""
    aliases = sorted(name for name in frame if name[0] == "@")
    columns = []
    for name in aliases:
        ids = window.identities[window.alias_concept(name[1:])].ids
        codes = frame[name].tolist()
        columns.append([ids[code] if code >= 0 else None for code in codes])
    return [
        {name[1:]: id for name, id in zip(aliases, row, strict=True) if id is not None}
        for row in zip(*columns, strict=True)
    ]


class FamilyReport:
    """The detections of a family of plans. Bindings and causes of a match are computed once and
    shared by the detections of all members."""

    def __init__(
        self,
        plan: Plan,
        shape: PlanShape,
        window: Window,
        silence: SourceSilence | None,
        members: FamilyMembers,
        counts: SuppressionFilter | None = None,
    ) -> None:
        """`counts`: which suppressed detections are counted; None: all."""
        self._counts = counts
        self._plan, self._window, self._members = plan, window, members
        self._doubt = absence_uncertainty(plan, shape, silence, window.uncertainty_ms)
        self._throttles: dict[str, Throttle] = {}
        self._undecided: list[Undecided] = []
        self._matches: list[Detection] = []
        self._pairs: list[tuple[Rows, Rows]] = []

    def take(self, frame: Columns, times: Array) -> None:
        """Adds matches that count for some member, with the times of their detections."""
        if not len(times):
            return
        varying = self._members.varying
        if isinstance(varying, VaryingProperty) and not varying.absent:
            frame = self._window.needs.of_alias(varying, frame)
        rows, who = self._members.pairs(frame)
        if not len(rows):
            return
        used, places = np.unique(rows, return_inverse=True)
        frame, times = take(frame, used), times[used]
        found = detections_of(self._window, "", "", frame, times)
        if self._doubt is not None:
            places, who = self._certain(found, frame, places, who)
        self._pairs.append((places + len(self._matches), who))
        self._matches += found

    def release(self, settled_until: int) -> list[Detection]:
        """The detections to emit now, in output order."""
        found = self._detections()
        if self._plan.once_per_ms is None:
            return found
        for item in found:
            self._throttle(item.policy).take([item])
        kept = [one for each in self._throttles.values() for one in each.release(settled_until)]
        return in_output_order(kept)

    def take_undecided(self) -> list[Undecided]:
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

    @property
    def holds_back(self) -> bool:
        return self._plan.once_per_ms is not None

    @property
    def suppressed(self) -> int:
        """The number of suppressed detections of all members."""
        return sum(each.suppressed for each in self._throttles.values())

    def suppressed_by(self, policy: str) -> int:
        return self._throttles[policy].suppressed if policy in self._throttles else 0

    def pending_until(self, watermark: int) -> int | None:
        held = [each.earliest() for each in self._throttles.values()]
        due = [time for time in held if time is not None and time >= watermark]
        return min(due) + 1 if due else None

    def state(self) -> dict[str, Any]:
        return {policy: each.state() for policy, each in self._throttles.items()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Restores the throttles of current members."""
        self._throttles = {}
        for policy, own in (state or {}).items():
            if policy in self._members:
                self.admit(policy, own)

    def admit(self, policy: str, state: dict[str, Any] | None) -> None:
        """Restores the throttle of a new member from another operator."""
        if state is not None and self._plan.once_per_ms is not None:
            version = self._members.version(policy)
            self._throttle(policy).restore(state, policy, version)

    def forget(self, policy: str) -> dict[str, Any] | None:
        """Removes a member's throttle and returns its state for another operator."""
        throttle = self._throttles.pop(policy, None)
        return None if throttle is None else throttle.state()

    def _throttle(self, policy: str) -> Throttle:
        if policy not in self._throttles:
            self._throttles[policy] = Throttle(self._plan.once_per_ms or 0, self._counts)
        return self._throttles[policy]

    def _certain(
        self, found: list[Detection], frame: Columns, places: Rows, who: Rows
    ) -> tuple[Rows, Rows]:
        """Keeps detections that a silent source makes uncertain as undecided; returns the
        others."""
        assert self._doubt is not None
        doubts = self._doubt.silent(found, frame)
        doubtful = np.array([bool(silent) for silent in doubts], np.bool_)[places]
        unsure = zip(places[doubtful].tolist(), who[doubtful].tolist(), strict=True)
        for place, member in unsure:
            own, match = self._members.ordered[member], found[place]
            self._undecided.append(
                Undecided(
                    policy=own.policy,
                    version=own.version,
                    time=match.time,
                    bindings=match.bindings,
                    causes=match.causes,
                    silent=doubts[place],
                )
            )
        return places[~doubtful], who[~doubtful]

    def _detections(self) -> list[Detection]:
        """The detections of all added matches, each once per member, in output order."""
        if not self._matches:
            return []
        matches, numbers = _each_match_once(self._matches)
        places = np.concatenate([pair[0] for pair in self._pairs])
        who = np.concatenate([pair[1] for pair in self._pairs])
        self._matches, self._pairs = [], []
        ordered = self._members.ordered
        by_name = [ordered[place] for place in np.argsort(self._members.ranks).tolist()]
        times = np.unique([match.time for match in matches], return_inverse=True)[1]
        moments = times[numbers[places]]
        # One number that sorts by time, policy and match is cheaper than three keys.
        width, policies = len(matches), len(ordered)
        keys = (moments * policies + self._members.ranks[who]) * width + numbers[places]
        keys.sort()
        keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
        rest, chosen = np.divmod(keys, width)
        chosen_members = (rest % policies).tolist()
        return [
            Detection(
                policy=member.policy,
                time=match.time,
                bindings=match.bindings,
                causes=match.causes,
                version=member.version,
            )
            for match, member in zip(
                map(matches.__getitem__, chosen.tolist()),
                map(by_name.__getitem__, chosen_members),
                strict=True,
            )
        ]


def _each_match_once(found: list[Detection]) -> tuple[list[Detection], Rows]:
    """The distinct matches in output order, and for each match the number of its distinct one."""
    keys = [(item.time, tuple(item.bindings.items()), item.causes) for item in found]
    unique = dict(zip(keys, found, strict=True))
    ordered = sorted(unique.items(), key=lambda one: detection_order(one[1]))
    places = {key: place for place, (key, _) in enumerate(ordered)}
    return [item for _, item in ordered], np.array([places[key] for key in keys], np.int64)
