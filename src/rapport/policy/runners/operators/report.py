"""What an operator gives out: detections with identities and causes, without those in doubt and
those said a moment ago. [PO-3, PO-7]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rapport.core.detection import Detection, Undecided, each_once
from rapport.policy.plan import Plan
from rapport.policy.runners.operators.causes import causes_of_rows
from rapport.policy.runners.operators.doubt import absence_uncertainty
from rapport.policy.runners.operators.shapes import PlanShape
from rapport.policy.runners.operators.table import Array, Columns
from rapport.policy.runners.operators.throttle import (
    SuppressionFilter,
    Throttle,
    each_detection_once,
)
from rapport.policy.runners.operators.window import Window
from rapport.policy.runners.silence import SourceSilence


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
