"""The state of interpretations after the site's files and all logged changes. [ME-6, ME-7, ME-12]

Pure and slow, so it runs in the background. A file modified after a change of the same
interpretation wins over that change. The canonical model only grows: types added at run time stay
unless the files contradict them.

A checkpoint stores the state after a number of changes, so that a start need not check them again.
It is used only for exactly these changes, these files and this version of the program; the log
stays authoritative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from rapport import __version__
from rapport.channel.channel import Channel, Channels
from rapport.core.errors import InvalidInput, Problem, StaleVersion
from rapport.core.event import content_id
from rapport.kernel.telemetry import get_logger
from rapport.mediation.background_work import run_in_background
from rapport.mediation.config import ProblemsByName, SiteInterpretations
from rapport.mediation.interpretations.change_log import (
    CHANNEL,
    ChangeLog,
    ChangeRecord,
    LoggedChange,
    change_kind,
    change_target,
    change_targets,
)
from rapport.mediation.interpretations.change_requests import (
    AnyChange,
    ChangeRefused,
    ChangeRequest,
    DeclareFields,
    check_changes,
    check_formats,
    in_use_problems,
    new_misfits,
    other_form_problem,
    read_fields_declaration,
    same_meaning,
    unknown_function_problem,
)
from rapport.mediation.interpretations.model import (
    CANONICAL,
    FieldsInterpretation,
    FormatChoice,
    Interpretation,
)
from rapport.mediation.interpretations.registry import (
    InterpretationRegistry,
    RegisteredInterpretation,
    Replacement,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, has_errors
from rapport.mediation.interpretations.type_changes import (
    Augment,
    Change,
    Declare,
    Remove,
    apply_change,
)
from rapport.mediation.source_bindings import SourceBinding
from rapport.store.base import RecordStore

ChangeStatus = Literal["in force", "lost", "refused"]


class ChangeOutcome(msgspec.Struct, frozen=True):
    """The outcome of a change; `lost`: a file was modified after it."""

    state: ChangeStatus
    problems: tuple[Problem, ...] = ()


class InterpretationState:
    """An immutable state; a change produces the next. For one thread at a time."""

    def __init__(
        self,
        files: SiteInterpretations,
        in_force: ActiveInterpretations,
        waiting: Mapping[str, Interpretation],
    ) -> None:
        """`waiting`: refused interpretations of the files, which a change may complete."""
        self.files, self.in_force, self._waiting = files, in_force, waiting

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(self._waiting)

    @staticmethod
    def from_files(files: SiteInterpretations) -> tuple[InterpretationState, ProblemsByName]:
        """The state before any change, and the problems of the files."""
        in_force, problems = files.activate()
        waiting = {
            name: form
            for name, form in files.typed.items()
            if name in in_force.refused and name != CANONICAL
        }
        return InterpretationState(files, in_force, waiting), problems

    def apply(self, changed: ChangeRecord) -> tuple[InterpretationState, tuple[Problem, ...]]:
        """Returns the state after a record's changes; this state if there is an error or no
        difference.
        """
        problems = check_changes(changed.changes, self.files.functions)
        problems += check_formats(changed.formats, [*change_targets(changed)])
        typed, fields = self.in_force.typed, dict(self.in_force.fields)
        for change in _needed(typed, changed.changes):
            if has_errors(problems):
                break
            if isinstance(change, DeclareFields) or _removes(change, fields):
                problems += self._change_fields(change, typed, fields)
                continue
            problems += _form_problems(change, fields)
            typed, found = _applied(typed, change)
            problems += found
        problems = sorted(dict.fromkeys(problems), key=lambda each: each.severity != "error")
        formats = self._formats(typed, changed)
        if has_errors(problems) or self._is_unchanged(typed, formats, fields):
            return self, tuple(problems)
        return self._with(typed, formats, self._waiting, fields)._activate_waiting(), tuple(
            problems
        )

    def _change_fields(
        self,
        change: AnyChange,
        typed: InterpretationRegistry,
        fields: dict[str, FieldsInterpretation],
    ) -> list[Problem]:
        """Adds a declaration in the fields form to `fields`, or removes it."""
        if not isinstance(change, DeclareFields):
            del fields[change_target(change)]
            return []
        if change.name in typed or change.name in self.files.typed:
            return [other_form_problem(change.name, "typed")]
        found, problems = read_fields_declaration(change, self.files.tables)
        allowed = self.files.functions
        for rule in found.conversions if found is not None else ():
            if ":" in rule.call and rule.call not in allowed:
                problems.append(unknown_function_problem(change.name, rule.call))
        if found is not None:
            fields[change.name] = found
        return problems

    def _is_unchanged(
        self,
        typed: InterpretationRegistry,
        formats: Mapping[str, FormatChoice],
        fields: Mapping[str, FieldsInterpretation],
    ) -> bool:
        now = self.in_force
        same = _is_equal(typed, now.typed) and formats == now.formats
        return same and same_meaning(fields, now.fields)

    def after(
        self, kept: LoggedChange, file_numbers: Mapping[str, int]
    ) -> tuple[InterpretationState, ChangeOutcome]:
        """The state after a logged change, and its outcome."""
        lost = [
            name
            for name in change_targets(kept.changed)
            if name != CANONICAL and kept.changed.number < file_numbers.get(name, 0)
        ]
        if lost:
            is_in_file = all(self._is_in_file(change) for change in kept.changed.changes)
            return self, ChangeOutcome("lost", () if is_in_file else (_lost(kept, lost),))
        new, problems = self.apply(kept.changed)
        return new, ChangeOutcome("refused" if has_errors(problems) else "in force", problems)

    def _is_in_file(self, change: AnyChange) -> bool:
        if isinstance(change, DeclareFields):
            found, own = read_fields_declaration(change)[0], self.files.fields.get(change.name)
            return found is not None and own is not None and found.meaning() == own.meaning()
        return (
            isinstance(change, Declare)
            and self.files.typed.get(change.interpretation.name) == change.interpretation
        )

    def _formats(
        self, typed: InterpretationRegistry, changed: ChangeRecord
    ) -> dict[str, FormatChoice]:
        formats = {name: one for name, one in self.in_force.formats.items() if name in typed}
        for change in changed.changes:
            if isinstance(change, Declare):
                formats.pop(change.interpretation.name, None)
        named = {
            name: changed.formats[name]
            for name in change_targets(changed)
            if name in changed.formats
        }
        return formats | {name: one for name, one in named.items() if name in typed}

    def _with(
        self,
        typed: InterpretationRegistry,
        formats: Mapping[str, FormatChoice],
        waiting: Mapping[str, Interpretation],
        fields: Mapping[str, FieldsInterpretation] | None = None,
    ) -> InterpretationState:
        return InterpretationState(
            self.files, self.in_force.with_typed(typed, formats, fields), waiting
        )

    def _activate_waiting(self) -> InterpretationState:
        """Activates waiting interpretations of the files as far as possible."""
        found: InterpretationState = self
        while (more := found._activate_first_waiting()) is not None:
            found = more
        return found

    def _activate_first_waiting(self) -> InterpretationState | None:
        for name, form in self._waiting.items():
            if name in self.in_force.typed or name in self.in_force.fields:
                continue
            typed, problems = _applied(self.in_force.typed, Declare(form))
            if not has_errors(problems):
                waiting = {each: one for each, one in self._waiting.items() if each != name}
                formats = self.files.formats
                own = {name: formats[name]} if name in formats else {}
                return self._with(typed, {**self.in_force.formats, **own}, waiting)
        return None


class CombinedState(msgspec.Struct, frozen=True):
    """The state after files and changes."""

    standing: InterpretationState
    outcomes: dict[str, ChangeOutcome]
    """The outcome of each change by id."""
    problems: ProblemsByName
    """The problems of the files."""


def _applied(
    typed: InterpretationRegistry, change: Change
) -> tuple[InterpretationRegistry, tuple[Problem, ...]]:
    try:
        return apply_change(typed, change)
    except InvalidInput as error:  # unknown name
        return typed, error.problems_found()


def _removes(change: AnyChange, fields: Collection[str]) -> bool:
    return isinstance(change, Remove) and change.name in fields


def _form_problems(change: AnyChange, fields: Collection[str]) -> list[Problem]:
    """Reports a typed change of an interpretation in the fields form."""
    name = change_target(change)
    return [other_form_problem(name, "fields")] if name in fields else []


def _needed(typed: InterpretationRegistry, changes: Iterable[AnyChange]) -> Iterator[AnyChange]:
    """Skips types that the canonical model already has, since files may have caught up."""
    known = set(typed.canonical.types)
    for change in changes:
        if isinstance(change, Augment) and change.name == CANONICAL:
            new = tuple(one for one in change.types if one not in known)
            yield msgspec.structs.replace(change, types=new)
        else:
            yield change


def _is_equal(one: InterpretationRegistry, other: InterpretationRegistry) -> bool:
    return (one.canonical_versions, one.replacements, one.registered) == (
        other.canonical_versions,
        other.replacements,
        other.registered,
    )


def _lost(kept: LoggedChange, names: Iterable[str]) -> Problem:
    made = ", ".join(
        f"{change_kind(change)} {change_target(change)}" for change in kept.changed.changes
    )
    return Problem(
        code="interpretation.change_lost",
        message=f"{made} is not in force: the file of {', '.join(names)} was changed after it",
        hint="the file wins; repeat the change if it is still needed",
        severity="warning",
    )


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change; `changed` is false if there was no difference."""

    changed: bool
    id: str = ""
    number: int = 0
    versions: dict[str, str] = {}
    """New stamps of affected interpretations by name; "" for removed ones."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints."""


