"""Limits of arriving messages: size, rate and form. Pure, time is an argument.
[CO-1, CO-11]
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import msgspec

from rapport.channel.access.identities import Bucket, full_bucket, take
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.answers import DECLINING_WORDS
from rapport.core.errors import InvalidInput
from rapport.core.message import Message

LONGEST_NAME = 200
"""Characters of types, senders, receivers and other names."""
LARGEST_EVENT = MAX_DATA_BYTES - 16_384
"""Bytes of a message's event in `input`; what the log adds still fits into an event."""
_FIELDS = (
    *("type", "subtype", "sender", "receiver"),
    *("id", "conversation-id", "language", "refers-to"),
)
_MOST_SENDERS = 50_000
_MOST_SEALS = 1_000_000

OnExpired = Literal["refuse", "hold"]
Unproven = Literal["inward", "accept", "refuse"]


class ArrivalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of arriving messages."""

    most_bytes: int = 1_000_000
    """Largest content, in UTF-8; escaped as JSON it must fit into an event as well."""
    rate: int = 1_000
    """Messages a second of one sender through one adapter, in the long run; unproven senders share
    one allowance. 0 = unlimited.
    """
    burst: int = 10_000
    """Messages at once before the rate counts."""
    unproven: Unproven = "inward"
    """Messages of unproven senders: `inward` = they reach applications only, `accept` = they are
    handled like others, `refuse` = they are refused.
    """
    on_expired: OnExpired = "refuse"
    """Messages with an expired session token: refused, or held until their peer logs in again."""
    hold_ms: int = 3_600_000
    """How long a message is held."""
    most_held: int = 100
    """Messages held per peer; the oldest are refused for newer ones."""
    most_held_bytes: int = 4_000_000
    """Bytes held per peer."""
    answer_links_ms: int = 30 * 86_400_000
    """Validity of an answer link after its message was closed."""
    declines: tuple[str, ...] = DECLINING_WORDS
    """An answer whose first line is one of these words declines."""


def shape_fault(message: Message, settings: ArrivalSettings) -> InvalidInput | None:
    """The fault in the form of a message, or None."""
    names = _names(message)
    # Together short and printable means that each is.
    whole = "".join(names)
    if len(whole) > LONGEST_NAME or not whole.isprintable():
        for field, value in zip(_FIELDS, names, strict=True):
            if len(value) > LONGEST_NAME or not value.isprintable():
                return InvalidInput(
                    f"the message's {field} is longer than {LONGEST_NAME} characters or has "
                    "unprintable ones",
                    code="message.bad_field",
                )
    if not message.type or not message.sender.name:
        return InvalidInput("a message needs a type and a sender", code="message.not_a_message")
    if not 0 <= message.ttl < 2**53:
        return InvalidInput("a time to live is not negative", code="message.bad_ttl")
    return content_fault(message.content, settings.most_bytes)


def _names(message: Message) -> tuple[str, ...]:
    """The names in a message, in the order of `_FIELDS`."""
    return (
        message.type,
        message.subtype,
        message.sender.name,
        message.receiver.name if message.receiver is not None else "",
        message.id,
        message.conversation,
        message.language,
        message.refers_to,
    )


def content_fault(content: str, most_bytes: int) -> InvalidInput | None:
    """The fault of a content, or None: too long, or no text."""
    if len(content) > most_bytes:
        return _too_long(most_bytes)
    try:
        size = len(content) if content.isascii() else len(content.encode())
    except UnicodeEncodeError:
        return InvalidInput("the content is not text", code="message.not_text")
    return _too_long(most_bytes) if size > most_bytes else None


def _too_long(most_bytes: int) -> InvalidInput:
    return InvalidInput(
        f"the content is longer than {most_bytes:,} bytes",
        code="message.too_long",
        hint="send a link to what is large",
    )


class Allowances:
    """Allowances of senders; bounded, the oldest is forgotten first."""

    def __init__(self, rate: int, burst: int) -> None:
        self._rate, self._burst = rate, max(burst, 1)
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._refused: set[tuple[str, str]] = set()

    def takes(self, adapter: str, sender: str, now_ms: int) -> bool:
        """Counts one more message of this sender; False when it is over the limit."""
        if not self._rate:
            return True
        key = (adapter, sender)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = full_bucket(self._burst, now_ms)
            self._drop_oldest()
        if take(bucket, 1, rate=self._rate, burst=self._burst, now_ms=now_ms):
            return False
        if self._refused:
            self._refused.discard(key)
        return True

    def is_first_refusal(self, adapter: str, sender: str) -> bool:
        """Whether this is the first refusal in a row, which alone is logged."""
        key = (adapter, sender)
        is_first = key not in self._refused
        self._refused.add(key)
        return is_first

    def _drop_oldest(self) -> None:
        while len(self._buckets) > _MOST_SENDERS:
            key = next(iter(self._buckets))
            del self._buckets[key]
            self._refused.discard(key)


class SealHistory:
    """Recent sealed messages, so that a copy has no effect; after a restart the channel's duplicate
    removal serves.
    """

    def __init__(self, lasting_ms: int) -> None:
        """`lasting_ms`: after this a copy is refused as too old."""
        self._lasting_ms = lasting_ms
        self._seen: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, id: str) -> bool:
        return id in self._seen

    def note(self, id: str, now_ms: int) -> None:
        """Notes a message that is in `input`."""
        self._seen[id] = now_ms
        while self._seen:
            oldest = next(iter(self._seen))
            is_over = now_ms - self._seen[oldest] > self._lasting_ms
            if not is_over and len(self._seen) <= _MOST_SEALS:
                return
            del self._seen[oldest]
