"""Changes of a node's policies while events flow, each at a definite position of the stream. [PO-9,
PO-10]

A change is checked outside the event loop, recorded with its position, and applied while the engine
is stopped. Everything that may fail comes before the record. If the process dies or fails later,
the engine returns to its last commit and applies the recorded changes at their positions; so a node
has the old or the new policy after a restart, from the same position on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from rapport.channel.channel import Channels
from rapport.core.detection import ACT_WITHIN_MS
from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    PolicyError,
    Problem,
    StaleVersion,
    UnknownName,
    Unsupported,
)
from rapport.kernel.clock import Clock
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.stream_steps import PlanChange, StreamPosition
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.lifecycle.record import (
    Compile,
    CompiledTexts,
    DraftChange,
    PolicyRecord,
    drafts_of_files,
    drafts_of_ontology,
    lint_commands,
    plan_change,
)
from rapport.policy.lifecycle.registry import (
    CHANNEL,
    ChangeKind,
    ChangeView,
    PolicyChange,
    PolicyEntry,
    PolicyRegistry,
    PolicyView,
    RecordedChange,
    change_id,
    history_view,
    policy_view,
    text_difference,
    text_of_version,
)
from rapport.policy.lifecycle.situation_states import (
    AcknowledgedSituations,
    PolicyStates,
    SituationService,
)

_NAME = re.compile(r"\w[\w-]{0,99}")
_LOOK_EVERY_MS, _MOST_LOOKS = 20, 1_500
RenewTables = Callable[[], Awaitable[None]]
"""Switches to other tables and another ontology."""
READER = "policies"
_NOTHING = StreamPosition(0, 0)


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change; `changed` is False when nothing had to be done."""

    changed: bool
    name: str
    what: ChangeKind
    version: str = ""
    after: int = 0
    """The position of `events` after which it applies."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints, or why the policy is broken."""


class CheckResult(msgspec.Struct, frozen=True):
    """The version of a policy, empty when it has errors, and every problem."""

    version: str
    problems: tuple[Problem, ...]


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a text differs from the version in force."""

    version: str
    """The version in force; empty: there is no such policy."""
    by: str
    """Who brought it."""
    since: int
    difference: str
    """As `diff -u`, from the version in force; empty: there is none."""


def check_name(name: str) -> None:
    """Raises InvalidInput for an invalid policy name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:120]!r} cannot name a policy",
            code="policy.bad_name",
            hint="use letters, digits, _ and -, at most 100",
        )


def known_entry(registry: PolicyRegistry, name: str) -> PolicyEntry:
    """The policy; raises UnknownName with the nearest."""
    entry = registry.find(name)
    if entry is None:
        known = [each.name for each in registry.alive()]
        error = UnknownName("policy", name, known, code="policy.unknown")
        if name in registry.entries:
            error.hint = "it was deleted, see its history; register it to have it back"
        raise error
    return entry


def is_needed(
    registry: PolicyRegistry,
    what: ChangeKind,
    name: str,
    version: str,
    expects: str,
    *,
    is_failed: bool = False,
) -> bool:
    """Whether the change has an effect; raises UnknownName, DuplicateName, StaleVersion or Conflict
    when it is not allowed. A failed policy is restarted by a change without other effect.
    """
    if what == "registered":
        if registry.find(name) is not None:
            raise DuplicateName(
                f"there is a policy named {name!r}",
                code="policy.exists",
                hint="replace it, or take another name",
            )
        return True
    entry = known_entry(registry, name)
    if expects and entry.version != expects:
        message = f"{name!r} is at version {entry.version or 'none'}, not {expects[:40]!r}"
        raise StaleVersion(message, hint="look at it again, then ask again")
    if what in ("promoted", "dropped") and not entry.shadow_version:
        raise Conflict(
            f"nothing runs in the shadow of {name!r}",
            code="policy.no_shadow",
            hint="bring a version there first",
        )
    if what == "shadowed":
        _check_shadow(entry, version, is_failed=is_failed)
    if is_failed and what in ("resumed", "replaced"):
        return True
    return not _is_so(entry, what, version)


