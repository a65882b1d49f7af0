"""Where each event of an indexed log stands in its segment file, with a checksum of its own. [CH-4]

Matches of a query lie far apart; reading and checking the whole block around each would cost a
hundred times what the event does.
"""

from __future__ import annotations

import msgspec

SPOT_BYTES = 24
"""What is kept of one event, see `field_index_packing.py`."""


class Spot(msgspec.Struct, frozen=True, gc=False):
    """The bytes of one event: segment (by its first position), offset in its file, length."""

    position: int
    segment: int
    received: int
    offset: int
    length: int
    checksum: int


class Spots(msgspec.Struct, frozen=True):
    """Spots of consecutive events from position `first` on, packed."""

    first: int
    packed: bytes

    @property
    def last(self) -> int:
        """Position of the last one."""
        return self.first + len(self.packed) // SPOT_BYTES - 1
