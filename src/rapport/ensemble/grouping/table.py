"""What groupers say: their tables, page by page, and that they are there. [EN-7]

Both are knowledge of the grouper's component, published in parts (rule 15): the body of an
ordinary `Published`, in msgpack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from rapport.core.event import MAX_NAME
from rapport.ensemble.messages import Published
from rapport.overlay.hash_ring import ring_position
from rapport.transport.base import Address

TABLE: Final = "GroupTable"
GROUPER: Final = "Grouper"
"""Roles that mark the two; nobody passes such knowledge on."""

_MOST_PAGES: Final = 4_096
_LONGEST_NAMED: Final = 64
Body = TypeVar("Body")


class Entry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One member of a group."""

    host: str
    port: int
    age_ms: int = 0
    """How long ago the grouper heard it. Not a time: clocks differ."""

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
    groupers: tuple[Address, ...]
    """Who wants to hear the group's members: the publishing one first."""
    members: tuple[Entry, ...] = ()
    page: int = 0
    pages: int = 0


class Announcement(msgspec.Struct, frozen=True, gc=False):
    """That a grouper is there, and who else is: every grouper keeps the table of the group of
    groupers, and publishes it to that group's members.
    """

    up_ms: int
    """For how long it has been there."""
    leaving: bool = False
    groupers: tuple[Entry, ...] = ()
    """Others that it knows, some of them where there are many."""


def component_of(grouper: Address) -> str:
    """The id of a grouper's component."""
    return f"grouper/{grouper[0]}:{grouper[1]}"


def table_component(grouper: Address, group: str, page: int) -> str:
    """The id of a part of a grouper's knowledge: each page has versions of its own."""
    named = group if len(group) <= _LONGEST_NAMED else f"{ring_position(group):x}"
    return f"{component_of(grouper)}/{named}/{page}"


def encode(body: GroupTable | Announcement) -> bytes:
    """The body of a message; tables and announcements are knowledge like any other."""
    return msgspec.msgpack.encode(body)


def read_table(message: Published) -> GroupTable | None:
    """The table in a message; none when there is no sensible one in it."""
    table = _read(message.body, GroupTable)
    if table is None or not (table.pages == 0 or 0 <= table.page < table.pages <= _MOST_PAGES):
        return None
    named = (*table.groupers, *(entry.address for entry in table.members))
    return table if all(map(_is_address, named)) else None


def read_announcement(message: Published) -> Announcement | None:
    """The announcement in a message; none when there is no sensible one in it."""
    said = _read(message.body, Announcement)
    if said is None or said.up_ms < 0:
        return None
    return said if all(_is_address(entry.address) for entry in said.groupers) else None


def _is_address(address: Address) -> bool:
    return 0 < len(address[0]) <= MAX_NAME and 0 <= address[1] <= 65_535


def _read(body: Any, kind: type[Body]) -> Body | None:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, TypeError):
        return None


def split(entries: Sequence[Entry], most: int) -> list[tuple[Entry, ...]]:
    """The entries in pages of `most` at most. A member stays on its page while the number of
    pages stays, so that a lost page makes no other one wrong.
    """
    places = [ring_position(f"{entry.host}\0{entry.port}") for entry in entries]
    pages = 1
    while pages * most < len(entries):
        pages *= 2
    while True:
        parts: list[list[Entry]] = [[] for _ in range(pages)]
        for entry, place in zip(entries, places, strict=True):
            parts[place % pages].append(entry)
        if max(map(len, parts)) <= most:
            return [tuple(part) for part in parts]
        pages *= 2
