"""The two ways into a channel: a node's door, or the log itself when no node runs. [PI-2, CH-6]"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from rapport.channel.agents.connection import TIMEOUT_SECONDS, NodeConnection
from rapport.channel.backends.stores import open_channels, read_identity
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.validation import is_reserved
from rapport.core.codec import to_cloudevent
from rapport.core.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    StoreUnavailable,
    Unavailable,
)
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.settings import read_secret
from rapport.pipeline.sources.appending import Target
from rapport.pipeline.sources.door_place import (
    DoorPlace,
    OpenedDoor,
    answered,
    node_line,
    read_key,
    refusal,
)
from rapport.pipeline.sources.site_place import SiteParts, SitePlace, site_parts

Append = Callable[[Sequence[Event]], int]
"""Appends events, durable when it returns; gives how many of them were there already."""

_BATCH = "application/cloudevents-batch+json"
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_LOOK_AGAIN_SECONDS = 0.2
_LOCKED = (
    "its node runs, but not where its site.toml says: .option('url', ADDRESS); "
    "or it does not take our key: .option('key_file', FILE)"
)
_ANYWHERE = ("0.0.0.0", "::")


class _Answer(msgspec.Struct):
    positions: list[int]
    duplicates: int


@contextmanager
def opened_to_write(target: Target, clock: Clock | None = None) -> Iterator[Append]:
    """The way into the target's channel, for the time of a block.

    A site's node is asked when it runs. Otherwise the log's lock is taken; while another process
    holds it that one is waited for: another task, or a node that is just starting.
    """
    clock, place = clock or SystemClock(), target.place
    if isinstance(place, DoorPlace):
        with _through_door(node_line(place), target, clock) as append:
            yield append
        return
    assert isinstance(place, SitePlace)
    parts = site_parts(Path(place.directory), writing=True)
    deadline = clock.steady_ns() + target.patience_ms * 1_000_000
    while True:
        line = _running_node(parts, place.key_file, clock)
        if line is not None:
            with _through_door(line, target, clock) as append:
                yield append
            return
        try:
            channels = _open_log(parts, target.channel)
            break
        except StoreUnavailable as error:
            if error.code != "store.locked" or clock.steady_ns() > deadline:
                error.hint = _LOCKED
                raise
        threading.Event().wait(_LOOK_AGAIN_SECONDS)
    with _into_log(channels, target.channel) as append:
        yield append


# --- a node's door --------------------------------------------------------------------------------


@contextmanager
def _through_door(line: NodeConnection, target: Target, clock: Clock) -> Iterator[Append]:
    # What only the node appends is taken from who may change the node, at a door of its own.
    root = "/pipeline/channels" if is_reserved(target.channel) else "/channels"
    path = f"{root}/{quote(target.channel, safe='')}/events"

    def append(events: Sequence[Event]) -> int:
        body = msgspec.json.encode([to_cloudevent(event) for event in events])
        reply = answered(
            lambda: line.post(path, body, _BATCH, TIMEOUT_SECONDS), target.patience_ms, clock
        )
        if reply.status == 413 and len(events) > 1:
            middle = len(events) // 2
            return append(events[:middle]) + append(events[middle:])
        if reply.status != 200:
            raise refusal(reply, line.url)
        return _known_in(reply.body, len(events), line.url)

    try:
        yield append
    finally:
        line.hang_up()


def _known_in(body: bytes, count: int, url: str) -> int:
    """A 200 counts only when it comes from a node: any portal on the way says 200 to everything."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = _Answer([], 0)
    if len(answer.positions) != count:
        raise Corrupt(f"what answers at {url} is not a node", code="http.strange_answer")
    return answer.duplicates


def _running_node(parts: SiteParts, key_file: str, clock: Clock) -> NodeConnection | None:
    """The way to the site's own node if it runs where the site says; another site's node that
    happens to listen there is left alone.
    """
    settings = parts.settings
    host = "127.0.0.1" if settings.host in _ANYWHERE else settings.host
    url = settings.public_url or f"http://{host}:{settings.port}"
    key = read_key(key_file)
    if not key and settings.token_file:
        key = read_secret(f"file:{settings.token_file}", parts.site)
    line = NodeConnection(url, key, most_answer_bytes=_MOST_ANSWER_BYTES)
    try:
        answering = OpenedDoor(line, 0, clock).node()
    except (Unavailable, Corrupt, InvalidInput):
        answering = ""  # nobody, no node, or a node that does not know our key
    own = read_identity(parts.log, parts.declared, site=parts.site)
    if answering and answering == own:
        return line
    line.hang_up()
    return None


# --- the log itself -------------------------------------------------------------------------------


def _open_log(parts: SiteParts, channel: str) -> LoggedChannels:
    if parts.declared.rules_for(channel).interceptors:
        raise Conflict(
            f"channel {channel!r} has interceptors, which work only in a running node",
            code="sink.needs_node",
            hint=f"start it: rapport up --site {parts.site}",
        )
    return open_channels(
        parts.log,
        SystemClock(),
        parts.declared,
        site=parts.site,
        segment_bytes=parts.settings.segment_bytes,
    )


@contextmanager
def _into_log(channels: LoggedChannels, channel: str) -> Iterator[Append]:
    """An event loop of our own for as long as the log is open."""
    with asyncio.Runner() as runner:

        def append(events: Sequence[Event]) -> int:
            return runner.run(channels.channel(channel).append(events)).duplicates

        try:
            yield append
        finally:
            runner.run(channels.close())
