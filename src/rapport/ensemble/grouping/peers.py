"""What a client was told of its groups: the last table of each, page by page. [EN-7]"""

from __future__ import annotations

from rapport.ensemble.grouping.settings import GroupingSettings
from rapport.ensemble.grouping.table import GroupTable
from rapport.kernel.clock import Now
from rapport.transport.base import Address


class _Page:
    """Members of a group, and until when each, and so the page itself, may be believed in."""

    __slots__ = ("last_ms", "until_ms", "version")

    def __init__(self, version: int, until_ms: dict[Address, float], last_ms: float) -> None:
        self.version, self.until_ms, self.last_ms = version, until_ms, last_ms


class _Group:
    __slots__ = ("groupers", "pages", "pages_from", "said_ms", "told")

    def __init__(self) -> None:
        self.groupers: tuple[Address, ...] = ()
        self.said_ms = float("-inf")
        """When the groupers were last named."""
        self.pages_from: tuple[Address, int] | None = None
        """Who published the pages, and how many there are."""
        self.pages: dict[int, _Page] = {}
        self.told = 0
        """Publications since the node left the group."""


class GroupPeers:
    """The peers of a node in each of its groups (rule 17).

    A page takes the place of the same page only; the pages of another grouper, or another number
    of pages, take the place of all. What is not renewed is forgotten by its age.
    """

    def __init__(self, settings: GroupingSettings) -> None:
        self._settings = settings
        self._groups: dict[str, _Group] = {}
        self.applied = 0
        """Pages that were taken."""

    def groups(self) -> list[str]:
        """The groups of which something is known."""
        return list(self._groups)

    def apply(self, table: GroupTable, grouper: Address, version: int, now: Now) -> bool:
        """Takes a page of a table, or who keeps it; false when it is older than what is known."""
        known = self._groups.setdefault(table.group, _Group())
        if table.pages and not self._take_page(known, table, grouper, version, now):
            return False
        known.groupers, known.said_ms, known.told = table.groupers, now.steady_ms, 0
        return True

    def members(self, group: str, now: Now) -> list[Address]:
        """The nodes that are believed to be in a group now."""
        known = self._groups.get(group)
        if known is None:
            return []
        return [
            address
            for page in known.pages.values()
            for address, until_ms in page.until_ms.items()
            if until_ms > now.steady_ms
        ]

    def groupers(self, group: str, now: Now) -> tuple[Address, ...]:
        """Who wants to hear the members of a group; nobody after three periods of silence."""
        known = self._groups.get(group)
        if known is None or known.said_ms + 3 * self._settings.period_ms < now.steady_ms:
            return ()
        return known.groupers

    def is_fresh(self, group: str, now: Now) -> bool:
        """Whether its table came when it was due, or only a little later."""
        known = self._groups.get(group)
        late_ms = 1.5 * self._settings.period_ms
        return known is not None and known.said_ms + late_ms > now.steady_ms

    def leave(self, group: str, now: Now) -> tuple[Address, ...]:
        """Who is to be told that the node is not in a group any more; twice, so that one message
        may be lost, then the group is forgotten.
        """
        groupers, known = self.groupers(group, now), self._groups[group]
        known.told += 1
        known.pages.clear()
        if known.told >= 2:
            del self._groups[group]
        return groupers

    def gone(self, address: Address) -> None:
        """The node there is known to be dead; costs a look at every page."""
        for known in self._groups.values():
            for page in known.pages.values():
                page.until_ms.pop(address, None)

    def _take_page(
        self, known: _Group, table: GroupTable, grouper: Address, version: int, now: Now
    ) -> bool:
        if known.pages_from != (grouper, table.pages):
            known.pages_from = grouper, table.pages
            known.pages.clear()
        before = known.pages.get(table.page)
        # Where nobody on it is believed in any more, a page is no reason to refuse another: its
        # grouper may have begun anew with a clock set back, and would not be heard for as long.
        if before is not None and before.last_ms > now.steady_ms and version <= before.version:
            return False
        last_ms = now.steady_ms + self._settings.entry_ms
        until_ms = {entry.address: last_ms - entry.age_ms for entry in table.members}
        known.pages[table.page] = _Page(version, until_ms, last_ms)
        self.applied += 1
        return True
