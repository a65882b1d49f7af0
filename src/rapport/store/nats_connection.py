"""One connection to NATS in a thread of its own, called from any other thread. [CH-13]

nats-py's exceptions end here: a request without an answer in time raises StoreUnavailable, so no
caller waits for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from rapport.core.errors import StoreUnavailable, Unsupported
from rapport.kernel.telemetry import get_logger
from rapport.store.base import closed_error

T = TypeVar("T")

_log = get_logger(__name__)

PATIENCE_SECONDS = 10.0
"""Longest time that a call waits for an unreachable server."""
_ANSWER_SECONDS = 5.0
"""Time after which an unanswered request is repeated."""
_RECONNECT_SECONDS = 0.2
_PING_SECONDS = 5
_OLDEST_SERVER = (2, 11)
_NOT_FOUND = ("404", "408")


class NatsTimeout(StoreUnavailable):
    """No answer: the server may have handled the request or not."""


class StreamMessage(msgspec.Struct, frozen=True):
    sequence: int
    headers: Mapping[str, str]
    data: bytes


class NatsConnection:
    """The connection. `run` is for other threads; the coroutines belong to its own loop."""

    def __init__(
        self, servers: Sequence[str], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._servers, self._patience = list(servers), patience_seconds
        self._where = ", ".join(server.rpartition("@")[2] for server in servers)
        self._client = Client()
        self._guard = threading.Lock()
        self._closed = False
        self._on_reconnect: list[Callable[[], None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="nats", daemon=True)
        self._thread.start()
        try:
            self.run(self._connect())
        except BaseException:
            self.close()
            raise

    # --- for other threads ------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the connection's loop; raises StoreUnavailable after a time-out."""
        with self._guard:
            if self._closed:
                work.close()
                raise closed_error()
            future = asyncio.run_coroutine_threadsafe(self._in_time(work), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise closed_error() from None  # closed meanwhile

    def close(self) -> None:
        """Ends the connection and the thread; a second call is no error."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # --- for coroutines in the connection's loop --------------------------------------------------

    @property
    def largest_message(self) -> int:
        """Most bytes of a message, headers included."""
        return int(self._client.max_payload)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Calls back each time after the connection was lost and is restored."""
        self._on_reconnect.append(callback)

    async def until_answered(self, send: Callable[[], Awaitable[T]]) -> T:
        """Repeats an idempotent request until there is an answer."""
        while True:
            await self._up.wait()
            try:
                return await send()
            except NatsTimeout as error:
                _log.info("request repeated", why=error.message)

    async def request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None
    ) -> Any:
        """One request and its answer; raises NatsTimeout without one."""
        request = asyncio.ensure_future(
            self._client.request(subject, payload, timeout=_ANSWER_SECONDS, headers=headers)
        )
        await asyncio.wait({request, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            raise self._timeout("the connection was lost")
        try:
            return request.result()
        except NoRespondersError as error:
            raise StoreUnavailable(
                f"the NATS server at {self._where} has no responder for {subject}",
                code="store.nats_no_jetstream",
                hint="start the server with JetStream: nats-server -js, or jetstream {} in its "
                "configuration",
            ) from error
        except (NatsError, OSError, TimeoutError) as error:
            raise self._timeout(str(error) or type(error).__name__) from error

    async def api(self, name: str, body: object) -> dict[str, Any]:
        """One call of JetStream's API, repeated until answered; an error is under `error`."""
        payload = msgspec.json.encode(body)
        answer = await self.until_answered(lambda: self.request(f"$JS.API.{name}", payload))
        return dict(msgspec.json.decode(answer.data))

    async def get(self, stream: str, body: object) -> StreamMessage | None:
        """One message of a stream; None when there is none."""
        payload = msgspec.json.encode(body)
        subject = f"$JS.API.DIRECT.GET.{stream}"
        try:
            answer = await self.until_answered(lambda: self.request(subject, payload))
        except StoreUnavailable as error:
            if error.code == "store.nats_no_jetstream":
                return None  # an unknown stream has no responder
            raise
        if (answer.headers or {}).get("Status") in _NOT_FOUND:
            return None
        return _message(answer)

    async def get_many(
        self, stream: str, sequence: int, count: int, max_bytes: int
    ) -> tuple[list[StreamMessage], bool]:
        """Messages from a sequence on, and whether these were the last ones."""
        body = {"seq": sequence, "batch": count, "max_bytes": max_bytes}
        payload = msgspec.json.encode(body)
        return await self.until_answered(lambda: self._get_many(stream, payload))

    async def subscribe(self, subject: str, callback: Callable[[Any], Awaitable[None]]) -> None:
        """Calls back with every message of a subject, also after a reconnection."""
        await self._client.subscribe(subject, cb=callback)

    async def _get_many(self, stream: str, payload: bytes) -> tuple[list[StreamMessage], bool]:
        found: list[StreamMessage] = []
        inbox = self._client.new_inbox()
        try:
            answers = await self._client.subscribe(inbox)
            try:
                subject = f"$JS.API.DIRECT.GET.{stream}"
                await self._client.publish(subject, payload, reply=inbox)
                while True:
                    answer = await answers.next_msg(timeout=_ANSWER_SECONDS)
                    status = (answer.headers or {}).get("Status")
                    if status is not None:
                        pending = int(answer.headers.get("Nats-Num-Pending", 0))
                        return found, status != "204" or pending == 0
                    found.append(_message(answer))
            finally:
                await answers.unsubscribe()
        except (NatsError, OSError, TimeoutError) as error:
            raise self._timeout(str(error) or type(error).__name__) from error

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._patience):
                return await work
        except TimeoutError:
            raise self._timeout(f"no answer within {self._patience:g} s") from None

    async def _connect(self) -> None:
        self._up = asyncio.Event()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        try:
            await self._client.connect(
                self._servers,
                name="rapport",
                error_cb=self._note_error,
                disconnected_cb=self._note_loss,
                reconnected_cb=self._note_return,
                connect_timeout=2,
                reconnect_time_wait=_RECONNECT_SECONDS,
                max_reconnect_attempts=-1,
                ping_interval=_PING_SECONDS,
                # Nothing is queued while the server is away: callers repeat their requests.
                pending_size=-1,
            )
        except (NatsError, OSError, ValueError) as error:
            raise self._timeout(str(error) or type(error).__name__) from error
        self._up.set()
        version = self._client.connected_server_version
        if (version.major, version.minor) < _OLDEST_SERVER:
            oldest = ".".join(map(str, _OLDEST_SERVER))
            raise Unsupported(
                "reading streams in batches",
                f"nats-server {version.major}.{version.minor}",
                hint=f"use nats-server {oldest} or newer",
            )

    async def _note_error(self, error: Exception) -> None:
        _log.info("nats", servers=self._where, why=str(error) or type(error).__name__)

    async def _note_loss(self) -> None:
        self._up.clear()
        if not self._lost.done():
            self._lost.set_result(None)
        if not self._closed:
            _log.warning("nats lost", servers=self._where)

    async def _note_return(self) -> None:
        self._lost = self._loop.create_future()
        self._up.set()
        _log.info("nats reconnected", servers=self._where)
        for callback in self._on_reconnect:
            callback()

    def _timeout(self, why: str) -> NatsTimeout:
        return NatsTimeout(
            f"NATS at {self._where} did not answer: {why}",
            code="store.nats_unavailable",
            hint="is nats-server running there, and is the address right?",
        )

    def _serve(self) -> None:
        """The thread: runs the loop until `close`, then ends all tasks in it."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._client.close()
        except (NatsError, OSError, TimeoutError) as error:
            _log.info("nats not closed cleanly", why=str(error))
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _message(answer: Any) -> StreamMessage:
    headers = answer.headers or {}
    return StreamMessage(int(headers["Nats-Sequence"]), headers, answer.data)
