"""Calls functions of a site and of plug-ins with a deadline, in a worker process that can be
killed. [ME-4, CO-9, UX-9]

A thread cannot be stopped and would hold the interpreter, so each caller of such functions has its
own worker process, started at the first call. A call costs a round trip through two pipes (some
tens of microseconds).
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from rapport.kernel.clock import Clock
from rapport.kernel.worker import WorkerReply, WorkerRequest, write_frame

START_DEADLINE_MS = 20_000
"""Starting Python and importing the function may take this long, once."""
PAUSE_MS = 30_000
"""How long calls of a function that could not be loaded fail at once before the next attempt."""
_MAX_REPLY = 1024 * 1024
_CHUNK = 65_536
_READ_REPLY = msgspec.msgpack.Decoder(WorkerReply)


class CallFailed(Exception):
    """A function gave no result. `code` is API."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


FailureT = TypeVar("FailureT", bound=CallFailed)


class _TimedOut(Exception):
    """No reply within the deadline."""


class _Died(Exception):
    """The worker ended, or sent what is no reply."""


class WorkerFunctions(Generic[FailureT]):
    """Calls functions in at most one worker process, one call at a time."""

    def __init__(
        self,
        clock: Clock,
        import_paths: Sequence[str] = (),
        *,
        group: str,
        what: str,
        codes: str,
        failure: type[FailureT],
    ) -> None:
        """`group` is the plug-in group; `what`, `codes` and `failure` are the noun, the code prefix
        and the exception type of failures.
        """
        self._clock, self._paths, self._group = clock, list(import_paths), group
        self._what, self._codes, self._failure = what, codes, failure
        self._worker: _Worker | None = None
        self._broken: dict[str, tuple[int, str]] = {}
        self._closed = False
        self._lock = threading.Lock()
        self.restarts = 0

    def call_one(
        self,
        call: str,
        values: Sequence[Any],
        deadline_ms: int,
        arguments: Mapping[str, Any] | None = None,
    ) -> WorkerReply:
        """Returns the reply, also if the function raised; raises the failure otherwise.

        Blocks up to the deadline, at the first call up to START_DEADLINE_MS longer.
        """
        packed = self.packed(
            WorkerRequest(call, deadline_ms, list(values), dict(arguments or {})), call
        )
        with self._lock:
            worker = self._ready_worker(call)
            try:
                return worker.ask(packed, deadline_ms)
            except (_TimedOut, _Died) as error:
                raise self._ended(call, deadline_ms, error) from None

    def call_many(
        self, call: str, packed: Sequence[bytes], deadline_ms: int
    ) -> list[WorkerReply | FailureT]:
        """Calls the function once for each list of values (msgpack); returns the replies in order.

        All calls are sent in one message. A call that hangs or ends the process loses only its own
        reply: the next call is then sent alone, then two, four. A call may be repeated if the
        process ended before its reply was written. Blocks up to the deadline per call, twice the
        deadline for the first that hangs.
        """
        outcomes: list[WorkerReply | FailureT] = []
        size = len(packed)
        with self._lock:
            while len(outcomes) < len(packed):
                batch = packed[len(outcomes) : len(outcomes) + size]
                size = size * 2 if self._ask_many(call, batch, deadline_ms, outcomes) else 1
        return [self._judged(call, each) for each in outcomes]

    def fault_of(self, call: str) -> str:
        """Why the function cannot be loaded; empty if it can."""
        with self._lock:
            try:
                self._ready_worker(call)
            except CallFailed as failed:
                return failed.message
        return ""

    def close(self) -> None:
        """Ends the worker; a pending call, which is waited for, and every later one fail."""
        self._closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._drop_worker()

    def _ask_many(
        self,
        call: str,
        packed: Sequence[bytes],
        deadline_ms: int,
        outcomes: list[WorkerReply | FailureT],
    ) -> bool:
        """Adds the outcomes; False if some are missing. A single call always gets an outcome."""
        try:
            worker = self._ready_worker(call)
        except CallFailed as failed:
            outcomes += [failed] * len(packed)  # type: ignore[list-item] # of our own making
            return True
        request = WorkerRequest(call, deadline_ms, many=list(packed))
        try:
            worker.send(msgspec.msgpack.encode(request))
            for _ in packed:
                outcomes.append(worker.receive(deadline_ms))
        except (_TimedOut, _Died) as error:
            ended = self._ended(call, deadline_ms, error)
            if len(packed) == 1:
                outcomes.append(ended)
            return False
        return True

    def _ended(self, call: str, deadline_ms: int, error: _TimedOut | _Died) -> FailureT:
        self._drop_worker()
        if isinstance(error, _Died):
            return self._failed("died", f"the process of the {self._what} {call!r} ended")
        return self._failed(
            "timeout",
            f"the {self._what} {call!r} took longer than {deadline_ms} ms",
            "its worker was ended and is started again; is it waiting for a network?",
        )

    def _failed(self, code: str, message: str, hint: str = "") -> FailureT:
        return self._failure(f"{self._codes}.{code}", message, hint)

    def _judged(self, call: str, outcome: WorkerReply | FailureT) -> WorkerReply | FailureT:
        if not isinstance(outcome, WorkerReply) or outcome.outcome == "ok":
            return outcome
        return self._failed("raised", f"the {self._what} {call!r}: {outcome.message}")

    def _ready_worker(self, call: str) -> _Worker:
        if self._closed:
            raise self._failed("unavailable", "the node is stopping")
        now_ms = self._clock.steady_ns() // 1_000_000
        until_ms, message = self._broken.get(call, (now_ms, ""))
        if until_ms > now_ms:
            raise self._failed("unavailable", message)
        if self._worker is None:
            self._worker = _Worker(self._clock, self._paths, self._group)
        if self._closed:  # `close` may have run just before the worker started
            self._worker.kill()
        if call not in self._worker.loaded:
            self._load(self._worker, call, now_ms)
        return self._worker

    def _load(self, worker: _Worker, call: str, now_ms: int) -> None:
        try:
            request = msgspec.msgpack.encode(WorkerRequest(call, START_DEADLINE_MS))
            reply = worker.ask(request, START_DEADLINE_MS)
            fault = reply.message if reply.outcome != "ok" else ""
        except (_TimedOut, _Died):
            self._drop_worker()
            fault = "its process did not start"
        if fault:
            message = f"the {self._what} {call!r} cannot be loaded: {fault}"
            self._broken[call] = (now_ms + PAUSE_MS, message)
            raise self._failed("unavailable", message, "is its package installed?")
        worker.loaded.add(call)

    def packed(self, values: Any, call: str) -> bytes:
        """Encodes values for the worker; raises the failure if msgpack cannot."""
        try:
            return msgspec.msgpack.encode(values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"the {self._what} {call!r} cannot be asked: {error}"[:300]
            raise self._failure("value.not_sendable", message) from None

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
            self.restarts += 1


class _Worker:
    def __init__(self, clock: Clock, import_paths: list[str], group: str) -> None:
        self._clock = clock
        self.loaded: set[str] = set()
        paths = msgspec.json.encode([*import_paths, *(path for path in sys.path if path)]).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rapport.kernel.worker", paths, group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the node, which ends its workers
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)
        self._received = b""

    def ask(self, request: bytes, deadline_ms: int) -> WorkerReply:
        """Sends and waits; raises _TimedOut or _Died, after which the worker is of no more use."""
        self.send(request)
        return self.receive(deadline_ms)

    def send(self, request: bytes) -> None:
        """Sends one request; raises _Died. The worker reads it completely before it starts."""
        try:
            write_frame(self._requests, request)  # type: ignore[arg-type]
        except (OSError, ValueError):  # broken pipe, closed file
            raise _Died from None

    def receive(self, deadline_ms: int) -> WorkerReply:
        """The next reply; raises _TimedOut or _Died."""
        until_ns = self._clock.steady_ns() + deadline_ms * 1_000_000
        try:
            size = int.from_bytes(self._read(4, until_ns), "big")
            if size > _MAX_REPLY:
                raise _Died
            return _READ_REPLY.decode(self._read(size, until_ns))
        except (OSError, ValueError):  # closed file, not a reply
            raise _Died from None

    def kill(self) -> None:
        """Ends the process only; a waiting `receive` then raises. Thread-safe."""
        self._process.kill()

    def end(self) -> None:
        """Ends the process and closes the pipes; for the calling thread of `ask` only."""
        self._process.kill()
        self._process.wait()
        for part in (self._requests, self._replies, self._selector):
            try:
                part.close()
            except OSError:
                continue  # closing flushes into a closed pipe

    def _read(self, size: int, until_ns: int) -> bytes:
        while len(self._received) < size:
            left_ns = until_ns - self._clock.steady_ns()
            if left_ns <= 0 or not self._selector.select(left_ns / 1e9):
                raise _TimedOut
            chunk = os.read(self._replies.fileno(), _CHUNK)
            if not chunk:
                raise _Died
            self._received += chunk
        found, self._received = self._received[:size], self._received[size:]
        return found
