"""The record of policy changes in the channel `policies`, as the engine's source of plans; with
compiled texts, drafts of changes, and actions that stop policies. [PO-5, PO-9, PO-10, PO-12]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from rapport.channel.channel import Channels
from rapport.core.detection import ACT_WITHIN_MS, Detection, SkippedAction
from rapport.core.errors import PolicyError, Problem, nearest_names
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.engine.stream_steps import PlanChange, PlansAt, PolicyCommand, StreamPosition
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.situation_tree import ParsedPolicy, actions_of
from rapport.policy.lifecycle.registry import (
    BY_FILES,
    CHANNEL,
    WHY_WITHDRAWN,
    ChangeKind,
    PolicyChange,
    PolicyEntry,
    PolicyRegistry,
    RecordedChange,
    change_event,
    change_id,
    command_id,
    entry_after,
    recorded_change,
)
from rapport.policy.plan import PolicyPlan
from rapport.policy.situation_plan import SituationPlan

Compile = Callable[[str, str], CompiledPolicy]
"""Compiles a name and text; raises PolicyError with every fault."""
_MOST = 20_000
"""Cached texts; beyond that the cache is cleared."""
_COMMAND = re.compile(r"(delete|pause)\s+policy\s+(\S.*)", re.IGNORECASE)
_QUOTES = "'\""
BY_MEANING = "ontology of the site"
_PAGE = 1_000
_DONE: dict[str, ChangeKind] = {"delete": "deleted", "pause": "paused"}
_log = get_logger(__name__)


class CompiledTexts:
    """Compiled policies by name and text, for one ontology."""

    def __init__(self, compile: Compile) -> None:
        self._compile = compile
        self._known: dict[tuple[str, str], CompiledPolicy | PolicyError] = {}

    def know(self, name: str, text: str, compiled: CompiledPolicy) -> None:
        """Adds a compiled text."""
        self._known[name, text] = compiled

    async def prepare(self, texts: Iterable[tuple[str, str]]) -> None:
        """Compiles unknown texts in a thread."""
        new = [each for each in dict.fromkeys(texts) if each not in self._known]
        if new:
            await asyncio.to_thread(self._compile_all, new)

    def get(self, name: str, text: str) -> CompiledPolicy:
        """The compiled text; compiles it now if needed. Raises PolicyError."""
        if (name, text) not in self._known:
            self._compile_all([(name, text)])
        found = self._known[name, text]
        if isinstance(found, PolicyError):
            raise PolicyError(found.problems)
        return found

    def plan(self, name: str, text: str, version: str) -> PolicyPlan | None:
        """The plan; None when the text does not compile or now gives another version, which runs
        only from its recorded position on.
        """
        if self.problems(name, text):
            return None
        plan = self.get(name, text).plan
        return plan if plan.version() == version else None

    def problems(self, name: str, text: str) -> tuple[Problem, ...]:
        """The errors; empty when it compiles."""
        try:
            self.get(name, text)
        except PolicyError as error:
            return tuple(one for one in error.problems if one.severity == "error")
        return ()

    def _compile_all(self, texts: Iterable[tuple[str, str]]) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        for name, text in texts:
            try:
                self._known[name, text] = self._compile(name, text)
            except PolicyError as error:
                self._known[name, text] = error


class StopCommand(NamedTuple):
    """A command in an action: `delete policy NAME`, `pause policy NAME`."""

    what: Literal["delete", "pause"]
    policy: str


def stop_of(phrase: str) -> StopCommand | None:
    """The command in an action phrase; None for other actions.

    >>> stop_of("Delete policy night-watch")
    StopCommand(what='delete', policy='night-watch')
    >>> stop_of("raise alarm") is None
    True
    """
    found = _COMMAND.fullmatch(" ".join(phrase.split()))
    if found is None:
        return None
    name = found[2].strip(_QUOTES)
    return StopCommand("delete" if found[1].lower() == "delete" else "pause", name)


def lint_commands(tree: ParsedPolicy, known: Collection[str], faults: Diagnostics) -> None:
    """Warns about commands for unknown policies."""
    for action in actions_of(tree):
        stop = stop_of(action.phrase)
        if stop is None or stop.policy in known or stop.policy == tree.name:
            continue
        near = nearest_names(stop.policy, known, limit=1)
        hint = f"did you mean {near[0]!r}?" if near else "register that policy first"
        faults.add(
            "policy.unknown_policy",
            f"there is no policy named {stop.policy!r} to {stop.what}",
            action.place,
            hint=hint,
            severity="warning",
        )


def end_actions_of(plan: PolicyPlan) -> tuple[str, ...] | None:
    """The phrases of `actions when cleared`; None without a situation."""
    return plan.cleared_actions if isinstance(plan, SituationPlan) else None


class DraftChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change without position and number."""

    what: ChangeKind
    name: str
    text: str = ""
    version: str = ""
    actions: tuple[str, ...] = ()
    end_actions: tuple[str, ...] | None = None
    by: str = ""
    is_from_file: bool = False
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def of(
        what: ChangeKind, name: str, text: str, compiled: CompiledPolicy, *, by: str
    ) -> DraftChange:
        """A draft with a new version."""
        plan = compiled.plan
        return DraftChange(
            what=what,
            name=name,
            text=text,
            version=plan.version(),
            actions=plan.actions,
            end_actions=end_actions_of(plan),
            by=by,
        )


