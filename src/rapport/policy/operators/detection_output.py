"""The order in which detections are given out. [PO-7]

`at most once per`: detections that say again what was said a moment ago are left out and
counted. [PO-3, PO-7]

What an operator gives out: detections with identities and causes, without those in doubt and
those said a moment ago. [PO-3, PO-7]

What the operator of a family gives out: each match once, then a detection for every member for
whom it counts. [PO-3, PO-13]
"""

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
    """As sorted by `detection_order`, of which all but the time is dear and seldom looked at."""
    by_time = groupby(sorted(found, key=_time), _time)
    return [item for _, some in by_time for item in _of_one_time(list(some))]


def _of_one_time(found: list[Detection]) -> list[Detection]:
    return sorted(found, key=detection_order) if len(found) > 1 else found


Bindings = tuple[tuple[str, str], ...]
SuppressionFilter = Callable[[Detection], bool]


class Throttle:
    """Takes detections as they are found and gives on, in the order of the output, those whose
    bindings were not reported less than `once_per_ms` before.

    A detection may be found after one of a later time, so each is held until none of an earlier
    time can come. Remembers the bindings reported within `once_per_ms`.
    """

    def __init__(self, once_per_ms: int, counts: SuppressionFilter | None = None) -> None:
        """`counts`: whether one that is left out is to be counted here; None: all are."""
        self._once_per_ms, self._counts = once_per_ms, counts
        self._held: list[Detection] = []
        self._reported: dict[Bindings, int] = {}
        self.suppressed = 0

    def take(self, found: list[Detection]) -> None:
        """Holds what was found."""
        self._held += found

    def release(self, before: int) -> list[Detection]:
        """What is reported of the detections before a time; all of them must have been taken."""
        due = [item for item in self._held if item.time < before]
        if not due:
            return []
        self._held = [item for item in self._held if item.time >= before]
        kept = [item for item in each_detection_once(due) if self._is_news(item)]
        self._forget(before - self._once_per_ms)
        return kept

    def earliest(self) -> int | None:
        """The time of the first detection held."""
        return min((item.time for item in self._held), default=None)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {
            "held": [[item.time, item.bindings, item.causes] for item in self._held],
            "reported": [[time, key] for key, time in self._reported.items()],
            "suppressed": self.suppressed,
        }

    def restore(self, state: dict[str, Any], policy: str, version: str) -> None:
        """Takes over what `state` gave."""
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
        # Taken out first, so that the oldest come first.
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
    """Each detection once, in the order of the output: different occurrences may say the same. All
    are of one policy.
    """
    if len({item.time for item in found}) == len(found):  # most often none is like another
        return sorted(found, key=_time)
    unique = {(item.time, tuple(item.bindings.items()), item.causes): item for item in found}
    return in_output_order(unique.values())


class DetectionReport:
    """Turns decided matches into detections, in the order of the output."""

    def __init__(
        self,
        plan: Plan,
        shape: PlanShape,
        window: Window,
        silence: SourceSilence | None,
        counts: SuppressionFilter | None = None,
    ) -> None:
        """`counts`: which of those left out are counted; None: all."""
        self._plan, self._window, self._version = plan, window, plan.version()
        self._doubt = absence_uncertainty(plan, shape, silence, window.uncertainty_ms)
        self._throttle = None if plan.once_per_ms is None else Throttle(plan.once_per_ms, counts)
        self._undecided: list[Undecided] = []
        self._found: list[Detection] = []

    def take(self, frame: Columns, times: Array) -> None:
        """Matches that survived, with the times of their detections."""
        if not len(times):
            return
        found = detections_of(self._window, self._plan.policy, self._version, frame, times)
        self._found += self._certain(found, frame)

    def release(self, settled_until: int) -> list[Detection]:
        """What is given out now. No detection before `settled_until` will be taken any more; where
        equal ones are left out, what is later waits for its turn.
        """
        found, self._found = self._found, []
        if self._throttle is None:
            return each_detection_once(found) if len(found) > 1 else found
        self._throttle.take(found)
        return self._throttle.release(settled_until)

    def take_undecided(self) -> list[Undecided]:
        """What was in doubt since the last call."""
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

    @property
    def holds_back(self) -> bool:
        """Whether detections wait until none before them can come."""
        return self._throttle is not None

    @property
    def suppressed(self) -> int:
        """How many were left out."""
        return 0 if self._throttle is None else self._throttle.suppressed

    def pending_until(self, watermark: int) -> int | None:
        """When the next detection that waits for its turn is given out; what waits although its
        time has passed waits for a match that is not decided.
        """
        held = None if self._throttle is None else self._throttle.earliest()
        return None if held is None or held < watermark else held + 1

    def state(self) -> dict[str, Any] | None:
        """What `restore` takes."""
        return None if self._throttle is None else self._throttle.state()

    def restore(self, state: dict[str, Any] | None) -> None:
        """Takes over what `state` gave."""
        if self._throttle is not None and state is not None:
            self._throttle.restore(state, self._plan.policy, self._version)

    def _certain(self, found: list[Detection], frame: Columns) -> list[Detection]:
        """What no silent source makes doubtful; the rest is kept as undecided."""
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
    """One detection per row, in their order, repeated ones too."""
    names = [name for name in frame if name.startswith(("event", "other"))]
    numbers = np.column_stack([frame[name] for name in names])
    causes = causes_of_rows(window.events, window.sets, numbers)
    return [
        Detection(policy=policy, time=time, bindings=bound, causes=own, version=version)
        for time, bound, own in zip(times.tolist(), _bindings(window, frame), causes, strict=True)
    ]


