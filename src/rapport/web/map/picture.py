"""What a map shows: the ground, once, and the things on it, again and again. [EN-13]"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What does not move; all in metres east and north."""

    west: float
    south: float
    east: float
    north: float
    streets: tuple[tuple[float, float, float, float, bool], ...]
    """Straight pieces from one point to another; true: a main street."""


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """Something on the map."""

    id: str
    kind: str
    """`car`, `bus` or `person`: how it is drawn."""
    east: float
    north: float
    says: str
    """What it does, in a few words, for people and screen readers."""
    state: str = ""
    """`waiting`, `riding`, `full`: a shade of its drawing."""
    way: tuple[tuple[float, float], ...] = ()
    """Where it goes next; drawn while it is chosen."""


class Tie(msgspec.Struct, frozen=True):
    """Two things that have to do with each other."""

    one: str
    other: str
    state: str
    """`claimed` or `held`."""


class Happening(msgspec.Struct, frozen=True):
    """Something that happened, in words."""

    number: int
    time_ms: float
    """Since the beginning."""
    text: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """How it is now."""

    time_ms: float
    things: tuple[Thing, ...]
    ties: tuple[Tie, ...] = ()
    happenings: tuple[Happening, ...] = ()
    """The last ones, newest first."""
    counts: dict[str, int] = {}
    is_over: bool = False


class MapSource(Protocol):
    """What a map page asks."""

    title: str

    def ground(self) -> Ground:
        """Asked once for each page."""

    def picture(self) -> Picture:
        """Asked some times per second while a page is open."""
