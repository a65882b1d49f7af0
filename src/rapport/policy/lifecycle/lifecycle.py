"""What somebody asks to be done about a policy: when it may be done, and what came of it. Pure.
[PO-9]

Changes of policies put on record and carried out, at one place of the stream. [PO-9, PO-10]

What may fail comes before the record: then everything is as it was. Killed or failing after it, the
engine goes back to its last commit and meets the changes in their place.

The life of a node's policies: changed while events flow, each change at a definite place of the
stream. [PO-9, PO-10]

A change is checked beside the event loop, then put on record with its place and carried out while
the engine waits for its turn. Killed between any two steps a node has the old or the new after its
next start, from the same place on.
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
from rapport.policy.compiler.compile import Compiled
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.stream_steps import PlanChange, StreamPosition
from rapport.policy.language.faults import Faults
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
    text_of_version,
)

_NAME = re.compile(r"\w[\w-]{0,99}")


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did. Nothing is changed when everything was so already."""

    changed: bool
    name: str
    what: ChangeKind
    version: str = ""
    after: int = 0
    """The position of `events` after which it holds."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints; of a file's policy that is broken, why."""


class CheckResult(msgspec.Struct, frozen=True):
    """What a policy would be: its version, empty when it has errors, and every problem."""

    version: str
    problems: tuple[Problem, ...]


