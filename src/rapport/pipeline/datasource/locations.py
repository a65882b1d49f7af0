"""Where channels are and how they are read there: the files of a site, or the HTTP API of a node.
[PI-2]

A location is a small value that travels to Spark's workers; files and connections are opened there.
Files are read beside the running node or without one, without a lock. A node that is away for a
while is waited for; its refusals keep their code and hint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from rapport.channel.agents.connection import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    RETRY_STATUSES,
    TIMEOUT_SECONDS,
    CallFailed,
    HttpReply,
    NodeConnection,
    Reason,
    problem_reason,
    retry_after_ms,
)
from rapport.channel.backends.stores import is_embedded, open_reading
from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.channel.requests.request import read_event
from rapport.channel.validation import is_reserved
from rapport.core.codec import decode_bare_block, decode_block
from rapport.core.errors import (
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    Unavailable,
    UnknownName,
)
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.settings import NodeSettings, load_settings
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import TomlFile
from rapport.pipeline.datasource.offsets import ChannelSpan, PositionRange
from rapport.pipeline.datasource.rows import ColumnCondition, EventChunk, may_hold
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.store.base import Block, LogReader
from rapport.store.segment_files import LOGS
from rapport.store.segment_store import SegmentLogReader

_RAW = "raw."


class OpenChannels(Protocol):
    """The channels of a location, opened for reading."""

    def names(self) -> list[str]:
        """The channels that hold something."""

    def span(self, channel: str) -> ChannelSpan:
        """The bounds of a channel; empty when it does not exist."""

    def chunks(
        self,
        positions: PositionRange,
        conditions: Sequence[ColumnCondition],
        *,
        bare: bool,
        passes_damage: bool,
    ) -> Iterator[EventChunk]:
        """The events of a range in order; events that conditions on `received` exclude may be
        missing, and with `bare` all headers.

        Positions that retention has removed are skipped and logged. Damage raises Corrupt, or is
        skipped likewise.
        """


class Location(Protocol):
    """Where channels are."""

    def opened(self) -> AbstractContextManager[OpenChannels]:
        """Opens the channels for a block."""


def location_of(options: LocationOptions) -> Location:
    """The location that the options name; nothing is opened yet."""

    if options.url:
        return NodeApi(options.url, options.key_file, options.patience_ms)
    return SiteFiles(options.site, options.key_file)


def spans_of(
    opened: OpenChannels, channels: Sequence[str], *, streaming: bool
) -> dict[str, ChannelSpan]:
    """The bounds of each channel.

    Raises UnknownName for one that does not exist, unless the node makes it when it is needed, or
    it is the raw channel of a source from which a stream awaits its first event.
    """
    # The last one first: events of an earlier channel are seen before later ones that follow them.
    found = {name: opened.span(name) for name in reversed(channels)}
    spans = {name: found[name] for name in channels}
    for name, span in spans.items():
        awaited = is_reserved(name) or (streaming and name.startswith(_RAW))
        if span.last == 0 and not awaited:
            raise UnknownName("channel", name, opened.names(), code="source.unknown_channel")
    return spans


_log = get_logger(__name__)

SITE_FILE = "site.toml"
_FILE_FIRST_STEP, _FILE_LARGEST_STEP = 1_000, 20_000
_FILE_STEP_BYTES = 8 * 1024 * 1024


class SiteFiles(msgspec.Struct, frozen=True):
    """A site's directory, or the directory of its log. `key_file`: a key for writing through its
    node, where that is not the site's own.
    """

    directory: str
    key_file: str = ""

    @contextmanager
    def opened(self) -> Iterator[SiteLog]:
        """See Location. Raises InvalidInput when there is no site or no log yet."""
        parts = site_parts(Path(self.directory))
        if parts.is_embedded:
            yield SiteLog(_segments(str(parts.log)))
            return
        channels = open_reading(parts.log, SystemClock(), parts.declared, site=parts.site)
        try:
            yield SiteLog(channels.log)
        finally:
            channels.log.close()


class SiteParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a site that concern its channels."""

    site: Path
    log: Path
    settings: NodeSettings
    declared: ChannelsConfig

    @property
    def is_embedded(self) -> bool:
        """Whether all channels are files below `log`."""
        return is_embedded(self.log, self.declared)


