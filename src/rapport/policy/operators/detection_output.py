"""Turns decided matches into detections: with bindings and causes, in output order, without
uncertain and throttled ones. [PO-3, PO-7, PO-13]"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided, detection_order, unique_undecided
from rapport.policy.operators.columns import Array, Columns, Rows, take
from rapport.policy.operators.guard_filter import GuardFilter, saved_detection
from rapport.policy.operators.plan_shape import PlanShape
from rapport.policy.operators.uncertainty import SourceSilence, absence_uncertainty
from rapport.policy.operators.variants import FamilyMembers, VaryingProperty
from rapport.policy.operators.window import Window, causes_of_rows
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
        kept = [item for item in each_detection_once(due) if self._is_new(item)]
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
        self._held = [saved_detection(policy, version, *one) for one in state["held"]]
        self._reported = {
            tuple((alias, id) for alias, id in key): time for time, key in state["reported"]
        }
        self.suppressed = state["suppressed"]

    def _is_new(self, item: Detection) -> bool:
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
    """Collects the detections of an operator and emits them in output order; throttles them by
    policy. In a family, bindings and causes of a match are computed once and shared by the
    detections of all members."""

    def __init__(
        self,
        plan: Plan,
        shape: PlanShape,
        window: Window,
        silence: SourceSilence | None,
        members: FamilyMembers | None = None,
        counts: SuppressionFilter | None = None,
    ) -> None:
        """`members`: the family, None for a single plan; `counts`: which suppressed detections are
        counted, None: all."""
        self._plan, self._window, self._members, self._counts = plan, window, members, counts
        self._version = plan.version() if members is None else ""
        self._uncertainty = absence_uncertainty(plan, shape, silence, window.uncertainty_ms)
        self._throttles: dict[str, Throttle] = {}
        self._undecided: list[Undecided] = []
        self._matches: list[Detection] = []
        """Of a family without policy and version."""
        self._pairs: list[tuple[Rows, Rows]] = []
        """Matches and the family members for which they count."""

    def take(self, frame: Columns, times: Array) -> None:
        """Adds decided matches with the times of their detections."""
        if not len(times):
            return
        if self._members is not None:
            self._take_for_members(self._members, frame, times)
            return
        found = detections_of(self._window, self._plan.policy, self._version, frame, times)
        if self._uncertainty is not None:
            silent = self._uncertainty.silent(found, frame)
            pairs = list(zip(found, silent, strict=True))
            self._undecided += [Undecided.of(item, sources) for item, sources in pairs if sources]
            found = [item for item, sources in pairs if not sources]
        self._matches += found

    def _take_for_members(self, members: FamilyMembers, frame: Columns, times: Array) -> None:
        varying = members.varying
        if isinstance(varying, VaryingProperty) and not varying.absent:
            frame = self._window.needs.of_alias(varying, frame)
        rows, numbers = members.pairs(frame)
        if not len(rows):
            return
        used, places = np.unique(rows, return_inverse=True)
        frame, times = take(frame, used), times[used]
        found = detections_of(self._window, "", "", frame, times)
        if self._uncertainty is not None:
            silent = self._uncertainty.silent(found, frame)
            places, numbers = self._certain(members, found, silent, places, numbers)
        self._pairs.append((places + len(self._matches), numbers))
        self._matches += found

    def keep_guarded(self, guard: GuardFilter, readings: pa.RecordBatch, watermark: int) -> None:
        """Keeps the detections of a single plan for which its guard is true; the guard keeps the
        uncertain ones."""
        assert self._members is None, "a plan with a guard is in no family"
        found: list[Detection | Undecided] = [*self._matches, *self.take_undecided()]
        self._matches = guard.passed(found, readings, watermark)

    def release(self, settled_until: int) -> list[Detection]:
        """The detections to emit now. No detection before `settled_until` will be added; with a
        throttle, later ones wait."""
        matches, self._matches = self._matches, []
        if self._members is None:
            found = each_detection_once(matches) if len(matches) > 1 else matches
        else:
            found = self._detections(self._members, matches) if matches else []
        if not self.holds_back:
            return found
        for item in found:
            self._throttle(item.policy).take([item])
        kept = [one for each in self._throttles.values() for one in each.release(settled_until)]
        return in_output_order(kept)

    def state(self) -> dict[str, Any] | None:
        """The throttle of a single plan, or those of a family by policy."""
        if self._members is not None:
            return {policy: each.state() for policy, each in self._throttles.items()}
        return self._throttle(self._plan.policy).state() if self.holds_back else None

    def restore(self, state: dict[str, Any] | None) -> None:
        self._throttles = {}
        if self._members is None:
            self.admit(self._plan.policy, state)
            return
        for policy, own in (state or {}).items():
            if policy in self._members:
                self.admit(policy, own)

    def admit(self, policy: str, state: dict[str, Any] | None) -> None:
        """Restores the throttle of a policy, also of a new member from another operator."""
        if self.holds_back and state is not None:
            members = self._members
            version = self._version if members is None else members.version(policy)
            self._throttle(policy).restore(state, policy, version)

    def release_member(self, policy: str) -> dict[str, Any] | None:
        """The throttle state of a policy, for the operator that continues it."""
        throttle = self._throttles.pop(policy, None)
        return None if throttle is None else throttle.state()

    def take_undecided(self) -> list[Undecided]:
        """Uncertain detections since the last call."""
        taken, self._undecided = self._undecided, []
        return unique_undecided(taken) if len(taken) > 1 else taken

    @property
    def holds_back(self) -> bool:
        """Whether detections wait until no earlier one can come."""
        return self._plan.once_per_ms is not None

    def suppressed_by(self, policy: str) -> int:
        return self._throttles[policy].suppressed if policy in self._throttles else 0

    def pending_until(self, watermark: int) -> int | None:
        """When the next waiting detection is emitted; one that is overdue waits for an undecided
        match."""
        held = [each.earliest() for each in self._throttles.values()]
        due = [time for time in held if time is not None and time >= watermark]
        return min(due) + 1 if due else None

    def _throttle(self, policy: str) -> Throttle:
        if policy not in self._throttles:
            self._throttles[policy] = Throttle(self._plan.once_per_ms or 0, self._counts)
        return self._throttles[policy]

    def _certain(
        self,
        members: FamilyMembers,
        found: list[Detection],
        silent: list[tuple[str, ...]],
        places: Rows,
        numbers: Rows,
    ) -> tuple[Rows, Rows]:
        """Keeps detections that a silent source makes uncertain as undecided; returns the
        others."""
        uncertain = np.array([bool(sources) for sources in silent], np.bool_)[places]
        rows = zip(places[uncertain].tolist(), numbers[uncertain].tolist(), strict=True)
        for place, member in rows:
            own, match = members.ordered[member], found[place]
            self._undecided.append(
                Undecided(
                    policy=own.policy,
                    version=own.version,
                    time=match.time,
                    bindings=match.bindings,
                    causes=match.causes,
                    silent=silent[place],
                )
            )
        return places[~uncertain], numbers[~uncertain]

    def _detections(self, members: FamilyMembers, found: list[Detection]) -> list[Detection]:
        """The detections of all added matches, each once per member, in output order."""
        matches, numbers = _each_match_once(found)
        places = np.concatenate([pair[0] for pair in self._pairs])
        member_numbers = np.concatenate([pair[1] for pair in self._pairs])
        self._pairs, ordered = [], members.ordered
        by_name = [ordered[place] for place in np.argsort(members.ranks).tolist()]
        times = np.unique([match.time for match in matches], return_inverse=True)[1]
        moments = times[numbers[places]]
        # One number that sorts by time, policy and match is cheaper than three keys.
        width, policies = len(matches), len(ordered)
        keys = (moments * policies + members.ranks[member_numbers]) * width + numbers[places]
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
        ids = window.identities[window.concepts[name[1:]]].ids
        codes = frame[name].tolist()
        columns.append([ids[code] if code >= 0 else None for code in codes])
    return [
        {name[1:]: id for name, id in zip(aliases, row, strict=True) if id is not None}
        for row in zip(*columns, strict=True)
    ]


def _each_match_once(found: list[Detection]) -> tuple[list[Detection], Rows]:
    """The distinct matches in output order, and for each match the number of its distinct one."""
    keys = [(item.time, tuple(item.bindings.items()), item.causes) for item in found]
    unique = dict(zip(keys, found, strict=True))
    ordered = sorted(unique.items(), key=lambda one: detection_order(one[1]))
    places = {key: place for place, (key, _) in enumerate(ordered)}
    return [item for _, item in ordered], np.array([places[key] for key in keys], np.int64)
