"""Single events of `events` with their headers, for the few that need a closer look. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rapport.core.event import Event, StoredEvent
from rapport.pipeline.live.decoding import EVENTS
from rapport.pipeline.sources.place import Place
from rapport.pipeline.sources.planning import Piece


def read_whole(place: Place, positions: Sequence[int]) -> list[StoredEvent]:
    """The events at these positions, in their order; those that are gone are left out. Costs one
    look per run of neighbours.
    """
    return [stored for piece in runs(positions) for stored in read_events(place, piece)]


def read_events(place: Place, piece: Piece) -> Iterator[StoredEvent]:
    """The events of a piece, whole."""
    with place.opened() as opened:
        for chunk in opened.chunks(piece, (), bare=False, passes_damage=False):
            for position, received, event in zip(
                chunk.positions, chunk.received, chunk.events, strict=True
            ):
                assert isinstance(event, Event), "headers were asked for"
                yield StoredEvent(position, received, event)


def runs(positions: Sequence[int]) -> Iterator[Piece]:
    """Neighbouring positions as one piece each."""
    ordered = enumerate(sorted(positions))
    for _, run in groupby(ordered, key=lambda numbered: numbered[1] - numbered[0]):
        own = [position for _, position in run]
        yield Piece(EVENTS, own[0] - 1, own[-1])
