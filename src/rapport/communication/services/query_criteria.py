"""What to ask the logged messages for, as a condition the channel can look up; and the token of a
page. Pure. [CO-13]

`log` holds messages beside ledger lines. What people look up most (conversation, sender, receiver,
one message's lines) is indexed: see LOG_INDEX.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection
from typing import TypedDict

import msgspec

from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.query_kinds import Query, is_encodable
from rapport.channel.query.tree import (
    And,
    Compare,
    Comparison,
    Condition,
    Field,
    Literal,
    Or,
    Scalar,
)
from rapport.channel.query.values import decode_payload, member
from rapport.communication.ledger import CONTROL_MESSAGE, OPEN, ROUTED
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import MAX_NAME, StoredEvent
from rapport.core.message import MESSAGE, Identifier

LOG_INDEX = ("subject", "data.sender", 'data."conversation-id"', "data.result")
"""The subject of a message is its receiver, that of a ledger line its message; a result stands on
the line that closes one.
"""
FATES = (
    *(OPEN, "done", "failed", "timed_out"),
    *("notified", ROUTED, "no_receiver", "forwarded", "refused", "skipped"),
)
"""What became of a message: the result it was closed with and `open` until then; or, where it was
over as soon as it was handled, what the ledger says (`state_when_handled`).
"""
MOST_PER_PAGE = 1_000
LONGEST_CONTAINS = 500
_LONGEST_TOKEN = 8_192


class Criteria(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every criterion that is set must hold; what is empty does not matter."""

    id: str = ""
    type: str = ""
    subtype: str = ""
    sender: str = ""
    """`kind:name`; a bare name is a peer."""
    receiver: str = ""
    conversation: str = ""
    refers_to: str = ""
    contains: str = ""
    """Stands in the content, in capitals or not."""
    fate: str = ""
    since_ms: int | None = None
    """When it was logged, at the earliest."""
    until_ms: int | None = None
    """When it was logged, at the latest."""
    newest_first: bool = False
    limit: int = 100
    """Messages per page."""


class GivenCriteria(TypedDict, total=False):
    """The criteria as keywords; times are milliseconds or ISO 8601."""

    id: str
    type: str
    subtype: str
    sender: str | Identifier
    receiver: str | Identifier
    conversation: str
    refers_to: str
    contains: str
    fate: str
    since: str | int
    until: str | int
    newest_first: bool
    limit: int


class Place(msgspec.Struct, frozen=True, array_like=True):
    """What a token says: the criteria and where the page begins. The log beyond `snapshot` does not
    count, so the same token gives the same page however much was logged since.
    """

    criteria: Criteria
    low: int
    """Matches stand after this position,"""
    high: int
    """and at this one at the latest."""
    snapshot: int


def checked(criteria: Criteria) -> Criteria:
    """The criteria in their one form; raises InvalidInput for what cannot be meant."""
    if not 1 <= criteria.limit <= MOST_PER_PAGE:
        raise _bad(f"a page cannot have {criteria.limit} messages", f"1 to {MOST_PER_PAGE}")
    if criteria.fate and criteria.fate not in FATES:
        raise UnknownName("fate of a message", criteria.fate, FATES, code="query.unknown_fate")
    if len(criteria.contains) > LONGEST_CONTAINS:
        raise _bad("the text to look for is too long", f"at most {LONGEST_CONTAINS} characters")
    for name in ("id", "type", "subtype", "sender", "receiver", "conversation", "refers_to"):
        if len(getattr(criteria, name)) > 2 * MAX_NAME:
            raise _bad(f"{name} is too long", f"at most {2 * MAX_NAME} characters")
    if not all(is_encodable(each) for each in msgspec.structs.astuple(criteria) if _is_text(each)):
        raise _bad("a text has lone surrogates", "write whole characters")
    since, until = criteria.since_ms, criteria.until_ms
    if since is not None and until is not None and since > until:
        raise _bad("since lies after until", "turn them round")
    return msgspec.structs.replace(
        criteria, sender=_who(criteria.sender), receiver=_who(criteria.receiver)
    )


