"""Direct mode, the other way round: listeners ask a program itself, with no channel in between.
[CH-8]

To a listener it looks like a node's source door, so nothing changes there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, TypeVar

from rapport.channel.agents.batch_json import read_request, write_batch
from rapport.channel.agents.direct_buffer import DirectBuffer
from rapport.channel.agents.direct_door import DirectDoor, Posted
from rapport.channel.agents.direct_requests import DirectRequests
from rapport.channel.agents.event_making import EventMaker
from rapport.channel.checking import LARGEST_DATA_BYTES, check_channel_name, check_events
from rapport.channel.requesting.batch import Batch, Request
from rapport.core.errors import ChannelUnavailable, UnknownName
from rapport.core.event import Event
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock, SystemClock

MOST_EVENTS = 100_000
MOST_BYTES = 64 * 1024 * 1024
_MOST_REQUEST_BYTES = 1024 * 1024
_IDENTITY = "direct"
T = TypeVar("T")


class DirectSource:
    """Serves the newest events of this program to listeners: queries, tokens, leases, waiting.

    Keeps `most_events` and `most_bytes` at most, in memory: a listener that is slower is told that
    sets are gone. After the end of the process nothing is left; then put a node in between. Calls
    may come from any thread. Raises InvalidInput for an open address without a token, and
    StoreUnavailable when the address cannot be used.
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
        self._requests = DirectRequests(self._buffer, self._clock, self._closing)
        self._loop = asyncio.new_event_loop()
        try:
            self._door = DirectDoor(host, port, token, self._answer, most_bytes=_MOST_REQUEST_BYTES)
        except BaseException:
            self._loop.close()
            raise
        self.url = self._door.url
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
        """Answers a request of this very process, as the door does; waits as the request says."""
        return self._in_loop(self._requests.request(name, request, identity=identity))

    def close(self) -> None:
        """Ends; who waits is answered at once. A second call is no error."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._door.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> DirectSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    def _answer(self, posted: Posted) -> bytes:
        path = f"/channels/{self._channel}/requests"
        if posted.path != path:
            raise UnknownName("door", posted.path[:200], [path])
        return write_batch(self._channel, self.request(self._channel, read_request(posted.body)))


async def _nothing() -> None:
    """Lets callbacks run that are due."""