def site_parts(directory: Path, *, writing: bool = False) -> SiteParts:
    """Reads a site's directory; raises InvalidInput when it is no site, or has no log to read."""
    if (directory / SITE_FILE).is_file():
        settings, declared = _read_site_settings(directory)
        log = directory / settings.data / "log"
    elif (directory / LOGS).is_dir():
        settings, declared, log = NodeSettings(), ChannelsConfig(), directory
    else:
        raise InvalidInput(
            f"{directory} is no site: it has no {SITE_FILE}",
            code="source.no_site",
            hint="name the directory of a site as Spark's workers see it",
        )
    if not writing and not log.is_dir():
        raise InvalidInput(
            f"the site {directory} has no log yet",
            code="channel.no_log",
            hint=f"run it first: rapport up --site {directory}",
        )
    return SiteParts(site=directory, log=log, settings=settings, declared=declared)


SiteSettings = tuple[NodeSettings, ChannelsConfig]
_well_formed: dict[Path, SiteSettings] = {}
"""By directory the settings as they were when the site file could last be read."""
_site_problems: dict[Path, str] = {}
"""By directory why the site file cannot be read now."""


def last_site_settings(directory: str) -> SiteSettings | None:
    """The settings that this process has read; None when it has not."""
    return _well_formed.get(Path(directory).resolve())


def remember_site_settings(directory: str, settings: SiteSettings) -> None:
    """Keeps settings that the planner has read, for a worker that finds the file half-written."""
    _well_formed.setdefault(Path(directory).resolve(), settings)


def _read_site_settings(directory: Path) -> SiteSettings:
    """The settings of node and channels; while somebody edits the file those of before, so that a
    running stream goes on.
    """
    directory = directory.resolve()
    try:
        file = TomlFile.load(directory / SITE_FILE)
        settings = load_settings(file.section("node"), flags={})
        declared, _problems = channels_from_site(file)
    except RapportError as error:
        if directory not in _well_formed:
            raise
        if _site_problems.get(directory) != error.message:
            _site_problems[directory] = error.message
            _log.warning("the site cannot be read; it is taken as it was", reason=error.message)
    else:
        _well_formed[directory] = settings, declared
        _site_problems.pop(directory, None)
    return _well_formed[directory]


@lru_cache(maxsize=8)
def _segments(log: str) -> SegmentLogReader:
    """One reader per log and process: it remembers the index of the growing segment."""
    return SegmentLogReader(Path(log))


class SiteLog:
    """See OpenChannels."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def names(self) -> list[str]:
        return [name for name in self._log.logs() if self._log.last_position(name)]

    def span(self, channel: str) -> ChannelSpan:
        last = self._log.last_position(channel)
        return ChannelSpan(self._log.first_position(channel) if last else 1, last)

    def chunks(
        self,
        positions: PositionRange,
        conditions: Sequence[ColumnCondition],
        *,
        bare: bool,
        passes_damage: bool,
    ) -> Iterator[EventChunk]:
        received = [one for one in conditions if one.column == "received"]
        for block in self._blocks(positions, passes_damage):
            if received and not may_hold(received, block.received):
                continue
            try:
                yield _block_chunk(block, positions, bare=bare)
            except Corrupt as error:
                if not passes_damage:
                    raise
                _log.warning("damage passed over", events=block.count, why=error.message)

    def _blocks(self, positions: PositionRange, passes_damage: bool) -> Iterator[Block]:
        """The blocks that hold something of the positions, read in steps of bounded size."""
        position, step = positions.after, _FILE_FIRST_STEP
        while position < positions.through:
            limit = min(step, positions.through - position)
            blocks = self._log.read_after(positions.channel, position, max_records=limit)
            for block in blocks:
                self._look_at_gap(positions, position, block.first - 1, passes_damage)
                if block.first > positions.through:
                    return
                yield block
                position = block.last
            if not blocks:
                self._look_at_gap(positions, position, positions.through, passes_damage)
                return
            size = sum(len(block.body) for block in blocks)
            count = sum(block.count for block in blocks)
            step = max(1, min(_FILE_STEP_BYTES * count // max(size, 1), _FILE_LARGEST_STEP))

    def _look_at_gap(
        self, positions: PositionRange, position: int, last: int, passes_damage: bool
    ) -> None:
        """Positions after `position` up to `last` are not there: let go, or damaged."""
        last = min(last, positions.through)
        if position >= last:
            return
        first_kept = self._log.first_position(positions.channel)
        gone = min(last, first_kept - 1) - position
        if gone > 0:
            _log.warning("not in the log any more", channel=positions.channel, events=gone)
        first_damaged = max(position + 1, first_kept)
        if first_damaged > last:
            return
        error = self._damage(positions.channel, first_damaged, last)
        if not passes_damage:
            raise error
        lost = last - first_damaged + 1
        _log.warning(
            "damage passed over", channel=positions.channel, events=lost, why=error.message
        )

    def _damage(self, channel: str, first: int, last: int) -> Corrupt:
        """The damage that the log's reader met, or at least where it is."""
        problems: list[Corrupt] = getattr(self._log, "problems", list)()
        found = [one.message for one in problems if f"log {channel!r}" in one.message]
        why = found[-1] if found else "no file holds them"
        return Corrupt(
            f"positions {first} to {last} of channel {channel!r} cannot be read: {why}",
            code="log.damaged",
            hint="restore the file from a copy, or read what is left: .option('damaged', 'pass')",
        )


