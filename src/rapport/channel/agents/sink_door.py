"""The node's publish door as a publisher sees it: a request, an answer, nothing raised. [CH-5]"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from rapport.channel.agents.node_line import (
    COME_AGAIN,
    TIMEOUT_SECONDS,
    NodeLine,
    retry_after_ms,
    told_reason,
)
from rapport.channel.agents.outbox_reading import Numbered
from rapport.channel.agents.window import Answer, Barred, Failed, Reason, Refused, Taken, TooBig
from rapport.channel.sequences.numbers import SEQUENCE
from rapport.core.codec import to_cloudevent

_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_BATCH = "application/cloudevents-batch+json"
_BAD_EVENT = frozenset((400, 422))


class _Positions(msgspec.Struct):
    """What the door answers when all is on disk."""

    positions: list[int]


class SinkDoor:
    """Where a publisher delivers. `send` belongs to one thread; `interrupt` may come from any."""

    def __init__(
        self, url: str, channel: str, token: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._line = NodeLine(url, token, most_answer_bytes=_MOST_ANSWER_BYTES)
        self._path = f"/channels/{quote(channel, safe='')}/events"
        self._timeout = timeout_seconds
        self.hang_up, self.interrupt = self._line.hang_up, self._line.interrupt

    @property
    def token(self) -> str:
        """The bearer token; another one counts from the next request on."""
        return self._line.token

    @token.setter
    def token(self, token: str) -> None:
        self._line.token = token

    def send(self, events: Sequence[Numbered]) -> Answer:
        """Posts the events as one request; a failure is an answer too."""
        try:
            body = encode_batch(events)
        except (ValueError, TypeError) as error:
            return Refused(Reason("event.bad_data", f"cannot be written as JSON: {error}"))
        reply = self._line.post(self._path, body, _BATCH, self._timeout)
        if isinstance(reply, Failed):
            return reply
        return read_answer(reply.status, reply.retry_after, reply.body, len(events))


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
    reason = told_reason(status, body)
    if status in _BAD_EVENT:
        return Refused(reason)
    if status == 413:
        return TooBig(reason)
    if status >= 500 or status in COME_AGAIN:
        return Failed(reason, retry_after_ms(retry_after))
    return Barred(reason)


def _check_taken(body: bytes, count: int) -> Answer:
    try:
        positions = msgspec.json.decode(body, type=_Positions).positions
    except (msgspec.DecodeError, UnicodeDecodeError):
        positions = []
    if len(positions) == count:
        return Taken()
    return Failed(Reason("http.strange_answer", "what answers at this address is not a node"))
