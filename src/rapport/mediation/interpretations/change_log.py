"""The change log: changes and versions of interpretations as events of one channel. [ME-6, ME-12]

The channel `interpretations` is authoritative. The state follows from the site's files and the
channel alone: after a crash at any point a node has the old or the new state. Changes are ordered
by number and id, not by arrival, so nodes that share the channel reach the same state.

Each version is an event whose id is its stamp, so it is recorded once. It holds the interpretation
and the stamps of its ancestors. A stamp is verified against the content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import Corrupt, UnknownName
from rapport.core.event import Event, StoredEvent, content_id, make_event
from rapport.mediation.interpretations.change_requests import AnyChange, DeclareFields
from rapport.mediation.interpretations.model import (
    CANONICAL,
    FieldsInterpretation,
    FormatChoice,
    Interpretation,
)
from rapport.mediation.interpretations.registry import Replacement
from rapport.mediation.interpretations.repository import ActiveInterpretations, stamp_from
from rapport.mediation.interpretations.type_changes import Augment, Declare, Remove

CHANNEL = "interpretations"
CHANGE_EVENT = "rapport.interpretations.changed"
FILES_EVENT = "rapport.interpretations.taken"
VERSION_EVENT = "rapport.interpretations.version"
MAX_CHANGE_NUMBER = 2**53
"""Numbers stay at this maximum; changes with the same number are ordered by id."""

_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_CHANGE_NUMBER)]
ChangeKey = tuple[int, str]
"""Number and id: the order of changes."""


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Changes applied together: all or none. `after` is the id of the preceding change."""

    number: _Number
    after: str = ""
    changes: tuple[AnyChange, ...]
    formats: dict[str, FormatChoice] = {}
    """Formats of declared interpretations."""
    by: str = ""
    node: str = ""


class FilesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node loaded files whose digests by name differ from the previous ones."""

    number: _Number
    said: dict[str, str]
    undoes: int = 0
    """The number of a record that was rolled back as if it had never existed."""


class LoggedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change with its key and its position in the log."""

    id: str
    time: int
    position: int
    changed: ChangeRecord

    @property
    def key(self) -> ChangeKey:
        """The key in the order of all changes."""
        return self.changed.number, self.id