def _block_chunk(block: Block, positions: PositionRange, *, bare: bool) -> EventChunk:
    try:
        events = decode_bare_block(block.body) if bare else decode_block(block.body)
    except Corrupt as error:
        where = f"positions {block.first} to {block.last} of channel {positions.channel!r}"
        raise Corrupt(f"{where}: {error.message}", code=error.code) from None
    first, last = max(block.first, positions.after + 1), min(block.last, positions.through)
    if last - first + 1 < block.count:
        events = events[first - block.first : last - block.first + 1]
    received = (block.received,) * len(events)
    return EventChunk(range(first, last + 1), received, events, len(block.body))


T = TypeVar("T")

_MOST_ANSWER_BYTES = 96 * 1024 * 1024
_FIRST_STEP, _LARGEST_STEP = 500, 10_000
_STEP_BYTES = 4 * 1024 * 1024
_NO_NODE = "http.strange_answer"


class NodeApi(msgspec.Struct, frozen=True):
    """A node's address and the file that holds our key for it."""

    url: str
    key_file: str = ""
    patience_ms: int = 30_000

    @contextmanager
    def opened(self) -> Iterator[NodeChannels]:
        """See Location. Raises InvalidInput when the key cannot be read."""
        line = connect_node(self)
        try:
            yield NodeChannels(line, self.patience_ms)
        finally:
            line.hang_up()


def connect_node(place: NodeApi) -> NodeConnection:
    """A connection to the node, not opened yet."""
    return NodeConnection(place.url, read_key(place.key_file), most_answer_bytes=_MOST_ANSWER_BYTES)


def read_key(file: str) -> str:
    """The key in a file; "" when no file is named."""
    if not file:
        return ""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"cannot read the key file {file}: {error}",
            code="source.no_key",
            hint="every worker of Spark must be able to read it",
        ) from None


class _State(msgspec.Struct):
    first: int
    last: int


class _Page(msgspec.Struct):
    events: list[msgspec.Raw]


class _Hello(msgspec.Struct):
    node: str
    channels: list[str]


