"""The HTTP side of a direct sink, with the standard library only: a request in, positions or a
problem out. [CH-8]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, RapportError, TooLarge, Unavailable
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class Posted(msgspec.Struct, frozen=True):
    """A request as it came in."""

    path: str
    body: bytes
    token: str
    from_a_page: bool
    """Whether a browser sent it on behalf of a web page."""


Take = Callable[[Posted], list[int]]


class DirectDoor(ThreadingHTTPServer):
    """A server that hands each POST to `take`; raises OSError when the address is in use."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], take: Take, most_bytes: int) -> None:
        self.take, self.most_bytes = take, most_bytes
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Publishers may hang up at any time; anything else is a fault of ours."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            _log.error("request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: DirectDoor

    def do_POST(self) -> None:
        try:
            positions = self.server.take(self._read())
        except RapportError as error:
            self._refuse(error)
            return
        body = {"positions": positions, "duplicates": positions.count(0)}
        self._reply(200, {"Content-Type": "application/json"}, body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: what matters is logged by the sink."""

    def _read(self) -> Posted:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self.close_connection = True
            raise InvalidInput("the request has no length", code="http.no_length")
        if int(length[:18]) > self.server.most_bytes:
            self.close_connection = True  # the body is not read, so nothing may follow it
            raise TooLarge(
                f"the request has {length[:18]} bytes; {self.server.most_bytes} are allowed"
            )
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return Posted(
            path=self.path,
            body=self.rfile.read(int(length)),
            token=token if scheme.lower() == "bearer" else "",
            from_a_page="Origin" in self.headers,
        )

    def _refuse(self, error: RapportError) -> None:
        headers = {"Content-Type": "application/problem+json"}
        if isinstance(error, Unavailable):
            headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
        body = {"title": error.code, "status": error.status, "detail": error.message}
        self._reply(error.status, headers, body)

    def _reply(self, status: int, headers: dict[str, str], body: Any) -> None:
        raw = msgspec.json.encode(body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
