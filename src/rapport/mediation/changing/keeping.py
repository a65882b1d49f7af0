"""Changes of interpretations as events of one channel, and what follows from all of them. [ME-6,
ME-12]

The channel `interpretations` is the one truth about changes. What is in force follows from the
files of the site and the events of the channel alone: a node that dies between any two steps has
the old or the new after its next start. Changes are ordered by their number and id, not by arrival,
so nodes that share the channel come to the same whatever way events took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.ids import content_id
from rapport.mediation.changing.fields_change import AnyChange, DeclareFields
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.changes import Augment, Declare, Remove
from rapport.mediation.model.interpretation import ROOT

CHANNEL = "interpretations"
CHANGED = "rapport.interpretations.changed"
TAKEN = "rapport.interpretations.taken"
VERSION = "rapport.interpretations.version"
MOST = 2**53
"""The largest number of a change; whoever counts further stays there, ordered by id."""

_Number = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Key = tuple[int, str]
"""Number and id: the order of changes."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were made together: all or none. `after` is the id of the one before."""

    number: _Number
    after: str = ""
    changes: tuple[AnyChange, ...]
    formats: dict[str, FormatChoice] = {}
    """How events are written, of interpretations that are declared."""
    by: str = ""
    node: str = ""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A node took in its files, and what they said (digests by name) was not what it was before."""

    number: _Number
    said: dict[str, str]
    undoes: int = 0
    """The number of one that was given up, as if it had never been: no change lost to its files."""


class KeptChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change with its place in the order and in the log."""

    id: str
    time: int
    position: int
    changed: Changed

    @property
    def key(self) -> Key:
        """Its place in the order of all changes."""
        return self.changed.number, self.id


_READ_CHANGED = msgspec.json.Decoder(Changed)
_READ_TAKEN = msgspec.json.Decoder(Taken)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Kept:
    """All that the channel says to one node; fed with its events in the order of arrival."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.position = 0
        self.unreadable = 0
        """Events of the channel that are none of ours, or broken."""
        self.versions: dict[str, int] = {}
        """Positions of the versions that are on record, by stamp."""
        self._changes: dict[str, KeptChange] = {}
        self._taken: dict[str, Taken] = {}
        self._highest = 0

    def add(self, stored: StoredEvent) -> KeptChange | None:
        """Takes in an event of the channel; gives the change, if it is a new one."""
        self.position = stored.position
        event = stored.event
        try:
            if event.type == CHANGED:
                return self._add_change(stored, _READ_CHANGED.decode(event.data))
            if event.type == TAKEN:
                self._add_taken(event, _READ_TAKEN.decode(event.data))
                return None
        except _UNREADABLE:
            self.unreadable += 1
            return None
        if event.type == VERSION:
            self.versions.setdefault(event.id, stored.position)
        return None

    def changes(self) -> list[KeptChange]:
        """All, in their order."""
        return sorted(self._changes.values(), key=lambda each: each.key)

    def last_change(self) -> KeptChange | None:
        """The last one in the order."""
        return max(self._changes.values(), key=lambda each: each.key, default=None)

    def next_number(self) -> int:
        """Greater than all that were seen."""
        return min(self._highest + 1, MOST)

    def said_before(self) -> Mapping[str, str]:
        """What the files of this node said when they were last taken in."""
        taken = self._own_taken()
        return taken[-1].said if taken else {}

    def last_taken(self) -> int:
        """The number under which the files of this node were last taken in; 0: never."""
        taken = self._own_taken()
        return taken[-1].number if taken else 0

    def since_files(self, said: Mapping[str, str]) -> dict[str, int]:
        """By name the number since which its file says what it says now; names that no file ever
        had are left out. Changes with a lower number came before the file.
        """
        before: Mapping[str, str] = {}
        found: dict[str, int] = {}
        now = Taken(number=self.next_number(), said=dict(said))
        for taken in [*self._own_taken(), now]:
            for name in before.keys() | taken.said.keys():
                if before.get(name) != taken.said.get(name):
                    found[name] = taken.number
            before = taken.said
        return found

    def _add_change(self, stored: StoredEvent, changed: Changed) -> KeptChange | None:
        event = stored.event
        self._highest = max(self._highest, changed.number)
        if event.id in self._changes or event.id != change_id(changed):
            self.unreadable += event.id not in self._changes
            return None
        kept = KeptChange(id=event.id, time=event.time, position=stored.position, changed=changed)
        self._changes[event.id] = kept
        return kept

    def _add_taken(self, event: Event, taken: Taken) -> None:
        self._highest = max(self._highest, taken.number)
        if event.source == _source_of(self.node):
            self._taken[event.id] = taken

    def _own_taken(self) -> list[Taken]:
        """In their order, without those that were given up."""
        undone = {each.undoes for each in self._taken.values()}
        held = [
            each for each in self._taken.values() if not each.undoes and each.number not in undone
        ]
        return sorted(held, key=lambda each: each.number)


def change_id(changed: Changed) -> str:
    """Depends on what is changed and on what it follows, not on who asked, when and where: the same
    change made twice has one id.
    """
    said = msgspec.json.encode((changed.changes, changed.formats), order="deterministic")
    return content_id(str(changed.number), changed.after, said.decode())


def change_event(changed: Changed, time_ms: int) -> Event:
    """The event that makes a change known."""
    return make_event(
        source=CHANNEL,
        id=change_id(changed),
        type=CHANGED,
        subject=f"interpretation/{next(iter(targets(changed)), '')}",
        time=time_ms,
        data=changed,
    )


def taken_event(taken: Taken, node: str, time_ms: int) -> Event:
    """The event that says that the files of a node now say something else."""
    said = msgspec.json.encode(taken.said, order="deterministic").decode()
    return make_event(
        source=_source_of(node),
        id=content_id(node, str(taken.number), said),
        type=TAKEN,
        time=time_ms,
        data=taken,
    )


def target_of(change: AnyChange) -> str:
    """The interpretation that a change is about."""
    if isinstance(change, Declare):
        return change.interpretation.name
    return change.name if isinstance(change, (Augment, Remove, DeclareFields)) else ROOT


def targets(changed: Changed) -> Iterator[str]:
    """Those that changes made together are about, each once."""
    yield from dict.fromkeys(target_of(change) for change in changed.changes)


def kind_of(change: AnyChange) -> str:
    """What sort of change it is, as it stands in JSON: declare, fields, augment, replace or
    remove.
    """
    return str(change.__struct_config__.tag)


def _source_of(node: str) -> str:
    return f"{CHANNEL}/{node}"
