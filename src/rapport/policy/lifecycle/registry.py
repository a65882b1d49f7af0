"""Policy changes as events of the channel `policies`, the registry of policies that follows from
them, and their views for people. Pure. [PO-9, PO-10]

The channel is the only source of which policies run since when; files only add changes. Each change
has its position in the stream, so a second pass applies it there again.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from rapport.core.errors import Problem
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.policy.engine.metrics import PolicyCounts
from rapport.policy.engine.shadow_episodes import ShadowTally
from rapport.policy.engine.stream_steps import StreamPosition

CHANNEL = "policies"
CHANGED = "rapport.policies.changed"
BY_FILES = "files of the site"

ChangeKind = Literal[
    "registered",
    "replaced",
    "paused",
    "resumed",
    "deleted",
    "shadowed",
    "promoted",
    "dropped",
    "rebuilt",
    "broken",
]
"""`rebuilt`: the same text gives another plan, or compiles again; `broken`: it does not compile any
more.
"""
WITH_TEXT: tuple[ChangeKind, ...] = ("registered", "replaced", "shadowed", "promoted")
"""Changes that bring a version."""
PolicyState = Literal["running", "paused", "broken", "deleted"]
WHY_WITHDRAWN: Mapping[str, str] = {
    "deleted": "the policy was deleted",
    "paused": "the policy was paused",
    "broken": "the policy does not compile any more",
}
"""By change, and by the state it leads to: the reason with which open situations end."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of one policy, which applies from `place` on."""

    what: ChangeKind
    name: str
    place: StreamPosition
    number: int
    """Counts the changes of a node from 1."""
    text: str = ""
    """The text of the new version."""
    version: str = ""
    actions: tuple[str, ...] = ()
    end_actions: tuple[str, ...] | None = None
    """The phrases of `actions when cleared`; None without a situation."""
    by: str = ""
    is_from_file: bool = False
    problems: tuple[Problem, ...] = ()
    """Why it cannot run."""
    cause: str = ""
    """Id of the detection that caused it."""


class RecordedChange(msgspec.Struct, frozen=True):
    """A recorded change: its id, time and position."""

    id: str
    time: int
    position: int
    changed: PolicyChange


def change_id(changed: PolicyChange) -> str:
    """A change caused by a detection has one id however often the detection is found; other changes
    differ by their number.
    """
    if changed.cause:
        return command_id(changed.what, changed.name, changed.cause)
    return content_id(CHANNEL, str(changed.number), changed.what, changed.name, changed.version)


def command_id(what: str, name: str, cause: str) -> str:
    """The id of a command caused by a detection."""
    return content_id(CHANNEL, "because", what, name, cause)


def change_event(changed: PolicyChange, source: str, time_ms: int) -> Event:
    return make_event(
        source=source,
        id=change_id(changed),
        type=CHANGED,
        subject=f"policy/{changed.name}",
        time=time_ms,
        data=changed,
        headers={CAUSE: cause_text(changed.cause)} if changed.cause else {},
    )


