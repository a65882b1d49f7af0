"""How a link stands, for people: per channel and direction what went over it. [CH-11]"""

from __future__ import annotations

import msgspec

from rapport.channel.federation import IntakeResult


class ChannelStatus(msgspec.Struct):
    """Counts since the node started; `trouble` is empty while all is well."""

    stored: int = 0
    known: int = 0
    passed: int = 0
    refused: int = 0
    forwarded: int = 0
    gone: int = 0
    unreadable: int = 0
    """Positions that the neighbour could not read."""
    trouble: str = ""

    def count(self, came: IntakeResult) -> None:
        """Adds one arrival."""
        self.stored += came.stored
        self.known += came.known
        self.passed += came.passed
        self.refused += came.refused


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `rapport links`."""

    link: str
    url: str
    peer: str
    way: str
    channel: str
    counts: ChannelStatus
