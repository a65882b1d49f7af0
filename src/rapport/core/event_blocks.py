"""Events of log blocks with their places, looked at one by one or all at once as columns. [CH-1,
CH-12]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec
import numpy as np

from rapport.core.event import BareEvent, BareStored
from rapport.core.event_columns import EventColumns, Places, array_head, event_columns

_READ = msgspec.msgpack.Decoder(BareEvent)


class BlockEvents(Sequence[BareStored]):
    """Bare events that are decoded when somebody asks for one of them; who wants many uses
    `columns`, `positions` and `received`, which cost a fraction.
    """

    __slots__ = ("columns", "positions", "received")

    def __init__(self, columns: EventColumns, positions: Places, received: Places) -> None:
        self.columns, self.positions, self.received = columns, positions, received

    def __len__(self) -> int:
        return self.columns.count

    @overload
    def __getitem__(self, place: int) -> BareStored: ...
    @overload
    def __getitem__(self, place: slice) -> BlockEvents: ...
    def __getitem__(self, place: int | slice) -> BareStored | BlockEvents:
        if isinstance(place, slice):
            return self._part(place)
        event = _READ.decode(self.columns.frames[place])
        return BareStored(int(self.positions[place]), int(self.received[place]), event)

    def _part(self, place: slice) -> BlockEvents:
        first, end, step = place.indices(len(self))
        if step != 1:
            raise ValueError("events of blocks are cut, not picked")
        end = max(first, end)
        return BlockEvents(
            self.columns.part(first, end), self.positions[first:end], self.received[first:end]
        )


def block_events(blocks: Sequence[tuple[int, int, bytes]]) -> BlockEvents | None:
    """The events of blocks, each given by the position of its first event, its time of arrival and
    its bytes; None when they are not all of the usual kind, see `event_columns`.
    """
    bodies = [body for _first, _received, body in blocks]
    columns = event_columns(bodies)
    if columns is None:
        return None
    counts = np.array([array_head(body)[0] for body in bodies])
    firsts = np.array([first for first, _received, _body in blocks], np.int64)
    received = np.array([received for _first, received, _body in blocks], np.int64)
    before = np.cumsum(counts) - counts
    positions = np.repeat(firsts - before, counts) + np.arange(columns.count)
    return BlockEvents(columns, positions, np.repeat(received, counts))