class AcceptedChange(msgspec.Struct, frozen=True):
    """A valid change with its resulting state."""

    changed: ChangeRecord
    standing: InterpretationState
    problems: tuple[Problem, ...]


def evaluate_change(
    now: CombinedState,
    kept: ChangeLog,
    wanted: ChangeRequest,
    bindings: Iterable[SourceBinding],
    by: str,
) -> ChangeResult | AcceptedChange:
    """Evaluates a request; returns a ChangeResult if there is no difference or it was just
    made. Raises ChangeRefused with every problem, or StaleVersion if an expectation fails.
    """
    standing, last = now.standing, kept.last_change()
    _check_expected(standing.in_force.stamps, wanted.expects)
    changed = _as_stored(
        ChangeRecord(
            number=kept.next_number(),
            after=last.id if last is not None else "",
            changes=wanted.changes,
            formats=dict(wanted.formats),
            by=by,
            node=kept.node,
        )
    )
    if last is not None and _is_repeated(changed, last, now):
        return ChangeResult(changed=False, id=last.id, number=last.changed.number)
    bound = list(bindings)
    removed = [each.name for each in changed.changes if isinstance(each, Remove)]
    in_use = [*in_use_problems(removed, bound)]
    new, problems = standing.apply(changed)
    if has_errors(problems) or in_use:
        raise ChangeRefused([*in_use, *problems])
    if new is standing:
        return ChangeResult(changed=False, problems=problems)
    wrong = new_misfits(bound, standing.in_force, new.in_force)
    return AcceptedChange(changed, new, (*problems, *wrong))


