"""`while`: a match becomes a detection only if the guard is true for its identities at its time.
[SI-9]"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided, unique_undecided


class GuardQuestion(NamedTuple):
    """Whether the guard is true at a time for the identities of some aliases."""

    time: int
    bindings: Mapping[str, str]


class Guard(Protocol):
    """The truth of a guard over event time."""

    def begin_at(self, time: int) -> None:
        """Sets the start if there is none: the time of the first reading of any stream."""

    def are_true(
        self, readings: pa.RecordBatch, watermark: int, questions: Sequence[GuardQuestion]
    ) -> list[bool]:
        """Takes readings sorted by (time, id), all before the watermark, and answers questions
        before it; what is unknown is not true."""

    def advance_to(self, watermark: int) -> None:
        """Time advances to the watermark without readings, before tables change."""

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None: ...


GuardMaker = Callable[[int], Guard]
"""Makes a guard; takes how long after its time a match may be decided."""


class GuardFilter:
    """Passes matches for which the guard is true.

    A match may be decided when the watermark is its time. It waits until the watermark has passed,
    since all readings of its time count.
    """

    def __init__(self, guard: Guard, policy: str, version: str) -> None:
        self._guard, self._policy, self._version = guard, policy, version
        self._waiting: list[Detection | Undecided] = []
        self._undecided: list[Undecided] = []

    def begin_at(self, time: int) -> None:
        self._guard.begin_at(time)

    def passed(
        self,
        found: Sequence[Detection | Undecided],
        readings: pa.RecordBatch,
        watermark: int,
    ) -> list[Detection]:
        """The detections that pass, of those found and those that waited; undecided ones are kept
        until they are taken."""
        waiting = [*self._waiting, *found]
        ready = [item for item in waiting if item.time < watermark]
        self._waiting = [item for item in waiting if item.time >= watermark]
        questions = [GuardQuestion(item.time, item.bindings) for item in ready]
        answers = self._guard.are_true(readings, watermark, questions)
        passed = [item for item, is_true in zip(ready, answers, strict=True) if is_true]
        self._undecided += [item for item in passed if isinstance(item, Undecided)]
        return [item for item in passed if isinstance(item, Detection)]

    def take_undecided(self) -> list[Undecided]:
        """Uncertain detections that passed since the last call."""
        taken, self._undecided = self._undecided, []
        return unique_undecided(taken) if len(taken) > 1 else taken

    def pending_until(self) -> int | None:
        """The watermark at which something that waits is looked at."""
        first = min((item.time for item in self._waiting), default=None)
        return None if first is None else first + 1

    def advance_to(self, watermark: int) -> None:
        self._guard.advance_to(watermark)

    def state(self) -> dict[str, Any]:
        waiting = [
            [item.time, item.bindings, item.causes, getattr(item, "silent", None)]
            for item in self._waiting
        ]
        return {"waiting": waiting, "truth": self._guard.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._waiting = []
        for *values, silent in state["waiting"]:
            found = saved_detection(self._policy, self._version, *values)
            self._waiting.append(found if silent is None else Undecided.of(found, tuple(silent)))
        self._undecided = []
        self._guard.restore(state["truth"])


def saved_detection(
    policy: str, version: str, time: int, bindings: Mapping[str, str], causes: Iterable[Cause]
) -> Detection:
    """A detection from the values of a state."""
    return Detection(
        policy=policy,
        version=version,
        time=time,
        bindings=dict(bindings),
        causes=tuple((at, id) for at, id in causes),
    )