def recorded_change(stored: StoredEvent) -> RecordedChange | None:
    """The change of an event of the channel; None for other events. Raises InvalidInput for an
    unreadable one.
    """
    event = stored.event
    if event.type != CHANGED:
        return None
    changed: PolicyChange = event.payload_as(PolicyChange)
    return RecordedChange(event.id, event.time, stored.position, changed)


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one policy. Deleted ones are kept, because their last detections still have
    actions.
    """

    name: str
    text: str
    version: str
    actions: tuple[str, ...]
    by: str
    since: int
    """When this version was recorded."""
    is_paused: bool = False
    is_deleted: bool = False
    problems: tuple[Problem, ...] = ()
    shadow_text: str = ""
    shadow_version: str = ""
    shadow_actions: tuple[str, ...] = ()

    @property
    def state(self) -> PolicyState:
        """A broken policy is broken whether it is paused or not."""
        if self.is_deleted:
            return "deleted"
        if self.problems:
            return "broken"
        return "paused" if self.is_paused else "running"


class FileChange(NamedTuple):
    """A change caused by a file of the site."""

    what: ChangeKind
    name: str
    text: str


class PolicyRegistry:
    """The policies by the recorded changes, in their order."""

    def __init__(self, changes: Iterable[RecordedChange] = ()) -> None:
        self.entries: dict[str, PolicyEntry] = {}
        self.changes: list[RecordedChange] = []
        self.known: dict[str, RecordedChange] = {}
        """By id."""
        self._file_digests: dict[str, str] = {}
        for change in changes:
            self.add(change)

    def add(self, kept: RecordedChange) -> None:
        changed = kept.changed
        self.changes.append(kept)
        self.known[kept.id] = kept
        if changed.is_from_file:
            self._note_file(changed)
        entry = entry_after(self.entries.get(changed.name), kept)
        if entry is not None:
            self.entries[changed.name] = entry

    def until(self, position: int) -> PolicyRegistry:
        """The registry when the record had reached a position."""
        return PolicyRegistry(change for change in self.changes if change.position <= position)

    def alive(self) -> list[PolicyEntry]:
        """Policies that are not deleted, by name."""
        return [entry for _, entry in sorted(self.entries.items()) if not entry.is_deleted]

    def find(self, name: str) -> PolicyEntry | None:
        """The policy, unless it is deleted or unknown."""
        entry = self.entries.get(name)
        return None if entry is None or entry.is_deleted else entry

    def history(self, name: str) -> list[RecordedChange]:
        """All changes of one policy, oldest first."""
        return [change for change in self.changes if change.changed.name == name]

    def from_files(
        self, files: Mapping[str, str], unread: Collection[str] = ()
    ) -> list[FileChange]:
        """The changes required by the files. An unchanged file leaves later changes in force; a
        file in `unread` counts as unchanged.
        """
        found: list[FileChange] = []
        for name, text in sorted(files.items()):
            if self._file_digests.get(name) != _digest(text):
                what: ChangeKind = "registered" if self.find(name) is None else "replaced"
                found.append(FileChange(what, name, text))
        gone = self._file_digests.keys() - files.keys() - set(unread)
        return found + [FileChange("deleted", name, "") for name in sorted(gone)]

    def _note_file(self, changed: PolicyChange) -> None:
        if changed.what == "deleted":
            self._file_digests.pop(changed.name, None)
        else:
            self._file_digests[changed.name] = _digest(changed.text)


def entry_after(entry: PolicyEntry | None, kept: RecordedChange) -> PolicyEntry | None:
    """The policy after a change. Every change except those of the shadow itself ends the shadow."""
    changed = kept.changed
    match changed.what:
        case "registered" | "replaced":
            is_paused = entry is not None and entry.is_paused and changed.what == "replaced"
            return _new_entry(kept, is_paused)
        case _ if entry is None:
            return None
        case "shadowed":
            return msgspec.structs.replace(
                entry,
                shadow_text=changed.text,
                shadow_version=changed.version,
                shadow_actions=changed.actions,
            )
        case "promoted":
            return _new_entry(kept, is_paused=False)
        case "rebuilt":
            return _without_shadow(
                entry, version=changed.version, actions=changed.actions, problems=()
            )
        case "paused" | "resumed":
            return _without_shadow(entry, is_paused=changed.what == "paused")
        case "deleted":
            return _without_shadow(entry, is_deleted=True)
        case "broken":
            return _without_shadow(entry, problems=changed.problems)
        case _:
            return _without_shadow(entry)


def _new_entry(kept: RecordedChange, is_paused: bool) -> PolicyEntry:
    changed = kept.changed
    return PolicyEntry(
        name=changed.name,
        text=changed.text,
        version=changed.version,
        actions=changed.actions,
        by=changed.by,
        since=kept.time,
        is_paused=is_paused,
        problems=changed.problems,
    )


def _without_shadow(entry: PolicyEntry, **changes: object) -> PolicyEntry:
    return msgspec.structs.replace(
        entry, shadow_text="", shadow_version="", shadow_actions=(), **changes
    )


def _digest(text: str) -> str:
    return content_id(text)


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A policy in a list."""

    name: str
    state: PolicyState | Literal["failed"]
    version: str
    by: str
    since: int
    shadow: str = ""
    """The version of its shadow."""
    tally: ShadowTally | None = None
    counts: PolicyCounts = PolicyCounts()
    problems: tuple[Problem, ...] = ()
    """Why it is broken or failed, why its shadow failed, or that it does not run on Spark."""
    on_spark: bool = False
    """It runs on Spark and is not counted here."""
    text: str = ""
    shadow_text: str = ""


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A change in the history of a policy."""

    id: str
    time: int
    what: ChangeKind
    version: str
    by: str
    after: int
    """The position of `events` after which it applies."""
    cause: str = ""
    problems: tuple[Problem, ...] = ()
    text: str = ""
    diff: str = ""
    """Against the previous version."""


def policy_view(
    entry: PolicyEntry,
    counts: Mapping[str, PolicyCounts],
    tallies: Mapping[str, ShadowTally],
    *,
    failed: Problem | None = None,
    shadow_failed: Problem | None = None,
    unwatched: Problem | None = None,
    on_spark: bool = False,
    whole: bool = False,
) -> PolicyView:
    """With its text if `whole`. `failed`: why it does not run; `shadow_failed`: why its shadow does
    not; `unwatched`: why it is not known to run on Spark.
    """
    reasons = [one for one in (failed, shadow_failed, unwatched) if one is not None]
    return PolicyView(
        name=entry.name,
        state="failed" if failed is not None else entry.state,
        version=entry.version,
        by=entry.by,
        since=entry.since,
        shadow=entry.shadow_version,
        tally=tallies.get(entry.name),
        counts=counts.get(entry.name, PolicyCounts()),
        problems=(*entry.problems, *reasons),
        on_spark=on_spark,
        text=entry.text if whole else "",
        shadow_text=entry.shadow_text if whole else "",
    )


def history_view(changes: Iterable[RecordedChange]) -> list[ChangeView]:
    """All changes of one policy, oldest first; each version with its difference."""
    found: list[ChangeView] = []
    before, version = "", ""
    for kept in changes:
        changed = kept.changed
        diff = ""
        if changed.what in WITH_TEXT:
            diff = text_difference(before, changed.text, version, changed.version)
        if changed.what in WITH_TEXT and changed.what != "shadowed":
            before, version = changed.text, changed.version
        elif changed.what in ("rebuilt", "broken"):
            version = changed.version
        found.append(
            ChangeView(
                id=kept.id,
                time=kept.time,
                what=changed.what,
                version=changed.version or version,
                by=changed.by,
                after=changed.place.after,
                cause=changed.cause,
                problems=changed.problems,
                text=changed.text,
                diff=diff,
            )
        )
    return found


def text_of_version(changes: Iterable[RecordedChange], version: str) -> str:
    """The text of a version; empty when it is unknown. A version rebuilt by an ontology has the
    text of the one before.
    """
    text = ""
    for kept in changes:
        changed = kept.changed
        if changed.what in WITH_TEXT and changed.version == version:
            return changed.text
        if changed.what in WITH_TEXT and changed.what != "shadowed":
            text = changed.text
        if changed.what == "rebuilt" and changed.version == version:
            return text
    return ""


def text_difference(before: str, after: str, old: str, new: str) -> str:
    """The difference in the form of `diff -u`; empty when there is none."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), old or "nothing", new or "broken", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
