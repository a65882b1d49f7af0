"""The worker process that runs functions of a site and of plug-ins, so that they can be killed.
[ME-4, CO-9]

Run as `python -m rapport.kernel.worker PATHS GROUP`; exchanges length-prefixed msgpack on stdin and
stdout. `worker_client.py` starts and ends it. An orphaned worker ends itself, even while a function
hangs.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, BinaryIO

import msgspec

from rapport.kernel.plugins import Plugins

FLUSH_SECONDS = 0.002
_MOST_FRAMES = 256
GRACE_SECONDS = 5.0
"""Time after a call's deadline until the kernel ends an orphaned worker."""


class WorkerRequest(msgspec.Struct, array_like=True):
    """Load the function `call`, call it with `values`, or call it once for each of `many`."""

    call: str
    deadline_ms: int
    values: list[Any] | None = None
    arguments: dict[str, Any] = {}
    many: list[bytes] | None = None
    """Lists of values in msgpack; each gets its own reply with the unchanged result."""


class WorkerReply(msgspec.Struct, array_like=True):
    """`outcome` is ok, raised or unavailable."""

    outcome: str
    results: list[Any] = []
    message: str = ""


Load = Callable[[str], Callable[..., Any]]
"""Gives the function of that name; raises what its module raises."""
_READ_REQUEST = msgspec.msgpack.Decoder(WorkerRequest)


def main() -> None:
    """Handles requests until stdin ends."""
    sys.path[:0] = msgspec.json.decode(sys.argv[1], type=list[str])
    load = cache(partial(_load, sys.argv[2]))
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # output of plug-ins goes to the log, not into the replies
        outbox = ReplyWriter(replies)
        while (frame := read_frame(requests)) is not None:
            for reply in handle(_READ_REQUEST.decode(frame), load):
                outbox.put(_pack(reply))
            outbox.flush()


class ReplyWriter:
    """Writes replies in batches, each within FLUSH_SECONDS even if the next call hangs."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, threading.Lock()
        self._frames: list[bytes] = []
        self._waiting, self._never = threading.Event(), threading.Event()
        threading.Thread(target=self._flush_regularly, daemon=True).start()

    def put(self, body: bytes) -> None:
        with self._lock:
            self._frames.append(len(body).to_bytes(4, "big") + body)
        if len(self._frames) >= _MOST_FRAMES:
            self.flush()
        else:
            self._waiting.set()

    def flush(self) -> None:
        with self._lock:
            self._waiting.clear()
            frames, self._frames = self._frames, []
            if frames:
                self._stream.write(b"".join(frames))
                self._stream.flush()

    def _flush_regularly(self) -> None:
        while self._waiting.wait():
            self._never.wait(FLUSH_SECONDS)
            try:
                self.flush()
            except (OSError, ValueError):  # the pipe is closed: the process is ending
                return


def handle(request: WorkerRequest, load: Load) -> Iterator[WorkerReply]:
    """Handles a request and yields each reply as soon as it is known."""
    if request.many is None:
        yield reply_to(request, load)
        return
    for packed in request.many:
        yield _call(request, msgspec.msgpack.decode(packed), load)


def reply_to(request: WorkerRequest, load: Load) -> WorkerReply:
    """Handles one request; an exception of the function becomes a reply."""
    reply = _call(request, request.values, load)
    if reply.results and isinstance(reply.results[0], (tuple, list)):
        reply.results = list(reply.results[0])
    return reply


def _call(request: WorkerRequest, values: list[Any] | None, load: Load) -> WorkerReply:
    """Its reply, with the unchanged result if there is one."""
    _set_alarm(request.deadline_ms / 1_000 + GRACE_SECONDS)
    outcome = "unavailable"
    try:
        function = load(request.call)
        outcome = "raised"
        results = [] if values is None else [function(*values, **request.arguments)]
        return WorkerReply("ok", results)
    except Exception as error:
        return WorkerReply(outcome, message=f"{type(error).__name__}: {error}"[:500])
    finally:
        _set_alarm(0)  # also after loading only


def read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def write_frame(stream: BinaryIO, body: bytes) -> None:
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def _pack(reply: WorkerReply) -> bytes:
    try:
        return msgspec.msgpack.encode(reply)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return msgspec.msgpack.encode(
            WorkerReply("raised", message=f"cannot be sent: {error}"[:500])
        )


def _load(group: str, call: str) -> Callable[..., Any]:
    if ":" not in call:
        return Plugins().get(group, call)
    module, name = call.split(":", 1)
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{call} is not a function")
    return function  # type: ignore[no-any-return]


def _set_alarm(seconds: float) -> None:
    """Sets an alarm whose default action ends the process even inside C code; 0 turns it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main()
