"""What was given out a moment ago, so that it is not given out once more. Pure. [PO-7, PO-15]

Different occurrences may say the same: equal time, bindings and causes. Most often they are decided
together. Where something is awaited, one may be known when its time has come and another only when
no uncertain clock can change it any more: the same detection is then found in two batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from rapport.core.detection import Detection, Undecided

Output = TypeVar("Output", Detection, Undecided)

RecentOutput = dict[str, dict[str, int]]
"""By policy the ids of what was given out, and the watermark until which it may be found again."""


class OutputDedupe:
    """Remembers the ids of the policies of which something may be found twice, each for as long as
    it may; a look costs what is new and what is forgotten.
    """

    def __init__(self) -> None:
        self._given: RecentOutput = {}

    def news(self, found: list[Output], reach_ms: int) -> list[Output]:
        """What was not given out before, in the same order. `reach_ms`: how long after its time
        something may be found again.
        """
        return [item for item in found if self._is_news(item, item.time + reach_ms)]

    def forget_before(self, policies: Iterable[str], watermark: int) -> None:
        """What cannot be found again: everything before the watermark was decided and looked at.

        The oldest stand first, or nearly so; what stands behind a later one goes with it.
        """
        for policy in policies:
            own = self._given.get(policy, {})
            over: list[str] = []
            for id, until in own.items():
                if until >= watermark:
                    break
                over.append(id)
            for id in over:
                del own[id]
            if not own:
                self._given.pop(policy, None)

    def forget(self, policy: str) -> None:
        """It was stopped: what it gives out from now on is new."""
        self._given.pop(policy, None)

    def state(self, watermark: int) -> RecentOutput:
        """What `take_over` takes."""
        self.forget_before(list(self._given), watermark)
        return {policy: dict(own) for policy, own in self._given.items()}

    def take_over(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Goes on with what others gave out of these policies."""
        self._given |= {policy: dict(own) for policy, own in state.items()}

    def _is_news(self, item: Detection | Undecided, until: int) -> bool:
        own, id = self._given.setdefault(item.policy, {}), item.id()
        if id in own:
            return False
        own[id] = until
        return True
