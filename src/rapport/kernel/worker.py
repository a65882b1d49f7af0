"""The process that carries out functions of a site and of plug-ins, so that it can be ended.
[ME-4, CO-9]

Run as `python -m rapport.kernel.worker PATHS GROUP`; speaks length-prefixed msgpack on stdin and
stdout. Started and ended by `worker_functions.py`; it also ends itself, even while a function
hangs, when nobody is left to do so.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import msgspec

from rapport.kernel.plugins import Plugins

FLUSH_SECONDS = 0.002
_MOST_FRAMES = 256
GRACE_SECONDS = 5.0
"""How much longer than its deadline a call may take before the kernel ends an orphaned worker."""


class Request(msgspec.Struct, array_like=True):
    """Load the function `call`, call it with `values`, or call it once for each of `many`."""

    call: str
    deadline_ms: int
    values: list[Any] | None = None
    arguments: dict[str, Any] = {}
    many: list[bytes] | None = None
    """Lists of values in msgpack; each has a reply of its own, with the result as it is."""


class Reply(msgspec.Struct, array_like=True):
    """`outcome` is ok, raised or unavailable."""

    outcome: str
    results: list[Any] = []
    message: str = ""


_READ_REQUEST = msgspec.msgpack.Decoder(Request)


def main() -> None:
    """Answers requests until stdin ends."""
    sys.path[:0] = msgspec.json.decode(sys.argv[1], type=list[str])
    load = partial(_load, sys.argv[2])
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # what a plug-in prints goes to the log, not into the replies
        functions = Functions(load)
        outbox = Outbox(replies)
        while (frame := read_frame(requests)) is not None:
            for reply in answers(_READ_REQUEST.decode(frame), functions):
                outbox.put(_pack(reply))
            outbox.flush()


class Outbox:
    """Replies on their way: several in one write, but none waits for longer than FLUSH_SECONDS.

    A thread sees to that, so that what was answered is out when the next call hangs.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._frames: list[bytes] = []
        self._waiting, self._never = threading.Event(), threading.Event()
        threading.Thread(target=self._care, daemon=True).start()

    def put(self, body: bytes) -> None:
        """One frame; written soon."""
        with self._lock:
            self._frames.append(len(body).to_bytes(4, "big") + body)
        if len(self._frames) >= _MOST_FRAMES:
            self.flush()
        elif not self._waiting.is_set():
            self._waiting.set()

    def flush(self) -> None:
        """Everything is written now."""
        with self._lock:
            self._waiting.clear()
            frames, self._frames = self._frames, []
            if frames:
                self._stream.write(b"".join(frames))
                self._stream.flush()

    def _care(self) -> None:
        while self._waiting.wait():
            self._never.wait(FLUSH_SECONDS)
            try:
                self.flush()
            except (OSError, ValueError):  # nobody reads any more, so the process is ending
                return


class Functions:
    """What was loaded so far, by name."""

    def __init__(self, load: Callable[[str], Callable[..., Any]]) -> None:
        self._load = load
        self._loaded: dict[str, Callable[..., Any]] = {}

    def find(self, call: str) -> Callable[..., Any]:
        """The function; raises whatever its module raises."""
        if call not in self._loaded:
            self._loaded[call] = self._load(call)
        return self._loaded[call]


def answers(request: Request, functions: Functions) -> Iterator[Reply]:
    """The replies to a request, each as soon as it is known."""
    if request.many is None:
        yield answer(request, functions)
        return
    for packed in request.many:
        values = msgspec.msgpack.decode(packed)
        reply, result = _called(request, values, functions)
        yield reply or Reply("ok", [result])


def answer(request: Request, functions: Functions) -> Reply:
    """Carries out one request; every exception of the function becomes a reply."""
    reply, result = _called(request, request.values, functions)
    if reply is not None:
        return reply
    return Reply("ok", list(result) if isinstance(result, (tuple, list)) else [result])


def _called(
    request: Request, values: list[Any] | None, functions: Functions
) -> tuple[Reply | None, Any]:
    """What went wrong, or there is to say, and else the result."""
    _end_me_after(request.deadline_ms / 1_000 + GRACE_SECONDS)
    try:
        return _carried_out(request, values, functions)
    finally:
        _end_me_after(0)  # also when it was only loaded: it may be called much later


def _carried_out(
    request: Request, values: list[Any] | None, functions: Functions
) -> tuple[Reply | None, Any]:
    try:
        function = functions.find(request.call)
    except Exception as error:
        return Reply("unavailable", message=f"{type(error).__name__}: {error}"[:500]), None
    if values is None:
        return Reply("ok"), None
    try:
        return None, function(*values, **request.arguments)
    except Exception as error:
        return Reply("raised", message=f"{type(error).__name__}: {error}"[:500]), None


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame, None at the end."""
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def write_frame(stream: BinaryIO, body: bytes) -> None:
    """One frame in one write."""
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def _pack(reply: Reply) -> bytes:
    try:
        return msgspec.msgpack.encode(reply)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return msgspec.msgpack.encode(Reply("raised", message=f"cannot be sent: {error}"[:500]))


def _load(group: str, call: str) -> Callable[..., Any]:
    if ":" not in call:
        return Plugins().get(group, call)
    module, name = call.split(":", 1)
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{call} is not a function")
    return function  # type: ignore[no-any-return]


def _end_me_after(seconds: float) -> None:
    """The alarm's default action ends the process even inside C code; 0 turns it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
