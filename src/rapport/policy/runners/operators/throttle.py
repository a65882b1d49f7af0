"""`at most once per`: detections that say again what was said a moment ago are left out and
counted. [PO-3, PO-7]
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from rapport.core.detection import Detection
from rapport.policy.runners.operators.output_order import in_output_order

_time = attrgetter("time")
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
