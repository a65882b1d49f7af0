"""A grouper's knowledge as messages: versions that grow, whatever its clock does. [EN-7]"""

from __future__ import annotations

from rapport.ensemble.grouping.settings import GROUPERS
from rapport.ensemble.grouping.table import (
    GROUPER,
    TABLE,
    Announcement,
    GroupTable,
    component_of,
    encode,
    table_component,
)
from rapport.ensemble.messages import Published
from rapport.kernel.clock import Now
from rapport.transport.base import Address


class Voice:
    """Makes the messages of one grouper."""

    def __init__(self, node: str, address: Address) -> None:
        self._node, self._address = node, address
        self._version = 0

    def page(self, table: GroupTable, now: Now) -> Published:
        """A page of a table, or an introduction."""
        component = table_component(self._address, table.group, table.page)
        return self._knowledge(component, TABLE, encode(table), (), now)

    def announcement(self, said: Announcement, now: Now) -> Published:
        """What other groupers get."""
        component = component_of(self._address)
        return self._knowledge(component, GROUPER, encode(said), (GROUPERS,), now)

    def next_version(self, now: Now) -> int:
        """The wall clock, or one more than the last where that clock stands or goes back."""
        self._version = max(now.wall_ms, self._version + 1)
        return self._version

    def _knowledge(
        self, component: str, role: str, body: bytes, groups: tuple[str, ...], now: Now
    ) -> Published:
        version = self.next_version(now)
        return Published(
            component, version, now.wall_ms, self._node, (role,), body, self._address, groups
        )
