"""How groupers and their clients keep time, and how much they remember. [EN-7]

In every worst case counted in periods of publishing: who joins a group is in its table after one,
who leaves it without a word is out of every table before three, a grouper that dies is replaced
within two.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rapport.core.errors import InvalidInput

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
    """The most that one publication goes to, whatever the tables say."""
    tries: int = 3
    """Publications to a member that was never heard of but in tables; after these one in twelve
    periods, until it spoke.
    """
    page_members: int = 24
    """Members in one message; a larger table is published by pages, which can be lost singly. An
    entry takes 25 bytes, with IPv6 up to 47: this many fit a datagram.
    """
    members: int = 100_000
    """Components that a grouper registers; who comes later has to wait until others go."""
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
        """`announce_ms`, or what it is when nothing is said."""
        return self.announce_ms or self.period_ms / 4

    @property
    def member_ms(self) -> float:
        """A grouper forgets a member that it did not hear of for so long: one publication may be
        lost.
        """
        return 2.1 * self.period_ms

    @property
    def entry_ms(self) -> float:
        """A client forgets what a table says of a member so long after a grouper heard it."""
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
