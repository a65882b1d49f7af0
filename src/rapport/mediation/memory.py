"""What mediation remembers between the events of a source, and how it outlives a restart. [ME-4]

Kept as one record per thing that is remembered: saving costs what changed, not what is known.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.errors import Corrupt
from rapport.core.ids import content_id
from rapport.mediation.model.memory import Memory
from rapport.mediation.model.remembered import Remembered
from rapport.store.base import Change, Delete, Put, RecordStore

MEMORY_TABLE = "mediation.memory"
PARTS_TABLE = "mediation.memory.parts"
_PAGE = 1_000
_Root = Literal["format", "states"]


class _Saved(msgspec.Struct, omit_defaults=True):
    """The head of a source's memory; `content` is of the time when all was one record."""

    position: int
    changes: int = 0
    content: _Content | None = None


class _Content(msgspec.Struct):
    format: dict[str, Any]
    states: dict[str, Any]


class _Part(msgspec.Struct, array_like=True):
    """One thing that is remembered: `of[name]`, or `of[name][key]` of a map whose keys are kept one
    by one. `number` orders them as they were changed; what is said of a name as a whole (a value,
    or that a map begins) takes back what was said of it before.
    """

    of: _Root
    name: str
    key: str | None
    number: int
    value: Any = None
    is_map: bool = False


class Saving(msgspec.Struct, frozen=True):
    """What is to be written together, and what to note again when that fails."""

    records: list[Change]
    taken: list[tuple[Remembered, str]]

    def failed(self) -> None:
        """Nothing of it was written: it is saved with what changes next."""
        for changed, key in self.taken:
            changed.note(key)


_READ_SAVED = msgspec.json.Decoder(_Saved)
_READ_PART = msgspec.json.Decoder(_Part)


class SourceMemory:
    """What a format and stateful conversions remember; JSON.

    `position` is the place in the raw channel up to which events are in it. It is saved after their
    readings are stored and before the reader's place is: events up to here must not be taken in a
    second time.
    """

    def __init__(self, source: str = "") -> None:
        self.position = 0
        self.format: dict[str, Any] = Remembered()
        self.states = Memory()
        self._source, self._changes = source, 0

    def save(self, position: int) -> Saving | None:
        """What to write once everything up to `position` is taken in; None while nothing changed.
        Costs what changed since.
        """
        records: list[Change] = []
        taken: list[tuple[Remembered, str]] = []
        for of, root in self._roots():
            for name in root.take_changed():
                taken.append((root, name))
                records.append(self._part(root, of, name, None))
                value = root.get(name)
                if isinstance(value, Remembered):
                    for key in list(value):  # a new map: all of it
                        value.note(key)
            for name, value in list(root.items()):
                for key in value.take_changed() if isinstance(value, Remembered) else ():
                    taken.append((value, key))
                    records.append(self._part(value, of, name, key))
        if not records:
            return None
        self.position = position
        head = msgspec.json.encode(_Saved(position, self._changes))
        return Saving([*records, Put(MEMORY_TABLE, self._source, head)], taken)

    @staticmethod
    def restore(records: RecordStore | None, source: str) -> SourceMemory:
        """From the records, empty without any; raises Corrupt. Costs what is known."""
        memory = SourceMemory(source)
        head = records.get(MEMORY_TABLE, source) if records is not None else None
        if head is None or records is None:
            return memory
        try:
            saved = _READ_SAVED.decode(head)
            parts = [_READ_PART.decode(one) for one in _parts(records, source)]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"what a source's mediation remembered cannot be read: {error}",
                code="mediation.bad_memory",
            ) from None
        memory.position, memory._changes = saved.position, saved.changes
        memory._take(saved.content, parts)
        return memory

    def _take(self, content: _Content | None, parts: list[_Part]) -> None:
        if content is not None:
            self.format = Remembered(_as_maps(content.format))
            self.states = Memory(Remembered(_as_maps(content.states)))
            return
        found: dict[_Root, dict[str, Any]] = {"format": {}, "states": {}}
        for part in sorted(parts, key=lambda each: each.number):
            known = found[part.of]
            if part.key is None:
                known[part.name] = Remembered() if part.is_map else part.value
            elif isinstance(known.get(part.name), Remembered):
                known[part.name][part.key] = part.value
        for values in found.values():
            for value in values.values():
                if isinstance(value, Remembered):
                    value.take_changed()
        self.format = Remembered(found["format"], is_saved=True)
        self.states = Memory(Remembered(found["states"], is_saved=True))

    def _roots(self) -> list[tuple[_Root, Remembered]]:
        states = self.states.states
        assert isinstance(self.format, Remembered)
        return [("format", self.format), ("states", states)]

    def _part(self, kept: Remembered, of: _Root, name: str, key: str | None) -> Change:
        """The record of one place of a map; its removal where the map has it no longer."""
        own, place = self._key(of, name, key), name if key is None else key
        if place not in kept:
            return Delete(PARTS_TABLE, own)
        self._changes += 1
        value = kept[place]
        is_map = key is None and isinstance(value, Remembered)
        part = _Part(of, name, key, self._changes, None if is_map else value, is_map)
        return Put(PARTS_TABLE, own, msgspec.json.encode(part))

    def _key(self, of: _Root, name: str, key: str | None) -> str:
        """Short, whatever names and keys are made of; no source has a line break in its name."""
        return f"{self._source}\n{content_id(of, name, *(() if key is None else (key,)))}"


def _as_maps(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: Remembered(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


def _parts(records: RecordStore, source: str) -> list[bytes]:
    found: list[bytes] = []
    prefix, after = f"{source}\n", ""
    while page := records.find(PARTS_TABLE, prefix=prefix, after=after, limit=_PAGE):
        found += [value for _key, value in page]
        after = page[-1][0]
    return found
