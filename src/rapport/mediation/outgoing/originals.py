"""The raw events that readings were made of: who speaks as the producer does gets what it said.
[ME-9, ME-16]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rapport.channel.channel import Channels, events_between
from rapport.core.errors import RapportError
from rapport.core.event import CAUSE, INTERPRETATION, Event, cause_text
from rapport.mediation.as_declared import as_declared
from rapport.mediation.binding import RAW_PREFIX, SourceBinding
from rapport.mediation.formats.named import format_named
from rapport.mediation.in_force import InForce
from rapport.mediation.lane import RAW_POSITION
from rapport.mediation.model.conforming import misfit
from rapport.mediation.model.scope import Scope
from rapport.mediation.rejection import Rejected
from rapport.mediation.typed import only_type, received_type

RAW_CHANNEL = "rawchannel"
ORDERED_FORMATS = ("homeassistant",)
"""Formats in which an event is understood by what came before it."""
_GAP = 16
"""Events between two wanted ones that are read along rather than read around."""
_MOST = 1_000


class Raw(msgspec.Struct, frozen=True):
    """Where a raw event stands."""

    channel: str
    position: int


def raw_of(event: Event, stamp: str) -> Raw | None:
    """Where the original of an event stands that came in the interpretation `stamp`, exactly as it
    is now; None when it came in another one, or nobody says where it stands.
    """
    headers = event.headers
    if headers.get(INTERPRETATION) != stamp:
        return None
    channel, position = headers.get(RAW_CHANNEL, ""), headers.get(RAW_POSITION, "")
    is_place = position.isascii() and position.isdigit() and len(position) < 19
    if not is_place or not channel.startswith(RAW_PREFIX):
        return None
    return Raw(channel, int(position))


def is_original(raw: Event, event: Event) -> bool:
    """Whether the event was made of this raw one. Headers can be anybody's, and positions are
    those of the node where the event was made: so its name must fit, too.
    """
    return raw.source == event.source and cause_text(raw.id) == event.headers.get(CAUSE)


async def read_raws(channels: Channels, wanted: Sequence[Raw]) -> dict[Raw, Event]:
    """Those of the raw events that are still there; neighbours are read together."""
    found: dict[Raw, Event] = {}
    names = set(channels.names())
    for name in sorted({one.channel for one in wanted} & names):
        positions = sorted({one.position for one in wanted if one.channel == name})
        for first, last in _runs(positions):
            stored = await events_between(channels.channel(name), first, last)
            found |= {Raw(name, one.position): one.event for one in stored}
    return found


class DeclaredTypes:
    """The declared types of raw events in one interpretation, as it is now."""

    def __init__(self, in_force: InForce, name: str) -> None:
        self._choice = in_force.format_of(name)
        self._format = format_named(self._choice.name, self._choice.options)
        self._scope: Scope | None = None
        self._only = ""
        if name in in_force.typed:  # the fields form has no types
            self._scope = in_force.typed.checked(name).scope
            self._only = only_type(self._scope)

    def type_of(self, raw: Event, binding: SourceBinding | None) -> str:
        """The declared type of a raw event; its own where nothing is declared for it."""
        if self._scope is None:
            return raw.type
        told = self._told(raw) if self._choice.name == "ngsi" else ""
        speaks = binding.speaks if binding is not None else ""
        return received_type(self._scope, self._only, told, speaks, raw.type) or raw.type

    def fits(self, raw: Event, binding: SourceBinding | None) -> bool:
        """Whether a raw event is what its declared type says: one that was received in another
        version of the interpretation may not be.
        """
        scope, name = self._scope, self.type_of(raw, binding)
        if scope is None or self._choice.name in ORDERED_FORMATS:
            return True
        if not scope.types.is_complex(name):
            return False
        try:
            values = [
                as_declared(document, scope.types, name, self._choice)
                for document in self._format.read(raw, {})
            ]
        except (Rejected, RapportError):
            return False
        return not any(misfit(value, name, scope.types) for value in values)

    def _told(self, raw: Event) -> str:
        try:
            return next((one.type for one in self._format.read(raw, {}) if one.type), "")
        except (Rejected, RapportError):
            return ""


def as_received(raw: Event, stamp: str, type_name: str) -> Event:
    """Returns the raw event unchanged for a consumer that uses the producer's own interpretation,
    under the name of its declared type.
    """
    headers = {**raw.headers, INTERPRETATION: stamp}
    return msgspec.structs.replace(raw, type=type_name, headers=headers)


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Positions in order as ranges to read."""
    first = last = positions[0]
    for position in positions[1:]:
        if position - last > _GAP or position - first >= _MOST:
            yield first, last
            first = position
        last = position
    yield first, last
