"""The record of changes of a node's policies, and what it tells the engine: which plans run since
which place. [PO-9, PO-10]
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.channel import Channels
from rapport.core.detection import ACT_WITHIN_MS, Detection, SkippedAction
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.places import PlanChange, PlansAt, PolicyCommand, StreamPosition
from rapport.policy.life.changes import (
    CHANNEL,
    ChangeKind,
    PolicyChange,
    RecordedChange,
    change_event,
    change_id,
    command_id,
    recorded_change,
)
from rapport.policy.life.commands import StopCommand, stop_of
from rapport.policy.life.compiled import CompiledTexts
from rapport.policy.life.drafting import plan_change
from rapport.policy.life.registry import PolicyEntry, PolicyRegistry, entry_after

_PAGE = 1_000
_DONE: dict[str, ChangeKind] = {"delete": "deleted", "pause": "paused"}
_log = get_logger(__name__)


class PolicyRecord:
    """The channel `policies`, taken in; a PlanSource. Used while holding the engine's turn."""

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        name: str,
        texts: CompiledTexts,
        *,
        act_within_ms: int = ACT_WITHIN_MS,
    ) -> None:
        """`name`: the source of the changes that are appended; `act_within_ms`: what older
        detections do to policies is not carried out.
        """
        self._act_within_ms = act_within_ms
        self._channels, self._clock, self._name = channels, clock, name
        self.texts = texts
        self.registry = PolicyRegistry()
        self._position = 0
        self._then = (-1, PolicyRegistry())
        """What the record said when it went so far, for who reads again."""
        self._stops: dict[tuple[str, str], tuple[StopCommand, ...]] = {}
        self._phrases: dict[str, dict[str, tuple[str, ...]]] = {}
        """By policy and version what others do; versions in the order in which they ran last."""

    # --- what the engine asks ---

    async def plans_at(self, position: int) -> PlansAt:
        """What ran when the record had gone so far."""
        await self.read_on()
        running = [
            entry for entry in self.registry.until(position).alive() if entry.state == "running"
        ]
        shadows = [entry for entry in running if entry.shadow_text]
        await self.texts.prepare(
            [
                *((entry.name, entry.text) for entry in running),
                *((entry.name, entry.shadow_text) for entry in shadows),
            ]
        )
        plans = [self.texts.plan(one.name, one.text, one.version) for one in running]
        beside = [self.texts.plan(one.name, one.shadow_text, one.shadow_version) for one in shadows]
        return PlansAt(
            tuple(plan for plan in plans if plan is not None),
            tuple(plan for plan in beside if plan is not None),
        )

    async def changes_after(self, position: int) -> Sequence[PlanChange]:
        """What changed since, in the order of the record."""
        registry = self.registry.until(position)
        found: list[PlanChange] = []
        for kept in self.registry.changes:
            if kept.position > position:
                registry.add(kept)
                entry = registry.entries.get(kept.changed.name)
                found.append(plan_change(kept, entry, self.texts))
        return found

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        """What the version that found it does to policies."""
        stops = self._stops.get((detection.policy, detection.version), ())
        return [
            PolicyCommand(stop.what, stop.policy, detection, self._skipped(stop, detection))
            for stop in stops
        ]

    def _skipped(self, stop: StopCommand, detection: Detection) -> SkippedAction | None:
        """None where it is carried out, or was before: a second reading comes to the same."""
        now_ms = self._clock.now_ms()
        if now_ms - detection.time <= self._act_within_ms:
            return None
        if command_id(_DONE[stop.what], stop.policy, detection.id()) in self.registry.known:
            return None
        return SkippedAction(
            detection=detection,
            phrase=f"{stop.what} policy {stop.policy}",
            found_ms=now_ms,
            limit_ms=self._act_within_ms,
        )

    async def obey(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Deletes or pauses a policy because of a detection; once, however often it is found. One
        that did nothing when it was first found, since there was nothing to stop, does nothing when
        it is found again, whatever became of the policy since.
        """
        what, cause = _DONE[command.what], command.detection.id()
        known = self.registry.known.get(command_id(what, command.policy, cause))
        if known is None:
            entry = self._entry_then(command.policy, met, is_stopped)
            if entry is None:
                _log.warning("no policy to stop", policy=command.policy, because=cause)
                return None
            if not is_stopped_by(entry, what):
                known = await self._record_command(command, what, place)
        if known is None:
            return PlanChange(place=place, position=0, act="note", policy=command.policy)
        return PlanChange(
            place=known.changed.place,
            position=known.position,
            act="withdraw",
            policy=command.policy,
        )

    def _entry_then(self, policy: str, met: int, is_stopped: bool) -> PolicyEntry | None:
        """The policy as it stood when the record was met so far."""
        then, changes = self.registry, self.registry.changes
        if changes and changes[-1].position > met:  # it is read again
            if self._then[0] != met:
                self._then = met, self.registry.until(met)
            then = self._then[1]
        entry = then.entries.get(policy)
        if is_stopped:
            later = (one for one in self.registry.history(policy) if one.position > met)
            stop = next((one for one in later if one.changed.cause), None)
            return entry if stop is None else entry_after(entry, stop)
        return entry

    async def _record_command(
        self, command: PolicyCommand, what: ChangeKind, place: StreamPosition
    ) -> RecordedChange:
        changed = PolicyChange(
            what=what,
            name=command.policy,
            place=place,
            number=len(self.registry.changes) + 1,
            by=f"policy {command.detection.policy}",
            cause=command.detection.id(),
        )
        await self.append([changed])
        return self.registry.known[change_id(changed)]

    def phrases(self, policy: str, version: str) -> Sequence[str]:
        """What others do when that version is detected: its actions but those about policies. Of a
        version that is not known those of the one that ran last.

        Replaced and deleted ones keep theirs: detections of them may still be on their way.
        """
        versions = self._phrases.get(policy)
        if not versions:
            return ()
        return versions[version] if version in versions else versions[next(reversed(versions))]

    # --- the record ---

    async def read_on(self) -> list[RecordedChange]:
        """Takes in what is on record by now; gives what is new."""
        channel = self._channels.channel(CHANNEL)
        found: list[RecordedChange] = []
        while batch := await channel.read_after(self._position, limit=_PAGE):
            self._position = batch[-1].position
            found += [kept for stored in batch if (kept := recorded_change(stored)) is not None]
        for kept in found:
            self.add(kept)
        return found

    async def append(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        """Puts changes on record and takes them in."""
        now_ms = self._clock.now_ms()
        events = [change_event(change, self._name, now_ms) for change in changes]
        for first in range(0, len(events), _PAGE):
            await self._channels.channel(CHANNEL).append(events[first : first + _PAGE])
        return await self.read_on()

    def add(self, kept: RecordedChange) -> None:
        """Takes a change in."""
        self.registry.add(kept)
        changed = kept.changed
        if not changed.version:
            return
        stops = tuple(stop for phrase in changed.actions if (stop := stop_of(phrase)))
        if stops:
            self._stops[changed.name, changed.version] = stops
        if changed.what != "shadowed":
            phrases = tuple(phrase for phrase in changed.actions if stop_of(phrase) is None)
            versions = dict(self._phrases.get(changed.name, {}))
            versions.pop(changed.version, None)  # it comes last
            # Others look at them from other threads: what they see is never half done.
            self._phrases[changed.name] = {**versions, changed.version: phrases}


def is_stopped_by(entry: PolicyEntry, what: ChangeKind) -> bool:
    """Whether a command has nothing left to do."""
    return entry.is_deleted or (what == "paused" and entry.is_paused)
