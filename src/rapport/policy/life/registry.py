"""Which policies there are and in which state: what follows from the changes on record. Pure.
[PO-9]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from rapport.core.errors import Problem
from rapport.core.ids import content_id
from rapport.policy.life.changes import ChangeKind, PolicyChange, RecordedChange

PolicyState = Literal["running", "paused", "broken", "deleted"]


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as it stands. A deleted one is kept: its last detections still have actions."""

    name: str
    text: str
    version: str
    actions: tuple[str, ...]
    by: str
    since: int
    """When this version was put on record."""
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
    """What has to be changed because a file of the site says something else than it did."""

    what: ChangeKind
    name: str
    text: str


class PolicyRegistry:
    """All that the record says; fed with changes in their order."""

    def __init__(self, changes: Iterable[RecordedChange] = ()) -> None:
        self.entries: dict[str, PolicyEntry] = {}
        self.changes: list[RecordedChange] = []
        self.known: dict[str, RecordedChange] = {}
        """By id."""
        self._said: dict[str, str] = {}
        for change in changes:
            self.add(change)

    def add(self, kept: RecordedChange) -> None:
        """The next change."""
        changed = kept.changed
        self.changes.append(kept)
        self.known[kept.id] = kept
        if changed.is_from_file:
            self._note_file(changed)
        entry = entry_after(self.entries.get(changed.name), kept)
        if entry is not None:
            self.entries[changed.name] = entry

    def until(self, position: int) -> PolicyRegistry:
        """What the record said when it went so far."""
        return PolicyRegistry(change for change in self.changes if change.position <= position)

    def alive(self) -> list[PolicyEntry]:
        """Those that were not deleted, by name."""
        return [entry for _, entry in sorted(self.entries.items()) if not entry.is_deleted]

    def find(self, name: str) -> PolicyEntry | None:
        """The policy, unless it is deleted or never was."""
        entry = self.entries.get(name)
        return None if entry is None or entry.is_deleted else entry

    def history(self, name: str) -> list[RecordedChange]:
        """All changes of one policy, oldest first."""
        return [change for change in self.changes if change.changed.name == name]

    def from_files(
        self, files: Mapping[str, str], unread: Collection[str] = ()
    ) -> list[FileChange]:
        """What the files change. One that says what it said leaves in force what was changed since;
        one in `unread` says what it said.
        """
        found: list[FileChange] = []
        for name, text in sorted(files.items()):
            if self._said.get(name) != _digest(text):
                what: ChangeKind = "registered" if self.find(name) is None else "replaced"
                found.append(FileChange(what, name, text))
        gone = self._said.keys() - files.keys() - set(unread)
        return found + [FileChange("deleted", name, "") for name in sorted(gone)]

    def _note_file(self, changed: PolicyChange) -> None:
        if changed.what == "deleted":
            self._said.pop(changed.name, None)
        else:
            self._said[changed.name] = _digest(changed.text)


def entry_after(entry: PolicyEntry | None, kept: RecordedChange) -> PolicyEntry | None:
    """The policy after a change. Whatever changes it, but the shadow's own changes, ends its
    shadow: there is nothing left to compare with.
    """
    changed = kept.changed
    match changed.what:
        case "registered" | "replaced":
            is_paused = entry is not None and entry.is_paused and changed.what == "replaced"
            return _brought(kept, is_paused)
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
            return _brought(kept, is_paused=False)
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


def _brought(kept: RecordedChange, is_paused: bool) -> PolicyEntry:
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
