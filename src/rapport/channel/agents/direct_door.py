"""The HTTP side of direct mode, with the standard library only: a request in, JSON or a problem
out. [CH-8]
"""

from __future__ import annotations

import hmac
import math
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    RapportError,
    StoreUnavailable,
    TooLarge,
    Unavailable,
)
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class Posted(msgspec.Struct, frozen=True):
    """A request as it came in."""

    path: str
    body: bytes
    token: str
    from_a_page: bool
    """Whether a browser sent it on behalf of a web page."""


Answer = Callable[[Posted], bytes]
"""The JSON that answers a request; raises RapportError for a refusal."""
_MOST_THROWN_AWAY = 128 * 1024 * 1024
"""Of a body that is too large."""
_THROW_AWAY_SECONDS = 5.0
"""How long to wait for the next part of it."""
_PART_BYTES = 64 * 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class DirectDoor(ThreadingHTTPServer):
    """A server that hands each POST to `answer`, in a thread per connection, until it is closed.

    Raises InvalidInput for an open address without a token, StoreUnavailable for one in use.
    """

    daemon_threads = True

    def __init__(
        self, host: str, port: int, token: str, answer: Answer, *, most_bytes: int
    ) -> None:
        if not token and host not in LOOPBACK:
            raise InvalidInput(
                f"the program would listen on {host} without authentication",
                code="settings.open_door",
                hint="give a token, or listen on 127.0.0.1",
            )
        self.most_bytes = most_bytes
        self._token, self._answer = token, answer
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror}", code="sink.no_address"
            ) from error
        self.url = f"http://{host}:{self.server_port}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="rapport-direct-door", daemon=True
        )
        self._thread.start()

    def answer(self, posted: Posted) -> bytes:
        """The answer to one request of somebody who may ask; raises RapportError."""
        if posted.from_a_page:
            raise NotAllowed("requests from web pages are refused", code="access.origin")
        if self._token and not hmac.compare_digest(posted.token.encode(), self._token.encode()):
            raise NotAuthenticated("a bearer token is needed")
        return self._answer(posted)

    def close(self) -> None:
        """Takes no more requests; a second call is no error."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The others may hang up at any time; anything else is a fault of ours."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            _log.error("request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = (
        True  # head and body are two writes; waiting for the first costs 40 ms
    )
    server: DirectDoor

    def do_POST(self) -> None:
        try:
            body = self.server.answer(self._read())
        except RapportError as error:
            self._refuse(error)
            return
        self._reply(200, {"Content-Type": "application/json"}, body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: what matters is logged by the program."""

    def _read(self) -> Posted:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self.close_connection = True
            raise InvalidInput("the request has no length", code="http.no_length")
        if int(length[:18]) > self.server.most_bytes:
            self.close_connection = True  # the body is not taken, so nothing may follow it
            self._throw_away(int(length[:18]))
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

    def _throw_away(self, length: int) -> None:
        """Reads a body that is not wanted, as far as it is bearable: who sends it looks for an
        answer only afterwards, and would see nothing but a broken connection before.
        """
        left = min(length, _MOST_THROWN_AWAY)
        self.connection.settimeout(_THROW_AWAY_SECONDS)
        with suppress(TimeoutError):  # then it is answered now
            while left > 0 and (part := self.rfile.read(min(left, _PART_BYTES))):
                left -= len(part)

    def _refuse(self, error: RapportError) -> None:
        headers = {"Content-Type": "application/problem+json"}
        if isinstance(error, Unavailable):
            headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
        body: dict[str, Any] = {
            "title": error.code,
            "status": error.status,
            "detail": error.message,
        }
        if error.hint:
            body["hint"] = error.hint
        self._reply(error.status, headers, msgspec.json.encode(body))

    def _reply(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
