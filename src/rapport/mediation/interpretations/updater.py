"""Changes of interpretations in a running node, without a pause. [ME-6, ME-7, ME-12]

Checks, registries and transformers are built in the background and recorded; then they are
activated in one step of the event loop, between two batches. The recorded state is active after the
next start, so a crash at any point leaves the old or the new state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.mediation.background_work import run_in_background
from rapport.mediation.config import ProblemsByName, SiteInterpretations
from rapport.mediation.conversion.lookups import SiteTables
from rapport.mediation.interpretations.change_log import (
    CHANNEL,
    ChangeLog,
    FilesRecord,
    LoggedChange,
    change_event,
    files_event,
    version_events,
)
from rapport.mediation.interpretations.change_requests import ChangeRequest
from rapport.mediation.interpretations.change_state import (
    CHECKPOINT_EVERY,
    AcceptedChange,
    ChangeOutcome,
    ChangeResult,
    CombinedState,
    InterpretationState,
    changed_stamps,
    combine,
    evaluate_change,
    file_digests,
    read_new_changes,
    write_checkpoint,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.reader import MediationReader, Prepared
from rapport.mediation.source_bindings import SourceBinding
from rapport.store.base import RecordStore

READER = "interpretations"
_log = get_logger(__name__)
T = TypeVar("T")

Prepare = Callable[[ActiveInterpretations, SiteTables], Callable[[], None]]
"""Called in the background with the next state; the returned function is called on the loop when it
is activated.
"""


class PreviousConfiguration(msgspec.Struct, frozen=True):
    """The loaded configuration, for a roll-back."""

    files: SiteInterpretations
    bindings: Mapping[str, SourceBinding]
    lookups: SiteTables


class _PendingUpdate(msgspec.Struct, frozen=True):
    """What is activated in one step."""

    standing: InterpretationState
    in_force: ActiveInterpretations
    meanings: Prepared
    others: tuple[Callable[[], None], ...]
    events: tuple[Event, ...]
    """Events to record first."""


class InterpretationUpdater:
    """Activates interpretations at a node; changes are serialised. Call `start` first. The
    background thread works on its own registry, since a registry is for one thread at a time.
    """

    def __init__(
        self,
        channels: Channels,
        repository: Repository,
        reader: MediationReader,
        clock: Clock,
        *,
        node: str,
        records: RecordStore | None = None,
    ) -> None:
        """`node`: the node's id, to recognise its own file records; `records`: storage of a
        checkpoint, so that a start does not check every change.
        """
        self._channels, self._clock = channels, clock
        self._repository, self._reader = repository, reader
        self._turn = asyncio.Lock()
        self._kept, self._records, self._in_checkpoint = ChangeLog(node), records, 0
        self._now: CombinedState | None = None
        self._bindings: Mapping[str, SourceBinding] = reader.bindings
        self._lookups: SiteTables = reader.lookups
        self.prepares: list[Prepare] = []
        """Further preparations in the background."""
        self.on_activated: list[Callable[[], None]] = []
        """Called after every activation."""

    # --- from files ---

    async def start(self, files: SiteInterpretations, *, record: bool = True) -> ProblemsByName:
        """Loads files and all recorded changes; returns the problems of the files. Without
        `record` nothing is appended, to inspect a site whose node does not run.
        """
        async with self._turn:
            if record:  # a reader that never commits protects changes from retention
                await self._channels.subscribe(CHANNEL, READER)
            await self._read_new()
            return await self._load(files, record=record)

    async def load_files(
        self, files: SiteInterpretations, bindings: Mapping[str, SourceBinding], lookups: SiteTables
    ) -> dict[str, str]:
        """Activates the present files and bindings in one step; returns the changed stamps.
        After a failure the former bindings stay.
        """
        async with self._turn:
            before = dict(self._repository.in_force.stamps)
            await self._read_new()
            former = self._bindings, self._lookups
            self._bindings, self._lookups = bindings, lookups
            try:
                await self._load(files)
            except BaseException:
                self._bindings, self._lookups = former
                raise
            return changed_stamps(before, self._repository.in_force.stamps)

    def previous(self) -> PreviousConfiguration:
        """The argument for `roll_back`."""
        return PreviousConfiguration(self._current().standing.files, self._bindings, self._lookups)

    async def roll_back(self, former: PreviousConfiguration) -> None:
        """Undoes `load_files`: changes that the files superseded are active again. If this
        cannot be recorded, it lasts until the next start, which reads the files again.
        """
        async with self._turn:
            await self._read_new()
            self._bindings, self._lookups = former.bindings, former.lookups
            is_kept = await self._record_roll_back(former.files)
            await self._load(former.files, record=is_kept)

    async def _record_roll_back(self, files: SiteInterpretations) -> bool:
        digests, kept = file_digests(files, self._kept), self._kept
        if digests == kept.last_digests():
            return True
        taken = FilesRecord(
            number=kept.next_number(), said=digests, undoes=kept.last_files_number()
        )
        try:
            await self._channels.channel(CHANNEL).append(
                [files_event(taken, kept.node, self._clock.now_ms())]
            )
            await self._read_new()
        except RapportError as error:
            _log.warning("roll-back not recorded", reason=str(error))
            return False
        return True

    async def _load(self, files: SiteInterpretations, *, record: bool = True) -> ProblemsByName:
        before, digests = self._kept.last_digests(), file_digests(files, self._kept)
        events: list[Event] = []
        if digests != before and record:
            taken = FilesRecord(number=self._kept.next_number(), said=digests)
            events.append(files_event(taken, self._kept.node, self._clock.now_ms()))
        records = self._records
        together = await self._in_background(lambda: combine(files, self._kept, digests, records))
        self._log_outcomes(together)
        await self._put_in_force(together, events, record=record)
        if record and not events:  # appended events must be read first
            await self._save_checkpoint()
        return together.problems

    async def _save_checkpoint(self) -> None:
        """Writes a checkpoint from time to time, when all recorded changes are processed."""
        records, now = self._records, self._current()
        due = len(now.outcomes) - self._in_checkpoint >= CHECKPOINT_EVERY
        if records is not None and due and len(now.outcomes) == len(self._kept.changes()):
            self._in_checkpoint = await self._in_background(
                lambda: write_checkpoint(records, now, self._kept)
            )

    # --- changes ---

    async def change(
        self, want: Callable[[ActiveInterpretations], ChangeRequest], *, by: str = ""
    ) -> ChangeResult:
        """Applies a change, recorded on return; `want` runs in the background with the
        active interpretations. Raises ChangeRefused with every problem, or StaleVersion;
        the state is then unchanged.
        """
        async with self._turn:
            await self._follow()
            return await self._change(want, by, do=True)

    async def try_out(self, want: Callable[[ActiveInterpretations], ChangeRequest]) -> ChangeResult:
        """What `change` would do; raises the same errors."""
        async with self._turn:
            await self._follow()
            return await self._change(want, "", do=False)

    async def _change(
        self, want: Callable[[ActiveInterpretations], ChangeRequest], by: str, *, do: bool
    ) -> ChangeResult:
        now = self._current()

        def consider() -> ChangeResult | AcceptedChange:
            wanted = want(now.standing.in_force)
            return evaluate_change(now, self._kept, wanted, self._bindings.values(), by)

        found = await self._in_background(consider)
        if isinstance(found, ChangeResult):
            return found
        time_ms = self._clock.now_ms()
        event = change_event(found.changed, time_ms)
        update = await self._in_background(lambda: self._prepare_update(found.standing, [event]))
        done = ChangeResult(
            changed=True,
            id=event.id,
            number=found.changed.number,
            versions=changed_stamps(now.standing.in_force.stamps, found.standing.in_force.stamps),
            problems=found.problems,
        )
        if do:
            outcomes = now.outcomes | {done.id: ChangeOutcome("in force", found.problems)}
            await self._record_and_swap(
                update, CombinedState(found.standing, outcomes, now.problems)
            )
        return done

    # --- what others changed ---

    async def run(self) -> None:
        """Activates changes of other nodes until cancelled."""
        while True:
            await self._channels.channel(CHANNEL).wait_after(self._kept.position)
            await self.step()

    async def step(self) -> None:
        """Processes recorded changes."""
        async with self._turn:
            await self._follow()

    async def _follow(self) -> None:
        fresh = [each for each in await self._read_new() if each.id not in self._current().outcomes]
        if fresh:
            now = self._current()
            together = await self._in_background(lambda: self._with_changes(now, fresh))
            self._log_outcomes(together, now)
            await self._put_in_force(together, [])
        await self._save_checkpoint()

    def _with_changes(self, now: CombinedState, fresh: list[LoggedChange]) -> CombinedState:
        """Applies changes one by one if they come last, else recombines everything."""
        digests = self._kept.last_digests()
        known = {each.id for each in fresh}
        behind = [each.key for each in self._kept.changes() if each.id not in known]
        if behind and min(each.key for each in fresh) < behind[-1]:
            return combine(now.standing.files, self._kept, digests)
        standing, outcomes = now.standing, dict(now.outcomes)
        file_numbers = self._kept.file_numbers(digests)
        for change in sorted(fresh, key=lambda each: each.key):
            standing, outcomes[change.id] = standing.after(change, file_numbers)
        return CombinedState(standing, outcomes, now.problems)

    # --- looking ---

    async def inspect(self, find: Callable[[InterpretationState], T]) -> T:
        """Runs `find` on the present state in the background."""
        async with self._turn:
            standing = self._current().standing
            return await self._in_background(lambda: find(standing))

    async def inspect_with(
        self, files: SiteInterpretations, find: Callable[[InterpretationState], T]
    ) -> T:
        """Runs `find` on the state after loading these files."""
        async with self._turn:
            await self._follow()
            digests, records = file_digests(files, self._kept), self._records
            return await self._in_background(
                lambda: find(combine(files, self._kept, digests, records).standing)
            )

    def history(self) -> list[tuple[LoggedChange, ChangeOutcome]]:
        """All changes in order with their outcomes."""
        outcomes = self._current().outcomes
        return [(each, outcomes[each.id]) for each in self._kept.changes() if each.id in outcomes]

    # --- putting in force ---

    async def _read_new(self) -> list[LoggedChange]:
        return await read_new_changes(self._channels.channel(CHANNEL), self._kept)

    async def _put_in_force(
        self, together: CombinedState, events: list[Event], *, record: bool = True
    ) -> None:
        update = await self._in_background(lambda: self._prepare_update(together.standing, events))
        await self._record_and_swap(update, together, record=record)

    def _prepare_update(
        self, standing: InterpretationState, events: Iterable[Event]
    ) -> _PendingUpdate:
        """In the background: everything that lanes need, and unrecorded versions."""
        active = standing.in_force
        typed = active.typed.apart(self._repository.in_force.typed)
        in_force = active.with_typed(typed)
        in_force.stamps = active.stamps
        for name in {binding.interpretation for binding in self._bindings.values()}:
            if name in typed:
                typed.checked(name)
        meanings = self._reader.prepare(in_force, self._bindings, self._lookups)
        others = tuple(prepare(in_force, self._lookups) for prepare in self.prepares)
        versions = version_events(in_force, self._kept.versions, self._clock.now_ms())
        recorded = (*events, *filter(_fits_in_log, versions))
        return _PendingUpdate(standing, in_force, meanings, others, recorded)

    async def _record_and_swap(
        self, update: _PendingUpdate, together: CombinedState, *, record: bool = True
    ) -> None:
        if update.events and record:
            await self._channels.channel(CHANNEL).append(update.events)
        # No await from here on: lanes see repository and transformers change together.
        self._repository.swap(update.in_force)
        self._reader.take_over(update.meanings, self._bindings, self._lookups)
        for take_over in update.others:
            take_over()
        self._now = together
        for callback in self.on_activated:
            callback()

    async def _in_background(self, work: Callable[[], T]) -> T:
        """Without pauses at the start, when no events flow."""
        return await run_in_background(work, resting=self._now is not None)

    def _current(self) -> CombinedState:
        if self._now is None:
            raise InvalidInput("interpretations are not started", code="interpretation.not_begun")
        return self._now

    def _log_outcomes(self, together: CombinedState, before: CombinedState | None = None) -> None:
        for change, outcome in together.outcomes.items():
            if outcome.state != "in force" and (before is None or change not in before.outcomes):
                for problem in outcome.problems:
                    _log.warning("change not in force", change=change, reason=problem.message)


def _fits_in_log(event: Event) -> bool:
    if len(event.data) <= MAX_DATA_BYTES:
        return True
    _log.warning("version too large to record", version=event.id, bytes=len(event.data))
    return False
