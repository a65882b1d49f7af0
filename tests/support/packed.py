"""Packed events as their makers write them, of events that are at hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.core.encoded_batch import (
    EVENT_HEADER,
    EncodedBatch,
    bytes_header,
    encode_value,
    text_header,
)
from rapport.core.event import Event


class Numbers(msgspec.Struct, frozen=True):
    """A number for each event; see Carried."""

    values: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)

    def part(self, first: int, end: int) -> Numbers:
        """See Carried."""
        return Numbers(self.values[first:end])


def pack(made: Sequence[Event], *carried: Numbers) -> EncodedBatch:
    """The events, all of the source "source", in parts."""
    parts: list[bytes] = []
    for event in made:
        name = event.id.encode()
        parts += (
            EVENT_HEADER + encode_value(event.source) + text_header(len(name)),
            name,
            encode_value(event.type) + encode_value(event.subject) + encode_value(event.time),
            bytes_header(len(event.data)),
            event.data,
            encode_value(event.headers),
        )
    sizes = [len(event.data) for event in made]
    return EncodedBatch(
        "source",
        [event.id for event in made],
        parts,
        data_bytes=sum(sizes),
        largest=max(sizes, default=0),
        carried=carried,
    )
