"""Clients that cost little: raw HTTP/1.1 connections and WebSockets that only count. [CH-12]

They share a machine with the server they measure; whatever they cost, the server lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

from rapport.core.errors import Unavailable

_MASK = bytes(4)
"""A mask of zeros leaves the payload as it is; the protocol asks for one, not for which."""
_TEXT, _PONG = 0x81, 0x8A
_MARK = b'"received":'
"""Stands once in every event that a door gives out."""
_PING = b"\x89\x04"
"""How the node asks whether somebody is still there; four bytes follow that it wants back. Found
by looking for it: no text of these events holds such bytes, and an answer too many does no harm.
"""


def post_request(path: str, body: bytes) -> bytes:
    """The bytes of one publish on a connection that stays open."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Poster(asyncio.Protocol):
    """One connection: sends a request, waits for its whole answer, sends the next."""

    def __init__(self, requests: Iterator[bytes], ended: asyncio.Future[None]) -> None:
        self._requests, self._ended = requests, ended
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(self._buffer[:300].decode(errors="replace"))
            return
        self._buffer = b""
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail("the connection was lost")

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._transport.write(request)
        elif not self._ended.done():
            self._ended.set_result(None)
            self._transport.close()

    def _fail(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(Unavailable(why, code="bench.refused"))


def _content_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0] or 0)


async def post_all(
    address: tuple[str, int], requests: Sequence[bytes], *, connections: int
) -> None:
    """Sends all requests over so many connections at once, each one after the answer to the last.

    Raises Unavailable for any answer but 200.
    """
    loop = asyncio.get_running_loop()
    waiting = iter(requests)
    ended = [loop.create_future() for _ in range(connections)]
    for future in ended:
        await loop.create_connection(
            lambda future=future: _Poster(waiting, future),  # type: ignore[misc]
            *address,
        )
    await asyncio.gather(*ended)


class Counter(asyncio.Protocol):
    """A WebSocket that subscribes to everything new and counts the events it is sent."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._kept = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(
            f"GET /channels/{self._channel}/socket HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        """Counts; the first answers are the handshake and the word that it is subscribed."""
        if not self.ready.done():
            self._get_ready(data)
            return
        text = self._kept + data
        self.count += text.count(_MARK)
        self._kept = text[-(len(_MARK) - 1) :]
        ping = text.find(_PING)
        if ping >= 0:
            self._transport.write(_client_frame(text[ping + 2 : ping + 6], kind=_PONG))

    def has(self, count: int) -> bool:
        """Whether so many events have come; raises Unavailable when no more will come."""
        if self.count < count and self._transport.is_closing():
            raise Unavailable("a subscriber was cut off", code="bench.refused")
        return self.count >= count

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()

    def _get_ready(self, data: bytes) -> None:
        self._kept += data
        if b"subscribed" in self._kept:
            self._kept = b""
            self.ready.set_result(None)
        elif self._kept.startswith(b"HTTP/1.1 101") and self._kept.endswith(b"\r\n\r\n"):
            self._transport.write(_client_frame(b'{"subscribe":{"from_start":false}}'))
        elif not self._kept.startswith(b"HTTP/1.1 101"):
            why = self._kept[:300].decode(errors="replace")
            self.ready.set_exception(Unavailable(why, code="bench.refused"))


def _client_frame(payload: bytes, *, kind: int = _TEXT) -> bytes:
    assert len(payload) < 126
    return bytes((kind, 0x80 | len(payload))) + _MASK + payload
