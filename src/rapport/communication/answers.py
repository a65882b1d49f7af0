"""Answers of people: tokens of answer links, words that decline, and the look-up of the answered
message in the log. [CO-7, CO-8, CO-10, CO-11]

The web endpoint calls `record_answer`, which checks the token in constant time and keeps it out of
the log: only the node appends to `control`, so that the header `proof` tells the engine that the
token was right. A message of the fast path has no record, and the engine's memory of it ends with
the process; `MessageHistory` then finds its receiver and sender in the log.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.ledger_events import SOURCE
from rapport.communication.links import name_in_link
from rapport.communication.sender_notifications import PROOF
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.event import CAUSE, StoredEvent, cause_text, make_event
from rapport.core.ids import content_id
from rapport.core.message import CONTROL, MESSAGE
from rapport.store.guarding import keep_first

ANSWER = "rapport.control.answer"
ANSWER_SOURCE = "answers"
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
    return keep_first(records, _TABLE, _KEY, secrets.token_bytes(32))


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
        source=ANSWER_SOURCE,
        id=content_id("answer", answer.message, answer.peer, answer.text, turn),
        type=ANSWER,
        subject=answer.message,
        time=now_ms,
        data=msgspec.structs.replace(answer, token=""),
        headers={CAUSE: cause_text(answer.message), PROOF: "answer"},
    )
    await channels.channel("control").append([event])
    return event.id


DECLINE = "DECLINE"
"""The subtype of a message that declines what it refers to."""
DECLINING_WORDS = ("no", "nein", "non", "cannot", "i cannot")
"""Unless the site says others."""
_SHORT = 100


class Declines:
    """Tells answers that decline from others; a site has its own words for it."""

    def __init__(self, words: Iterable[str] = DECLINING_WORDS) -> None:
        self._words = frozenset(plain_word(word) for word in words)
        # People say the same things: the same few words are looked at once.
        self._says_short = lru_cache(maxsize=1_024)(self._says)

    def says(self, text: str, subtype: str = "") -> bool:
        """Whether an answer declines: by its subtype, or since its first line is one of the words
        and nothing else.

        >>> [Declines().says(text) for text in ("No!", "I cannot.\\nSorry", "no problem", "")]
        [True, True, False, False]
        """
        if subtype == DECLINE:
            return True
        return self._says_short(text) if len(text) <= _SHORT else self._says(text)

    def _says(self, text: str) -> bool:
        first, _, _ = text.strip().partition("\n")
        return plain_word(first) in self._words


def plain_word(text: str) -> str:
    """A text without case, blanks and final punctuation.

    >>> plain_word(" I  cannot... ")
    'icannot'
    """
    word = "".join(text.casefold().split())
    while word and unicodedata.category(word[-1]).startswith("P"):
        word = word[:-1]
    return word


USUAL_DECLINES = Declines()


_MOST = 10_000
_PEER = "peer:"


class HistoryNeeded(Exception):
    """A message is to be looked up in the log before what refers to it can be taken."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _SentMessage(msgspec.Struct, frozen=True):
    """Of a message's event in `log` who it went to, and from whom."""

    fate: str = ""
    receiver: str = ""
    peer: str = ""
    sender: str = ""
    type: str = ""


_NOTHING = _SentMessage()


class MessageHistory:
    """What was looked up lately: at most ten thousand messages, also those that are in no log."""

    def __init__(self) -> None:
        self._told: dict[str, _SentMessage] = {}

    def peer(self, message: str) -> str:
        """The only peer whom the message was meant for; empty = there is none. Raises
        HistoryNeeded when it was not looked up.
        """
        found = self._found(message)
        if found.fate != "queued" or not found.receiver.startswith(_PEER):
            return ""
        return found.peer or found.receiver.removeprefix(_PEER)

    def sender(self, message: str) -> str:
        """Who is told what became of the message; empty = nobody. Raises HistoryNeeded."""
        found = self._found(message)
        return "" if found.type == CONTROL else found.sender

    def _found(self, message: str) -> _SentMessage:
        found = self._told.get(message)
        if found is None:
            raise HistoryNeeded(message)
        return found

    def has(self, message: str) -> bool:
        """Whether it was looked up."""
        return message in self._told

    async def look_up(self, channels: Channels, messages: Sequence[str]) -> None:
        """One question to the history index for each. Raises ChannelUnavailable."""
        if len(self._told) + len(messages) > _MOST:
            self._told.clear()
        for message in messages:
            found = await channels.find_event(message)
            told = [_read_sent(stored) for name, stored in found if name == "log"]
            self._told[message] = next(filter(None, told), _NOTHING)


def _read_sent(stored: StoredEvent) -> _SentMessage | None:
    """What a message's own event says; None for any other."""
    event = stored.event
    if event.type != MESSAGE or event.source != SOURCE:
        return None
    try:
        told: _SentMessage = event.payload_as(_SentMessage)
    except InvalidInput:
        return None
    return told
