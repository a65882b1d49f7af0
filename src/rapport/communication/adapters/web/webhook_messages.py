"""What is posted to an input, as messages: JSON of a message, CloudEvents, forms. Pure. [CO-16]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from rapport.communication.adapters.web.settings import WebhookInputSettings
from rapport.core.errors import InvalidInput, TooLarge
from rapport.core.event import Event
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message

MOST_MESSAGES = 1_000
"""In one request."""
MOST_FIELDS = 200
FORM_TYPE = "application/x-www-form-urlencoded"


def messages_of_body(body: bytes, media_type: str, settings: WebhookInputSettings) -> list[Message]:
    """The messages in a body that is no CloudEvent; raises InvalidInput for anything else."""
    if media_type.partition(";")[0].strip().lower() == FORM_TYPE:
        return [_mapped(_form(body), settings)]
    value = _json(body)
    values = value if isinstance(value, list) else [value]
    _check_count(values)
    return [_message(one, settings) for one in values]


def messages_of_events(
    events: Sequence[Event], settings: WebhookInputSettings, name: str
) -> list[Message]:
    """The messages that stand in the data of CloudEvents. One without an id is named after its
    event, so that an event that comes again is known again.
    """
    _check_count(events)
    found = []
    for event in events:
        message = _message(_json(event.data), settings)
        if not message.id:
            message = named(message, name, event.source, event.id)
        found.append(message)
    return found


def named(message: Message, *parts: str) -> Message:
    """The message with an id that depends on nothing but `parts`."""
    return msgspec.structs.replace(message, id=content_id("posted", *parts))


def _message(value: Any, settings: WebhookInputSettings) -> Message:
    if settings.fields or settings.defaults:
        return _mapped(value if isinstance(value, dict) else {}, settings)
    return _named_sender(Message.from_json(msgspec.json.encode(value)), settings)


def _mapped(given: Mapping[str, Any], settings: WebhookInputSettings) -> Message:
    """A message made of the fields that the site names."""
    values = dict(settings.defaults)
    for field, place in settings.fields.items():
        value = _at(given, place)
        if value is not None:
            values[field] = value
    missing = [field for field in ("type", "subtype", "sender") if not values.get(field)]
    if missing:
        raise InvalidInput(
            f"nothing says the {missing[0]} of the message",
            code="input.missing_field",
            hint=_where(missing[0], settings),
        )
    written = {_WRITTEN.get(field, field): value for field, value in values.items()}
    if settings.senders:
        written["sender"] = str(_sender(values["sender"], settings))
    return Message.from_json(msgspec.json.encode(written))


_WRITTEN = {
    "conversation": "conversation-id",
    "session_token": "session-token",
    "refers_to": "refers-to",
}
"""Names of fields that are others in the JSON of a message."""


def _at(given: Mapping[str, Any], place: str) -> str | None:
    """The text at a name, or below it with full stops; None when there is none."""
    value: Any = given
    for part in [place] if place in given else place.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or value is None:
        return None
    return str(value) if isinstance(value, str | int | float) else None


def _where(field: str, settings: WebhookInputSettings) -> str:
    place = settings.fields.get(field)
    return f"send {place!r}" if place else f"name {field!r} in the input's fields"


def _named_sender(message: Message, settings: WebhookInputSettings) -> Message:
    if not settings.senders:
        return message
    if message.sender in settings.senders.values():
        return message
    sender = _sender(message.sender.name, settings)
    return msgspec.structs.replace(message, sender=sender)


def _sender(value: str, settings: WebhookInputSettings) -> Identifier:
    found = settings.senders.get(value)
    if found is None:
        raise InvalidInput(
            "the input does not know this sender",
            code="input.unknown_sender",
            hint="add it to the input's senders",
        )
    return found


def _form(body: bytes) -> dict[str, str]:
    try:
        text = body.decode()
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:  # not text, or too many fields
        raise InvalidInput("the form cannot be read", code="input.bad_form") from None
    return dict(pairs)


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(
            f"the body is not JSON: {error}",
            code="message.not_a_message",
            hint="post the JSON of a message, CloudEvents, or a form",
        ) from None


def _check_count(found: Sequence[object]) -> None:
    if not found:
        raise InvalidInput("there is no message in it", code="message.not_a_message")
    if len(found) > MOST_MESSAGES:
        raise TooLarge(
            f"{len(found)} messages in one request; the limit is {MOST_MESSAGES}",
            code="event.batch_too_large",
        )
