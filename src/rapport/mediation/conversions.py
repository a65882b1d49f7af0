"""Plug-in conversions, called with a deadline in a process that can be ended. [ME-4, UX-9]

A thread cannot be stopped and would hold the interpreter; so each source with plug-ins has a worker
process of its own, started at its first call. One call costs a round trip through two pipes (some
tens of microseconds).
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from rapport.kernel.clock import Clock
from rapport.mediation.interpretation import ConversionRule
from rapport.mediation.rejection import Rejected
from rapport.mediation.worker import Reply, Request, write_frame

START_DEADLINE_MS = 20_000
"""Starting Python and importing the plug-in may take this long, once."""
PAUSE_MS = 30_000
"""So long the events of a plug-in that could not be loaded are rejected at once; then again."""
_MAX_REPLY = 1024 * 1024
_READ_REPLY = msgspec.msgpack.Decoder(Reply)


class _TimedOut(Exception):
    """No reply within the deadline."""


class _Died(Exception):
    """The worker ended, or sent what is no reply."""


class WorkerConversions:
    """The plug-in conversions of one source; holds at most one worker process. Calls take turns."""

    def __init__(self, clock: Clock, import_paths: Sequence[str] = ()) -> None:
        self._clock, self._paths = clock, list(import_paths)
        self._worker: _Worker | None = None
        self._broken: dict[str, tuple[int, str]] = {}
        self._closed = False
        self._lock = threading.Lock()
        self.restarts = 0

    def call(self, rule: ConversionRule, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results, one per name in `rule.give`; raises Rejected with `conversion.*`.

        Blocks up to the rule's deadline, at the first call up to START_DEADLINE_MS longer.
        """
        with self._lock:
            reply = self._ask(rule, values)
        if reply.outcome != "ok":
            raise Rejected("conversion.raised", f"the conversion {rule.call!r}: {reply.message}")
        if len(reply.results) != len(rule.give):
            raise Rejected(
                "conversion.bad_result",
                f"the conversion {rule.call!r} gave {len(reply.results)} values",
                f"declared are {len(rule.give)}: {', '.join(rule.give)}",
            )
        return tuple(reply.results)

    def close(self) -> None:
        """Ends the worker; a call under way, and every later one, is rejected.

        From any thread; waits until the call under way has noticed.
        """
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._drop_worker()

    def _ask(self, rule: ConversionRule, values: tuple[Any, ...]) -> Reply:
        request = Request(rule.call, rule.deadline_ms, list(values), dict(rule.arguments))
        worker = self._ready_worker(rule.call)
        try:
            return worker.ask(request, rule.deadline_ms)
        except _TimedOut:
            self._drop_worker()
            raise Rejected(
                "conversion.timeout",
                f"the conversion {rule.call!r} took longer than {rule.deadline_ms} ms",
                "its worker was ended and is started again; is it waiting for a network?",
            ) from None
        except _Died:
            self._drop_worker()
            raise Rejected(
                "conversion.died", f"the process of the conversion {rule.call!r} ended"
            ) from None

    def _ready_worker(self, call: str) -> _Worker:
        """A worker that has loaded `call`."""
        if self._closed:
            raise Rejected("conversion.unavailable", "mediation is stopping")
        now_ms = self._clock.steady_ns() // 1_000_000
        until_ms, message = self._broken.get(call, (now_ms, ""))
        if until_ms > now_ms:
            raise Rejected("conversion.unavailable", message)
        if self._worker is None:
            self._worker = _Worker(self._clock, self._paths)
        if self._closed:  # `close` may have looked just before the worker was there
            self._worker.kill()
        if call not in self._worker.loaded:
            self._load(self._worker, call, now_ms)
        return self._worker

    def _load(self, worker: _Worker, call: str, now_ms: int) -> None:
        try:
            reply = worker.ask(Request(call, START_DEADLINE_MS), START_DEADLINE_MS)
            fault = reply.message if reply.outcome != "ok" else ""
        except (_TimedOut, _Died):
            self._drop_worker()
            fault = "its process did not start"
        if fault:
            message = f"the conversion {call!r} cannot be loaded: {fault}"
            self._broken[call] = (now_ms + PAUSE_MS, message)
            raise Rejected("conversion.unavailable", message, "is its package installed?")
        worker.loaded.add(call)

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
            self.restarts += 1


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, clock: Clock, import_paths: list[str]) -> None:
        self._clock = clock
        self.loaded: set[str] = set()
        paths = msgspec.json.encode([*import_paths, *(path for path in sys.path if path)]).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rapport.mediation.worker", paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the node, which then ends its workers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)

    def ask(self, request: Request, deadline_ms: int) -> Reply:
        """Sends and waits; raises _TimedOut or _Died, after which the worker is of no more use."""
        until_ns = self._clock.steady_ns() + deadline_ms * 1_000_000
        try:
            write_frame(self._requests, msgspec.msgpack.encode(request))  # type: ignore[arg-type]
            size = int.from_bytes(self._read(4, until_ns), "big")
            if size > _MAX_REPLY:
                raise _Died
            return _READ_REPLY.decode(self._read(size, until_ns))
        except (OSError, ValueError):  # broken pipe, closed file, not a reply
            raise _Died from None

    def kill(self) -> None:
        """Ends the process only: who waits for its reply sees the end. From any thread."""
        self._process.kill()

    def end(self) -> None:
        """Ends the process and closes the pipes; by the thread that asks."""
        self._process.kill()
        self._process.wait()
        for part in (self._requests, self._replies, self._selector):
            try:
                part.close()
            except OSError:
                continue  # closing flushes into a pipe that nobody reads any more

    def _read(self, size: int, until_ns: int) -> bytes:
        chunks = b""
        while len(chunks) < size:
            left_ns = until_ns - self._clock.steady_ns()
            if left_ns <= 0 or not self._selector.select(left_ns / 1e9):
                raise _TimedOut
            chunk = os.read(self._replies.fileno(), size - len(chunks))
            if not chunk:
                raise _Died
            chunks += chunk
        return chunks
