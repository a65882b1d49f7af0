"""What the operator of a family gives out: each match once, then a detection for every member for
whom it counts. [PO-3, PO-13]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rapport.core.detection import Detection, Undecided, detection_order, each_once
from rapport.policy.plan import Plan
from rapport.policy.runners.operators.doubt import absence_uncertainty
from rapport.policy.runners.operators.members import FamilyMembers
from rapport.policy.runners.operators.output_order import in_output_order
from rapport.policy.runners.operators.report import detections_of
from rapport.policy.runners.operators.shapes import PlanShape
from rapport.policy.runners.operators.table import Array, Columns, Rows, take
from rapport.policy.runners.operators.throttle import SuppressionFilter, Throttle
from rapport.policy.runners.operators.varying import VaryingProperty
from rapport.policy.runners.operators.window import Window
from rapport.policy.runners.silence import SourceSilence


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