def drafts_of_files(
    registry: PolicyRegistry,
    files: Mapping[str, str],
    unread: Collection[str],
    texts: CompiledTexts,
) -> list[DraftChange]:
    """Drafts for changed files; a file that does not compile gives a broken policy."""
    found: list[DraftChange] = []
    for what, name, text in registry.from_files(files, unread):
        draft = DraftChange(what=what, name=name, text=text, by=BY_FILES, is_from_file=True)
        problems = texts.problems(name, text) if text or what != "deleted" else ()
        if problems:
            draft = msgspec.structs.replace(draft, problems=problems)
        elif what != "deleted":
            plan = texts.get(name, text).plan
            draft = msgspec.structs.replace(
                draft,
                version=plan.version(),
                actions=plan.actions,
                end_actions=end_actions_of(plan),
            )
        found.append(draft)
    return found


def drafts_of_ontology(
    registry: PolicyRegistry, but: Collection[str], texts: CompiledTexts
) -> list[DraftChange]:
    """Drafts for policies with unchanged text: broken, repaired, or with another plan."""
    found: list[DraftChange] = []
    for entry in registry.alive():
        if entry.name in but:
            continue
        problems = texts.problems(entry.name, entry.text)
        if problems and problems != entry.problems:
            draft = DraftChange(what="broken", name=entry.name, by=BY_MEANING, problems=problems)
            found.append(draft)
        elif not problems and _is_other(entry, texts):
            compiled = texts.get(entry.name, entry.text)
            draft = DraftChange.of("rebuilt", entry.name, "", compiled, by=BY_MEANING)
            found.append(draft)
        elif entry.shadow_text and _is_other_shadow(entry, texts):
            found.append(DraftChange(what="dropped", name=entry.name, by=BY_MEANING))
    return found


def _is_other(entry: PolicyEntry, texts: CompiledTexts) -> bool:
    version = texts.get(entry.name, entry.text).plan.version()
    return version != entry.version or bool(entry.problems)


def _is_other_shadow(entry: PolicyEntry, texts: CompiledTexts) -> bool:
    return texts.plan(entry.name, entry.shadow_text, entry.shadow_version) is None


def plan_change(
    kept: RecordedChange, entry: PolicyEntry | None, texts: CompiledTexts
) -> PlanChange:
    """A recorded change for the engine, given the policy after it. A policy whose text does not
    compile does not run.
    """
    changed = kept.changed
    change = PlanChange(
        place=changed.place,
        position=kept.position,
        act="withdraw",
        policy=changed.name,
        why=WHY_WITHDRAWN.get(changed.what, ""),
    )
    if entry is None:  # an unknown policy
        return change
    if changed.what == "dropped":
        return msgspec.structs.replace(change, act="drop")
    if changed.what == "shadowed":
        beside = texts.plan(entry.name, entry.shadow_text, entry.shadow_version)
        return msgspec.structs.replace(change, act="shadow" if beside else "drop", plan=beside)
    if entry.state != "running":
        return change
    plan = texts.plan(entry.name, entry.text, entry.version)
    if plan is None:
        return change
    act = "promote" if changed.what == "promoted" else "deploy"
    return msgspec.structs.replace(change, act=act, plan=plan)


