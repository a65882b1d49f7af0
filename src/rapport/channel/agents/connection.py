"""A kept-open HTTP connection to a node: one request, one reply; network errors are results, not
exceptions. [CH-5, CH-7]
"""

from __future__ import annotations

import http.client
import socket
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.urls import address_parts, without_password

TIMEOUT_SECONDS = 30.0
RETRY_STATUSES = frozenset((408, 425, 429))
"""Statuses that mean "retry later"."""
_LONGEST_RETRY_AFTER_MS = 600_000
FIRST_PAUSE_MS = 200
LONGEST_PAUSE_MS = 30_000


class HttpReply(msgspec.Struct, frozen=True):
    """An HTTP reply, whichever server sent it."""

    status: int
    retry_after: str | None
    body: bytes


class NodeConnection:
    """The connection to one node. Requests belong to one thread, `interrupt` to any."""

    def __init__(self, url: str, token: str = "", *, most_answer_bytes: int) -> None:
        parts = address_parts(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"{without_password(url)!r} is not the address of a node",
                code="url.bad",
                hint="for example http://127.0.0.1:8484",
            )
        self.url = url
        self.token = token
        """The bearer token; another one counts from the next request on."""
        self._host, self._port = parts.hostname, parts.port
        self._secure = parts.scheme == "https"
        self._root = parts.path.rstrip("/")
        self._most_bytes = most_answer_bytes
        self._connection: http.client.HTTPConnection | None = None
        self._interrupted = False

    def post(
        self, path: str, body: bytes, kind: str, timeout_seconds: float
    ) -> HttpReply | CallFailed:
        """Posts a body of a media type. An idle connection that the node closed meanwhile is
        reopened at once; any other failure is returned.
        """
        return self._send("POST", path, body, kind, timeout_seconds)

    def get(self, path: str, timeout_seconds: float) -> HttpReply | CallFailed:
        """Gets a path, likewise."""
        return self._send("GET", path, None, "", timeout_seconds)

    def _send(
        self, method: str, path: str, body: bytes | None, kind: str, timeout_seconds: float
    ) -> HttpReply | CallFailed:
        while True:
            fresh = self._connection is None
            try:
                return self._exchange(method, path, body, kind, timeout_seconds)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.hang_up()
                if fresh or self._interrupted or isinstance(error, TimeoutError):
                    return _unreachable(self.url, error)

    def hang_up(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Makes a running request fail soon, and every later one at once."""
        self._interrupted = True
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was closed already

    def _exchange(
        self, method: str, path: str, body: bytes | None, kind: str, timeout_seconds: float
    ) -> HttpReply:
        connection = self._connected(timeout_seconds)
        headers = {"Content-Type": kind} if kind else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.request(method, self._root + path, body, headers)
        response = connection.getresponse()
        answer = response.read(self._most_bytes)
        if not response.isclosed():
            self.hang_up()  # more than any reply of a node: read no further
        return HttpReply(response.status, response.headers.get("Retry-After"), answer)

    def _connected(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port)
        self._connection.timeout = timeout_seconds
        if self._connection.sock is None:
            self._connection.connect()
        else:
            self._connection.sock.settimeout(timeout_seconds)
        if self._interrupted:
            raise ConnectionAbortedError("interrupted")
        return self._connection


def problem_reason(status: int, body: bytes) -> Reason:
    """The code and message of a problem document; the bare status for anything else."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    code = str(problem.get("title", f"http.{status}"))
    return Reason(code[:100], str(problem.get("detail", f"the node answered {status}"))[:2000])


def failed_call(reply: HttpReply, reason: Reason) -> CallFailed | CallBarred:
    """The meaning of a refusal: to be retried later, or not before a person changes something."""
    if reply.status >= 500 or reply.status in RETRY_STATUSES:
        return CallFailed(reason, retry_after_ms(reply.retry_after))
    return CallBarred(reason)


def retry_after_ms(text: str | None) -> int | None:
    """Seconds only; a date would need the node's clock and ours to agree."""
    if text is None or not text.strip().isascii() or not text.strip().isdigit():
        return None
    return min(int(text.strip()[:9]) * 1_000, _LONGEST_RETRY_AFTER_MS)


def _unreachable(url: str, error: Exception) -> CallFailed:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CallFailed(
        Reason("node.unreachable", f"no node answers at {without_password(url)}: {reason}")
    )


class Reason(msgspec.Struct, frozen=True):
    """Why something was not done: a stable code, and a sentence."""

    code: str
    message: str


class CallFailed(msgspec.Struct, frozen=True):
    """No reply, or one that does not answer the request. It may have been carried out or not."""

    reason: Reason
    retry_after_ms: int | None = None
    """The pause that the other side requested, if any."""


class CallBarred(msgspec.Struct, frozen=True):
    """The sink will take nothing from us until a person changes something."""

    reason: Reason


def pause_ms(
    failures: int, first_ms: int, longest_ms: int, chance: float, requested_ms: int | None = None
) -> int:
    """The pause after a failure: the one that the other side requested, or twice the last one, less
    up to a half by chance (0 to 1).
    """
    if requested_ms is not None:
        return requested_ms
    return int(min(first_ms * 2 ** min(failures, 30), longest_ms) * (0.5 + chance / 2))
