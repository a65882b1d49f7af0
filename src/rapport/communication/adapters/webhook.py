"""HTTP webhooks out and in: deliveries as CloudEvents by POST, and `POST /inputs/NAME`. [CO-5,
CO-16, PO-10, UX-2]

```toml
[inputs.gateway]                       # POST /inputs/gateway
adapter = "webhook"
secret = "file:gateway.secret"         # or a token with the right to publish to input.gateway
fields = { sender = "From", content = "Body" }         # of a form, or of JSON that is no message
defaults = { type = "REPLY", subtype = "SMS" }
senders = { "+43660123456" = "peer:ana" }
```

Deliveries are signed and have an idempotency key. The web package owns the endpoint of an input and
calls `WebhookInput.take`. A request is proved by a signature over its time and body, or by a caller
that has the right to publish to `input.NAME`. A body is JSON of a message, CloudEvents, or a form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from rapport.channel.push import (
    FRESH_MS,
    SENT_AT,
    SIGNATURE,
    TIMED_SIGNATURE,
    is_signed,
    signature,
    timed_signature,
)
from rapport.communication.actions import Effect
from rapport.communication.adapters.base import (
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    adapter,
    read_secret_field,
)
from rapport.communication.adapters.input_base import Intake
from rapport.communication.arrival_checks import RecentEntries
from rapport.communication.arrivals import ArrivalResult
from rapport.communication.texts import clean
from rapport.core.errors import InvalidInput, NotAuthenticated, TooLarge, Unavailable
from rapport.core.event import Event, content_id
from rapport.core.message import Identifier, Message
from rapport.core.times import format_time
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.config_fields import Fields

# --- settings ---


WEBHOOK_INPUT_KEYS = ("secret", "fields", "defaults", "senders", "most_bytes")
MESSAGE_FIELDS = (
    *("id", "type", "subtype", "sender", "receiver", "conversation", "content"),
    *("language", "session_token", "refers_to"),
)
"""Fields that may be read from a form, or set for all."""
LARGEST_BODY = 8 * 1024 * 1024
_SHORTEST_SECRET = 16


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.webhook]` table. The secret is read from a file or variable, never shown."""

    secret: str = ""
    """Signs every body (HMAC-SHA256); empty = unsigned."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 10_000

    def __repr__(self) -> str:
        return f"WebhookSettings(timeout_ms={self.timeout_ms})"


class WebhookInputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an `[inputs.NAME]` with `adapter = "webhook"`; the secret is never shown."""

    secret: str = ""
    """Signs time and body (HMAC-SHA256); empty = only callers with a token and the right."""
    fields: dict[str, str] = {}
    """The place of each field; empty = the body is JSON of a message."""
    defaults: dict[str, str] = {}
    senders: dict[str, Identifier] = {}
    """Values of the sender's field; if there are some, no others pass."""
    most_bytes: Annotated[int, Meta(ge=1, le=LARGEST_BODY)] = 1024 * 1024

    def __repr__(self) -> str:
        return f"WebhookInputSettings(fields={self.fields!r}, senders={len(self.senders)})"


def read_webhook_input(table: Fields, directory: Path) -> WebhookInputSettings:
    """The settings of an HTTP input."""
    secret = read_secret_field("secret", table, directory)
    if secret and len(secret) < _SHORTEST_SECRET:
        message = f"the secret is shorter than {_SHORTEST_SECRET} characters"
        table.fault("secret", "settings.weak_secret", message, hint="openssl rand -hex 32")
    fields, defaults = _texts(table, "fields"), _texts(table, "defaults")
    _check_complete(table, fields, defaults)
    return table.settings(
        WebhookInputSettings(),
        secret=secret,
        fields=fields,
        defaults=defaults,
        senders=_senders(table),
    )


def _texts(table: Fields, key: str) -> dict[str, str]:
    below = table.table(key, MESSAGE_FIELDS, '{ sender = "From" }')
    if below is None:
        return {}
    return {name: below.filled_text(name, "") for name in below.section.values}


def _check_complete(table: Fields, fields: dict[str, str], defaults: dict[str, str]) -> None:
    given: dict[str, Any] = {**fields, **defaults}
    missing = [name for name in ("type", "subtype", "sender") if name not in given]
    if given and missing:
        table.fault(
            "fields",
            "input.missing_field",
            f"nothing says the {missing[0]} of a message",
            hint=f"name it in fields or defaults: {', '.join(missing)}",
        )


def _senders(table: Fields) -> dict[str, Identifier]:
    below = table.table("senders", None, '{ "+43660123456" = "peer:ana" }')
    found: dict[str, Identifier] = {}
    for value in below.section.values if below is not None else ():
        assert below is not None
        text = below.filled_text(value, "", example='"peer:ana"')
        try:
            found[value] = Identifier.parse(text if ":" in text else f"peer:{text}")
        except InvalidInput as error:
            below.report(value, error)
    return found


