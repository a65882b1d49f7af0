"""A message to a person or machine: the twelve fields of the source, and its JSON form. [CO-1,
CO-2]

The JSON form is that of the source's listing 1: `conversation-id` and similar keys in kebab case,
senders and receivers as text (`peer:ana`; a bare name is a peer).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, cast

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text, check_envelope
from rapport.core.json_objects import ObjectDecoder

MESSAGE = "rapport.message"

CONTROL, MESSAGEINFO, AUTH = "CONTROL", "MESSAGEINFO", "AUTH"
PREDEFINED: dict[str, tuple[str, ...]] = {
    CONTROL: ("ACK", "ERROR", "COMERROR", "TIMEOUT"),
    MESSAGEINFO: ("REQUEST", "REPLY"),
    AUTH: ("REQUEST", "REPLY", "FAILED", "ERROR"),
}
"""Types of the node itself with their subtypes; applications add their own."""

Kind = Literal["peer", "collective", "component"]
MessagePolicy = Literal["unreliable", "acknowledged"]


class Identifier(msgspec.Struct, frozen=True, order=True, gc=False):
    """A typed name: `peer:ana`, `collective:guards`, `component:policy`."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @staticmethod
    def parse(text: str) -> Identifier:
        """The identifier written as `kind:name`; raises InvalidInput."""
        kind, colon, name = text.partition(":")
        if not colon or not name or kind not in ("peer", "collective", "component"):
            raise InvalidInput(
                f"{text!r} is not an identifier",
                code="message.bad_identifier",
                hint="write peer:NAME, collective:NAME or component:NAME",
            )
        return Identifier(cast(Kind, kind), name)


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message. `type`, `subtype` and `sender` are mandatory; the engine sets `id`."""

    type: str
    subtype: str
    sender: Identifier
    id: str = ""
    receiver: Identifier | None = None
    conversation: str = ""
    content: str = ""
    ttl: int = 0
    """Milliseconds until the message expires; 0 = never."""
    language: str = ""
    session_token: str = ""
    delivery_policy: MessagePolicy = "acknowledged"
    refers_to: str = ""
    urgent: bool = False
    """Our extension: delivered in quiet hours too."""

    def to_json(self) -> bytes:
        """The message as JSON of listing 1, without fields that have their default.

        >>> ana = Identifier("peer", "ana")
        >>> Message(type="TASK", subtype="REQUEST", sender=ana, conversation="7").to_json()
        b'{"type":"TASK","subtype":"REQUEST","sender":"peer:ana","conversation-id":"7"}'
        """
        return _ENCODER.encode(_as_written(self))

    @staticmethod
    def from_json(body: bytes) -> Message:
        """Decodes a message from outside; raises InvalidInput that names the field at fault, and
        for an unknown key the nearest known one.
        """
        return _as_read(_POSTED.decode(body))

    @staticmethod
    def from_application(body: bytes) -> tuple[Message, bytes]:
        """As `from_json`, with the JSON of its `wishes`: delivery options that only applications
        may set. Empty when there are none.
        """
        sent = _SENT.decode(body)
        return _as_read(sent), bytes(sent.wishes)

    @staticmethod
    def from_stored(data: bytes) -> Message:
        """Decodes the message in the data of an event; ignores other fields."""
        try:
            written = _DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"{_NO_MESSAGE}: {error}"
            raise InvalidInput(message, code=_NOT_A_MESSAGE, hint=_MESSAGE_HINT) from None
        return _as_read(written)

    def to_event(
        self, *, source: str, time: int, causes: tuple[str, ...] = (), **extra: Any
    ) -> Event:
        """The message as an event with its causes. The session token is left out because events are
        stored.
        """
        event = self.as_event(source, time, {CAUSE: cause_text(*causes)} if causes else {})
        if extra:
            data = msgspec.json.decode(event.data) | extra
            return msgspec.structs.replace(event, data=_ENCODER.encode(data))
        return event

    def as_event(self, source: str, time: int, headers: dict[str, str]) -> Event:
        """As `to_event`, with these headers; adds the message to the cache."""
        written = _as_written(self, with_token=False)
        data = _ENCODER.encode(written)
        if not self.session_token:
            MESSAGE_CACHE.note(data, self)
        event = Event(source, self.id, MESSAGE, written.receiver, time, data, headers)
        names = f"{source}{self.id}{written.receiver}"
        if not (source and self.id and len(names) <= MAX_NAME and names.isprintable()):
            check_envelope(event)
        return event

    @staticmethod
    def from_event(event: Event) -> Message:
        """Decodes the message that `to_event` wrote; a recent one comes from the cache."""
        return MESSAGE_CACHE.get(event.data) or Message.from_stored(event.data)


_RENAMED = {
    "conversation": "conversation-id",
    "session_token": "session-token",
    "delivery_policy": "delivery-policy",
    "refers_to": "refers-to",
}


class _WrittenFields(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename=_RENAMED,
):
    """Field names and order of the JSON form."""

    id: str = ""
    type: str
    subtype: str
    sender: str
    receiver: str = ""
    conversation: str = ""
    content: str = ""
    ttl: int = 0
    language: str = ""
    session_token: str = ""
    delivery_policy: MessagePolicy = "acknowledged"
    refers_to: str = ""
    urgent: bool = False


class _IncomingFields(_WrittenFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message from outside. Our outputs for machines add the fields below to a message; our
    inputs accept and ignore them.
    """

    key: str = ""
    time: str = ""
    wants_answer: bool = msgspec.field(default=False, name="wants-answer")
    answer: str = ""


