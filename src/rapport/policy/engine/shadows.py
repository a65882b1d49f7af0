"""Shadow versions: a new version of a policy runs beside the active one, and their detections are
compared. Pure. [PO-9]

Two detections are equal when time and bindings are. Detections of the active version that rest on
readings from before the shadow started do not count, nor do detections before the shadow has seen
enough readings to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rapport.core.detection import Cause, Detection
from rapport.core.errors import Problem
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.ids import content_id
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.plan_shape import longest_window_ms
from rapport.policy.plan import Plan, longest_duration_ms
from rapport.policy.runner.local import LocalRunner

SHADOW_TYPE = "rapport.policy.shadow"

FoundBy = Literal["running", "shadow"]
_RUNNING, _SHADOW, _BOTH = 1, 2, 3
_Key = tuple[int, tuple[tuple[str, str], ...]]


class ComparedVersions(msgspec.Struct, frozen=True):
    policy: str
    running: str
    shadow: str


class ShadowDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A situation that only one version detected."""

    policy: str
    found_by: FoundBy
    time: int
    bindings: dict[str, str]
    causes: tuple[Cause, ...]
    running: str
    shadow: str


class ShadowTally(msgspec.Struct, frozen=True):
    """Situations that both, or only one, have detected so far."""

    both: int = 0
    only_running: int = 0
    only_shadow: int = 0


class _Situation(msgspec.Struct, array_like=True):
    """A situation, the versions that found it, and its causes."""

    time: int
    bindings: dict[str, str]
    by: int
    causes: tuple[Cause, ...]


class ShadowState(msgspec.Struct):
    """The saved state of a comparison and of the shadow's runner."""

    versions: ComparedVersions
    began: int
    judged_from: int
    tally: ShadowTally
    open: list[_Situation]
    runner: bytes = b""


def longest_memory(plan: Plan) -> int:
    """How long a reading may matter to the plan: its longest window, state or silence."""
    return max(longest_window_ms(plan), longest_duration_ms(plan))


class ShadowComparison:
    """Matches the detections of two versions; keeps those that the other version may still find."""

    def __init__(self, running: Plan, shadow: Plan, began: int) -> None:
        """`began`: the watermark at which the shadow started; it saw no reading before."""
        self.versions = ComparedVersions(running.policy, running.version(), shadow.version())
        self._grace = max(longest_window_ms(running), longest_window_ms(shadow))
        self._began = began
        self._judged_from = began + max(longest_memory(running), longest_memory(shadow))
        self._open: dict[_Key, _Situation] = {}
        self.tally = ShadowTally()

    def take(
        self, running: Iterable[Detection], shadow: Iterable[Detection], watermark: int
    ) -> list[ShadowDifference]:
        """Adds detections of both versions; returns the differences that are certain at the
        watermark, in order of time.
        """
        self._note(running, _RUNNING)
        self._note(shadow, _SHADOW)
        return list(self._settled(watermark - self._grace))

    def due(self) -> int | None:
        """The watermark at which the next difference is certain; None when there is none."""
        alone = [key[0] for key, seen in self._open.items() if seen.by != _BOTH]
        return min(alone) + self._grace + 1 if alone else None

    def end(self) -> list[ShadowDifference]:
        """Returns the remaining differences; both versions have decided the same readings."""
        return list(self._settled(None))

    def reset(self) -> list[ShadowDifference]:
        """Restarts the comparison with the next reading; returns the remaining differences."""
        self._began = self._judged_from = -END_OF_TIME
        return self.end()

    def state(self, runner: bytes) -> ShadowState:
        return ShadowState(
            versions=self.versions,
            began=self._began,
            judged_from=self._judged_from,
            tally=self.tally,
            open=list(self._open.values()),
            runner=runner,
        )

    def restore(self, saved: ShadowState) -> None:
        self._began, self._judged_from = saved.began, saved.judged_from
        self.tally = saved.tally
        self._open = {_key(seen.time, seen.bindings): seen for seen in saved.open}

    def _note(self, found: Iterable[Detection], by: int) -> None:
        for detection in found:
            if not self._counts(detection):
                continue
            key = _key(detection.time, detection.bindings)
            seen = self._open.get(key)
            if seen is None:
                seen = _Situation(detection.time, detection.bindings, by, detection.causes)
                self._open[key] = seen
            seen.by |= by

    def _counts(self, detection: Detection) -> bool:
        is_seen = all(time >= self._began for time, _ in detection.causes)
        return is_seen and detection.time >= self._judged_from

    def _settled(self, before: int | None) -> Iterator[ShadowDifference]:
        due = sorted(key for key in self._open if before is None or key[0] < before)
        for key in due:
            seen = self._open.pop(key)
            self._count(seen.by)
            if seen.by != _BOTH:
                yield self._difference(seen)

    def _count(self, by: int) -> None:
        self.tally = ShadowTally(
            self.tally.both + (by == _BOTH),
            self.tally.only_running + (by == _RUNNING),
            self.tally.only_shadow + (by == _SHADOW),
        )

    def _difference(self, seen: _Situation) -> ShadowDifference:
        return ShadowDifference(
            policy=self.versions.policy,
            found_by="running" if seen.by == _RUNNING else "shadow",
            time=seen.time,
            bindings=seen.bindings,
            causes=seen.causes,
            running=self.versions.running,
            shadow=self.versions.shadow,
        )


def difference_event(source: str, difference: ShadowDifference) -> Event:
    """The event of `detections` for a difference; it triggers no action."""
    flat = [part for pair in sorted(difference.bindings.items()) for part in pair]
    return make_event(
        source=source,
        id=content_id(
            "shadow",
            difference.policy,
            difference.running,
            difference.shadow,
            difference.found_by,
            str(difference.time),
            *flat,
        ),
        type=SHADOW_TYPE,
        subject=f"policy/{difference.policy}",
        time=difference.time,
        data=difference,
        headers={CAUSE: cause_text(*(id for _, id in difference.causes))},
    )


def _key(time: int, bindings: dict[str, str]) -> _Key:
    return time, tuple(sorted(bindings.items()))


class Shadow:
    """One shadow: its runner, fed with the same readings in the same order, and the comparison."""

    def __init__(self, runner: LocalRunner, comparison: ShadowComparison) -> None:
        self.runner, self.comparison = runner, comparison
        self.found: list[Detection] = []

    def pending_until(self) -> list[int]:
        """The times at which pending matches are decided and the next difference is certain."""
        due = self.comparison.due()
        times = [self.runner.pending_until()]
        if due is not None and due > self.runner.watermark:
            times.append(due + self.runner.lateness_ms)
        return [time for time in times if time is not None]

    def compare(self, running: Iterable[Detection], watermark: int) -> list[ShadowDifference]:
        """The differences that are now certain, given the detections of the active version."""
        found, self.found = self.found, []
        self.runner.take_undecided()
        return self.comparison.take(running, found, watermark)

    def problems(self) -> list[Problem]:
        """Why the shadow failed."""
        return [
            Problem(
                code="policy.shadow_failed",
                message=f"in the shadow: {problem.message}",
                hint="correct the function or the table, drop the shadow, then bring it again",
            )
            for problem in self.runner.failed().values()
        ]

    def state(self) -> ShadowState:
        return self.comparison.state(self.runner.snapshot())

    def restore(self, state: ShadowState | None) -> None:
        """Restores a comparison of the same two versions; another one starts anew."""
        if state is not None and state.versions == self.comparison.versions:
            self.runner.restore_known(state.runner)
            self.comparison.restore(state)
