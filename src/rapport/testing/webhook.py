"""A real, tiny HTTP server here for tests and the demo: keeps what is posted. [CO-16]"""

from __future__ import annotations

import asyncio
from types import TracebackType

import msgspec

_ANSWER = "HTTP/1.1 {status} Answer\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Posted(msgspec.Struct, frozen=True):
    """One request as it came in; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class WebhookSink:
    """Listens on a free port of the loopback; `posted` holds the requests, oldest first.

    `status` is the answer given to the next ones; 0 = never answer. One request per connection.
    """

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.status = 204
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Event()
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def __aenter__(self) -> WebhookSink:
        await self.come_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.go_down()

    async def come_up(self) -> None:
        """Opens the port; a server that is up stays as it is."""
        if self._server is not None:
            return
        self._released.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_down(self) -> None:
        """Closes the port and cuts open connections."""
        if self._server is None:
            return
        self._released.set()
        self._server.close()
        for writer in list(self._connections):
            writer.close()
        await self._server.wait_closed()
        self._server = None

    async def wait_for(self, count: int) -> None:
        """Returns when at least `count` requests came in."""
        while len(self.posted) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            self.posted.append(await _read_request(reader))
            self._arrived.set()
            if self.status == 0:
                await self._released.wait()
                return
            writer.write(_ANSWER.format(status=self.status).encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client went away before its request was whole: nothing to keep
        finally:
            self._connections.discard(writer)
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Posted:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Posted(path, headers, body)
