"""A raw channel in a consumer's words: producer to root to consumer in one step, at the last hop.
[ME-9, ME-16]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rapport.core.errors import Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.core.release import without_release_headers
from rapport.core.signature import without_raw_signature
from rapport.mediation.binding import SourceBinding
from rapport.mediation.in_force import InForce
from rapport.mediation.lane import RAW_POSITION, GivesMeaning
from rapport.mediation.model.feeding import remembers
from rapport.mediation.outgoing.originals import (
    ORDERED_FORMATS,
    DeclaredTypes,
    as_received,
)
from rapport.mediation.outgoing.speech import Said, Speech


class RawSources(Protocol):
    """How sources speak; `MediationReader` is one."""

    def binding(self, source: str) -> SourceBinding | None:
        """What the site says of a source."""

    def meaning_apart(self, source: str) -> GivesMeaning:
        """What gives its events their meaning, out of turn."""


class LateSpeech:
    """Raw events of one source as one interpretation says them. `say` never raises."""

    def __init__(self, source: str, speech: Speech, sources: RawSources, in_force: InForce) -> None:
        """Raises Unsupported for a source whose events have a meaning only in their order."""
        binding = sources.binding(source)
        self.stamp = speech.stamp
        self.speech = speech
        self.is_own = binding is not None and binding.interpretation == speech.name
        """The source speaks as the consumer does."""
        self._binding = binding
        self._types = DeclaredTypes(in_force, speech.name) if self.is_own else None
        self._in_order = binding is not None and _in_order_only(in_force, binding)
        if not self.is_own and binding is not None and self._in_order:
            raise Unsupported(
                f"reading raw.{source} in another interpretation",
                "a source whose events depend on those before them",
                hint=f"read {binding.into!r}, where they have got their meaning in order",
            )
        self._meaning = sources.meaning_apart(source)
        self.may_block = self._meaning.may_block or speech.may_block

    def say(self, stored: StoredEvent) -> Said:
        """The raw event as it is when the consumer speaks as its producer, else in its words. One
        that is not as the interpretation declares it now, since it was received in another version,
        goes by way of root.
        """
        return self._original(stored.event) or self._said([stored])[stored.position]

    def say_all(self, stored: Sequence[StoredEvent]) -> list[Said]:
        """What `say` says of each; those of one type cost less together."""
        originals = {one.position: self._original(one.event) for one in stored}
        others = {one.position: one for one in stored if originals[one.position] is None}
        said = self._said(list(others.values())) if others else {}
        return [originals[one.position] or said[one.position] for one in stored]

    def _original(self, raw: Event) -> Said | None:
        if self._types is None:
            return None
        if not self._in_order and not self._types.fits(raw, self._binding):
            return None
        name = self._types.type_of(raw, self._binding)
        return Said((as_received(raw, self.stamp, name),), is_made=False)

    def _said(self, stored: Sequence[StoredEvent]) -> dict[int, Said]:
        """By position."""
        found, rejections = self._meaning.apply_many(stored)
        raw = {str(one.position): one for one in stored}
        at_root = [_at_root(each, raw[each.headers[RAW_POSITION]]) for each in found]
        parts: dict[int, list[Said]] = {one.position: [] for one in stored}
        for root, said in zip(at_root, self.speech.say_all(at_root), strict=True):
            parts[root.position].append(said)
        faults: dict[int, tuple[str, str]] = {}
        for one in rejections:
            faults.setdefault(one.position, (one.code, one.message))
        return {
            position: _together(several, faults.get(position))
            for position, several in parts.items()
        }


def _at_root(event: Event, raw: StoredEvent) -> StoredEvent:
    sealed = without_raw_signature(without_release_headers(event), raw.event)
    return StoredEvent(raw.position, raw.received, sealed)


def _together(parts: Sequence[Said], fault: tuple[str, str] | None) -> Said:
    """What became of one raw event; of several faults the first, those of its meaning before."""
    faults = [fault] if fault else [(one.code, one.message) for one in parts if one.code]
    code, message = faults[0] if faults else ("", "")
    return Said(tuple(event for part in parts for event in part.events), code, message)


def _in_order_only(in_force: InForce, binding: SourceBinding) -> bool:
    name = binding.interpretation
    if not name or name in in_force.refused:
        return False
    if name not in in_force.typed and name not in in_force.fields:
        return False
    if in_force.format_of(name).name in ORDERED_FORMATS:
        return True
    if name not in in_force.typed:
        return False
    return any(map(remembers, in_force.typed.checked(name).scope.conversions.values()))
