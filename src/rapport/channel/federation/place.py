"""Where a link stands in a neighbour's channel: which token to ask for next. Pure. [CH-11, CH-3]

The place is saved after the events were appended here. If the node ends in between, the same token
gives the same events again, and they are dropped as known.
"""

from __future__ import annotations

from typing import Any

import msgspec

WAIT_MS = 20_000
"""How long a neighbour may hold a request open when it has nothing new."""
LEASE_MINUTES = 60


class LinkPlace(msgspec.Struct, frozen=True):
    """The token to ask for; `seen` when its events are here and only what follows is wanted."""

    query: str
    """The condition it was begun with: another one begins anew."""
    token: str = ""
    seen: bool = False
    interpretation: str = ""
    """One of the neighbour's, in whose words the events come."""


class Received(msgspec.Struct, frozen=True):
    """What a link needs to know of a neighbour's answer."""

    current_token: str
    next_token: str | None = None
    gone: bool = False


def place_for(saved: LinkPlace | None, query: str, interpretation: str = "") -> LinkPlace:
    """The saved place, or the beginning when there is none or what is asked for has changed."""
    begin = LinkPlace(query, interpretation=interpretation)
    return saved if saved is not None and begin_of(saved) == begin else begin


def begin_of(place: LinkPlace) -> LinkPlace:
    """The same before anything has come."""
    return LinkPlace(place.query, interpretation=place.interpretation)


def request_at(place: LinkPlace, *, most: int, wait_ms: int = WAIT_MS) -> dict[str, Any]:
    """The body of the request to make at a place."""
    asked: dict[str, Any] = {
        "max_messages": most,
        "wait_ms": wait_ms,
        "lease_minutes": LEASE_MINUTES,
    }
    if place.token:
        return {**asked, "token": place.token, "seen": place.seen}
    words = {"interpretation": place.interpretation} if place.interpretation else {}
    return {**asked, "query": place.query, **words}


def after(place: LinkPlace, received: Received) -> LinkPlace:
    """The place once the events of an answer are here.

    >>> after(LinkPlace("q"), Received("c", "n"))
    LinkPlace(query='q', token='n', seen=False, interpretation='')
    >>> after(LinkPlace("q", "c"), Received("c", None))
    LinkPlace(query='q', token='c', seen=True, interpretation='')
    """
    token, seen = received.next_token, False
    if token is None:
        token, seen = received.current_token, True
    return msgspec.structs.replace(place, token=token, seen=seen)