# --- output ---


_WORTH_A_RETRY = frozenset((408, 425, 429))


@adapter("webhook")
class WebhookAdapter:
    """Posts to the peer's address; redirects are not followed, since they could lead anywhere.
    Addresses within the own network are allowed: peers are declared by the site's operator.
    """

    name = "webhook"
    seals = True
    """Addresses that end with `;sealed` carry sealed texts (see factory.py)."""

    def __init__(
        self,
        settings: WebhookSettings,
        link_for: Callable[[str, str], str],
        clock: Clock | None = None,
    ) -> None:
        """`link_for(message, peer)` gives the address to answer at; empty = none."""
        import httpx2

        self._settings, self._link_for = settings, link_for
        self._clock = clock or SystemClock()
        self._client = httpx2.AsyncClient(
            timeout=settings.timeout_ms / 1_000, follow_redirects=False, trust_env=False
        )

    async def send(self, delivery: Delivery) -> Outcome:
        """2xx = confirmed; 5xx, 408, 425, 429 and an unreachable server are worth a retry."""
        import httpx2

        body = webhook_body(delivery, self._link_for(delivery.message, delivery.peer))
        try:
            async with self._client.stream(
                "POST", delivery.target, content=body, headers=self._headers(delivery, body)
            ) as response:
                status = response.status_code
        except httpx2.TimeoutException:
            return Failed("the server did not answer in time", retry=True)
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            # The driver's text would show the address, which may hold a secret.
            return Failed("the address cannot be used", retry=False)
        except httpx2.HTTPError as error:
            return Failed(f"the server cannot be reached: {_text(error)}", retry=True)
        if 200 <= status < 300:
            return Confirmed(f"HTTP {status}")
        retry = status >= 500 or status in _WORTH_A_RETRY
        return Failed(f"the server answered HTTP {status}", retry=retry)

    def _headers(self, delivery: Delivery, body: bytes) -> dict[str, str]:
        """Two signatures: of the body alone, the same for every attempt, and of the time of sending
        with it, by which receivers refuse copies sent later.
        """
        headers = {
            "Content-Type": "application/cloudevents+json",
            "Idempotency-Key": delivery.key,
        }
        if secret := self._settings.secret:
            now_ms = self._clock.now_ms()
            headers[SIGNATURE] = signature(secret, body)
            headers[SENT_AT] = str(now_ms)
            headers[TIMED_SIGNATURE] = timed_signature(secret, body, now_ms)
        return headers

    async def close(self) -> None:
        await self._client.aclose()


def webhook_body(delivery: Delivery, link: str) -> bytes:
    """Structured CloudEvents JSON; the same bytes for every attempt."""
    if delivery.effect is not None:
        return _action_body(delivery, delivery.effect)
    data = {
        "message": delivery.message,
        "peer": delivery.peer,
        "text": delivery.text,
        "policy": delivery.policy,
        "detection": delivery.detection,
        "urgent": delivery.urgent,
        "wants_answer": delivery.wants_answer,
        "answer_at": link,
        **_own_fields(delivery),
    }
    about = delivery.key, "rapport.message", f"peer:{delivery.peer}", delivery.time
    return _cloud_event(*about, data=data)


def _cloud_event(id: str, type: str, subject: str, time_ms: int, **more: object) -> bytes:
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": id,
            "source": "rapport",
            "type": type,
            "subject": subject,
            "time": format_time(time_ms),
            "datacontenttype": "application/json",
            **more,
        }
    )


def _own_fields(delivery: Delivery) -> dict[str, str]:
    """The message's own fields that are not empty."""
    fields = {
        "type": delivery.type,
        "subtype": delivery.subtype,
        "sender": delivery.sender,
        "conversation": delivery.conversation,
        "language": delivery.language,
        "refers_to": delivery.refers_to,
    }
    return {name: text for name, text in fields.items() if text}


def _action_body(delivery: Delivery, effect: Effect) -> bytes:
    """The action's data, with the detection that caused it."""
    subject, data = effect.subject or f"policy/{delivery.policy}", effect.data.encode()
    about = effect.id, effect.type, subject, effect.time
    return _cloud_event(*about, detection=delivery.detection, data=msgspec.Raw(data))


def _text(error: Exception) -> str:
    return clean(str(error))[:200] or type(error).__name__


# --- input ---


IDEMPOTENCY_KEY = "idempotency-key"
_LONGEST_KEY = 256
_MOST_SEEN = 20_000


