"""Tables of groups: settings, the messages of groupers, and the tables that a client holds. [EN-7]

Tables and announcements are knowledge of the grouper's component, published in parts (rule 15): the
body of an ordinary `Published`, in msgpack. Worst cases, in publishing periods: a node that joins a
group is in its table after one, a node that leaves silently is out of every table before three, and
a grouper that dies is replaced within two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.protocol import HostAndPort, Name, PublishedKnowledge
from rapport.kernel.clock import Now
from rapport.overlay.hash_ring import ring_position
from rapport.transport.base import Address

GROUPERS: Final = "rapport.groupers"
"""The group of the groupers themselves; not for the groups of ensembles."""
_LEAST_PAGE: Final = 8


class GroupingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all nodes of a system; only limits may differ."""

    period_ms: float = 5_000
    """Between two publications of a client's knowledge, and between two of a group's table."""
    announce_ms: float = 0.0
    """Between two announcements of a grouper to the others; 0: a quarter of the period. Each
    costs a message for each other grouper; who misses three in a row is taken for dead.
    """
    copies: int = 2
    """Groupers that know each member. One more costs a message for each client and period; with
    two, the death of one loses nothing.
    """
    fan_out: int | None = None
    """Members of its groups that get a publication, drawn at random; none: all. The groupers get
    it besides, so that the table stays true.
    """
    without_group: int = 2
    """Members that a grouper passes knowledge without a group on to, drawn at random; another
    grouper gets it besides.
    """
    recipients: int = 256
    """Most recipients of one publication, whatever the tables list."""
    tries: int = 3
    """Publications to a member that was never heard of but in tables; after these one in twelve
    periods, until it spoke.
    """
    page_members: int = 24
    """Members in one message; a larger table is published by pages, which can be lost singly. An
    entry takes 25 bytes, with IPv6 up to 47: this many fit a datagram.
    """
    members: int = 100_000
    """Components that a grouper registers; later ones wait until others leave."""
    node_members: int = 256
    """Components that it registers of one node, so that none can fill the register."""
    group_members: int = 2_000
    """Components that it registers in one group: a table costs a message for each page and
    member.
    """
    route: Literal["direct", "ring"] = "direct"
    """How knowledge reaches the responsible grouper from another: straight, or from each to the
    next in the ring (figure 20 of the source), which costs half the groupers on average.
    """
    groups_per_component: int = 32
    """Further groups of a component are left out."""
    groupers: int = 128
    """A grouper knows so many others."""

    def __post_init__(self) -> None:
        counts = (self.copies, self.recipients, self.tries, self.groupers, self.members)
        limits = (self.node_members, self.group_members, self.groups_per_component)
        few = min(*counts, *limits) < 1
        wrong = self.period_ms <= 0 or self.announce_ms < 0 or self.page_members < _LEAST_PAGE
        negative = min(self.without_group, self.fan_out or 0) < 0
        if few or wrong or negative:
            raise InvalidInput(
                "settings of groups have to be positive",
                code="ensemble.bad_grouping",
                hint=f"a period above 0, counts of 1 at least, page_members of {_LEAST_PAGE}",
            )
        if self.announcing_ms > self.period_ms / 2:
            raise InvalidInput(
                "groupers that announce themselves so seldom are replaced too late",
                code="ensemble.bad_grouping",
                hint="let announce_ms be half of period_ms at most",
            )

    @property
    def announcing_ms(self) -> float:
        """`announce_ms`, or its default."""
        return self.announce_ms or self.period_ms / 4

    @property
    def member_ms(self) -> float:
        """A grouper forgets a member that it did not hear of for so long: one publication may be
        lost.
        """
        return 2.1 * self.period_ms

    @property
    def entry_ms(self) -> float:
        """A client forgets a table entry so long after a grouper received the member."""
        return 2.8 * self.period_ms

    @property
    def grouper_ms(self) -> float:
        """A grouper that did not announce itself for so long is taken for dead."""
        return 3.5 * self.announcing_ms

    @property
    def settling_ms(self) -> float:
        """A new grouper registers members for so long before it publishes their tables. Two
        periods until a table names it, if another grouper died meanwhile; one until all members
        have published; and some.
        """
        return 3.25 * self.period_ms


TABLE: Final = "GroupTable"
GROUPER: Final = "Grouper"
"""Roles of the two kinds of messages; they are never passed on."""

_MOST_PAGES: Final = 4_096
_LONGEST_NAMED: Final = 64
Body = TypeVar("Body")


class TableEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One member of a group."""

    host: Name
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    age_ms: int = 0
    """Milliseconds since the grouper received its knowledge. Not a time: clocks differ."""

    @property
    def address(self) -> Address:
        """Where it lives."""
        return self.host, self.port


class GroupTable(msgspec.Struct, frozen=True, gc=False):
    """One page of the table of one group, from its grouper.

    One without members (`pages` 0) only introduces the groupers of the group: the answer of one
    that is not responsible.
    """

    group: str
    groupers: tuple[HostAndPort, ...]
    """The groupers that register the group's members, the publishing one first."""
    members: tuple[TableEntry, ...] = ()
    page: int = 0
    pages: int = 0


class Announcement(msgspec.Struct, frozen=True, gc=False):
    """That a grouper is there, and who else is: every grouper keeps the table of the group of
    groupers, and publishes it to that group's members.
    """

    up_ms: Annotated[int, msgspec.Meta(ge=0)]
    """For how long it has been there."""
    leaving: bool = False
    groupers: tuple[TableEntry, ...] = ()
    """Others that it knows, some of them where there are many."""


def component_of(grouper: Address) -> str:
    """The id of a grouper's component."""
    return f"grouper/{grouper[0]}:{grouper[1]}"


def table_component(grouper: Address, group: str, page: int) -> str:
    """The id of a part of a grouper's knowledge: each page has versions of its own."""
    named = group if len(group) <= _LONGEST_NAMED else f"{ring_position(group):x}"
    return f"{component_of(grouper)}/{named}/{page}"


def encode_body(body: GroupTable | Announcement) -> bytes:
    """The body of a message; tables and announcements are knowledge like any other."""
    return msgspec.msgpack.encode(body)


def read_table(message: PublishedKnowledge) -> GroupTable | None:
    """The table in a message; none when there is no sensible one in it."""
    table = _read_body(message.body, GroupTable)
    if table is None or not (table.pages == 0 or 0 <= table.page < table.pages <= _MOST_PAGES):
        return None
    return table


def read_announcement(message: PublishedKnowledge) -> Announcement | None:
    """The announcement in a message; none when there is no sensible one in it."""
    return _read_body(message.body, Announcement)


def _read_body(body: Any, kind: type[Body]) -> Body | None:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, TypeError):
        return None


def split(entries: Sequence[TableEntry], most: int) -> list[tuple[TableEntry, ...]]:
    """The entries in pages of `most` at most. A member stays on its page while the number of
    pages stays, so that a lost page makes no other one wrong.
    """
    places = [ring_position(f"{entry.host}\0{entry.port}") for entry in entries]
    pages = 1
    while pages * most < len(entries):
        pages *= 2
    while True:
        parts: list[list[TableEntry]] = [[] for _ in range(pages)]
        for entry, place in zip(entries, places, strict=True):
            parts[place % pages].append(entry)
        if max(map(len, parts)) <= most:
            return [tuple(part) for part in parts]
        pages *= 2


class _Page:
    """Members of a group, and until when each, and so the page itself, may be believed in."""

    __slots__ = ("last_ms", "until_ms", "version")

    def __init__(self, version: int, until_ms: dict[Address, float], last_ms: float) -> None:
        self.version, self.until_ms, self.last_ms = version, until_ms, last_ms


class _Group:
    __slots__ = ("farewells", "groupers", "pages", "pages_from", "said_ms")

    def __init__(self) -> None:
        self.groupers: tuple[Address, ...] = ()
        self.said_ms = float("-inf")
        """When the groupers were last listed."""
        self.pages_from: tuple[Address, int] | None = None
        """The publisher of the pages, and their number."""
        self.pages: dict[int, _Page] = {}
        self.farewells = 0
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
        """Applies a page of a table, or its list of groupers; false if it is outdated."""
        known = self._groups.setdefault(table.group, _Group())
        if table.pages and not self._take_page(known, table, grouper, version, now):
            return False
        known.groupers, known.said_ms, known.farewells = table.groupers, now.steady_ms, 0
        return True

    def members(self, group: str, now: Now) -> list[Address]:
        """The nodes in a group, as far as known."""
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
        """The groupers that register a group's members; none after three periods of silence."""
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
        """Nodes to notify that the node is not in a group any more; twice, so that one message
        may be lost, then the group is forgotten.
        """
        groupers, known = self.groupers(group, now), self._groups[group]
        known.farewells += 1
        known.pages.clear()
        if known.farewells >= 2:
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
