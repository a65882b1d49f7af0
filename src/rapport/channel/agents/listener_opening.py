"""Opening a listener: its first request, its place, its state. [CH-7]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rapport.channel.agents.listener_cache import Cache
from rapport.channel.agents.listener_place import PLACE_NAME, ListenerPlace, Session
from rapport.channel.agents.listener_settings import ListenerSettings
from rapport.channel.agents.listener_state import Listening, StandsAt
from rapport.channel.checking import check_channel_name
from rapport.channel.query.kinds import SQL, TEMPLATE, make_query
from rapport.channel.requesting.batch import Request, check_request
from rapport.channel.requesting.own_terms import in_own_terms


def opening_request(
    channel: str,
    query: str | dict[str, Any],
    kind: str,
    handback: str | None,
    from_start: bool,
    settings: ListenerSettings,
    *,
    interpretation: str = "",
) -> Request:
    """The request that begins; checked here so that a slip is told at once, not by the node. An
    interpretation is part of the query, and so of the place.
    """
    check_channel_name(channel)
    request = Request(
        query=query,
        kind=kind,
        interpretation=interpretation,
        handback=handback or "",
        from_start=from_start,
        max_messages=settings.batch_events,
        lease_minutes=settings.remote_lease_minutes,
    )
    check_request(request)
    if kind in ("", SQL, TEMPLATE):  # other kinds are plug-ins that only the node may have
        make_query(kind, query)
    return in_own_terms(channel, request)


def make_listening(stands_at: StandsAt, settings: ListenerSettings) -> Listening:
    """The state to go on from."""
    cache = Cache(
        stands_at.position, most_events=settings.most_events, most_bytes=settings.most_bytes
    )
    return Listening(
        cache,
        stands_at,
        batch_events=settings.batch_events,
        wait_ms=int(settings.wait_seconds * 1_000),
        first_pause_ms=settings.first_pause_ms,
        longest_pause_ms=settings.longest_pause_ms,
    )


def open_place(
    directory: str | Path | None, channel: str, opening: Request
) -> ListenerPlace | None:
    """The place on disk, if one is wanted; raises what ListenerPlace raises."""
    if directory is None:
        return None
    session = Session(
        channel=channel,
        query=msgspec.json.encode(opening.query, order="sorted").decode(),
        kind=opening.kind,
        handback=opening.handback,
    )
    return ListenerPlace(Path(directory), session)


def what_helps(code: str, place: ListenerPlace | None) -> str:
    """What to do about a source that refuses us."""
    if code.startswith("token.") and place is not None:
        return (
            "the source does not know our place any more (another node, or other data): "
            f"delete {place.directory / PLACE_NAME} to begin with the query again"
        )
    if code.startswith("token."):
        return "the source does not know our place any more: open a new listener"
    if code.startswith("access."):
        return "give a token with the right to subscribe: resume(token=...)"
    return "change what is asked for, or resume() to try again"