def _check_shadow(entry: PolicyEntry, version: str, *, is_failed: bool) -> None:
    if entry.state != "running" or is_failed:
        state = "failed" if is_failed else entry.state
        raise Conflict(
            f"{entry.name!r} is {state}: there is nothing to compare with",
            code="policy.not_running",
            hint="replace it instead, or let it run first",
        )
    if version == entry.version:
        raise Conflict(
            f"{entry.name!r} is this version already: there would be no difference",
            code="policy.same_version",
            hint="change the text first; blanks, comments and names of sections do not count",
        )


def _is_so(entry: PolicyEntry, what: ChangeKind, version: str) -> bool:
    match what:
        case "replaced":
            return entry.version == version and not entry.problems
        case "paused":
            return entry.is_paused
        case "resumed":
            return not entry.is_paused
        case "shadowed":
            return entry.shadow_version == version
        case _:
            return False


def change_of(draft: DraftChange, place: StreamPosition, number: int) -> PolicyChange:
    return PolicyChange(place=place, number=number, **msgspec.structs.asdict(draft))


class PolicyLifecycle:
    """Changes the policies of a node and provides the engine with its plans.

    Call `begin` first. All calls belong to the engine's event loop and hold its turn.
    """

    def __init__(
        self,
        channels: Channels,
        engine: PolicyEngine,
        clock: Clock,
        compile: Compile,
        *,
        act_within_ms: int = ACT_WITHIN_MS,
    ) -> None:
        """The engine runs the recorded policies from now on. `act_within_ms`: commands of older
        detections are recorded but not carried out.
        """
        self._channels, self._engine, self._clock = channels, engine, clock
        self._record = PolicyRecord(
            channels, clock, engine.name, CompiledTexts(compile), act_within_ms=act_within_ms
        )
        engine.follow(self._record)
        self.phrases: Callable[[str, str], Sequence[str]] = self._record.phrases
        """The actions of a version, by policy and version; see `PolicyRecord.phrases`."""
        self.end_phrases: Callable[[str, str], Sequence[str] | None] = self._record.end_phrases
        """Those of `actions when cleared`; None without a situation."""
        self.situations = SituationService(channels, engine, clock, self._has_situation)

    @property
    def texts(self) -> CompiledTexts:
        return self._record.texts

    @property
    def _registry(self) -> PolicyRegistry:
        return self._record.registry

    # --- from files ---

    async def begin(
        self, files: Mapping[str, str], unread: Collection[str] = (), *, record: bool = True
    ) -> list[ChangeResult]:
        """Reads the record and applies changes of the files since; a policy that does not compile
        is marked with the reasons and does not run.

        Without `record` nothing is appended: for inspecting a site whose node does not run.
        """
        if record:  # a reader that never advances keeps retention from removing changes
            await self._channels.subscribe(CHANNEL, READER)
        async with self._engine.turn:
            await self._record.read_on()
            drafts = await self._drafts(self.texts, files, unread)
            if record:
                await self._engine.next_position()  # restores the last commit
                return await self._record_and_apply(drafts)
            for number, draft in enumerate(drafts):
                changed = change_of(draft, _NOTHING, number)
                self._record.add(RecordedChange("", self._clock.now_ms(), 0, changed))
            return []

    async def take_files(
        self,
        files: Mapping[str, str],
        unread: Collection[str],
        compile: Compile,
        *,
        renew: RenewTables | None = None,
    ) -> list[ChangeResult]:
        """Applies changed files while events flow. Policies that no longer compile are marked.
        Calls `renew` at the position of the change, when all is recorded and no plan runs that ends
        there.

        Raises PolicyError when a changed file does not compile; then nothing changes.
        """
        texts = CompiledTexts(compile)
        await self._prepare(texts, files)  # most of the work, while events flow
        async with self._caught_up():
            if faults := self._faults(texts, files, unread):
                raise PolicyError(faults)
            drafts = await self._drafts(texts, files, unread)
            await self._engine.commit()
            return await self._record_and_apply(drafts, texts, renew)

    async def faults_of_files(
        self, files: Mapping[str, str], unread: Collection[str], compile: Compile
    ) -> list[Problem]:
        """The problems for which `take_files` would refuse these files."""
        texts = CompiledTexts(compile)
        await self._prepare(texts, files)
        return self._faults(texts, files, unread)

    def _faults(
        self, texts: CompiledTexts, files: Mapping[str, str], unread: Collection[str]
    ) -> list[Problem]:
        changed_files = self._registry.from_files(files, unread)
        changed = [one for one in changed_files if one.what != "deleted"]
        return [fault for one in changed for fault in texts.problems(one.name, one.text)]

    async def take_ontology(self, compile: Compile) -> list[ChangeResult]:
        """Applies a new ontology: policies that no longer compile are marked, those with another
        plan restart, all at one position.
        """
        texts = CompiledTexts(compile)
        await self._prepare(texts, {})
        async with self._caught_up():
            await self._prepare(texts, {})
            await self._engine.commit()
            drafts = drafts_of_ontology(self._registry, (), texts)
            return await self._record_and_apply(drafts, texts)

    async def _drafts(
        self, texts: CompiledTexts, files: Mapping[str, str], unread: Collection[str]
    ) -> list[DraftChange]:
        await self._prepare(texts, files)
        changed_files = drafts_of_files(self._registry, files, unread, texts)
        names = {draft.name for draft in changed_files}
        return changed_files + drafts_of_ontology(self._registry, names, texts)

    async def _prepare(self, texts: CompiledTexts, files: Mapping[str, str]) -> None:
        alive = self._registry.alive()
        await texts.prepare(
            [
                *files.items(),
                *((entry.name, entry.text) for entry in alive),
                *((entry.name, entry.shadow_text) for entry in alive if entry.shadow_text),
            ]
        )

    # --- changes ---

    async def check(self, name: str, text: str) -> CheckResult:
        """Every problem of a policy, without any change."""
        check_name(name)
        await self.texts.prepare([(name, text)])
        try:
            compiled = self.texts.get(name, text)
        except PolicyError as error:
            return CheckResult("", error.problems)
        return CheckResult(compiled.plan.version(), self._warnings(text, compiled))

    async def compile(self, name: str, text: str) -> CompiledPolicy:
        """A text compiled, with the warnings about it, without any change; raises PolicyError with
        every fault.
        """
        check_name(name)
        await self.texts.prepare([(name, text)])
        compiled = self.texts.get(name, text)
        return msgspec.structs.replace(compiled, problems=self._warnings(text, compiled))

    def compare(self, name: str, text: str) -> PolicyDifference:
        """How a text differs from the version in force."""
        check_name(name)
        entry = self._registry.find(name)
        return PolicyDifference(
            version="" if entry is None else entry.version,
            by="" if entry is None else entry.by,
            since=0 if entry is None else entry.since,
            difference=self._difference(name, text, "yours"),
        )

    def _difference(self, name: str, text: str, version: str) -> str:
        entry = self._registry.find(name)
        if entry is None:
            return text_difference("", text, "", version)
        return text_difference(entry.text, text, entry.version, version)

    async def register(self, name: str, text: str, *, by: str = "") -> ChangeResult:
        """Starts a new policy; raises PolicyError with every fault, or DuplicateName."""
        return await self._add_version("registered", name, text, by)

    async def replace(
        self, name: str, text: str, *, by: str = "", expects: str = ""
    ) -> ChangeResult:
        """Replaces the version; it restarts. A paused policy stays paused.

        Raises PolicyError, UnknownName, or StaleVersion when it is not at version `expects`.
        """
        return await self._add_version("replaced", name, text, by, expects)

    async def shadow(self, name: str, text: str, *, by: str = "") -> ChangeResult:
        """Runs a version beside the active one and emits only differences, of a situation also its
        beginnings and ends. Ends an earlier shadow.

        Raises PolicyError, UnknownName, Conflict when the policy does not run or has that version,
        and Unsupported for one on Spark.
        """
        if name in self._engine.on_spark:
            raise Unsupported(
                f"a shadow of {name!r}",
                "Spark",
                hint="compare the versions over history: rapport backtest NAME --compare FILE",
            )
        return await self._add_version("shadowed", name, text, by)

    async def promote(self, name: str, *, by: str = "") -> ChangeResult:
        """Makes the shadow the active version with its pending matches; raises UnknownName or
        Conflict.
        """
        async with self._engine.turn:
            await self._record.read_on()
            text = known_entry(self._registry, name).shadow_text
            if not text:
                return await self._change_now(DraftChange(what="promoted", name=name, by=by))
            return await self._add_version_now("promoted", name, text, by)

    async def drop(self, name: str, *, by: str = "") -> ChangeResult:
        """Ends the shadow; raises UnknownName or Conflict."""
        return await self._change(DraftChange(what="dropped", name=name, by=by))

    async def pause(self, name: str, *, by: str = "") -> ChangeResult:
        """Stops the policy and drops its pending matches; keeps its version. Raises UnknownName."""
        return await self._change(DraftChange(what="paused", name=name, by=by))

    async def resume(self, name: str, *, by: str = "") -> ChangeResult:
        """Restarts the policy at this position, also a failed one; raises UnknownName."""
        return await self._change(DraftChange(what="resumed", name=name, by=by))

    async def delete(self, name: str, *, by: str = "") -> ChangeResult:
        """Ends a policy; its history stays. Raises UnknownName."""
        return await self._change(DraftChange(what="deleted", name=name, by=by))

    async def _add_version(
        self, what: ChangeKind, name: str, text: str, by: str, expects: str = ""
    ) -> ChangeResult:
        check_name(name)
        await self.texts.prepare([(name, text)])  # most of the work, while events flow
        self.texts.get(name, text)
        async with self._engine.turn:
            await self._record.read_on()
            return await self._add_version_now(what, name, text, by, expects)

    async def _add_version_now(
        self, what: ChangeKind, name: str, text: str, by: str, expects: str = ""
    ) -> ChangeResult:
        """Compiles with the current ontology, which may have changed while waiting for the turn.
        Call it while holding the turn.
        """
        await self.texts.prepare([(name, text)])
        compiled = self.texts.get(name, text)
        done = await self._change_now(DraftChange.of(what, name, text, compiled, by=by), expects)
        return msgspec.structs.replace(done, problems=self._warnings(text, compiled))

    async def _change(self, draft: DraftChange) -> ChangeResult:
        async with self._engine.turn:
            await self._record.read_on()
            return await self._change_now(draft)

    async def _change_now(self, draft: DraftChange, expects: str = "") -> ChangeResult:
        is_failed = draft.name in self._engine.failed()
        try:
            needed = is_needed(
                self._registry, draft.what, draft.name, draft.version, expects, is_failed=is_failed
            )
        except StaleVersion as error:
            error.difference = self._difference(draft.name, draft.text, draft.version)
            raise
        if needed:
            [done] = await self._record_and_apply([draft])
            return done
        entry = known_entry(self._registry, draft.name)
        return ChangeResult(changed=False, name=draft.name, what=draft.what, version=entry.version)

    # --- recording and applying, while holding the engine's turn ---

    @asynccontextmanager
    async def _caught_up(self) -> AsyncIterator[None]:
        """The engine's turn, after it has repeated everything it may have read before a crash,
        which is evaluated by the old plans. Raises Conflict when that takes long.
        """
        for _ in range(_MOST_LOOKS):
            async with self._engine.turn:
                await self._record.read_on()
                await self._engine.next_position()
                if not self._engine.is_catching_up:
                    yield
                    return
            await self._clock.sleep(_LOOK_EVERY_MS)
        raise Conflict(
            "policies still read again what they had read before the last stop",
            code="policy.catching_up",
            hint="ask again in a moment",
        )

    async def _record_and_apply(
        self,
        drafts: Sequence[DraftChange],
        texts: CompiledTexts | None = None,
        renew: RenewTables | None = None,
    ) -> list[ChangeResult]:
        """Records and applies changes, with newly compiled texts if given. Calls `renew` when
        everything is recorded and no plan runs that ends here.
        """
        if not drafts and texts is None:
            return []
        place = await self._engine.next_position()
        first = len(self._registry.changes) + 1
        changes = [change_of(draft, place, first + n) for n, draft in enumerate(drafts)]
        try:
            recorded = await self._recorded(changes)
            self._record.texts = texts or self._record.texts
            plans = [self._plan_change(kept) for kept in recorded]
            if renew is not None:
                for change in plans:
                    self._engine.end_replaced(change)
                await renew()
            for change in plans:
                await self._engine.take_change(change)
        except BaseException:
            self._engine.return_to_commit()
            raise
        return [self._done(change) for change in changes]

    async def _recorded(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        try:
            return await self._record.append(changes)
        except Exception:
            await self._record.read_on()  # it may have been written nevertheless
            known = [self._registry.known.get(change_id(change)) for change in changes]
            if None in known:
                raise
            return [kept for kept in known if kept is not None]

    def _done(self, changed: PolicyChange) -> ChangeResult:
        entry = self._registry.entries.get(changed.name)
        return ChangeResult(
            changed=True,
            name=changed.name,
            what=changed.what,
            version=changed.version or (entry.version if entry is not None else ""),
            after=changed.place.after,
            problems=changed.problems,
        )

    def _plan_change(self, kept: RecordedChange) -> PlanChange:
        entry = self._registry.entries.get(kept.changed.name)
        return plan_change(kept, entry, self._record.texts)

    def _warnings(self, text: str, compiled: CompiledPolicy) -> tuple[Problem, ...]:
        """Warnings and hints, including those about other policies."""
        faults = Diagnostics(compiled.tree.name, text)
        lint_commands(compiled.tree, [entry.name for entry in self._registry.alive()], faults)
        return (*compiled.problems, *faults.problems())

    # --- situations ---

    def _has_situation(self, policy: str, version: str) -> bool:
        return self.end_phrases(policy, version) is not None

    async def states(self, name: str) -> PolicyStates:
        """What is open, pending and unknown of a policy with a situation; raises UnknownName, or
        Conflict for one without.
        """
        entry = known_entry(self._registry, name)
        return await self.situations.states(name, entry.version, entry.state, entry.shadow_version)

    async def acknowledge(
        self, name: str, bindings: Mapping[str, str], *, by: str
    ) -> AcknowledgedSituations:
        """Somebody looks after open situations: nobody is asked any more, the end is still told.
        Raises UnknownName, InvalidInput, or Conflict when none of these is open.
        """
        known_entry(self._registry, name)
        return await self.situations.acknowledge(name, bindings, by)

    # --- queries ---

    def policies(self) -> list[PolicyView]:
        """All policies that are not deleted, with their counts."""
        return self._views(self._registry.alive())

    def versions(self) -> dict[str, str]:
        """Names and versions of all policies that should run, here or on Spark."""
        return {one.name: one.version for one in self._registry.alive() if one.state == "running"}

    def policy(self, name: str) -> PolicyView:
        """One policy with its text; raises UnknownName."""
        return self._views([known_entry(self._registry, name)], whole=True)[0]

    def _views(self, entries: Sequence[PolicyEntry], *, whole: bool = False) -> list[PolicyView]:
        engine = self._engine
        counts, tallies, failed = engine.counts_by_policy(), engine.shadows(), engine.failed()
        beside = engine.failed_shadows()
        there = {one.name: one.version for one in entries if one.state == "running"}
        unwatched = engine.on_spark.problems(there, self._clock.now_ms())
        return [
            policy_view(
                entry,
                counts,
                tallies,
                failed=failed.get(entry.name),
                shadow_failed=beside.get(entry.name),
                unwatched=unwatched.get(entry.name),
                on_spark=entry.name in there and entry.name in engine.on_spark,
                whole=whole,
            )
            for entry in entries
        ]

    def compiled(self, name: str, version: str) -> CompiledPolicy | None:
        """The compiled form of a version, also of a replaced or deleted one; None when it is
        unknown or broken.
        """
        text = self.text_of(name, version)
        if not text or self.texts.problems(name, text):
            return None
        return self.texts.get(name, text)

    def text_of(self, name: str, version: str) -> str:
        """The text of a version, also of a replaced or deleted one; the newest text when the
        version is unknown, empty when the policy is.
        """
        entry = self._registry.entries.get(name)
        return text_of_version(self._registry.history(name), version) or (
            entry.text if entry is not None else ""
        )

    def history(self, name: str) -> list[ChangeView]:
        """All changes of a policy, also of a deleted one; raises UnknownName."""
        changes = self._registry.history(name)
        if not changes:
            known_entry(self._registry, name)
        return history_view(changes)
