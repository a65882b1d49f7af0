"""A real, tiny HTTP server here for tests and the demo: keeps what is posted. [CO-16]"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.scenarios.local_server import LocalServer

_ANSWER = "HTTP/1.1 {status} Answer\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class PostedRequest(msgspec.Struct, frozen=True):
    """One request as it came in; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class WebhookSink(LocalServer):
    """Listens on a free port of the loopback; `posted` holds the requests, oldest first.

    `status` is the answer given to the next ones; 0 = never answer. One request per connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[PostedRequest] = []
        self.status = 204
        self._arrived = asyncio.Event()

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self.port}/hook"

    def make_protocol(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)

    async def wait_for(self, count: int) -> None:
        """Returns when at least `count` requests came in."""
        while len(self.posted) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.posted.append(await _read_request(reader))
            self._arrived.set()
            if self.status == 0:
                await self.released.wait()
                return
            writer.write(_ANSWER.format(status=self.status).encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away before its request was whole: nothing to keep
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> PostedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return PostedRequest(path, headers, body)
