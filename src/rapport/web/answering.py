"""Answers that are known whole, written in one piece. [CH-12]

An ASGI server is told the head of an answer and then its body, and looks at every header each time.
For the doors that events rush through that is a tenth of the work on a request, and the headers are
always the same. Any other server than ours is told as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Headers = Sequence[tuple[bytes, bytes]]


class WholeAnswers:
    """Answers of status 200 with the same headers each time, but for the length."""

    def __init__(self, headers: Headers) -> None:
        """`headers` have lower-case names; `content-length` is not among them."""
        self._headers = headers
        self._of_server: Headers = ()
        self._head = self._made(())

    async def send(self, send: Send, body: bytes) -> None:
        """Answers a request; as the server prefers it, or in one piece."""
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and _is_free(cycle):
            self._write(cycle, body)
            return
        length = (b"content-length", str(len(body)).encode())
        start: Any = {
            "type": "http.response.start",
            "status": 200,
            "headers": [*self._headers, length],
        }
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _write(self, cycle: RequestResponseCycle, body: bytes) -> None:
        """What the server does for both messages, in the same order."""
        if cycle.default_headers is not self._of_server:  # renewed each second, for the date
            self._of_server, self._head = cycle.default_headers, self._made(cycle.default_headers)
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()

    def _made(self, of_server: Headers) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % header for header in (*of_server, *self._headers))
        return b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: "


def _is_free(cycle: RequestResponseCycle) -> bool:
    """Whether nothing is to be waited for or closed: the usual request of a client that stays."""
    return (
        cycle.keep_alive
        and not cycle.disconnected
        and not cycle.response_started
        and not cycle.flow.write_paused
        and not cycle.access_log
        and cycle.scope["method"] != "HEAD"
    )