class WebhookInput:
    """One HTTP input, at the endpoint with its name."""

    name = "webhook"

    def __init__(self, settings: WebhookInputSettings) -> None:
        self.settings = settings
        self._intake: Intake | None = None
        # A signature covers time and body only: a copy under another key has no effect either.
        # One clock may be ahead and the other behind; what is older is refused as too old.
        self._seen = RecentEntries[Sequence[ArrivalResult]](2 * FRESH_MS, _MOST_SEEN)

    async def start(self, intake: Intake) -> None:
        self._intake = intake

    async def stop(self) -> None:
        self._intake = None

    def is_signed(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> bool:
        """Whether the request is signed; False for one without a signature.

        Raises NotAuthenticated for a wrong or old one. `headers` have lower-case names.
        """
        given = _given(headers)
        if not given or not self.settings.secret:
            return False
        sent_at = headers.get(SENT_AT.lower(), "")
        if not is_signed(self.settings.secret, sent_at, given, body, now_ms):
            raise NotAuthenticated(
                "the signature is wrong or too old",
                code="input.bad_signature",
                hint=f"sign the {SENT_AT} in milliseconds, a full stop and the body; see the docs",
            )
        return True

    def check_size(self, body: bytes) -> None:
        """Raises TooLarge."""
        if len(body) > self.settings.most_bytes:
            raise TooLarge(f"{len(body)} bytes; this input takes {self.settings.most_bytes}")

    async def take(
        self,
        headers: Mapping[str, str],
        body: bytes,
        events: Sequence[Event] | None = None,
        *,
        caller: str = "",
        admit: Callable[[int], None] = lambda _messages: None,
    ) -> Sequence[ArrivalResult]:
        """Publishes the messages of a request, or of the CloudEvents in it; durable on return. The
        same key or signature again is taken once. Raises InvalidInput for a body without a message,
        Unavailable while the input is not running. `admit` gets the number of messages before any
        is published; what it raises refuses all.
        """
        if self._intake is None:
            raise Unavailable("the input is not running", code="input.not_running")
        signature = _given(headers) if self.settings.secret else ""  # checked before
        if (known := self._seen.get(signature)) is not None:
            return known
        if events is not None:
            messages = messages_of_events(events, self.settings, self._intake.name)
        else:
            media_type = headers.get("content-type", "")
            messages = messages_of_body(body, media_type, self.settings)
        admit(len(messages))
        arrivals = await self._intake.publish(self._named(messages, headers, caller))
        if signature and arrivals and all(one.accepted for one in arrivals):
            self._seen.note(signature, int(headers.get(SENT_AT.lower(), "")), arrivals)
        return arrivals

    def _named(
        self, messages: list[Message], headers: Mapping[str, str], caller: str
    ) -> list[Message]:
        """Messages with ids derived from the request's key or signature: a replay is dropped as
        known.
        """
        assert self._intake is not None
        mark = headers.get(IDEMPOTENCY_KEY, "")[:_LONGEST_KEY] or _given(headers)
        if not mark:
            return messages
        return [
            message if message.id else named(message, self._intake.name, caller, mark, str(index))
            for index, message in enumerate(messages)
        ]


def _given(headers: Mapping[str, str]) -> str:
    return headers.get(TIMED_SIGNATURE.lower()) or headers.get(SIGNATURE.lower(), "")


# --- bodies ---


MOST_MESSAGES = 1_000
"""In one request."""
MOST_FIELDS = 200
FORM_TYPE = "application/x-www-form-urlencoded"


def messages_of_body(body: bytes, media_type: str, settings: WebhookInputSettings) -> list[Message]:
    """The messages in a body that is no CloudEvent; raises InvalidInput."""
    if media_type.partition(";")[0].strip().lower() == FORM_TYPE:
        return [_mapped(_form(body), settings)]
    value = _json(body)
    values = value if isinstance(value, list) else [value]
    _check_count(values)
    return [_message(one, settings) for one in values]


def messages_of_events(
    events: Sequence[Event], settings: WebhookInputSettings, name: str
) -> list[Message]:
    """The messages in the data of CloudEvents. One without an id gets one derived from its event,
    so that a repeated event is recognised.
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
    """The message with an id derived from `parts`."""
    return msgspec.structs.replace(message, id=content_id("posted", *parts))


def _message(value: Any, settings: WebhookInputSettings) -> Message:
    if settings.fields or settings.defaults:
        return _mapped(value if isinstance(value, dict) else {}, settings)
    return _named_sender(Message.from_json(msgspec.json.encode(value)), settings)


def _mapped(given: Mapping[str, Any], settings: WebhookInputSettings) -> Message:
    """A message of the fields that the site names."""
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
"""Fields with another name in the JSON of a message."""


def _at(given: Mapping[str, Any], place: str) -> str | None:
    """The text at a name, or at a path with full stops; None when there is none."""
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
