"""Results that the engine emits, and the events it appends for them. [PO-7, PO-9, PO-10]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.channel import Channels, events_between
from rapport.core.detection import Cause, Detection, SkippedAction, Undecided, still_lasts_event
from rapport.core.errors import Problem
from rapport.core.event import BareStoredEvent, Event, StoredEvent, make_event
from rapport.core.ids import content_id
from rapport.core.release import RELEASE_DONE, RELEASES, ReleaseDone
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.metrics import EngineCounts
from rapport.policy.engine.shadows import ShadowDifference, difference_event
from rapport.policy.engine.stream_steps import (
    RESET_TYPE,
    TIME_TYPE,
    PlanSource,
    PolicyCommand,
    TablesChange,
    TimeMoved,
    TimeReset,
    late_event,
    quarantine_event,
    reset_event,
    time_event,
)

_MOST_WARNINGS = 1_000
_TIMES: dict[str, type[TimeMoved | TimeReset]] = {TIME_TYPE: TimeMoved, RESET_TYPE: TimeReset}
_log = get_logger(__name__)


class EmittedResults:
    """Detections and undecided matches to emit, and the policy commands among the detections.

    Costs one lookup per detection. Results of a policy after a detection that stopped it (in the
    order of detections) are dropped, so the result does not depend on batch boundaries.
    """

    def __init__(
        self, source: PlanSource, found: Sequence[Detection], undecided: Sequence[Undecided]
    ) -> None:
        self.commands: list[PolicyCommand] = []
        self.skipped: list[SkippedAction] = []
        self.detections: list[Detection] = []
        stopped: dict[str, int] = {}
        for detection in found:
            if detection.policy in stopped:
                continue
            self.detections.append(detection)
            for command in source.commands_of(detection):
                if command.skipped is not None:
                    self.skipped.append(command.skipped)
                    continue
                self.commands.append(command)
                stopped.setdefault(command.policy, detection.time)
        self.undecided = [
            unsure
            for unsure in undecided
            if unsure.policy not in stopped or unsure.time <= stopped[unsure.policy]
        ]


class EngineOutput:
    """Appends events under the engine's name, and counts them."""

    def __init__(self, channels: Channels, name: str) -> None:
        self._channels, self._name = channels, name
        self.counts = EngineCounts()
        self._warned: set[tuple[str, str]] = set()

    async def append_results(
        self,
        results: EmittedResults,
        differences: Sequence[ShadowDifference],
        late: Sequence[Cause],
        moved: TimeMoved | TimeReset | None,
    ) -> None:
        """Appends all results to `detections` in one call."""
        events = [detection.to_event(source=self._name) for detection in results.detections]
        events += [item.to_event(source=self._name) for item in results.undecided]
        events += [item.to_event(source=self._name) for item in results.skipped]
        events += [late_event(self._name, cause) for cause in late]
        events += [difference_event(self._name, one) for one in differences]
        if isinstance(moved, TimeReset):
            events.append(reset_event(self._name, moved))
        elif moved is not None:
            events.append(time_event(self._name, moved))
        if events:
            await self._channels.channel("detections").append(events)
        self.counts.detections += len(results.detections)
        self.counts.undecided += len(results.undecided)
        self.counts.late += len(late)

    async def report_still_true(self, lasting: Sequence[Detection], act_within_ms: int) -> None:
        """Appends that states are still true, except those that were detected in time before a
        crash.
        """
        detections, events = self._channels.channel("detections"), []
        for one in lasting:
            stored = await self._channels.find_event(one.id())
            first = min((item.received for name, item in stored if name == "detections"), default=0)
            if first - one.time > act_within_ms:
                events.append(still_lasts_event(one, source=self._name))
        if events:
            await detections.append(events)

    async def release_history(self, done: ReleaseDone, now_ms: int) -> None:
        """Requests the evaluation of imported readings in `releases`."""
        event = make_event(
            source=self._name,
            id=content_id(RELEASE_DONE, done.release, str(done.through)),
            type=RELEASE_DONE,
            subject=f"release/{done.release}",
            time=now_ms,
            data=done,
        )
        await self._channels.channel(RELEASES).append([event])

    async def whole(self, batch: Sequence[StoredEvent | BareStoredEvent]) -> list[StoredEvent]:
        """The events of a batch with their headers; reads those again that came without."""
        whole = [item for item in batch if isinstance(item, StoredEvent)]
        if len(whole) == len(batch):
            return whole
        first, last = batch[0].position, batch[-1].position
        return await events_between(self._channels.channel("events"), first, last)

    async def quarantine(self, aside: Sequence[tuple[Event, Problem]]) -> None:
        """Appends unusable events to `quarantine`."""
        if not aside:
            return
        events = [quarantine_event(self._name, event, problem) for event, problem in aside]
        await self._channels.channel("quarantine").append(events)
        self.counts.quarantined += len(events)
        for event, problem in aside:
            self._warn_once(event, problem)

    def _warn_once(self, event: Event, problem: Problem) -> None:
        """Logs the first event of each source and reason; `quarantine` has all of them."""
        kind = (event.source, problem.code)
        if kind in self._warned or len(self._warned) >= _MOST_WARNINGS:
            return
        self._warned.add(kind)
        _log.warning(
            "reading quarantined",
            source=event.source,
            id=event.id,
            reason=problem.message,
            hint=problem.hint,
        )

    def reached(self) -> int:
        """The last position of `detections`."""
        return self._channels.channel("detections").last_position()

    async def steps_after(self, position: int) -> list[TimeMoved | TimeReset | TablesChange]:
        """The recorded moves and resets of time after a position of `detections`."""
        found: list[TimeMoved | TimeReset | TablesChange] = []
        detections = self._channels.channel("detections")
        while batch := await detections.read_after(position):
            position = batch[-1].position
            for stored in batch:
                if stored.event.source != self._name:
                    continue
                self.see(stored.event)
                if stored.event.type in _TIMES:
                    found.append(stored.event.payload_as(_TIMES[stored.event.type]))
        return found

    def see(self, event: Event) -> None:
        """Hook, called for each own event that `steps_after` reads."""
