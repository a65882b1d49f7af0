"""An event loop in a thread of its own, with `Communication` open in it. [CO-15]

Every call runs in that loop; the thread that calls waits. Closing lets in no more calls, waits for
those under way, and then closes everything in the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rapport.communication.api.communication import Communication
from rapport.communication.api.opening import Opening, open_communication
from rapport.communication.callbacks import NotificationCallback
from rapport.core.errors import Conflict
from rapport.core.message import Message
from rapport.kernel.threads import run_in_thread

_LAST_CALLS_SECONDS = 30.0
"""Closing waits so long for calls of other threads that are under way."""

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, with `Communication` open in it."""

    def __init__(self, directory: Path | str, options: Opening) -> None:
        """Returns when it is open; raises what opening raises."""
        self._guard, self._closing = threading.Lock(), False
        self._calls: set[Future[Any]] = set()
        self._opened: Future[Communication] = Future()
        self._in_callback = threading.local()
        self._failure: BaseException | None = None
        work = partial(self._work, directory, options)
        # A daemon: a program that forgets to close can still end; nothing is lost by that.
        self._thread = threading.Thread(target=work, name="communication", daemon=True)
        self._thread.start()
        self.communication = self._opened.result()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for it; raises what it raises. Raises Conflict
        when it is closed, or when the loop's own thread asks, which would wait for itself.
        """
        try:
            future = self._submitted(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise _closed("was closed meanwhile; what was asked for may have been done") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._guard:
                self._calls.discard(future)

    def aside(self, callback: NotificationCallback) -> NotificationCallback:
        """The callback so that it may block and call back: a plain function is called in a worker
        thread.
        """

        async def call(message: Message) -> None:
            # Not one of the loop's own threads: those are few, and the engine needs them.
            waited_for = await run_in_thread(
                partial(self._called, callback, message), name="callback"
            )
            if inspect.isawaitable(waited_for):
                await waited_for

        return call

    def close(self) -> None:
        """Waits for calls under way, then closes everything and ends the thread; a second call is
        no error. Raises Conflict inside a callback, which would wait for itself, and what closing
        raises.
        """
        if threading.current_thread() is self._thread or getattr(self._in_callback, "it", False):
            raise Conflict(
                "a callback cannot close what called it",
                code="communication.own_thread",
                hint="close it in the thread that opened it",
            )
        with self._guard:
            is_first, self._closing = not self._closing, True
        if is_first:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        if is_first and self._failure is not None:
            raise self._failure

    # --- parts ---

    def _submitted(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if threading.current_thread() is self._thread:
            raise Conflict(
                "this call would wait for itself",
                code="communication.own_thread",
                hint="a coroutine uses Communication, a plain function may use CommunicationSync",
            )
        with self._guard:
            # Under the guard, so that closing sees every call that was let in.
            if self._closing:
                raise _closed("is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        return future

    def _called(self, callback: NotificationCallback, message: Message) -> Any:
        self._in_callback.it = True
        try:
            return callback(message)
        finally:
            self._in_callback.it = False

    def _work(self, directory: Path | str, options: Opening) -> None:
        try:
            asyncio.run(self._until_closed(directory, options))
        except BaseException as error:
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)

    async def _until_closed(self, directory: Path | str, options: Opening) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with open_communication(directory, **options) as communication:
            self._opened.set_result(communication)
            await self._end.wait()
            with self._guard:
                calls = [asyncio.wrap_future(call) for call in self._calls if not call.done()]
            if calls:
                await asyncio.wait(calls, timeout=_LAST_CALLS_SECONDS)


def _closed(what: str) -> Conflict:
    return Conflict(f"communication {what}", code="communication.closed", hint="open it anew")