def _bindings(window: Window, frame: Columns) -> list[dict[str, str]]:
    """Aliases and ids of each row; -1 stands for an alias the row does not have."""
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
    """Like `Report`, for many plans. Identities and causes of a match are made once and shared by
    the detections of all members; making these is what a family costs.
    """

    def __init__(
        self,
        plan: Plan,
        shape: PlanShape,
        window: Window,
        silence: SourceSilence | None,
        members: FamilyMembers,
        counts: SuppressionFilter | None = None,
    ) -> None:
        """`counts`: which of those left out are counted; None: all."""
        self._counts = counts
        self._plan, self._window, self._members = plan, window, members
        self._doubt = absence_uncertainty(plan, shape, silence, window.uncertainty_ms)
        self._throttles: dict[str, Throttle] = {}
        self._undecided: list[Undecided] = []
        self._matches: list[Detection] = []
        self._pairs: list[tuple[Rows, Rows]] = []

    def take(self, frame: Columns, times: Array) -> None:
        """Matches that survived for somebody, with the times of their detections."""
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
        """As for one plan, in the order of the output."""
        found = self._detections()
        if self._plan.once_per_ms is None:
            return found
        for item in found:
            self._throttle(item.policy).take([item])
        kept = [one for each in self._throttles.values() for one in each.release(settled_until)]
        return in_output_order(kept)

    def take_undecided(self) -> list[Undecided]:
        """What was in doubt since the last call."""
        taken, self._undecided = self._undecided, []
        return each_once(taken) if len(taken) > 1 else taken

    @property
    def holds_back(self) -> bool:
        """Whether detections wait until none before them can come."""
        return self._plan.once_per_ms is not None

    @property
    def suppressed(self) -> int:
        """How many were left out, of all members."""
        return sum(each.suppressed for each in self._throttles.values())

    def suppressed_by(self, policy: str) -> int:
        """How many were left out of one member."""
        return self._throttles[policy].suppressed if policy in self._throttles else 0

    def pending_until(self, watermark: int) -> int | None:
        """When the next detection that waits for its turn is given out."""
        held = [each.earliest() for each in self._throttles.values()]
        due = [time for time in held if time is not None and time >= watermark]
        return min(due) + 1 if due else None

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {policy: each.state() for policy, each in self._throttles.items()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Takes over what `state` gave of those that are members."""
        self._throttles = {}
        for policy, own in (state or {}).items():
            if policy in self._members:
                self.admit(policy, own)

    def admit(self, policy: str, state: dict[str, Any] | None) -> None:
        """Takes over what another operator knew of what a new member reported."""
        if state is not None and self._plan.once_per_ms is not None:
            version = self._members.version(policy)
            self._throttle(policy).restore(state, policy, version)

    def forget(self, policy: str) -> dict[str, Any] | None:
        """What is known of what a member reported, for another operator; here no longer."""
        throttle = self._throttles.pop(policy, None)
        return None if throttle is None else throttle.state()

    def _throttle(self, policy: str) -> Throttle:
        if policy not in self._throttles:
            self._throttles[policy] = Throttle(self._plan.once_per_ms or 0, self._counts)
        return self._throttles[policy]

    def _certain(
        self, found: list[Detection], frame: Columns, places: Rows, who: Rows
    ) -> tuple[Rows, Rows]:
        """What no silent source makes doubtful; the rest is kept as undecided."""
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
        """Of all matches taken, each once per member, in the order of the output."""
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
        # One number that sorts as time, policy, match: cheaper than sorting by three.
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
    """The different ones in the order of the output, and for each found which it is."""
    keys = [(item.time, tuple(item.bindings.items()), item.causes) for item in found]
    unique = dict(zip(keys, found, strict=True))
    ordered = sorted(unique.items(), key=lambda one: detection_order(one[1]))
    places = {key: place for place, (key, _) in enumerate(ordered)}
    return [item for _, item in ordered], np.array([places[key] for key in keys], np.int64)