_READ_CHANGED = msgspec.json.Decoder(ChangeRecord)
_READ_TAKEN = msgspec.json.Decoder(FilesRecord)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ChangeLog:
    """The changes known to one node; fed with the channel's events in the order of arrival."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.position = 0
        self.unreadable = 0
        """Number of foreign or invalid events in the channel."""
        self.versions: dict[str, int] = {}
        """Positions of the recorded versions by stamp."""
        self._changes: dict[str, LoggedChange] = {}
        self._taken: dict[str, FilesRecord] = {}
        self._highest = 0

    def add(self, stored: StoredEvent) -> LoggedChange | None:
        """Processes an event of the channel; returns the change if it is new."""
        self.position = stored.position
        event = stored.event
        try:
            if event.type == CHANGE_EVENT:
                return self._add_change(stored, _READ_CHANGED.decode(event.data))
            if event.type == FILES_EVENT:
                self._add_files_record(event, _READ_TAKEN.decode(event.data))
                return None
        except _UNREADABLE:
            self.unreadable += 1
            return None
        if event.type == VERSION_EVENT:
            self.versions.setdefault(event.id, stored.position)
        return None

    def changes(self) -> list[LoggedChange]:
        """All changes in order."""
        return sorted(self._changes.values(), key=lambda each: each.key)

    def last_change(self) -> LoggedChange | None:
        return max(self._changes.values(), key=lambda each: each.key, default=None)

    def next_number(self) -> int:
        """A number greater than all known ones."""
        return min(self._highest + 1, MAX_CHANGE_NUMBER)

    def last_digests(self) -> Mapping[str, str]:
        """The file digests that this node loaded last."""
        taken = self._own_files_records()
        return taken[-1].said if taken else {}

    def last_files_number(self) -> int:
        """The number of the last files record of this node; 0: none."""
        taken = self._own_files_records()
        return taken[-1].number if taken else 0

    def file_numbers(self, said: Mapping[str, str]) -> dict[str, int]:
        """By name, the number since which its file has the present content; changes with a
        lower number are older than the file.
        """
        before: Mapping[str, str] = {}
        found: dict[str, int] = {}
        now = FilesRecord(number=self.next_number(), said=dict(said))
        for taken in [*self._own_files_records(), now]:
            for name in before.keys() | taken.said.keys():
                if before.get(name) != taken.said.get(name):
                    found[name] = taken.number
            before = taken.said
        return found

    def _add_change(self, stored: StoredEvent, changed: ChangeRecord) -> LoggedChange | None:
        event = stored.event
        self._highest = max(self._highest, changed.number)
        if event.id in self._changes or event.id != change_id(changed):
            self.unreadable += event.id not in self._changes
            return None
        kept = LoggedChange(id=event.id, time=event.time, position=stored.position, changed=changed)
        self._changes[event.id] = kept
        return kept

    def _add_files_record(self, event: Event, taken: FilesRecord) -> None:
        self._highest = max(self._highest, taken.number)
        if event.source == _source_of(self.node):
            self._taken[event.id] = taken

    def _own_files_records(self) -> list[FilesRecord]:
        """In order, without rolled-back records."""
        undone = {each.undoes for each in self._taken.values()}
        held = [
            each for each in self._taken.values() if not each.undoes and each.number not in undone
        ]
        return sorted(held, key=lambda each: each.number)


def change_id(changed: ChangeRecord) -> str:
    """Depends on the change and its predecessor, not on author, time or node: the same change
    made twice has one id.
    """
    content = msgspec.json.encode((changed.changes, changed.formats), order="deterministic")
    return content_id(str(changed.number), changed.after, content.decode())


def change_event(changed: ChangeRecord, time_ms: int) -> Event:
    return make_event(
        source=CHANNEL,
        id=change_id(changed),
        type=CHANGE_EVENT,
        subject=f"interpretation/{next(iter(change_targets(changed)), '')}",
        time=time_ms,
        data=changed,
    )


def files_event(taken: FilesRecord, node: str, time_ms: int) -> Event:
    text = msgspec.json.encode(taken.said, order="deterministic").decode()
    return make_event(
        source=_source_of(node),
        id=content_id(node, str(taken.number), text),
        type=FILES_EVENT,
        time=time_ms,
        data=taken,
    )


def change_target(change: AnyChange) -> str:
    """The interpretation that a change affects."""
    if isinstance(change, Declare):
        return change.interpretation.name
    return change.name if isinstance(change, (Augment, Remove, DeclareFields)) else CANONICAL


def change_targets(changed: ChangeRecord) -> Iterator[str]:
    """The interpretations that a record affects, each once."""
    yield from dict.fromkeys(change_target(change) for change in changed.changes)


def change_kind(change: AnyChange) -> str:
    """The tag of a change in JSON: declare, fields, augment, replace or remove."""
    return str(change.__struct_config__.tag)


def _source_of(node: str) -> str:
    return f"{CHANNEL}/{node}"


_MOST_ABOVE = 1_000
"""Maximum number of ancestors of a valid version."""


class InterpretationVersion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of an interpretation."""

    name: str
    form: Literal["typed", "fields"]
    said: msgspec.Raw
    """The interpretation as written JSON, since re-encoding could change its stamp."""
    parent: str = ""
    """Stamp of the parent version; empty for the canonical model and the fields form."""
    format: FormatChoice = FormatChoice()
    later: tuple[str, ...] = ()
    """Stamps of newer versions of the canonical model, through which its events pass."""
    replacement: Replacement | None = None
    """How this version of the canonical model was derived from the one before."""


class RecordedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version with its ancestors, the canonical model first."""

    stamp: str
    time: int
    """When it was recorded."""
    version: InterpretationVersion
    above: tuple[InterpretationVersion, ...] = ()


_READ_VERSION = msgspec.json.Decoder(InterpretationVersion)


def version_events(
    in_force: ActiveInterpretations, known: Mapping[str, object], time_ms: int
) -> Iterator[Event]:
    """An event for each active version that is not `known`, parents first."""
    canonical = _canonical_stamps(in_force)
    recorded = set(known)
    for stamp, version in _versions(in_force, canonical):
        if stamp not in recorded:
            recorded.add(stamp)
            yield make_event(
                source=CHANNEL,
                id=stamp,
                type=VERSION_EVENT,
                subject=f"interpretation/{version.name}",
                time=time_ms,
                data=version,
            )


async def read_version(channels: Channels, stamp: str) -> RecordedVersion:
    """Reads a version with its ancestors by stamp; raises UnknownName, or Corrupt if the
    content does not match the stamp.
    """
    version, time = await _one(channels, stamp)
    if version.form == "fields":
        if _stamp_of_fields(version.name, bytes(version.said)) != stamp:
            raise _corrupt_version(stamp)
        return RecordedVersion(stamp=stamp, time=time, version=version)
    above: list[InterpretationVersion] = []
    parent = version.parent
    while parent:
        if len(above) >= _MOST_ABOVE:
            raise _corrupt_version(stamp)
        above.append((await _one(channels, parent))[0])
        parent = above[-1].parent
    later = [(await _one(channels, each))[0] for each in version.later]
    chain = [each.said for each in (*reversed(above), version)]
    if stamp_from(version.name, chain, [each.said for each in later], version.format) != stamp:
        raise _corrupt_version(stamp)
    return RecordedVersion(stamp=stamp, time=time, version=version, above=tuple(reversed(above)))


def _versions(
    in_force: ActiveInterpretations, canonical: list[str]
) -> Iterator[tuple[str, InterpretationVersion]]:
    typed = in_force.typed
    # The canonical model alone needs no record.
    for number, model in enumerate(typed.canonical_versions if typed.registered else ()):
        replacement = typed.replacements[number - 1] if number else None
        yield (
            canonical[number],
            InterpretationVersion(
                name=CANONICAL, form="typed", said=_raw(model), replacement=replacement
            ),
        )
    for name in typed.descendants(CANONICAL):
        held = typed.registered[name]
        number = held.root_version
        parent = held.interpretation.parent
        yield (
            in_force.stamps[name],
            InterpretationVersion(
                name=name,
                form="typed",
                said=_raw(held.interpretation),
                parent=canonical[number] if parent == CANONICAL else in_force.stamps[parent],
                format=in_force.format_of(name),
                later=tuple(canonical[number + 1 :]),
            ),
        )
    for name, form in in_force.fields.items():
        yield (
            in_force.stamps[name],
            InterpretationVersion(name=name, form="fields", said=_raw(form.meaning())),
        )


def _canonical_stamps(in_force: ActiveInterpretations) -> list[str]:
    return [stamp_from(CANONICAL, (model,), ()) for model in in_force.typed.canonical_versions]


def _raw(form: Interpretation | FieldsInterpretation) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(form))


def _stamp_of_fields(name: str, raw: bytes) -> str:
    return f"{name}@{content_id(raw.decode())[:12]}"


async def _one(channels: Channels, stamp: str) -> tuple[InterpretationVersion, int]:
    for channel, stored in await channels.find_event(stamp):
        if channel == CHANNEL and stored.event.type == VERSION_EVENT:
            try:
                return _READ_VERSION.decode(stored.event.data), stored.event.time
            except (msgspec.MsgspecError, RecursionError):
                raise _corrupt_version(stamp) from None
    raise UnknownName("version of an interpretation", stamp, code="interpretation.unknown")


def _corrupt_version(stamp: str) -> Corrupt:
    message = f"the record {stamp} has other content"
    return Corrupt(message, code="interpretation.bad_version")
