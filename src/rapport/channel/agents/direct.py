"""Direct mode: publishers and listeners talk to a program itself, with no channel in between.
[CH-2, CH-3, CH-6, CH-8]

`DirectSink` looks like a node's publish endpoint; it stores only marks: the last handled number of
each publisher. `DirectSource` looks like a node's source endpoint; it keeps the newest events in
memory and answers as a channel in memory does, without `take`: without a store a taken message
could be delivered twice. `DirectServer` is their HTTP server, on the standard library alone.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rapport.channel.agents.publisher import EventMaker
from rapport.channel.channel import AppendResult
from rapport.channel.log.sequences import (
    SEQUENCED_IN,
    MarksDraft,
    PublisherMarks,
    SequenceMarks,
    counted_in,
)
from rapport.channel.log.writer import Notifier
from rapport.channel.requests.request import (
    Batch,
    Request,
    check_request,
    read_request,
    write_batch,
)
from rapport.channel.requests.source import MessageSource
from rapport.channel.validation import (
    KEEP_AS_LONG_AS_POSSIBLE,
    LARGEST_DATA_BYTES,
    check_channel_name,
    check_events,
)
from rapport.core.codec import decode_cloudevent, decode_cloudevents
from rapport.core.errors import (
    ChannelUnavailable,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    StoreUnavailable,
    TooLarge,
    Unavailable,
    UnknownName,
    Unsupported,
)
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Chance, Clock, Ids, SystemClock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import LogStore, RecordStore, all_blocks, decode_record
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from rapport.store.segment_store import SegmentLogStore

_log = get_logger(__name__)
_MOST_THROWN_AWAY = 128 * 1024 * 1024
"""Of a body that is too large."""
_THROW_AWAY_SECONDS = 5.0
"""How long to wait for the next part of it."""
_PART_BYTES = 64 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOG = "marks"
_SEGMENT_BYTES = 1024 * 1024
_MOST_IDS = 100_000
Handle = Callable[[list[Event]], None]
"""Handles new events; returning means done. InvalidInput rejects them for good (the publisher finds
the bad one and keeps it); any other error has them sent again later.
"""
MOST_BODY_BYTES = 8 * 1024 * 1024
MOST_EVENTS = 100_000
MOST_BYTES = 64 * 1024 * 1024
_MOST_REQUEST_BYTES = 1024 * 1024
_IDENTITY = "direct"
T = TypeVar("T")


class PostedRequest(msgspec.Struct, frozen=True):
    path: str
    body: bytes
    token: str
    from_a_page: bool
    """Whether a browser sent it on behalf of a web page."""


Answer = Callable[[PostedRequest], bytes]
"""The JSON that answers a request; raises RapportError for a refusal."""


class DirectServer(ThreadingHTTPServer):
    """An HTTP server that passes each POST to `answer`, in a thread per connection, until closed.

    Raises InvalidInput for an open address without a token, StoreUnavailable for one in use.
    """

    daemon_threads = True

    def __init__(
        self, host: str, port: int, token: str, answer: Answer, *, most_bytes: int
    ) -> None:
        if not token and host not in LOOPBACK:
            raise InvalidInput(
                f"the program would listen on {host} without authentication",
                code="settings.open_door",
                hint="give a token, or listen on 127.0.0.1",
            )
        self.most_bytes = most_bytes
        self._token, self._answer = token, answer
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror}", code="sink.no_address"
            ) from error
        self.url = f"http://{host}:{self.server_port}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="rapport-direct-endpoint", daemon=True
        )
        self._thread.start()

    def answer(self, posted: PostedRequest) -> bytes:
        """The answer to one authorised request; raises RapportError."""
        if posted.from_a_page:
            raise NotAllowed("requests from web pages are refused", code="access.origin")
        if self._token and not hmac.compare_digest(posted.token.encode(), self._token.encode()):
            raise NotAuthenticated("a bearer token is needed")
        return self._answer(posted)

    def close(self) -> None:
        """Takes no more requests; a second call is no error."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The others may hang up at any time; anything else is a fault of ours."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            _log.error("request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = (
        True  # head and body are two writes; waiting for the first costs 40 ms
    )
    server: DirectServer

    def do_POST(self) -> None:
        try:
            body = self.server.answer(self._read())
        except RapportError as error:
            self._refuse(error)
            return
        self._reply(200, {"Content-Type": "application/json"}, body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the program logs what matters."""

    def _read(self) -> PostedRequest:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self.close_connection = True
            raise InvalidInput("the request has no length", code="http.no_length")
        if int(length[:18]) > self.server.most_bytes:
            self.close_connection = True  # the body is not taken, so nothing may follow it
            self._throw_away(int(length[:18]))
            raise TooLarge(
                f"the request has {length[:18]} bytes; {self.server.most_bytes} are allowed"
            )
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return PostedRequest(
            path=self.path,
            body=self.rfile.read(int(length)),
            token=token if scheme.lower() == "bearer" else "",
            from_a_page="Origin" in self.headers,
        )

    def _throw_away(self, length: int) -> None:
        """Reads a refused body, up to a limit: the client looks for an answer only afterwards, and
        would see a broken connection before.
        """
        left = min(length, _MOST_THROWN_AWAY)
        self.connection.settimeout(_THROW_AWAY_SECONDS)
        with suppress(TimeoutError):  # then it is answered now
            while left > 0 and (part := self.rfile.read(min(left, _PART_BYTES))):
                left -= len(part)

    def _refuse(self, error: RapportError) -> None:
        headers = {"Content-Type": "application/problem+json"}
        if isinstance(error, Unavailable):
            headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
        body: dict[str, Any] = {
            "title": error.code,
            "status": error.status,
            "detail": error.message,
        }
        if error.hint:
            body["hint"] = error.hint
        self._reply(error.status, headers, msgspec.json.encode(body))

    def _reply(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


class PublisherMarkLog:
    """Publishers' marks in a log: each save appends the changes; from time to time all marks, so
    that the older part can be trimmed. Belongs to one process; raises StoreUnavailable.
    """

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._store = SegmentLogStore(directory, segment_bytes=_SEGMENT_BYTES)
        self.marks = SequenceMarks()
        self._ids: dict[tuple[str, str], None] = {}
        self._known: set[str] = set()
        self._written = self._whole_at = 0
        saved: dict[str, PublisherMarks] = {}
        for block in all_blocks(self._store, _LOG):
            kind = dict[str, PublisherMarks]
            saved |= decode_record(block.body, kind, "saved marks", code="sink.bad_marks")
            self._written += len(block.body)
        self.marks.restore(saved.items())
        self._known = set(saved)

    def unseen(self, events: Sequence[Event], draft: MarksDraft) -> list[bool]:
        """For each event whether it is new, also within the request."""
        found = []
        within: set[tuple[str, str]] = set()
        for event in events:
            identity = (event.source, event.id)
            repeated = draft.is_old(event) or identity in self._ids or identity in within
            within.add(identity)
            found.append(not repeated)
        return found

    def save(self, events: Sequence[Event]) -> None:
        """Remembers that the events were handled; durable for numbered ones when it returns."""
        for event in events:
            if SEQUENCED_IN not in event.headers:
                self._ids[event.source, event.id] = None
        while len(self._ids) > _MOST_IDS:
            del self._ids[next(iter(self._ids))]
        if not self.marks.changed:
            return
        self._known = (self._known | self.marks.changed) - self.marks.forgotten
        whole = self._written - self._whole_at >= _SEGMENT_BYTES
        publishers = self._known if whole else self.marks.changed
        body = msgspec.msgpack.encode({name: self.marks.of(name) for name in sorted(publishers)})
        (block,) = self._store.append(_LOG, [(1, body)], 0)
        self._written += len(body)
        self.marks.changed.clear()
        self.marks.forgotten.clear()
        if whole:
            self._whole_at = self._written
            self._store.trim(_LOG, block.first)

    def close(self) -> None:
        """Releases the directory; a second call is no error."""
        self._store.close()


class DirectSink:
    """Serves until closed and calls `handle` with new events: one call at a time, in order.

    A numbered event is handled at least once, and again only when the process ends between handling
    and saving its mark. Events without numbers are deduplicated by their id among the last 100,000
    of this run. Raises InvalidInput for an open address without a token, and StoreUnavailable when
    the directory or the address cannot be used.
    """

    def __init__(
        self,
        directory: str | Path,
        handle: Handle,
        *,
        channel: str,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        clock: Clock | None = None,
    ) -> None:
        check_channel_name(channel)
        self.handled = 0
        """Events handled in this run."""
        self._handle, self._channel = handle, channel
        self._clock: Clock = clock or SystemClock()
        self._marks = PublisherMarkLog(Path(directory))
        self._turn = threading.Lock()
        try:
            self._server = DirectServer(host, port, token, self._answer, most_bytes=MOST_BODY_BYTES)
        except BaseException:
            self._marks.close()
            raise
        self.url = self._server.url

    def take(self, posted: PostedRequest) -> list[int]:
        """Handles one request; a number per event, 0 for a repetition. Raises RapportError."""
        if posted.path != f"/channels/{self._channel}/events":
            raise UnknownName("endpoint", posted.path[:200], [f"/channels/{self._channel}/events"])
        events = counted_in(self._channel, self._decode(posted.body))
        with self._turn:
            draft = MarksDraft(self._channel, self._marks.marks, lambda _event: 0)
            fresh = self._marks.unseen(events, draft)
            if any(fresh):
                self._call([event for event, is_new in zip(events, fresh, strict=True) if is_new])
            numbers = []
            for is_new in fresh:
                self.handled += is_new
                numbers.append(self.handled if is_new else 0)
            draft.keep(self.handled)
            self._marks.save(events)
        return numbers

    def close(self) -> None:
        """Ends when the running request is done; a second call is no error."""
        self._server.close()
        with self._turn:
            self._marks.close()

    def __enter__(self) -> DirectSink:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _answer(self, posted: PostedRequest) -> bytes:
        numbers = self.take(posted)
        return msgspec.json.encode({"positions": numbers, "duplicates": numbers.count(0)})

    def _decode(self, body: bytes) -> Sequence[Event]:
        now_ms = self._clock.now_ms()
        if body.lstrip()[:1] == b"[":
            return decode_cloudevents(body, received_ms=now_ms)
        return [decode_cloudevent(body, received_ms=now_ms)]

    def _call(self, events: list[Event]) -> None:
        try:
            self._handle(events)
        except RapportError:
            raise
        except Exception as error:  # the program's own fault: the publisher keeps the events
            _log.warning("handler failed", why=repr(error), exc_info=True)
            raise Unavailable(
                f"the handler failed: {error!r}", code="sink.handler_failed"
            ) from None


class DirectBuffer:
    """See Channel. Holds the newest events within two bounds; older ones are dropped, and tokens
    that name them are `gone`. All calls belong to one event loop.
    """

    def __init__(self, name: str, clock: Clock, *, most_events: int, most_bytes: int) -> None:
        self.name, self._clock = name, clock
        self._most_events, self._most_bytes = most_events, most_bytes
        self._events: deque[StoredEvent] = deque()
        self._places: dict[tuple[str, str], int] = {}
        self._bytes = self._last = 0
        self._notifier = Notifier()

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """See Channel; repetitions are recognised among the events still held."""
        now_ms = self._clock.now_ms()
        positions, duplicates = [], 0
        for event in events:
            identity = (event.source, event.id)
            if identity in self._places:
                duplicates += 1
            else:
                self._last += 1
                self._places[identity] = self._last
                self._events.append(StoredEvent(self._last, now_ms, event))
                self._bytes += len(event.data)
            positions.append(self._places[identity])
        self._trim_old()
        self._notifier.notify()
        return AppendResult(tuple(positions), duplicates)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        if not self._events or position >= self._last:
            return []
        # Positions are consecutive, so the index follows from the position.
        start = max(position + 1 - self._events[0].position, 0)
        return list(islice(self._events, start, start + limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        return await self._notifier.wait_until(
            lambda: self._last > position, self._clock, timeout_ms
        )

    def last_position(self) -> int:
        return self._last

    def _trim_old(self) -> None:
        """The newest event stays, however large."""
        while len(self._events) > 1 and (
            len(self._events) > self._most_events or self._bytes > self._most_bytes
        ):
            oldest = self._events.popleft()
            self._bytes -= len(oldest.event.data)
            del self._places[oldest.event.source, oldest.event.id]


class _DirectChannels:
    """See SourceChannels. The one channel of a direct source, without rules and interceptors.

    Tokens are signed with a secret of this process: after a restart they are refused, as the events
    they named are no more.
    """

    def __init__(self, buffer: DirectBuffer, clock: Clock) -> None:
        self._buffer, self.clock = buffer, clock
        self.log: LogStore = MemoryLogStore()
        self.records: RecordStore = MemoryRecordStore()
        self.side_reach: dict[str, int] = {}

    def channel(self, name: str) -> DirectBuffer:
        if name != self._buffer.name:
            raise UnknownName("channel", name, [self._buffer.name])
        return self._buffer

    def ttl_of(self, _name: str) -> int:
        return KEEP_AS_LONG_AS_POSSIBLE

    def intercepts_delivery(self, _name: str) -> bool:
        return False

    def delivered(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> Sequence[StoredEvent]:
        return events

    async def off_loop(self, work: Callable[[], T]) -> T:
        return work()


class DirectSource:
    """Serves the newest events of this program to listeners: queries, tokens, leases, waiting.

    Keeps at most `most_events` and `most_bytes` in memory: a slower listener gets `gone` sets.
    Nothing survives the process; use a node for that. Calls may come from any thread. Raises
    InvalidInput for an open address without a token, and StoreUnavailable when the address cannot
    be used.
    """

    def __init__(
        self,
        *,
        channel: str,
        source: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        most_events: int = MOST_EVENTS,
        most_bytes: int = MOST_BYTES,
        clock: Clock | None = None,
    ) -> None:
        check_channel_name(channel)
        self._channel = channel
        self._clock: Clock = clock or SystemClock()
        self._maker = EventMaker(source, self._clock, Ids(self._clock, Chance.from_machine()))
        self._buffer = DirectBuffer(
            channel, self._clock, most_events=most_events, most_bytes=most_bytes
        )
        self._closing = asyncio.Event()
        self._source = MessageSource(_DirectChannels(self._buffer, self._clock))
        self._loop = asyncio.new_event_loop()
        try:
            self._server = DirectServer(
                host, port, token, self._answer, most_bytes=_MOST_REQUEST_BYTES
            )
        except BaseException:
            self._loop.close()
            raise
        self.url = self._server.url
        self._thread = threading.Thread(target=self._run, name="rapport-direct", daemon=True)
        self._thread.start()

    def publish(self, event: Event | Mapping[str, Any] | None = None, /, **fields: Any) -> str:
        """Offers one event to listeners and returns its id; fields are as in Publisher."""
        return self.publish_many([fields if event is None else event])[0]

    def publish_many(self, events: Iterable[Event | Mapping[str, Any]]) -> list[str]:
        """Offers events, all or none; returns their ids. One that is still here is not offered
        twice. Raises InvalidInput for a bad event.
        """
        made = [self._maker.make(event) for event in events]
        check_events(made, LARGEST_DATA_BYTES)
        self._in_loop(self._buffer.append(made))
        return [event.id for event in made]

    def request(self, name: str, request: Request, *, identity: str = _IDENTITY) -> Batch:
        """Answers a request of this process, as the endpoint does; waits as the request says.
        Raises Unsupported for `take` and for an interpretation, which need a node.
        """
        check_request(request)
        if request.take:
            raise Unsupported(
                "take", "a direct source", hint="put a node in between, or request without take"
            )
        if request.interpretation:
            raise Unsupported("an interpretation", "a direct source", hint="put a node in between")
        return self._in_loop(
            self._source.request(name, request, identity=identity, closing=self._closing)
        )

    def close(self) -> None:
        """Ends; waiting requests are answered at once. A second call is no error."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> DirectSource:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left) if left else _nothing())
            self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (RuntimeError, CancelledError):
            work.close()
            raise ChannelUnavailable("the direct source is closed", code="channel.closed") from None

    def _answer(self, posted: PostedRequest) -> bytes:
        path = f"/channels/{self._channel}/requests"
        if posted.path != path:
            raise UnknownName("endpoint", posted.path[:200], [path])
        return write_batch(self._channel, self.request(self._channel, read_request(posted.body)))


async def _nothing() -> None:
    """Lets callbacks run that are due."""