def is_looked_up(criteria: Criteria) -> bool:
    """Whether LOG_INDEX knows one of the criteria."""
    return bool(criteria.sender or criteria.receiver or criteria.conversation)


def query_of(criteria: Criteria, closed: Collection[str] | None = None) -> Query:
    """The criteria as a query of the channel, which looks up what is indexed of it. `closed`: the
    only messages that can have the fate, where that is known beforehand.
    """
    condition = And(tuple(_parts(criteria)))
    fits, text = compile_condition(condition), criteria.contains.casefold()
    if not text and closed is None:
        return Query("messages", "", fits, condition=condition, is_its_condition=True)

    def matches(stored: StoredEvent) -> bool:
        if not fits(stored):
            return False
        payload = decode_payload(stored.event.data)
        if closed is not None and stored.event.id not in closed:
            return bool(member(payload, "fate") == criteria.fate) and text in _content(payload)
        return text in _content(payload)

    return Query("messages", "", matches, condition=condition)


def compared(field: Field, operator: Comparison, value: Scalar) -> Condition:
    """A field compared with a value."""
    return Compare(operator, field, Literal(value))


def with_log_index(declared: ChannelsConfig) -> ChannelsConfig:
    """What a site says of its channels, and that `log` is indexed unless the site says how."""
    own = ChannelRules(pattern="log", index=LOG_INDEX)
    return msgspec.structs.replace(declared, rules=(own, *declared.rules))


# --- tokens ---


def write_token(place: Place) -> str:
    """The place as a text of letters, digits, `-` and `_`. It is not signed: whoever shows it is
    asked for its rights, and it says nothing but what anybody with these could ask.
    """
    body = msgspec.msgpack.encode(place)
    raw = zlib.crc32(body).to_bytes(4, "big") + body
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_token(token: str) -> Place:
    """What a token says; raises InvalidInput unless it is as it was written."""
    try:
        if len(token) > _LONGEST_TOKEN:
            raise ValueError("too long")
        raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), b"-_", True)
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("changed")
        place = msgspec.msgpack.decode(raw[4:], type=Place)
        sound = 0 <= place.low <= 2**62 and 0 <= place.high <= place.snapshot <= 2**62
        if not sound or checked(place.criteria) != place.criteria:
            raise ValueError("made up")
    except (ValueError, InvalidInput, binascii.Error, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"this is no token of a page: {error}",
            code="query.bad_token",
            hint="send a token exactly as it came, or ask again with criteria",
        ) from None
    return place


# --- conditions ---


def _parts(criteria: Criteria) -> list[Condition]:
    kinds = tuple(compared(Field(("type",)), "=", name) for name in (MESSAGE, CONTROL_MESSAGE))
    parts: list[Condition] = [Or(kinds)]
    for field, wanted in (
        (Field(("id",)), criteria.id),
        (Field(("subject",)), criteria.receiver),
        (Field(("data", "type")), criteria.type),
        (Field(("data", "subtype")), criteria.subtype),
        (Field(("data", "sender")), criteria.sender),
        (Field(("data", "conversation-id")), criteria.conversation),
        (Field(("data", "refers-to")), criteria.refers_to),
    ):
        if wanted:
            parts.append(compared(field, "=", wanted))
    if criteria.since_ms is not None:
        parts.append(compared(Field(("received",)), ">=", criteria.since_ms))
    if criteria.until_ms is not None:
        parts.append(compared(Field(("received",)), "<=", criteria.until_ms))
    return parts


def _content(payload: object) -> str:
    """The content as it is searched."""
    content = member(payload, "content")
    return content.casefold() if isinstance(content, str) else ""


def _who(text: str) -> str:
    if not text:
        return ""
    return str(Identifier.parse(text if ":" in text else f"peer:{text}"))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="query.bad_criteria", hint=hint)
