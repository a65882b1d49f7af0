"""A changed policy beside the site's version over the same readings: what only one of them finds.
[PO-9, UX-3]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from rapport.core.detection import Detection, detection_order
from rapport.core.ids import content_id
from rapport.policy.plan import Plan

FoundBy = Literal["site", "changed"]


class ReplayDifference(msgspec.Struct, frozen=True):
    """A situation that one version found and the other did not."""

    found_by: FoundBy
    detection: Detection


class ReplayComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What two versions of a policy found; the same situation is the same time and bindings."""

    policy: str
    both: int
    differences: list[ReplayDifference]
    """In the order of the fixed output."""

    def only(self, by: FoundBy) -> list[Detection]:
        """What one version alone found."""
        return [one.detection for one in self.differences if one.found_by == by]


class _DifferenceLine(msgspec.Struct):
    """Field order is the key order of the output."""

    policy: str
    found_by: FoundBy
    time: int
    bindings: dict[str, str]
    causes: list[str]


def renamed_plan(plan: Plan) -> Plan:
    """The changed plan under a name of its own, so that it can run beside the site's."""
    return msgspec.structs.replace(
        plan, policy=f"{plan.policy} changed {content_id(plan.policy)[:8]}"
    )


def compare_plans(site: Plan, changed: Plan, found: Iterable[Detection]) -> ReplayComparison:
    """Parts what both plans found; `changed` as `beside` gave it."""
    ours: dict[tuple[object, ...], Detection] = {}
    theirs: dict[tuple[object, ...], Detection] = {}
    for one in found:
        if one.policy == site.policy:
            ours.setdefault(_situation_key(one), one)
        elif one.policy == changed.policy:
            named = msgspec.structs.replace(one, policy=site.policy)
            theirs.setdefault(_situation_key(one), named)
    differences = [ReplayDifference("site", one) for key, one in ours.items() if key not in theirs]
    differences += [
        ReplayDifference("changed", one) for key, one in theirs.items() if key not in ours
    ]
    differences.sort(key=lambda one: (detection_order(one.detection), one.found_by))
    return ReplayComparison(
        policy=site.policy, both=len(ours.keys() & theirs.keys()), differences=differences
    )


def difference_lines(differences: Sequence[ReplayDifference]) -> bytes:
    """One line of JSON for each."""
    lines = [
        _DifferenceLine(
            one.detection.policy,
            one.found_by,
            one.detection.time,
            dict(sorted(one.detection.bindings.items())),
            [id for _time, id in one.detection.causes],
        )
        for one in differences
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _situation_key(one: Detection) -> tuple[object, ...]:
    return (one.time, *sorted(one.bindings.items()))
