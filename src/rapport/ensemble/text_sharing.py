"""Texts shared by gossip: a node offers texts by digest and publishes a text while others want it.
[EN-14, ME-12]

Of two versions of one name the later one wins everywhere: by the time since which it holds at its
origin, then by digest. So all nodes agree, whatever order they receive them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import content_id
from rapport.ensemble.model.component import Component, process
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.role import Local, Role

MOST_BYTES = 32_768
"""Most bytes of texts that a node publishes at a time, with their digests."""
MOST_OFFERS = 200
"""That a node makes at a time; some 100 bytes each, in every publication."""
PAGE_MS = 60_000
"""Offers, or wishes, that do not fit together take turns of this length."""
_ASKED_MS = 60_000
"""A text is published for so long after a node last wanted it."""
_TURN_MS = 10_000
"""Texts that do not fit together take turns of this length."""


_DIGEST_BYTES = 40
"""Of a text beside itself."""
_encode = msgspec.msgpack.encode
T = TypeVar("T")


class Capacity(NamedTuple):
    """Bytes for each part of a shelf, so that all of it can be published."""

    texts: int
    offers: int
    wanted: int


def capacities_in(most_bytes: int) -> Capacity:
    """How the knowledge of a component is divided."""
    most = min(most_bytes, 2 * MOST_BYTES)
    return Capacity(texts=most // 2, offers=most * 11 // 32, wanted=most // 8)


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A text that a node has."""

    name: str
    digest: str
    since_ms: int
    """Since when it holds where it arose."""
    origin: str
    """The node where it arose."""
    version: str = ""
    """How it is called where it is offered."""

    @property
    def rank(self) -> tuple[int, str]:
        """Of two offers of a name the greater counts."""
        return self.since_ms, self.digest


class Sharing(Role):
    """Offers texts, and wants others'."""

    offers: list[Offer]
    wanted: list[str]
    """Digests."""
    told: dict[str, str]
    """Texts by digest: those that another node wants."""


class Wishing(Ensemble, every="1 s", writes="coordinator"):
    """Notifies the owner of a text that it is wanted."""

    coordinator: Sharing
    member: Sharing

    def membership(coordinator: Any, member: Any) -> bool:
        offered = {offer.digest for offer in coordinator.offers}
        return coordinator.id != member.id and not offered.isdisjoint(member.wanted)

    def exchange(coordinator: Any, member: Any) -> None:
        offered = {offer.digest for offer in coordinator.offers}
        requests = {digest: coordinator.now_ms for digest in member.wanted if digest in offered}
        coordinator.asked = coordinator.asked | requests


class Shelf(Component, Sharing):
    """The texts of a node. The node sets offers, texts and wanted digests."""

    offers: list[Offer] = []  # noqa: RUF012 - a field: each component has its own
    wanted: list[str] = []  # noqa: RUF012
    told: dict[str, str] = {}  # noqa: RUF012
    asked: Local[dict[str, int]] = {}  # noqa: RUF012
    """When a node last wanted each text; replaced, never changed."""
    room: Local[int] = MOST_BYTES
    texts: Local[dict[str, str]] = {}  # noqa: RUF012
    """All by digest; replaced, never changed."""

    @process(every="2 s", on_change="asked", reads="offers", writes=("asked", "told"))
    def tell(self) -> None:
        """Tells what is wanted, as much as fits."""
        offered = {offer.digest for offer in self.offers}
        self.asked = {
            digest: when
            for digest, when in self.asked.items()
            if digest in offered and when > self.now_ms - _ASKED_MS
        }
        texts = {one: self.texts[one] for one in sorted(self.asked) if one in self.texts}
        self.told = fitting(texts, self.now_ms // _TURN_MS, self.room)


def page(items: Iterable[T], room: int, most: int, turn: int) -> list[T]:
    """Those whose turn it is, of what does not fit together: all of it comes up again and again,
    but for what is too large by itself.

    >>> [page("abcde", 4, 9, turn) for turn in range(4)]
    [['a', 'b'], ['c', 'd'], ['e'], ['a', 'b']]
    """
    pages: list[list[T]] = [[]]
    left = room
    for item in items:
        needed = len(_encode(item))
        if needed > room:
            continue
        if needed > left or len(pages[-1]) >= most:
            pages.append([])
            left = room
        pages[-1].append(item)
        left -= needed
    return pages[turn % len(pages)]


def fitting(texts: Mapping[str, str], turn: int, room: int = MOST_BYTES) -> dict[str, str]:
    """Those that fit together, beginning with another one at each turn; at least one.

    >>> fitting({"a": "x" * 20_000, "b": "y" * 20_000}, 1).keys()
    dict_keys(['b'])
    """
    names = list(texts)
    first = turn % len(names) if names else 0
    chosen: dict[str, str] = {}
    left = room
    for name in (*names[first:], *names[:first]):
        left -= len(texts[name].encode()) + _DIGEST_BYTES
        if chosen and left < 0:
            break
        chosen[name] = texts[name]
    return chosen


def digest_of(text: str) -> str:
    """The digest that identifies a text on all nodes."""
    return content_id("shared text", text)


def newer_of(
    offers: Iterable[Offer], own: Mapping[str, Offer], *, before_ms: int
) -> dict[str, Offer]:
    """By name the best of others' offers where it is later than one's own; those whose time lies
    ahead of `before_ms` do not count, as a wrong clock would win for ever.
    """
    found: dict[str, Offer] = {}
    for offer in offers:
        known = found.get(offer.name) or own.get(offer.name)
        if known is not None and known.digest == offer.digest:
            continue
        if offer.since_ms <= before_ms and (known is None or offer.rank > known.rank):
            found[offer.name] = offer
    return found


class SharedTexts(msgspec.Struct, frozen=True):
    """The knowledge of a shelf."""

    offers: tuple[Offer, ...] = ()
    told: dict[str, str] = {}


def parse_shared(values: Mapping[str, Any]) -> SharedTexts:
    """Reads the knowledge of a shelf; texts that do not match their digest are left out.
    Raises InvalidInput.
    """
    try:
        read = msgspec.convert(dict(values), SharedTexts)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"this is no shelf: {error}", code="ensemble.bad_shelf") from None
    true = {digest: text for digest, text in read.told.items() if digest_of(text) == digest}
    return SharedTexts(read.offers[:MOST_OFFERS], true)
