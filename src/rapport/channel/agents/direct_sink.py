"""Direct mode: a program takes events straight from publishers, with no channel in between. [CH-8]

To a publisher it looks like a node's publish door, so nothing changes there. What a channel would
keep is kept here only as marks: which number of which publisher was handled last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from rapport.channel.agents.direct_door import DirectDoor, Posted
from rapport.channel.agents.direct_marks import SavedMarks
from rapport.channel.checking import check_channel_name
from rapport.channel.sequences.numbers import MarksDraft, counted_in
from rapport.core.codec import decode_cloudevent, decode_cloudevents
from rapport.core.errors import RapportError, Unavailable, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

Handle = Callable[[list[Event]], None]
"""What is done with new events. Returning means done. InvalidInput refuses them for good (the
publisher finds the bad one and keeps it); any other error has them sent again later.
"""
MOST_BODY_BYTES = 8 * 1024 * 1024


class DirectSink:
    """Listens until closed and calls `handle` with new events: one call at a time, in order.

    A numbered event is handled at least once, and again only when the process ends between the
    handling and the saving of its mark. Events without numbers are told apart by their id among the
    last 100,000 of this run. Raises InvalidInput for an open address without a token, and
    StoreUnavailable when the directory or the address cannot be used.
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
        self._marks = SavedMarks(Path(directory))
        self._turn = threading.Lock()
        try:
            self._door = DirectDoor(host, port, token, self._answer, most_bytes=MOST_BODY_BYTES)
        except BaseException:
            self._marks.close()
            raise
        self.url = self._door.url

    def take(self, posted: Posted) -> list[int]:
        """Handles one request; a number per event, 0 for a repetition. Raises RapportError."""
        if posted.path != f"/channels/{self._channel}/events":
            raise UnknownName("door", posted.path[:200], [f"/channels/{self._channel}/events"])
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
        """Ends when the request under way is done; a second call is no error."""
        self._door.close()
        with self._turn:
            self._marks.close()

    def __enter__(self) -> DirectSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self, posted: Posted) -> bytes:
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
