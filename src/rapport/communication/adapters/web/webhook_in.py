"""Webhooks in: what `POST /inputs/NAME` takes, and who may post there. [CO-16, CO-5]

The door is in the web room and calls `take`; here are the proof and the way into the engine. A
request is proved by a signature over its time and body, or by a caller whom the site gives the
right to publish to `input.NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapport.channel.push.signing import SENT_AT, SIGNATURE, TIMED_SIGNATURE, is_signed
from rapport.communication.adapters.incoming.input_base import Arrival, Intake
from rapport.communication.adapters.web.settings import WebhookInputSettings
from rapport.communication.adapters.web.webhook_messages import (
    messages_of_body,
    messages_of_events,
    named,
)
from rapport.core.errors import NotAuthenticated, TooLarge, Unavailable
from rapport.core.event import Event
from rapport.core.message import Message

IDEMPOTENCY_KEY = "idempotency-key"
_LONGEST_KEY = 256


class WebhookInput:
    """One input by HTTP, at the door that bears its name."""

    name = "webhook"

    def __init__(self, settings: WebhookInputSettings) -> None:
        self.settings = settings
        self._intake: Intake | None = None

    async def start(self, intake: Intake) -> None:
        """From now on the door takes messages."""
        self._intake = intake

    async def stop(self) -> None:
        """The door is closed."""
        self._intake = None

    def is_signed(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> bool:
        """Whether the request is signed; False for one without a signature.

        Raises NotAuthenticated for a wrong or old one. `headers` have lower-case names.
        """
        given = headers.get(TIMED_SIGNATURE.lower()) or headers.get(SIGNATURE.lower())
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
    ) -> Sequence[Arrival]:
        """Takes what was posted, or the CloudEvents in it; durable when it returns.

        Sent again under the same key or signature it is taken once. Raises InvalidInput for what
        is no message, Unavailable while the input is not running.
        """
        if self._intake is None:
            raise Unavailable("the input is not running", code="input.not_running")
        if events is not None:
            messages = messages_of_events(events, self.settings, self._intake.name)
        else:
            media_type = headers.get("content-type", "")
            messages = messages_of_body(body, media_type, self.settings)
        return await self._intake.publish(self._named(messages, headers, caller))

    def _named(
        self, messages: list[Message], headers: Mapping[str, str], caller: str
    ) -> list[Message]:
        """With ids that follow from what names the request: a replay is dropped as known."""
        assert self._intake is not None
        given = headers.get(TIMED_SIGNATURE.lower()) or headers.get(SIGNATURE.lower(), "")
        mark = headers.get(IDEMPOTENCY_KEY, "")[:_LONGEST_KEY] or given
        if not mark:
            return messages
        return [
            message if message.id else named(message, self._intake.name, caller, mark, str(index))
            for index, message in enumerate(messages)
        ]
