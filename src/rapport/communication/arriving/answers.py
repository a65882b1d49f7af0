"""Answers of people: who may answer is proven by a token in the link, checked in constant time.
[CO-10, CO-11]

The web door calls `record_answer`, which checks the token and keeps it out of the log: nobody but
the node appends to `control`, so the header `proof` tells the engine that it was right.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import lru_cache
from typing import Protocol

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.arriving.link_names import name_in_link
from rapport.communication.delivering.telling import PROOF
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.event import CAUSE, cause_text, make_event
from rapport.core.ids import content_id
from rapport.store.base import put_if_absent

ANSWER = "rapport.control.answer"
SOURCE = "answers"
LONGEST_ANSWER = 2_000
_TABLE, _KEY = "secrets", "answers"


class SecretRecords(Protocol):
    """What keeping the secret needs of a record store."""

    def get(self, table: str, key: str) -> bytes | None: ...
    def put(self, table: str, key: str, value: bytes) -> None: ...


class AnswerData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an answer event."""

    message: str
    peer: str
    text: str = ""
    declined: bool = False
    """They chose to say that they cannot; words of the text may say so, too."""
    token: str = ""
    """For the door; never in the event."""


def answer_secret(records: SecretRecords) -> bytes:
    """The node's secret for answer links: made once, kept in its records, never logged."""
    return put_if_absent(records, _TABLE, _KEY, secrets.token_bytes(32))


def answer_token(secret: bytes, message: str, peer: str) -> str:
    """What proves that the bearer was sent this message as this peer."""
    raw = content_id(message, peer).encode()
    keyed = _keyed(secret).copy()
    keyed.update(raw)
    return keyed.hexdigest()[:40]


@lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hmac.HMAC:
    """The part that is the same for all tokens of a secret: a third of the work."""
    return hmac.new(secret, digestmod=hashlib.sha256)


def is_answer_token(secret: bytes, message: str, peer: str, token: str) -> bool:
    """Whether the token is right; takes the same time for every wrong one."""
    expected = answer_token(secret, message, peer)
    return hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace"))


def answer_link(public_url: str, secret: bytes, message: str, peer: str) -> str:
    """The address of the page on which this peer answers this message."""
    token = answer_token(secret, message, peer)
    names = f"{name_in_link(message)}/{name_in_link(peer)}"
    return f"{public_url.rstrip('/')}/answer/{names}/{token}"


async def record_answer(
    channels: Channels,
    secret: bytes,
    answer: AnswerData,
    *,
    now_ms: int,
    after_ms: int | None = None,
) -> str:
    """Appends the answer to `control`, durably, and returns the event's id. `after_ms` is when the
    person answered before, 0 = not yet: the same answer after the same one counts once.

    Raises NotAllowed when the token is wrong, InvalidInput when the text is too long.
    """
    if not is_answer_token(secret, answer.message, answer.peer, answer.token):
        raise NotAllowed("this link is not valid", code="answer.bad_token")
    if len(answer.text) > LONGEST_ANSWER:
        raise InvalidInput(
            f"the answer is longer than {LONGEST_ANSWER} characters", code="answer.too_long"
        )
    turn = str(now_ms if after_ms is None else after_ms)
    event = make_event(
        source=SOURCE,
        id=content_id("answer", answer.message, answer.peer, answer.text, turn),
        type=ANSWER,
        subject=answer.message,
        time=now_ms,
        data=msgspec.structs.replace(answer, token=""),
        headers={CAUSE: cause_text(answer.message), PROOF: "answer"},
    )
    await channels.channel("control").append([event])
    return event.id
