"""A server of the loopback that can go down and come up again, for tests and the demo. [CO-16]"""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self


class LocalServer:
    """Listens on a free port of the loopback, which stays the same when it goes down and comes up.

    It accepts connections itself, not through asyncio's server: that one may have accepted a
    connection whose transport is made only after it was closed, and nobody would close that.
    Subclasses make the protocol of a connection.
    """

    def __init__(self) -> None:
        self.port = 0
        self.released = asyncio.Event()
        """Set when the server goes down: waiting calls return."""
        self._listening: socket.socket | None = None
        self._arriving: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.BaseTransport] = set()

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
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
        if self._listening is not None:
            return
        self.released.clear()
        listening = socket.create_server(("127.0.0.1", self.port))
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def go_down(self) -> None:
        """Closes the port and cuts all connections; none is left when it returns."""
        if self._listening is None:
            return
        self.released.set()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        self._listening.close()
        self._listening = None
        while self._arriving:
            await asyncio.wait(self._arriving)
        for transport in self._transports:
            transport.close()
        self._transports.clear()
        # A transport lets go of its socket with the next turn of the loop: wait for that.
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has gone again
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._take_in(connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _take_in(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        transport, _protocol = await loop.connect_accepted_socket(self.make_protocol, connection)
        self._transports = {one for one in self._transports if not one.is_closing()}
        self._transports.add(transport)
