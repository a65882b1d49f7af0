"""Interceptors that follow the log: copies elsewhere, events when a condition holds. [CH-10]"""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from rapport.channel.channel import Channel
from rapport.channel.query.compiler import Matches
from rapport.core.codec import to_cloudevent
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.kernel.threads import run_in_thread

_TIMEOUT_SECONDS = 10
_SOURCE = "rapport.channel"
_BATCH_TYPE = "application/cloudevents-batch+json"


class Target(Protocol):
    """Where copies go; taking an event twice is taking it once."""

    async def append(self, events: Sequence[Event]) -> object:
        """Returns when they are safe there; raises ChannelUnavailable to be asked again."""


class Forward:
    """A copy of every event that matches, under its own source and id: a channel drops the second
    one, so nothing is doubled.
    """

    def __init__(self, matches: Matches | None, target: Target) -> None:
        self._matches, self._target = matches, target

    async def follow(self, _channel: str, events: Sequence[StoredEvent]) -> None:
        """See FollowingInterceptor."""
        matches = self._matches
        chosen = [one.event for one in events if matches is None or matches(one)]
        if chosen:
            await self._target.append(chosen)


class Trigger:
    """An event of its own type in another channel for every event that matches."""

    def __init__(self, matches: Matches, target: Channel, type: str) -> None:
        self._matches, self._target, self._type = matches, target, type

    async def follow(self, channel: str, events: Sequence[StoredEvent]) -> None:
        """See FollowingInterceptor."""
        made = [self._made(channel, one) for one in events if self._matches(one)]
        if made:
            await self._target.append(made)

    def _made(self, channel: str, stored: StoredEvent) -> Event:
        cause = stored.event
        return make_event(
            source=_SOURCE,
            id=content_id("trigger", self._type, channel, cause.source, cause.id),
            type=self._type,
            subject=cause.subject,
            time=cause.time,
            data={"channel": channel, "position": stored.position, "event": cause.id},
            headers={CAUSE: cause_text(cause.id)},
        )


class HttpTarget:
    """An address that takes CloudEvents in batches. Redirects are not followed: the address was
    allowed, another was not. The receiver tells repetitions by source and id.
    """

    def __init__(self, url: str) -> None:
        self._url, self._parts = url, urlsplit(url)

    async def append(self, events: Sequence[Event]) -> object:
        """See Target."""
        body = msgspec.json.encode([to_cloudevent(event) for event in events])
        status = await run_in_thread(partial(self._post, body), name="forwarding")
        if not 200 <= status < 300:
            raise self._refused(f"it answered {status}")
        return status

    def _post(self, body: bytes) -> int:
        parts = self._parts
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", path, body, {"Content-Type": _BATCH_TYPE})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise self._refused(str(error) or type(error).__name__) from None
        finally:
            connection.close()

    def _refused(self, why: str) -> ChannelUnavailable:
        return ChannelUnavailable(
            f"cannot forward to {self._url}: {why}",
            code="interceptor.not_forwarded",
            hint="it is tried again until it is taken or the interceptor is removed",
            retry_after_seconds=5.0,
        )
