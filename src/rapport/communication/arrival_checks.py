"""Checks of arriving messages: form, size, rate, and the proof of the sender. [CO-1, CO-11]

A session token, a seal, an answer token or the medium proves a sender. All three tokens stand in
`session-token` and differ in their prefix. An invalid token never counts as none: the message is
refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from rapport.channel.access.identities import Bucket, full_bucket, take
from rapport.communication.answers import DECLINING_WORDS
from rapport.communication.links import is_answer_token
from rapport.communication.sessions.seals import (
    SEAL_PREFIX,
    TOKEN_PREFIX,
    open_message,
    read_seal,
    to_text,
)
from rapport.communication.sessions.sessions import Sessions, TokenCheck
from rapport.core.errors import InvalidInput
from rapport.core.event import content_id
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

LONGEST_NAME = 200
"""Characters of types, senders, receivers and other names."""
_FIELDS = (
    *("type", "subtype", "sender", "receiver"),
    *("id", "conversation-id", "language", "refers-to"),
)
_MOST_SENDERS = 50_000
T = TypeVar("T")

OnExpired = Literal["refuse", "hold"]
Unproven = Literal["inward", "accept", "refuse"]


class ArrivalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of arriving messages."""

    most_bytes: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000_000
    """Largest content, in UTF-8; escaped as JSON it must fit into an event as well."""
    rate: Annotated[int, Meta(ge=0, le=10_000_000)] = 1_000
    """Messages a second of one sender through one adapter, in the long run; unproven senders share
    one allowance. 0 = unlimited.
    """
    burst: Annotated[int, Meta(ge=1, le=100_000_000)] = 10_000
    """Messages at once before the rate counts."""
    unproven: Unproven = "inward"
    """Messages of unproven senders: `inward` = they reach applications only, `accept` = they are
    handled like others, `refuse` = they are refused.
    """
    on_expired: OnExpired = "refuse"
    """Messages with an expired session token: refused, or held until their peer logs in again."""
    hold_ms: Annotated[int, Meta(ge=1)] = 3_600_000
    """How long a message is held."""
    most_held: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Messages held per peer; the oldest are refused for newer ones."""
    most_held_bytes: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 4_000_000
    """Bytes held per peer."""
    answer_links_ms: Annotated[int, Meta(ge=60_000)] = 30 * 86_400_000
    """Validity of an answer link after its message was closed."""
    declines: tuple[str, ...] = DECLINING_WORDS
    """An answer whose first line is one of these words declines."""


def shape_fault(message: Message, settings: ArrivalSettings) -> InvalidInput | None:
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


class RecentEntries(Generic[T]):
    """Entries by id, kept for a time and at most so many: a copy of a message or request that was
    taken lately is recognised. After a restart the channel's duplicate removal serves.
    """

    def __init__(self, lasting_ms: int, most: int) -> None:
        """`lasting_ms`: after this a copy is refused as too old."""
        self._lasting_ms, self._most = lasting_ms, most
        self._seen: OrderedDict[str, tuple[int, T]] = OrderedDict()

    def get(self, id: str) -> T | None:
        found = self._seen.get(id)
        return None if found is None else found[1]

    def note(self, id: str, now_ms: int, entry: T) -> None:
        """Adds an entry and drops those that are over."""
        self._seen[id] = now_ms, entry
        while self._seen:
            oldest = next(iter(self._seen))
            is_over = now_ms - self._seen[oldest][0] > self._lasting_ms
            if not is_over and len(self._seen) <= self._most:
                return
            del self._seen[oldest]


# --- proof of the sender ---


Proof = Literal["application", "session", "answer", "medium", "none"]
EXPIRED = "session.expired"
ANSWER_OVER = "answer.link_over"
"""The message that an answer token proves was closed too long ago."""

ClosedBefore = Callable[[Collection[str], int], Awaitable[Collection[str]]]
"""Messages and a time (ms UTC) to those of them that ended before it; see `Ledger`."""

Trusted = Callable[[Message], bool]
"""Whether the medium vouches for the sender of a message."""

_log = get_logger(__name__)


def never(_message: Message) -> bool:
    """The medium vouches for nobody."""
    return False


async def none_closed(_messages: Collection[str], _time_ms: int) -> Collection[str]:
    """Without a ledger no message is known to have ended."""
    return ()


class ProvenMessage(msgspec.Struct, frozen=True, gc=False):
    """A message without its token, and the proof of its sender or the fault of the token."""

    message: Message
    proof: Proof = "none"
    fault: str = ""
    unique: str = ""
    """The id that a seal gives the message: the same seal is the same message."""
    session: str = ""


class SenderProofs:
    """Checks the tokens of messages."""

    def __init__(
        self, sessions: Sessions, secret: bytes, clock: Clock, *, answer_links_ms: int
    ) -> None:
        """`secret`: that of answer links; `answer_links_ms`: how long an answer token proves
        something after its message was closed, the same as for the link.
        """
        self._sessions, self._secret, self._clock = sessions, secret, clock
        self._answer_links_ms = answer_links_ms
        self.closed_before: ClosedBefore = none_closed

    async def of(self, messages: Sequence[Message], trusted: Trusted) -> list[ProvenMessage]:
        """The proof of each message of a peer; tokens of a batch are checked together."""
        tokens = [m.session_token for m in messages if m.session_token.startswith(TOKEN_PREFIX)]
        checked = iter(await self._sessions.check(tokens) if tokens else ())
        found = []
        for message in messages:
            token = message.session_token
            if not token:
                proof: Proof = "medium" if vouches(trusted, message) else "none"
                found.append(ProvenMessage(message, proof))
            elif token.startswith(TOKEN_PREFIX):
                found.append(_by_session(message, next(checked)))
            elif token.startswith(SEAL_PREFIX):
                found.append(await self._by_seal(message))
            else:
                found.append(self._by_answer(message))
        return await self._without_old_answers(found)

    async def _without_old_answers(self, found: list[ProvenMessage]) -> list[ProvenMessage]:
        """One look at the ledger for all answer tokens of the batch."""
        answered = {one.message.refers_to for one in found if one.proof == "answer"}
        if not answered:
            return found
        over = await self.closed_before(answered, self._clock.now_ms() - self._answer_links_ms)
        return [
            ProvenMessage(one.message, fault=ANSWER_OVER)
            if one.proof == "answer" and one.message.refers_to in over
            else one
            for one in found
        ]

    def _by_answer(self, message: Message) -> ProvenMessage:
        peer, bare = message.sender.name, _bare(message)
        if not is_answer_token(self._secret, message.refers_to, peer, message.session_token):
            return ProvenMessage(bare, fault="session.malformed")
        return ProvenMessage(bare, "answer")

    async def _by_seal(self, message: Message) -> ProvenMessage:
        seal = read_seal(message.session_token)
        if seal is None:
            return ProvenMessage(_bare(message), fault="seal.malformed")
        if seal.peer != message.sender.name:
            return ProvenMessage(_bare(message), fault="session.of_another_peer")
        found = await self._sessions.sealing(seal.peer, seal.session)
        if found is None:
            return ProvenMessage(_bare(message), fault="session.ended")
        opened = open_message(found[1], message, seal, "from-peer", self._clock.now_ms())
        if not isinstance(opened, Message):
            return ProvenMessage(_bare(message), fault=opened)
        unique = content_id("sealed", seal.session, to_text(seal.nonce))
        return ProvenMessage(opened, "session", unique=unique, session=seal.session)


def _by_session(message: Message, checked: TokenCheck) -> ProvenMessage:
    bare = _bare(message)
    if checked.session is None:
        return ProvenMessage(bare, fault=checked.fault or "session.ended")
    if checked.session.peer != message.sender.name:
        return ProvenMessage(bare, fault="session.of_another_peer")
    return ProvenMessage(bare, "session", fault=checked.fault or "", session=checked.session.id)


def vouches(trusted: Trusted, message: Message) -> bool:
    """Whether the medium vouches for the sender."""
    try:
        return trusted(message) is True
    except Exception as error:
        # Code of an adapter: a failure is no trust.
        _log.error("trust check failed", error=repr(error)[:200])
        return False


def _bare(message: Message) -> Message:
    return msgspec.structs.replace(message, session_token="")
