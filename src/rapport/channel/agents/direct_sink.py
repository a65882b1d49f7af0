"""Direct mode: a program takes events straight from publishers, with no channel in between. [CH-8]

To a publisher it looks like a node's publish door, so nothing changes there. What a channel would
keep is kept here only as marks: which number of which publisher was handled last.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rapport.channel.agents.direct_door import DirectDoor, Posted
from rapport.channel.agents.direct_marks import SavedMarks
from rapport.channel.checking import check_channel_name
from rapport.channel.sequences import MarksDraft, counted_in
from rapport.core.codec import decode_cloudevent, decode_cloudevents
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    StoreUnavailable,
    Unavailable,
    UnknownName,
)
from rapport.core.event import Event
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

Handle = Callable[[list[Event]], None]
"""What is done with new events. Returning means done. InvalidInput refuses them for good (the
publisher finds the bad one and keeps it); any other error has them sent again later.
"""
MOST_BODY_BYTES = 8 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
        if not token and host not in _LOOPBACK:
            raise InvalidInput(
                f"the sink would listen on {host} without authentication",
                code="settings.open_door",
                hint="give a token, or listen on 127.0.0.1",
            )
        self.handled = 0
        """Events handled in this run."""
        self._handle, self._channel, self._token = handle, channel, token
        self._clock: Clock = clock or SystemClock()
        self._marks = SavedMarks(Path(directory))
        self._turn = threading.Lock()
        try:
            self._server = DirectDoor((host, port), self.take, MOST_BODY_BYTES)
        except OSError as error:
            self._marks.close()
            raise StoreUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror}", code="sink.no_address"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="rapport-direct-sink", daemon=True
        )
        self._thread.start()

    def take(self, posted: Posted) -> list[int]:
        """Handles one request; a number per event, 0 for a repetition. Raises RapportError."""
        self._check(posted)
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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
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

    def _check(self, posted: Posted) -> None:
        if posted.from_a_page:
            raise NotAllowed("requests from web pages are refused", code="access.origin")
        if self._token and not hmac.compare_digest(posted.token.encode(), self._token.encode()):
            raise NotAuthenticated("a bearer token is needed")
        if posted.path != f"/channels/{self._channel}/events":
            raise UnknownName("door", posted.path[:200], [f"/channels/{self._channel}/events"])

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