class NodeChannels:
    """See OpenChannels."""

    def __init__(self, line: NodeConnection, patience_ms: int, clock: Clock | None = None) -> None:
        self._line, self._patience_ms = line, patience_ms
        self._clock = clock or SystemClock()

    def node(self) -> str:
        """The id of the node that answers."""
        return self._request("/federation", _Hello).node

    def names(self) -> list[str]:
        """See OpenChannels; those that we may read."""
        return self._request("/federation", _Hello).channels

    def span(self, channel: str) -> ChannelSpan:
        try:
            state = self._request(f"/channels/{quote(channel, safe='')}/state", _State)
        except UnknownName:
            return ChannelSpan(1, 0)
        return ChannelSpan(state.first, state.last)

    def chunks(
        self,
        positions: PositionRange,
        conditions: Sequence[ColumnCondition],
        *,
        bare: bool,
        passes_damage: bool,
    ) -> Iterator[EventChunk]:
        """See OpenChannels. Events that are missing after the oldest kept one are past their time
        to live or damaged, which the node reports; here they are counted.
        """
        position, step = positions.after, _FIRST_STEP
        while position < positions.through:
            limit = min(step, positions.through - position)
            stored, size = self._page(positions.channel, position, limit)
            fitting = [one for one in stored if one.position <= positions.through]
            reached = fitting[-1].position if len(fitting) == len(stored) > 0 else positions.through
            if missing := reached - position - len(fitting):
                _log.warning("not in the log any more", channel=positions.channel, events=missing)
            if fitting:
                yield _page_chunk(fitting, size)
            position = reached
            step = max(1, min(_STEP_BYTES * len(stored) // max(size, 1), _LARGEST_STEP))

    def _page(self, channel: str, after: int, limit: int) -> tuple[list[StoredEvent], int]:
        """Up to `limit` events after a position, fewer when they are very large; their bytes."""
        path = f"/channels/{quote(channel, safe='')}/events?after={after}&limit={limit}"
        body = self._body(path)
        if len(body) >= _MOST_ANSWER_BYTES:
            if limit == 1:
                raise Corrupt(
                    f"the event after position {after} of {channel!r} is larger than any",
                    code=_NO_NODE,
                )
            return self._page(channel, after, limit // 2)
        try:
            page = msgspec.json.decode(body, type=_Page)
            return [read_event(bytes(raw)) for raw in page.events], len(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RapportError) as error:
            raise self._strange(str(error)) from None

    def _request(self, path: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self._body(path), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._strange(str(error)) from None

    def _body(self, path: str) -> bytes:
        reply = answered(
            lambda: self._line.get(path, TIMEOUT_SECONDS), self._patience_ms, self._clock
        )
        if reply.status != 200:
            raise refusal(reply, self._line.url)
        return reply.body

    def _strange(self, why: str) -> Corrupt:
        return Corrupt(
            f"what answers at {self._line.url} is not a node: {why[:500]}",
            code=_NO_NODE,
            hint="look at the address in the option url",
        )


def answered(
    ask: Callable[[], HttpReply | CallFailed], patience_ms: int, clock: Clock
) -> HttpReply:
    """What a node says once it is there and has time; asks again while it is away.

    Raises Unavailable when that lasts longer than `patience_ms`.
    """
    deadline = clock.steady_ns() + patience_ms * 1_000_000
    pause_ms = FIRST_PAUSE_MS
    while True:
        failed = _come_again(reply := ask())
        if failed is None:
            return reply  # type: ignore[return-value]
        left_ms = (deadline - clock.steady_ns()) // 1_000_000
        if left_ms <= 0:
            raise Unavailable(
                failed.reason.message,
                code=failed.reason.code,
                hint=f"waited {patience_ms / 1_000:g} s; start the node, or look at the option url",
            )
        threading.Event().wait(min(failed.retry_after_ms or pause_ms, left_ms) / 1_000)
        pause_ms = min(pause_ms * 2, LONGEST_PAUSE_MS)


def _come_again(reply: HttpReply | CallFailed) -> CallFailed | None:
    if isinstance(reply, CallFailed):
        return reply
    if reply.status >= 500 or reply.status in RETRY_STATUSES:
        return CallFailed(
            problem_reason(reply.status, reply.body), retry_after_ms(reply.retry_after)
        )
    return None


def refusal(reply: HttpReply, url: str) -> RapportError:
    """The error for what a node refuses for good."""
    return refused(
        reply.status, problem_reason(reply.status, reply.body), url, _hint_in(reply.body)
    )


def refused(status: int, reason: Reason, url: str, hint: str = "") -> RapportError:
    """The error for a status that will not change by asking again."""
    message = f"the node at {url} says: {reason.message}"
    key = "name the file with a key that it accepts: .option('key_file', FILE)"
    if status == 401:
        return NotAuthenticated(message, code=reason.code, hint=hint or key)
    if status == 403:
        return NotAllowed(message, code=reason.code, hint=hint or key)
    if status == 404:
        error = UnknownName("endpoint or channel", url, code=reason.code)
        error.message, error.hint = message, hint
        error.args = (message,)
        return error
    return InvalidInput(message, code=reason.code, hint=hint)


def _hint_in(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any]).get("hint", ""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _page_chunk(stored: Sequence[StoredEvent], size: int) -> EventChunk:
    return EventChunk(
        [one.position for one in stored],
        [one.received for one in stored],
        [one.event for one in stored],
        size,
    )
