"""Answers of people: recording them, words that decline, and the look-up of the answered message
in the log. [CO-7, CO-8, CO-10, CO-11]

The web endpoint calls `record_answer`, which checks the token and keeps it out of the log: only the
node appends to `control`, so that the header `proof` says that the token was right. A
message of the fast path has no record, and the engine's memory of it ends with the process;
`MessageHistory` then finds its receiver and sender in the log.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.ledger_events import LONGEST_ANSWER, PROOF, LoggedData, logged_data_of
from rapport.communication.links import is_answer_token
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.event import CAUSE, cause_text, content_id, make_event
from rapport.core.message import CONTROL

ANSWER = "rapport.control.answer"
ANSWER_SOURCE = "answers"

CLOSE = "rapport.control.close"

DECLINE = "DECLINE"
"""The subtype of a message that declines the one it refers to."""
DECLINING_WORDS = ("no", "nein", "non", "cannot", "i cannot")
"""Default words that decline."""
_SHORT = 100
_MOST = 10_000
_PEER = "peer:"


class AnswerData(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    peer: str
    text: str = ""
    declined: bool = False
    """Chosen explicitly; words of the text may decline as well."""
    token: str = ""
    """For the endpoint; never in the event."""


class CloseData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event that closes an open message."""

    message: str
    receiver: str
    """Of the message: it finds the process of a cluster that has the delivery."""
    by: str


async def record_close(channels: Channels, close: CloseData, *, now_ms: int) -> None:
    """Appends to `control` that somebody closes a message, durably; closing twice counts once."""
    event = make_event(
        source=ANSWER_SOURCE,
        id=content_id("close", close.message),
        type=CLOSE,
        subject=close.message,
        time=now_ms,
        data=close,
        headers={CAUSE: cause_text(close.message), PROOF: "close"},
    )
    await channels.channel("control").append([event])


async def record_answer(
    channels: Channels,
    secret: bytes,
    answer: AnswerData,
    *,
    now_ms: int,
    after_ms: int | None = None,
) -> str:
    """Appends the answer to `control`, durably, and returns the event's id. `after_ms`: when the
    person answered before, 0 = never; a repeated answer counts once.

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


class Declines:
    """Recognises answers that decline, by the words of the site."""

    def __init__(self, words: Iterable[str] = DECLINING_WORDS) -> None:
        self._words = frozenset(plain_word(word) for word in words)
        self._says_short = lru_cache(maxsize=1_024)(self._says)

    def says(self, text: str, subtype: str = "") -> bool:
        """Whether an answer declines: by its subtype, or by its first line.

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


class HistoryNeeded(Exception):
    """A message has to be looked up in the log before a reply to it can be handled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class MessageHistory:
    """Messages that were looked up in the log recently: at most ten thousand, unknown ones
    included.
    """

    def __init__(self) -> None:
        self._found_by_id: dict[str, LoggedData | None] = {}
        """None for an unknown message."""

    def peer(self, message: str) -> str:
        """The only peer that the message was sent to; empty = none. Raises HistoryNeeded when it
        was not looked up.
        """
        found = self._found(message)
        if found is None or found.fate != "queued" or not found.receiver.startswith(_PEER):
            return ""
        return found.peer or found.receiver.removeprefix(_PEER)

    def sender(self, message: str) -> str:
        """The sender to notify; empty = nobody. Raises HistoryNeeded."""
        found = self._found(message)
        return "" if found is None or found.type == CONTROL else found.sender

    def _found(self, message: str) -> LoggedData | None:
        if message not in self._found_by_id:
            raise HistoryNeeded(message)
        return self._found_by_id[message]

    def has(self, message: str) -> bool:
        """Whether it was looked up."""
        return message in self._found_by_id

    async def look_up(self, channels: Channels, messages: Sequence[str]) -> None:
        """Looks up messages, one query of the event index each. Raises ChannelUnavailable."""
        if len(self._found_by_id) + len(messages) > _MOST:
            self._found_by_id.clear()
        for message in messages:
            found = await channels.find_event(message)
            read = [logged_data_of(stored.event) for name, stored in found if name == "log"]
            self._found_by_id[message] = next(filter(None, read), None)
