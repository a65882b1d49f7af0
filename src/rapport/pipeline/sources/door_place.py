"""Channels read through a node's doors, by the client's own connection. [PI-2]

A node that is away for a while is waited for; what it refuses is told in its words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
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
from rapport.channel.requests.request import read_event
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
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.sources.filters import Condition
from rapport.pipeline.sources.planning import Piece, Span
from rapport.pipeline.sources.reading import Chunk

_log = get_logger(__name__)
T = TypeVar("T")

_MOST_ANSWER_BYTES = 96 * 1024 * 1024
_FIRST_STEP, _LARGEST_STEP = 500, 10_000
_STEP_BYTES = 4 * 1024 * 1024
_NO_NODE = "http.strange_answer"


class DoorPlace(msgspec.Struct, frozen=True):
    """A node's address and the file that holds our key for it."""

    url: str
    key_file: str = ""
    patience_ms: int = 30_000

    @contextmanager
    def opened(self) -> Iterator[OpenedDoor]:
        """See Place. Raises InvalidInput when the key cannot be read."""
        line = node_line(self)
        try:
            yield OpenedDoor(line, self.patience_ms)
        finally:
            line.hang_up()


def node_line(place: DoorPlace) -> NodeConnection:
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


class OpenedDoor:
    """See Opened."""

    def __init__(self, line: NodeConnection, patience_ms: int, clock: Clock | None = None) -> None:
        self._line, self._patience_ms = line, patience_ms
        self._clock = clock or SystemClock()

    def node(self) -> str:
        """The id of the node that answers."""
        return self._asked("/federation", _Hello).node

    def names(self) -> list[str]:
        """See Opened; those that we may read."""
        return self._asked("/federation", _Hello).channels

    def span(self, channel: str) -> Span:
        """See Opened."""
        try:
            state = self._asked(f"/channels/{quote(channel, safe='')}/state", _State)
        except UnknownName:
            return Span(1, 0)
        return Span(state.first, state.last)

    def chunks(
        self, piece: Piece, conditions: Sequence[Condition], *, bare: bool, passes_damage: bool
    ) -> Iterator[Chunk]:
        """See Opened. What is missing beyond the oldest kept event may be past its time to live or
        damaged; the node knows and tells, here it is counted.
        """
        position, step = piece.after, _FIRST_STEP
        while position < piece.through:
            limit = min(step, piece.through - position)
            stored, size = self._page(piece.channel, position, limit)
            fitting = [one for one in stored if one.position <= piece.through]
            reached = fitting[-1].position if len(fitting) == len(stored) > 0 else piece.through
            if missing := reached - position - len(fitting):
                _log.warning("not in the log any more", channel=piece.channel, events=missing)
            if fitting:
                yield _chunk_of(fitting, size)
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

    def _asked(self, path: str, kind: type[T]) -> T:
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
        error = UnknownName("door or channel", url, code=reason.code)
        error.message, error.hint = message, hint
        error.args = (message,)
        return error
    return InvalidInput(message, code=reason.code, hint=hint)


def _hint_in(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any]).get("hint", ""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _chunk_of(stored: Sequence[StoredEvent], size: int) -> Chunk:
    return Chunk(
        [one.position for one in stored],
        [one.received for one in stored],
        [one.event for one in stored],
        size,
    )
