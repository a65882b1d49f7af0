"""The tables in which operators look up instances, and the ends of time. [PO-7, PO-8]"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from rapport.tables.instances import Instances

END_OF_TIME = 2**62
"""A watermark after every event: everything pending is decided."""
BEGIN_OF_TIME = -END_OF_TIME


class PullData(Protocol):
    """The tables in which operators look up instances."""

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty if no table has any."""

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """The values of a looked-up site function by one or two texts; raises UnknownName.

        A symmetric table contains both orders.
        """

    def days(self, table: str) -> Collection[str]:
        """The keys of a table of days, as ISO dates; raises UnknownName."""
