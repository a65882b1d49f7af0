"""The HTTP server: uvicorn with limits on slow requests, large heads and idle connections. [UX-5,
CH-12]

A request must arrive whole at a minimum pace, its head must be small, and a dead client is noticed;
so no number of half-open connections holds the node's memory for long. A client that is answered
before its request was read may finish sending it, within limits: most clients look for a response
only then, and would see a broken connection instead.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from rapport.core.errors import Unavailable
from rapport.kernel.clock import Clock
from rapport.kernel.settings import NodeSettings
from rapport.kernel.tasks import cancel_until_done
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

MOST_HEAD_BYTES = 64 * 1024
"""Request line and headers."""
MOST_CONNECTIONS = 4_096
"""Open at once; fewer where the system allows the process few open files."""
MOST_LEFT_BYTES = 128 * 1024 * 1024
"""Of a request that was answered before it was here, so much more is read, and thrown away."""
LEFT_SECONDS = 60.0
"""The same in time."""
_DEAD_PEER_MS = 120_000
"""Unacknowledged data for longer than this: the peer is gone, or has stopped reading."""


class MinimumPace(msgspec.Struct, frozen=True):
    """How long a request may take to arrive: `grace_seconds`, and one more for every
    `bytes_per_second` that came. Smaller frees connections sooner, larger serves worse networks.
    """

    grace_seconds: float = 15.0
    bytes_per_second: int = 1_024
    sweep_ms: int = 1_000

    def is_over(self, waited_seconds: float, received: int) -> bool:
        """Whether a request that began so long ago should have come by now."""
        return waited_seconds > self.grace_seconds + received / self.bytes_per_second


class ServerOwner(Protocol):
    """The owner of the served application: a node, or a page of its own."""

    @property
    def settings(self) -> NodeSettings:
        """Where to listen, and how large a body may be."""

    @property
    def clock(self) -> Clock:
        """By which the pace is measured."""

    @property
    def closing(self) -> asyncio.Event:
        """Set at shutdown, so that streams end."""


class PacedProtocol(HttpToolsProtocol):
    """One connection, which remembers since when a request is arriving and how much of it came."""

    _began: float | None = None
    _answered: float | None = None
    """Since when there is an answer to a request that has not come whole."""
    _left = 0
    _closes = False
    """Whether the connection ends with that request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A first request is awaited from now on, unless too many connections are open."""
        super().connection_made(transport)
        self._begin()
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            self._refuse(b"503 Service Unavailable\r\nretry-after: 1")

    def on_message_begin(self) -> None:
        """The first bytes of a request."""
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        """The head has come; what follows is a body."""
        self._is_head, before = False, self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = _DeferredClose(self, self.cycle)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """The request is here: what lasts now is our own work."""
        self._began = self._answered = None
        super().on_message_complete()
        if self._closes:
            self.transport.close()

    def on_response_complete(self) -> None:
        """The answer is out; of a request that is not here yet only a bounded rest is taken."""
        if self._is_early(self.cycle):
            self._answered, self._left = self.loop.time(), 0
        super().on_response_complete()

    def close_after(self, cycle: RequestResponseCycle) -> None:
        """Closes the connection, once a request that was answered early is here or too long."""
        if self._is_early(cycle):
            self._closes = True
        else:
            self.transport.close()

    def _is_early(self, cycle: RequestResponseCycle) -> bool:
        """Whether the newest request was answered before all of it was here."""
        if cycle is not self.cycle or self._is_head:  # a next request has begun to arrive
            return False
        return cycle.response_complete and self._began is not None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answered is not None:
            self._left += len(data)
            if self._left > MOST_LEFT_BYTES:
                self.transport.close()
        self._received += len(data)  # after it: a request that begins in these bytes counts them
        if self._is_head and self._received > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large")

    def check_pace(self, pace: MinimumPace) -> None:
        """Closes the connection when its request comes too slowly."""
        if self._began is None or self.flow.read_paused or self.transport.is_closing():
            return
        if self._answered is not None:
            if self.loop.time() - self._answered > LEFT_SECONDS:
                self.transport.close()
            return
        if pace.is_over(self.loop.time() - self._began, self._received):
            self._refuse(b"408 Request Timeout")

    def _begin(self) -> None:
        self._began = self.loop.time()
        self._received, self._is_head = 0, True

    def _refuse(self, status: bytes) -> None:
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
        self.transport.close()


class _DeferredClose:
    """The transport as the server sees it for one request: closed when it can be."""

    __slots__ = ("_cycle", "_protocol", "is_closing", "write")

    def __init__(self, protocol: PacedProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol, self._cycle = protocol, cycle
        self.write, self.is_closing = protocol.transport.write, protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.close_after(self._cycle)


class _Server(uvicorn.Server):
    """Leaves signals to the command that runs it, so that readers stop before the server closes."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_app(
    app: Callable[..., Any], node: ServerOwner, pace: MinimumPace | None = None
) -> AsyncIterator[str]:
    """Serves an ASGI application at the node's address while the block runs; gives the base URL.

    Drains requests at the end. Raises Unavailable when the address is taken.
    """
    listener = _listen(node.settings.host, node.settings.port)
    server = _Server(_configuration(app, node))
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    try:
        while not server.started and not serving.done():
            await node.clock.sleep(5)
        if serving.done():
            await serving
        sweeping = asyncio.create_task(_sweep(server, node, pace or MinimumPace()), name="pace")
        try:
            yield _base_url(node.settings.host, listener.getsockname()[1])
        finally:
            await cancel_until_done(sweeping)
    finally:
        node.closing.set()
        server.should_exit = True
        await serving
        listener.close()


def _configuration(app: Callable[..., Any], node: ServerOwner) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PacedProtocol,
        ws="websockets-sansio",
        # Compressing for every subscriber anew would cost more than all the rest of a fan-out.
        ws_per_message_deflate=False,
        ws_max_size=node.settings.max_body_bytes,
        log_level="warning",
        access_log=False,
        lifespan="off",
        # Who is on this machine is decided by the peer's address, not by what a header says of it.
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        server_header=False,
        limit_concurrency=max_connections(),
    )


def max_connections() -> int:
    """Connections that may be open at once: half of the files the process may open, so that log
    segments, links and databases always find a descriptor.
    """
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft < 0 else max(16, min(MOST_CONNECTIONS, soft // 2))


async def _sweep(server: uvicorn.Server, node: ServerOwner, pace: MinimumPace) -> None:
    """Looks at all connections now and then: cheaper than a timer for each request."""
    is_full = False
    limit = server.config.limit_concurrency or MOST_CONNECTIONS
    while True:
        await node.clock.sleep(pace.sweep_ms)
        was_full, is_full = is_full, len(server.server_state.connections) >= limit
        if is_full and not was_full:
            _log.warning("connections are refused: as many are open as may be", limit=limit)
        elif was_full and not is_full:
            _log.info("connections are accepted again", limit=limit)
        for connection in list(server.server_state.connections):
            if isinstance(connection, PacedProtocol):
                connection.check_pace(pace)


def _base_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_dead_peers(listener)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            code="web.cannot_listen",
            hint="another process may use the port; choose one with --port",
        ) from None
    return listener


def _notice_dead_peers(listener: socket.socket) -> None:
    """Accepted connections inherit this; without it a cable that was pulled is never noticed."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