def changed_stamps(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Changed stamps by name; "" for removed names."""
    names = before.keys() | after.keys()
    return {
        name: after.get(name, "") for name in sorted(names) if before.get(name) != after.get(name)
    }


def _check_expected(stamps: Mapping[str, str], expects: Mapping[str, str]) -> None:
    for name, stamp in expects.items():
        if stamps.get(name, "") != stamp:
            now = stamps.get(name) or "not there"
            message = f"{name[:100]!r} is {now[:120]}, not {stamp[:120]!r}"
            raise StaleVersion(message, hint="read it again, then repeat the request")


def _as_stored(changed: ChangeRecord) -> ChangeRecord:
    """As it will be decoded from the log: 5 becomes 5.0."""
    return msgspec.json.decode(msgspec.json.encode(changed), type=ChangeRecord)


def _is_repeated(changed: ChangeRecord, last: LoggedChange, now: CombinedState) -> bool:
    """A change superseded by a file is made again; an active one is not."""
    same = (changed.changes, changed.formats) == (last.changed.changes, last.changed.formats)
    return same and now.outcomes[last.id].state == "in force"


CHECKPOINT_TABLE, CHECKPOINT_KEY = "mediation.checkpoint", "interpretations"
CHECKPOINT_EVERY = 50
"""Changes between two checkpoints."""
_log = get_logger(__name__)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state after the first `count` changes."""

    grounds: str
    """Digest of everything it depends on besides the changes."""
    count: int
    changes: str
    """Digest of their ids in order."""
    roots: tuple[Interpretation, ...]
    replacements: tuple[Replacement, ...]
    held: dict[str, RegisteredInterpretation]
    formats: dict[str, FormatChoice]
    fields: dict[str, FieldsInterpretation]
    refused: dict[str, tuple[Problem, ...]]
    waiting: tuple[str, ...]
    outcomes: dict[str, ChangeOutcome]
    """Outcomes of changes that are not simply in force, by id."""


_READ_CHECKPOINT = msgspec.json.Decoder(Checkpoint)
_IN_FORCE = ChangeOutcome("in force")


def combine(
    files: SiteInterpretations,
    kept: ChangeLog,
    digests: Mapping[str, str],
    records: RecordStore | None = None,
) -> CombinedState:
    """Applies all changes that no file supersedes to the files. Costs the checks of every
    interpretation and of every change; a valid checkpoint in `records` saves those of its changes.
    """
    standing, problems = InterpretationState.from_files(files)
    changes, file_numbers = kept.changes(), kept.file_numbers(digests)
    found = _load(records) if records is not None else None
    outcomes: dict[str, ChangeOutcome] = {}
    if found is not None and _fits(found, files, changes, file_numbers):
        standing = _standing(found, files)
        done, changes = changes[: found.count], changes[found.count :]
        outcomes = {one.id: found.outcomes.get(one.id, _IN_FORCE) for one in done}
    for change in changes:
        standing, outcomes[change.id] = standing.after(change, file_numbers)
    return CombinedState(standing, outcomes, problems)


def write_checkpoint(records: RecordStore, together: CombinedState, kept: ChangeLog) -> int:
    """Writes the state if it decodes to the same; returns its number of changes."""
    standing, changes = together.standing, kept.changes()
    in_force = standing.in_force
    made = Checkpoint(
        grounds=_grounds(standing.files, kept.file_numbers(kept.last_digests())),
        count=len(changes),
        changes=_digest(one.id for one in changes),
        roots=in_force.typed.canonical_versions,
        replacements=in_force.typed.replacements,
        held=dict(in_force.typed.registered),
        formats=dict(in_force.formats),
        fields=dict(in_force.fields),
        refused=dict(in_force.refused),
        waiting=standing.waiting,
        outcomes={id: one for id, one in together.outcomes.items() if one != _IN_FORCE},
    )
    written = msgspec.json.encode(made)
    again = _standing(_READ_CHECKPOINT.decode(written), standing.files).in_force
    if again.stamps != in_force.stamps:  # a number that JSON encodes differently
        _log.info("no checkpoint of interpretations: it would decode differently")
    else:
        records.put(CHECKPOINT_TABLE, CHECKPOINT_KEY, written)
    return len(changes)


def _load(records: RecordStore) -> Checkpoint | None:
    """None if there is none that this version can read; it will be written again."""
    raw = records.get(CHECKPOINT_TABLE, CHECKPOINT_KEY)
    try:
        return _READ_CHECKPOINT.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("checkpoint of interpretations not readable", reason=str(error)[:200])
        return None


def _fits(
    found: Checkpoint,
    files: SiteInterpretations,
    changes: Sequence[LoggedChange],
    file_numbers: Mapping[str, int],
) -> bool:
    same = found.count <= len(changes) and found.changes == _digest(
        one.id for one in changes[: found.count]
    )
    return same and found.grounds == _grounds(files, file_numbers)


def _standing(found: Checkpoint, files: SiteInterpretations) -> InterpretationState:
    in_force = ActiveInterpretations(
        found.fields,
        InterpretationRegistry(found.roots, found.replacements, found.held),
        formats=found.formats,
        concepts=files.concepts,
        refused=found.refused,
    )
    waiting = {name: files.typed[name] for name in found.waiting}
    return InterpretationState(files, in_force, waiting)


def _grounds(files: SiteInterpretations, file_numbers: Mapping[str, int]) -> str:
    tables = {name: sorted(columns) for name, columns in (files.tables or {}).items()}
    parts = (
        *(files.fields, files.typed, files.formats, files.concepts, files.said, files.unread),
        *(sorted(files.functions), tables, files.tables is None, file_numbers),
    )
    texts = (msgspec.json.encode(each, order="deterministic").decode() for each in parts)
    return content_id(__version__, *texts)


def _digest(ids: Iterable[str]) -> str:
    return content_id(*ids)


_PAGE = 1_000


class LoggedState(msgspec.Struct, frozen=True):
    """The state from files and log, and the names whose file the node has not loaded yet."""

    together: CombinedState
    not_taken: tuple[str, ...]


async def read_logged_state(
    channels: Channels, files: SiteInterpretations, node: str
) -> LoggedState:
    """The state of a node after loading the given files. Appends nothing, so it is safe next to
    the running node.
    """
    kept = ChangeLog(node)
    if CHANNEL in channels.names():
        await read_new_changes(channels.channel(CHANNEL), kept)
    before, digests = kept.last_digests(), file_digests(files, kept)
    names = before.keys() | digests.keys()
    other = [name for name in names if before and before.get(name) != digests.get(name)]
    together = await run_in_background(lambda: combine(files, kept, digests), resting=False)
    return LoggedState(together, tuple(sorted(other)))


async def read_new_changes(channel: Channel, kept: ChangeLog) -> list[LoggedChange]:
    """Feeds new events of the channel; returns the new changes among them."""
    found: list[LoggedChange] = []
    while batch := await channel.read_after(kept.position, limit=_PAGE):
        found += [change for stored in batch if (change := kept.add(stored)) is not None]
    return found


def file_digests(files: SiteInterpretations, kept: ChangeLog) -> dict[str, str]:
    """Digests of the files. An unreadable file keeps its former digest, so that it supersedes
    no changes.
    """
    before = kept.last_digests()
    carried = {name: before[name] for name in files.unread if name in before}
    return {**carried, **files.said}
