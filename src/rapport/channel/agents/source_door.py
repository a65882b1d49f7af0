"""The node's source door as a listener sees it: one request, one answer, nothing raised. [CH-7]"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from rapport.channel.agents.batch_json import read_batch, write_request
from rapport.channel.agents.listener_state import Answer, Expired, Got
from rapport.channel.agents.node_line import (
    COME_AGAIN,
    TIMEOUT_SECONDS,
    NodeLine,
    Reply,
    retry_after_ms,
    told_reason,
)
from rapport.channel.agents.window import Barred, Failed, Reason
from rapport.channel.requesting.batch import Request
from rapport.channel.requesting.message_leases import Answers, Settled
from rapport.core.errors import InvalidInput, LeaseExpired

_MOST_ANSWER_BYTES = 96 * 1024 * 1024
"""A set has 8 MiB of data, or one event of up to 32; JSON and envelopes come on top."""
_GOODBYE_SECONDS = 1.0


class SourceDoor:
    """Where a listener asks. `request` belongs to one thread; `interrupt` may come from any."""

    def __init__(
        self, url: str, channel: str, token: str = "", *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.url = url
        self._line = NodeLine(url, token, most_answer_bytes=_MOST_ANSWER_BYTES)
        self._path = f"/channels/{quote(channel, safe='')}/requests"
        self._acks = f"/channels/{quote(channel, safe='')}/acks"
        self._timeout = timeout_seconds
        self.hang_up, self.interrupt = self._line.hang_up, self._line.interrupt

    @property
    def token(self) -> str:
        """The bearer token; another one counts from the next request on."""
        return self._line.token

    @token.setter
    def token(self, token: str) -> None:
        self._line.token = token

    def request(self, request: Request) -> Answer:
        """Asks, and waits as long as the request says and the answer takes."""
        seconds = self._timeout + request.wait_ms / 1_000
        reply = self._line.post(self._path, write_request(request), "application/json", seconds)
        return reply if isinstance(reply, Failed) else read_source_answer(reply)

    def settle(self, answers: Answers) -> Settled | Failed | Barred:
        """Says what became of leased messages."""
        body = msgspec.json.encode(answers)
        reply = self._line.post(self._acks, body, "application/json", self._timeout)
        return reply if isinstance(reply, Failed) else read_settled(reply)

    def say_goodbye(self, token: str) -> None:
        """Ends a session, also after `interrupt`; one that cannot be told ends it by itself."""
        line = NodeLine(self.url, self.token, most_answer_bytes=_MOST_ANSWER_BYTES)
        ending = write_request(Request(token=token, lease_minutes=0))
        line.post(self._path, ending, "application/json", _GOODBYE_SECONDS)
        line.hang_up()


def read_source_answer(reply: Reply) -> Answer:
    """What an HTTP answer means. Pure.

    A 200 counts only when it holds a batch: any portal on the way says 200 to everything.
    """
    if reply.status == 200:
        return _batch_in(reply.body)
    reason = told_reason(reply.status, reply.body)
    if reason.code == LeaseExpired.code:
        return Expired(reason)
    if reply.status >= 500 or reply.status in COME_AGAIN:
        return Failed(reason, retry_after_ms(reply.retry_after))
    return Barred(reason)


def read_settled(reply: Reply) -> Settled | Failed | Barred:
    """What an HTTP answer to acks and naks means. Pure."""
    if reply.status == 200:
        try:
            return msgspec.json.decode(reply.body, type=Settled)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Failed(Reason("http.strange_answer", "what answers there is not a node"))
    reason = told_reason(reply.status, reply.body)
    if reply.status >= 500 or reply.status in COME_AGAIN:
        return Failed(reason, retry_after_ms(reply.retry_after))
    return Barred(reason)


def _batch_in(body: bytes) -> Answer:
    try:
        return Got(read_batch(body))
    except InvalidInput as error:
        message = f"what answers at this address is not a node: {error.message}"
        return Failed(Reason(error.code, message[:2000]))