def check_name(name: str) -> None:
    """Raises InvalidInput for what cannot name a policy."""
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
            error.hint = "it was deleted: its history tells when; register it to have it back"
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
    """Whether there is anything to do; raises UnknownName, DuplicateName, StaleVersion or Conflict
    when it may not be done. One that failed is begun anew by what would change nothing else.
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


_LOOK_EVERY_MS, _MOST_LOOKS = 20, 1_500
RenewTables = Callable[[], Awaitable[None]]
"""Goes over to other tables and another ontology."""


class ChangeExecutor:
    """Who carries changes out. All calls but `caught_up` are made while holding the engine's turn.

    Holds nothing of its own.
    """

    def __init__(self, record: PolicyRecord, engine: PolicyEngine, clock: Clock) -> None:
        self._record, self._engine, self._clock = record, engine, clock

    @asynccontextmanager
    async def caught_up(self) -> AsyncIterator[None]:
        """The engine's turn, once it has met again all that it may have read before a crash: that
        is judged by what held then. Raises Conflict when it takes long.
        """
        for _ in range(_MOST_LOOKS):
            async with self._engine.turn:
                await self._record.read_on()
                await self._engine.place()
                if not self._engine.reads_again:
                    yield
                    return
            await self._clock.sleep(_LOOK_EVERY_MS)
        raise Conflict(
            "policies still read again what they had read before the last stop",
            code="policy.catching_up",
            hint="ask again in a moment",
        )

    async def carry_out(self, drafts: Sequence[DraftChange]) -> list[ChangeResult]:
        """Puts changes on record, then carries them out."""
        if not drafts:
            return []
        return await self._carry_out(drafts, self._record.texts, None)

    async def turn_to(
        self, texts: CompiledTexts, drafts: Sequence[DraftChange], renew: RenewTables | None
    ) -> list[ChangeResult]:
        """The same with other meanings of all texts. `renew` is called when all is on record and
        nothing runs any more that is to end here.
        """
        await self._engine.commit()
        return await self._carry_out(drafts, texts, renew)

    async def _carry_out(
        self, drafts: Sequence[DraftChange], texts: CompiledTexts, renew: RenewTables | None
    ) -> list[ChangeResult]:
        place = await self._engine.place()
        first = len(self._record.registry.changes) + 1
        changes = [change_of(draft, place, first + n) for n, draft in enumerate(drafts)]
        try:
            recorded = await self._recorded(changes)
            self._record.texts = texts
            plans = [self._plan_change(kept) for kept in recorded]
            if renew is not None:
                for change in plans:
                    self._engine.make_way(change)
                await renew()
            for change in plans:
                await self._engine.take_change(change)
        except BaseException:
            self._engine.start_over()
            raise
        return [self._done(change) for change in changes]

    async def _recorded(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        try:
            return await self._record.append(changes)
        except Exception:
            await self._record.read_on()  # it may have been written all the same
            known = [self._record.registry.known.get(change_id(change)) for change in changes]
            if None in known:
                raise
            return [kept for kept in known if kept is not None]

    def _done(self, changed: PolicyChange) -> ChangeResult:
        entry = self._record.registry.entries.get(changed.name)
        return ChangeResult(
            changed=True,
            name=changed.name,
            what=changed.what,
            version=changed.version or (entry.version if entry is not None else ""),
            after=changed.place.after,
            problems=changed.problems,
        )

    def _plan_change(self, kept: RecordedChange) -> PlanChange:
        entry = self._record.registry.entries.get(kept.changed.name)
        return plan_change(kept, entry, self._record.texts)


def change_of(draft: DraftChange, place: StreamPosition, number: int) -> PolicyChange:
    """The change that a draft is at a place."""
    return PolicyChange(place=place, number=number, **msgspec.structs.asdict(draft))


READER = "policies"
_NOTHING = StreamPosition(0, 0)


class PolicyLifecycle:
    """Who changes the policies of a node, and who tells its engine which run since when.

    `begin` first. Everything is done while holding the engine's turn; all calls belong to its event
    loop.
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
        """The engine runs from now on what is on record, and nothing else. `act_within_ms`: what
        older detections do to policies is recorded, not carried out.
        """
        self._channels, self._engine, self._clock = channels, engine, clock
        self._record = PolicyRecord(
            channels, clock, engine.name, CompiledTexts(compile), act_within_ms=act_within_ms
        )
        self._carrying = ChangeExecutor(self._record, engine, clock)
        engine.follow(self._record)

    @property
    def texts(self) -> CompiledTexts:
        """What texts mean now."""
        return self._record.texts

    def phrases(self, policy: str, version: str) -> Sequence[str]:
        """What others do when a version is detected, also one that was replaced or deleted."""
        return self._record.phrases(policy, version)

    @property
    def _registry(self) -> PolicyRegistry:
        return self._record.registry

    # --- from files ---

    async def begin(
        self, files: Mapping[str, str], unread: Collection[str] = (), *, record: bool = True
    ) -> list[ChangeResult]:
        """Takes in what is on record and what the files changed since; a policy that does not
        compile is marked with the reasons and does not run.

        Without `record` nothing is appended: for a look at a site whose node does not run.
        """
        if record:  # a reader that never moves on keeps retention from taking changes away
            await self._channels.subscribe(CHANNEL, READER)
        async with self._engine.turn:
            await self._record.read_on()
            drafts = await self._drafts(self.texts, files, unread)
            if record:
                await self._engine.place()  # goes to where the last process stood
                return await self._carrying.carry_out(drafts)
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
        """The same while events flow, with what texts mean now. Policies that this breaks are
        marked. `renew` is called at the place, when all is on record and nothing runs any more that
        is to end there.

        Raises PolicyError when a file that changed does not compile; then everything stays as it
        was.
        """
        texts = CompiledTexts(compile)
        await self._prepare(texts, files)  # most of the work, while events flow
        async with self._carrying.caught_up():
            if faults := self._faults(texts, files, unread):
                raise PolicyError(faults)
            drafts = await self._drafts(texts, files, unread)
            return await self._carrying.turn_to(texts, drafts, renew)

    async def faults_of_files(
        self, files: Mapping[str, str], unread: Collection[str], compile: Compile
    ) -> list[Problem]:
        """Why `take_files` would refuse these, with nothing done."""
        texts = CompiledTexts(compile)
        await self._prepare(texts, files)
        return self._faults(texts, files, unread)

    def _faults(
        self, texts: CompiledTexts, files: Mapping[str, str], unread: Collection[str]
    ) -> list[Problem]:
        """Of the files that changed."""
        said = self._registry.from_files(files, unread)
        changed = [one for one in said if one.what != "deleted"]
        return [fault for one in changed for fault in texts.problems(one.name, one.text)]

    async def take_meaning(self, compile: Compile) -> list[ChangeResult]:
        """Words mean something else from now on. Policies that this breaks are marked, those that
        mean something else begin anew, all at one place.
        """
        texts = CompiledTexts(compile)
        await self._prepare(texts, {})
        async with self._carrying.caught_up():
            await self._prepare(texts, {})
            return await self._carrying.turn_to(
                texts, drafts_of_ontology(self._registry, (), texts), None
            )

    async def _drafts(
        self, texts: CompiledTexts, files: Mapping[str, str], unread: Collection[str]
    ) -> list[DraftChange]:
        await self._prepare(texts, files)
        said = drafts_of_files(self._registry, files, unread, texts)
        names = {draft.name for draft in said}
        return said + drafts_of_ontology(self._registry, names, texts)

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
        """Every problem of a policy, with nothing done."""
        check_name(name)
        await self.texts.prepare([(name, text)])
        try:
            compiled = self.texts.get(name, text)
        except PolicyError as error:
            return CheckResult("", error.problems)
        return CheckResult(compiled.plan.version(), self._told(text, compiled))

    async def register(self, name: str, text: str, *, by: str = "") -> ChangeResult:
        """Starts a policy that was not there; raises PolicyError with every fault, or
        DuplicateName.
        """
        return await self._bring("registered", name, text, by)

    async def replace(
        self, name: str, text: str, *, by: str = "", expects: str = ""
    ) -> ChangeResult:
        """Another version in the place of the old one; it begins anew. A paused policy stays
        paused.

        Raises PolicyError, UnknownName, or StaleVersion when it is not at version `expects`.
        """
        return await self._bring("replaced", name, text, by, expects)

    async def shadow(self, name: str, text: str, *, by: str = "") -> ChangeResult:
        """A version that runs beside the running one; only differences are told. An earlier shadow
        ends.

        Raises PolicyError, UnknownName, Conflict when the policy does not run, or is that version,
        and Unsupported for one on Spark.
        """
        if name in self._engine.on_spark:
            raise Unsupported(
                f"a shadow of {name!r}",
                "Spark",
                hint="compare the versions over history: rapport backtest NAME --compare FILE",
            )
        return await self._bring("shadowed", name, text, by)

    async def promote(self, name: str, *, by: str = "") -> ChangeResult:
        """The version in the shadow becomes the policy and loses nothing it waits for; raises
        UnknownName or Conflict.
        """
        async with self._engine.turn:
            await self._record.read_on()
            text = known_entry(self._registry, name).shadow_text
            if not text:
                return await self._make_here(DraftChange(what="promoted", name=name, by=by))
            return await self._bring_here("promoted", name, text, by)

    async def drop(self, name: str, *, by: str = "") -> ChangeResult:
        """Ends the shadow; raises UnknownName or Conflict."""
        return await self._make(DraftChange(what="dropped", name=name, by=by))

    async def pause(self, name: str, *, by: str = "") -> ChangeResult:
        """The policy sees nothing and forgets what it waits for; it keeps its version. Raises
        UnknownName.
        """
        return await self._make(DraftChange(what="paused", name=name, by=by))

    async def resume(self, name: str, *, by: str = "") -> ChangeResult:
        """The policy begins anew at this place, also one that failed; raises UnknownName."""
        return await self._make(DraftChange(what="resumed", name=name, by=by))

    async def delete(self, name: str, *, by: str = "") -> ChangeResult:
        """Ends a policy; its history stays. Raises UnknownName."""
        return await self._make(DraftChange(what="deleted", name=name, by=by))

    async def _bring(
        self, what: ChangeKind, name: str, text: str, by: str, expects: str = ""
    ) -> ChangeResult:
        check_name(name)
        await self.texts.prepare([(name, text)])  # most of the work, while events flow
        self.texts.get(name, text)
        async with self._engine.turn:
            await self._record.read_on()
            return await self._bring_here(what, name, text, by, expects)

    async def _bring_here(
        self, what: ChangeKind, name: str, text: str, by: str, expects: str = ""
    ) -> ChangeResult:
        """With what the text means now: that may have changed while the turn was waited for. Called
        while holding the turn.
        """
        await self.texts.prepare([(name, text)])
        compiled = self.texts.get(name, text)
        done = await self._make_here(DraftChange.of(what, name, text, compiled, by=by), expects)
        return msgspec.structs.replace(done, problems=self._told(text, compiled))

    async def _make(self, draft: DraftChange) -> ChangeResult:
        async with self._engine.turn:
            await self._record.read_on()
            return await self._make_here(draft)

    async def _make_here(self, draft: DraftChange, expects: str = "") -> ChangeResult:
        is_failed = draft.name in self._engine.failed()
        if is_needed(
            self._registry, draft.what, draft.name, draft.version, expects, is_failed=is_failed
        ):
            [done] = await self._carrying.carry_out([draft])
            return done
        entry = known_entry(self._registry, draft.name)
        return ChangeResult(changed=False, name=draft.name, what=draft.what, version=entry.version)

    def _told(self, text: str, compiled: Compiled) -> tuple[Problem, ...]:
        """Warnings and hints, with those about other policies."""
        faults = Faults(compiled.tree.name, text)
        lint_commands(compiled.tree, [entry.name for entry in self._registry.alive()], faults)
        return (*compiled.problems, *faults.problems())

    # --- looking ---

    def policies(self) -> list[PolicyView]:
        """All that were not deleted, with what they did since the start."""
        return self._shown(self._registry.alive())

    def versions(self) -> dict[str, str]:
        """Names and versions of all that should run, wherever."""
        return {one.name: one.version for one in self._registry.alive() if one.state == "running"}

    def policy(self, name: str) -> PolicyView:
        """One with its text; raises UnknownName."""
        return self._shown([known_entry(self._registry, name)], whole=True)[0]

    def _shown(self, entries: Sequence[PolicyEntry], *, whole: bool = False) -> list[PolicyView]:
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

    def compiled(self, name: str, version: str) -> Compiled | None:
        """What a version means now, also one that was replaced or deleted; None when it is not
        known or broken.
        """
        text = self.text_of(name, version)
        if not text or self.texts.problems(name, text):
            return None
        return self.texts.get(name, text)

    def text_of(self, name: str, version: str) -> str:
        """The text of a version, also of one that was replaced or deleted; that of the newest when
        the version is not known, empty when the policy is not.
        """
        entry = self._registry.entries.get(name)
        return text_of_version(self._registry.history(name), version) or (
            entry.text if entry is not None else ""
        )

    def history(self, name: str) -> list[ChangeView]:
        """All changes of a policy, a deleted one too; raises UnknownName."""
        changes = self._registry.history(name)
        if not changes:
            known_entry(self._registry, name)
        return history_view(changes)
