"""The node's publish door as a publisher sees it: one request, one answer, nothing raised. [CH-5]

Standard library only; the connection is kept open between requests.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from rapport.channel.agents.outbox_reading import Numbered
from rapport.channel.agents.window import Answer, Barred, Failed, Reason, Refused, Taken, TooBig
from rapport.channel.sequences import SEQUENCE
from rapport.core.codec import to_cloudevent
from rapport.core.errors import InvalidInput

TIMEOUT_SECONDS = 30.0
_LONGEST_RETRY_AFTER_MS = 600_000
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_BAD_EVENT = frozenset((400, 422))
_COME_AGAIN = frozenset((408, 425, 429))


class _Positions(msgspec.Struct):
    """What the door answers when all is on disk."""

    positions: list[int]


class SinkDoor:
    """Where a publisher delivers. `send` belongs to one thread; `interrupt` may come from any."""

    def __init__(
        self, url: str, channel: str, token: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"{url!r} is not the address of a node",
                code="url.bad",
                hint="for example http://127.0.0.1:8484",
            )
        self.url, self.token = url, token
        self._host, self._port = parts.hostname, _port_of(url)
        self._secure = parts.scheme == "https"
        self._path = f"{parts.path.rstrip('/')}/channels/{quote(channel, safe='')}/events"
        self._timeout = timeout_seconds
        self._connection: http.client.HTTPConnection | None = None

    def send(self, events: Sequence[Numbered]) -> Answer:
        """Posts the events as one request. An idle connection that the node closed meanwhile is
        opened anew at once; any other failure is the answer.
        """
        try:
            body = encode_batch(events)
        except (ValueError, TypeError) as error:
            return Refused(Reason("event.bad_data", f"cannot be written as JSON: {error}"))
        fresh = self._connection is None
        try:
            return self._ask(body, len(events))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.hang_up()
            if fresh or isinstance(error, TimeoutError):
                return _unreachable(self.url, error)
        try:
            return self._ask(body, len(events))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.hang_up()
            return _unreachable(self.url, error)

    def hang_up(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def interrupt(self) -> None:
        """Makes a request under way fail soon."""
        connection = self._connection
        sock = connection.sock if connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was closed already, which is what we want

    def _ask(self, body: bytes, count: int) -> Answer:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=self._timeout)
        headers = {"Content-Type": "application/cloudevents-batch+json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        self._connection.request("POST", self._path, body, headers)
        response = self._connection.getresponse()
        answer = response.read(_MOST_ANSWER_BYTES)
        if not response.isclosed():
            self.hang_up()  # more than any answer of a node: whoever this is, we read no further
        return read_answer(response.status, response.headers.get("Retry-After"), answer, count)


def encode_batch(events: Sequence[Numbered]) -> bytes:
    """A JSON array of CloudEvents with the attributes that tell repetitions."""
    return msgspec.json.encode(
        [{**to_cloudevent(one.event), SEQUENCE: str(one.sequence)} for one in events]
    )


def read_answer(status: int, retry_after: str | None, body: bytes, count: int) -> Answer:
    """What an HTTP answer to `count` events means. Pure.

    A 200 counts only when it comes from a node: any portal on the way says 200 to everything.
    """
    if status == 200:
        return _check_taken(body, count)
    reason = _reason(status, body)
    if status in _BAD_EVENT:
        return Refused(reason)
    if status == 413:
        return TooBig(reason)
    if status >= 500 or status in _COME_AGAIN:
        return Failed(reason, _retry_after_ms(retry_after))
    return Barred(reason)


def _check_taken(body: bytes, count: int) -> Answer:
    try:
        positions = msgspec.json.decode(body, type=_Positions).positions
    except (msgspec.DecodeError, UnicodeDecodeError):
        positions = []
    if len(positions) == count:
        return Taken()
    return Failed(Reason("http.strange_answer", "what answers at this address is not a node"))


def _reason(status: int, body: bytes) -> Reason:
    try:
        told = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        told = {}
    code = str(told.get("title", f"http.{status}"))
    return Reason(code[:100], str(told.get("detail", f"the node answered {status}"))[:2000])


def _retry_after_ms(text: str | None) -> int | None:
    """Seconds only; a date would need the node's clock and ours to agree."""
    if text is None or not text.strip().isascii() or not text.strip().isdigit():
        return None
    return min(int(text.strip()[:9]) * 1_000, _LONGEST_RETRY_AFTER_MS)


def _unreachable(url: str, error: Exception) -> Failed:
    told = str(error) or type(error).__name__
    return Failed(Reason("node.unreachable", f"no node answers at {url}: {told}"))


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError as error:
        raise InvalidInput(f"{url!r}: {error}", code="url.bad") from None
