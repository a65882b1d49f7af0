"""The process that carries out plug-in conversions, so that it can be ended. [ME-4]

Run as `python -m rapport.mediation.worker PATHS`; speaks length-prefixed msgpack on stdin and
stdout. Started and ended by `conversions.py`; it also ends itself, even while a plug-in hangs, when
nobody is left to do so.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from rapport.kernel.plugins import Plugins

GRACE_SECONDS = 5.0
"""How much longer than its deadline a call may take before the kernel ends an orphaned worker."""


class Request(msgspec.Struct, array_like=True):
    """Load the function `call`, or call it with `values`."""

    call: str
    deadline_ms: int
    values: list[Any] | None = None
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, array_like=True):
    """`outcome` is ok, raised or unavailable."""

    outcome: str
    results: list[Any] = []
    message: str = ""


_READ_REQUEST = msgspec.msgpack.Decoder(Request)


def main() -> None:
    """Answers requests until stdin ends."""
    sys.path[:0] = msgspec.json.decode(sys.argv[1], type=list[str]) if len(sys.argv) > 1 else []
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # what a plug-in prints goes to the log, not into the replies
        functions: dict[str, Callable[..., Any]] = {}
        while (frame := read_frame(requests)) is not None:
            write_frame(replies, _pack(answer(_READ_REQUEST.decode(frame), functions)))


def answer(request: Request, functions: dict[str, Callable[..., Any]]) -> Reply:
    """Carries out one request; every exception of the plug-in becomes a reply."""
    _end_me_after(request.deadline_ms / 1_000 + GRACE_SECONDS)
    try:
        if request.call not in functions:
            functions[request.call] = _load(request.call)
    except Exception as error:
        return Reply("unavailable", message=f"{type(error).__name__}: {error}"[:500])
    if request.values is None:
        return Reply("ok")
    try:
        result = functions[request.call](*request.values, **request.arguments)
    except Exception as error:
        return Reply("raised", message=f"{type(error).__name__}: {error}"[:500])
    finally:
        _end_me_after(0)
    return Reply("ok", list(result) if isinstance(result, (tuple, list)) else [result])


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


def _load(call: str) -> Callable[..., Any]:
    if ":" not in call:
        return Plugins().get("conversions", call)
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
