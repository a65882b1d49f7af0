"""Packed events as their makers write them, of events that are at hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.core.event import Event
from rapport.core.packed_events import (
    EVENT_HEAD,
    PackedEvents,
    octets_head,
    packed,
    text_head,
)


class Numbers(msgspec.Struct, frozen=True):
    """A number for each event; see Carried."""

    values: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, first: int, end: int) -> Numbers:
        """See Carried."""
        return Numbers(self.values[first:end])


def pack(made: Sequence[Event], *carried: Numbers) -> PackedEvents:
    """The events, all of the source "source", in parts."""
    parts: list[bytes] = []
    for event in made:
        name = event.id.encode()
        parts += (
            EVENT_HEAD + packed(event.source) + text_head(len(name)),
            name,
            packed(event.type) + packed(event.subject) + packed(event.time),
            octets_head(len(event.data)),
            event.data,
            packed(event.headers),
        )
    sizes = [len(event.data) for event in made]
    return PackedEvents(
        "source",
        [event.id for event in made],
        parts,
        data_bytes=sum(sizes),
        largest=max(sizes, default=0),
        carried=carried,
    )