class PolicyRecord:
    """The channel `policies` in memory; implements PlanSource. Use it while holding the
    engine's turn.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        name: str,
        texts: CompiledTexts,
        *,
        act_within_ms: int = ACT_WITHIN_MS,
    ) -> None:
        """`name`: the source of appended changes; `act_within_ms`: commands of older detections are
        not carried out.
        """
        self._act_within_ms = act_within_ms
        self._channels, self._clock, self._name = channels, clock, name
        self.texts = texts
        self.registry = PolicyRegistry()
        self._position = 0
        self._earlier = (-1, PolicyRegistry())
        """The registry at an earlier position, for a second pass."""
        self._stops: dict[tuple[str, str], tuple[StopCommand, ...]] = {}
        self._phrases: dict[str, dict[str, tuple[str, ...]]] = {}
        self._end_phrases: dict[str, dict[str, tuple[str, ...] | None]] = {}
        self._end_stops: dict[tuple[str, str], tuple[StopCommand, ...]] = {}
        """Other actions by policy and version; versions in the order in which they last ran."""

    # --- PlanSource ---

    async def plans_at(self, position: int) -> PlansAt:
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
        registry = self.registry.until(position)
        found: list[PlanChange] = []
        for kept in self.registry.changes:
            if kept.position > position:
                registry.add(kept)
                entry = registry.entries.get(kept.changed.name)
                found.append(plan_change(kept, entry, self.texts))
        return found

    def commands_of(self, detection: Detection) -> Sequence[PolicyCommand]:
        """The commands of the version that found it."""
        is_end = detection.began is not None
        known = self._end_stops if is_end else self._stops
        stops = known.get((detection.policy, detection.version), ())
        return [
            PolicyCommand(stop.what, stop.policy, detection, self._skipped(stop, detection))
            for stop in stops
        ]

    def _skipped(self, stop: StopCommand, detection: Detection) -> SkippedAction | None:
        """None when the command is carried out, or was before, so that a second pass gives
        the same.
        """
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

    async def carry_out(
        self, command: PolicyCommand, place: StreamPosition, *, met: int, is_stopped: bool
    ) -> PlanChange | None:
        """Deletes or pauses a policy because of a detection, once for each detection. A command
        that had nothing to stop at first has no effect on a second pass either.
        """
        what, cause = _DONE[command.what], command.detection.id()
        known = self.registry.known.get(command_id(what, command.policy, cause))
        if known is None:
            entry = self._entry_at(command.policy, met, is_stopped)
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
            why=WHY_WITHDRAWN[what],
        )

    def _entry_at(self, policy: str, met: int, is_stopped: bool) -> PolicyEntry | None:
        """The policy's state when the record had reached the position `met`."""
        then, changes = self.registry, self.registry.changes
        if changes and changes[-1].position > met:  # second pass
            if self._earlier[0] != met:
                self._earlier = met, self.registry.until(met)
            then = self._earlier[1]
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
        """The actions of a version except commands about policies; for an unknown version those of
        the one that ran last.

        Replaced and deleted versions keep theirs, because their detections may still be pending.
        """
        versions = self._phrases.get(policy)
        if not versions:
            return ()
        return versions[version] if version in versions else versions[next(reversed(versions))]

    def end_phrases(self, policy: str, version: str) -> Sequence[str] | None:
        """As `phrases`, of `actions when cleared`; None for a version without a situation."""
        versions = self._end_phrases.get(policy)
        if not versions:
            return None
        return versions[version] if version in versions else versions[next(reversed(versions))]

    # --- the record ---

    async def read_on(self) -> list[RecordedChange]:
        """Reads new changes and returns them."""
        channel = self._channels.channel(CHANNEL)
        found: list[RecordedChange] = []
        while batch := await channel.read_after(self._position, limit=_PAGE):
            self._position = batch[-1].position
            found += [kept for stored in batch if (kept := recorded_change(stored)) is not None]
        for kept in found:
            self.add(kept)
        return found

    async def append(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        """Records changes and returns them."""
        now_ms = self._clock.now_ms()
        events = [change_event(change, self._name, now_ms) for change in changes]
        for first in range(0, len(events), _PAGE):
            await self._channels.channel(CHANNEL).append(events[first : first + _PAGE])
        return await self.read_on()

    def add(self, kept: RecordedChange) -> None:
        self.registry.add(kept)
        changed = kept.changed
        if not changed.version:
            return
        for phrases, kept_stops in (
            (changed.actions, self._stops),
            (changed.end_actions or (), self._end_stops),
        ):
            stops = tuple(stop for phrase in phrases if (stop := stop_of(phrase)))
            if stops:
                kept_stops[changed.name, changed.version] = stops
        if changed.what != "shadowed":
            phrases = tuple(phrase for phrase in changed.actions if stop_of(phrase) is None)
            versions = dict(self._phrases.get(changed.name, {}))
            versions.pop(changed.version, None)  # it comes last
            # Other threads read it, so it is replaced as a whole.
            self._phrases[changed.name] = {**versions, changed.version: phrases}
            self._note_end_phrases(changed)

    def _note_end_phrases(self, changed: PolicyChange) -> None:
        found = changed.end_actions
        if found is not None:
            found = tuple(phrase for phrase in found if stop_of(phrase) is None)
        versions = dict(self._end_phrases.get(changed.name, {}))
        versions.pop(changed.version, None)
        self._end_phrases[changed.name] = {**versions, changed.version: found}


def is_stopped_by(entry: PolicyEntry, what: ChangeKind) -> bool:
    """Whether a command has no effect."""
    return entry.is_deleted or (what == "paused" and entry.is_paused)