class _ApplicationFields(_IncomingFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of an application, with its delivery options."""

    wishes: msgspec.Raw = msgspec.Raw()


class MessageFields(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, rename=_RENAMED):
    """The JSON form for encoding. Constructed by position, which is twice as fast as by keyword;
    the mandatory fields are never None.
    """

    id: str = ""
    type: str | None = None
    subtype: str | None = None
    sender: str | None = None
    receiver: str = ""
    conversation: str = ""
    content: str = ""
    ttl: int = 0
    language: str = ""
    session_token: str = ""
    delivery_policy: MessagePolicy = "acknowledged"
    refers_to: str = ""
    urgent: bool = False


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_WrittenFields)
_NO_MESSAGE, _NOT_A_MESSAGE = "this is not a message", "message.not_a_message"
_MESSAGE_HINT = (
    'a message needs "type", "subtype" and "sender", e.g. '
    '{"type":"TASK","subtype":"REQUEST","sender":"peer:ana","receiver":"peer:ben"}'
)
_POSTED = ObjectDecoder(_IncomingFields, fault=_NO_MESSAGE, code=_NOT_A_MESSAGE, hint=_MESSAGE_HINT)
_SENT = ObjectDecoder(
    _ApplicationFields, fault=_NO_MESSAGE, code=_NOT_A_MESSAGE, hint=_MESSAGE_HINT
)


# Field by field because it runs for every message; building dictionaries would triple the cost.
def _as_written(message: Message, *, with_token: bool = True) -> MessageFields:
    sender, receiver = message.sender, message.receiver
    return MessageFields(
        message.id,
        message.type,
        message.subtype,
        f"{sender.kind}:{sender.name}",
        f"{receiver.kind}:{receiver.name}" if receiver is not None else "",
        message.conversation,
        message.content,
        message.ttl,
        message.language,
        message.session_token if with_token else "",
        message.delivery_policy,
        message.refers_to,
        message.urgent,
    )


def _as_read(written: _WrittenFields) -> Message:
    return Message(
        id=written.id,
        type=written.type,
        subtype=written.subtype,
        sender=_identifier(written.sender),
        receiver=_identifier(written.receiver) if written.receiver else None,
        conversation=written.conversation,
        content=written.content,
        ttl=written.ttl,
        language=written.language,
        session_token=written.session_token,
        delivery_policy=written.delivery_policy,
        refers_to=written.refers_to,
        urgent=written.urgent,
    )


@lru_cache(maxsize=16_384)
def _identifier(text: str) -> Identifier:
    return Identifier.parse(text if ":" in text else f"peer:{text}")


class MessageCache:
    """Messages by their bytes, at least the last `most` short ones. A process reads each message it
    wrote several times, with identical bytes. Safe for use by several threads.
    """

    def __init__(self, most: int = 8_192, longest: int = 2_000) -> None:
        self._most, self.longest = most, longest
        self._newer: dict[bytes, Message] = {}
        self._older: dict[bytes, Message] = {}

    def note(self, body: bytes, message: Message) -> None:
        """Adds a message; the caller adds none with a session token."""
        if len(body) <= self.longest:
            self._newer[body] = message
            if len(self._newer) >= self._most:
                self._older, self._newer = self._newer, {}

    def get(self, body: bytes) -> Message | None:
        return self._newer.get(body) or self._older.get(body)


MESSAGE_CACHE = MessageCache()
