"""Webhooks in: what `POST /inputs/NAME` takes, and who may post there. [CO-16, CO-5]

The door is in the web room and calls `take`; here are the proof and the way into the engine. A
request is proved by a signature over its time and body, or by a caller whom the site gives the
right to publish to `input.NAME`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from rapport.channel.push.signing import FRESH_MS, SENT_AT, SIGNATURE, TIMED_SIGNATURE, is_signed
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
_MOST_SEEN = 20_000


class WebhookInput:
    """One input by HTTP, at the door that bears its name."""

    name = "webhook"

    def __init__(self, settings: WebhookInputSettings) -> None:
        self.settings = settings
        self._intake: Intake | None = None
        self._seen = RecentRequests()

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
    ) -> Sequence[Arrival]:
        """Takes what was posted, or the CloudEvents in it; durable when it returns.

        Sent again under the same key or signature it is taken once. Raises InvalidInput for what
        is no message, Unavailable while the input is not running.

        Args:
            admit: told how many messages there are before any is taken; what it raises refuses all.
        """
        if self._intake is None:
            raise Unavailable("the input is not running", code="input.not_running")
        if (arrivals := self._seen.get(self._signature(headers))) is not None:
            return arrivals
        if events is not None:
            messages = messages_of_events(events, self.settings, self._intake.name)
        else:
            media_type = headers.get("content-type", "")
            messages = messages_of_body(body, media_type, self.settings)
        admit(len(messages))
        arrivals = await self._intake.publish(self._named(messages, headers, caller))
        self._seen.note(self._signature(headers), headers.get(SENT_AT.lower(), ""), arrivals)
        return arrivals

    def _signature(self, headers: Mapping[str, str]) -> str:
        """That of a signed request, which was checked before; empty for others."""
        return _given(headers) if self.settings.secret else ""

    def _named(
        self, messages: list[Message], headers: Mapping[str, str], caller: str
    ) -> list[Message]:
        """With ids that follow from what names the request: a replay is dropped as known."""
        assert self._intake is not None
        mark = headers.get(IDEMPOTENCY_KEY, "")[:_LONGEST_KEY] or _given(headers)
        if not mark:
            return messages
        return [
            message if message.id else named(message, self._intake.name, caller, mark, str(index))
            for index, message in enumerate(messages)
        ]


class RecentRequests:
    """Signed requests that were taken lately, and what became of them. The signature covers time
    and body only: a copy under another `Idempotency-Key` or `ce-id` has no effect either. After a
    restart what names the messages serves, and the five minutes.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[int, Sequence[Arrival]]] = OrderedDict()

    def get(self, signature: str) -> Sequence[Arrival] | None:
        """What became of the request with that signature; None for one that is new."""
        found = self._seen.get(signature)
        return None if found is None else found[1]

    def note(self, signature: str, sent_at: str, arrivals: Sequence[Arrival]) -> None:
        """Called when it was taken; one of which something was refused may come again."""
        if not signature or not arrivals or not all(one.accepted for one in arrivals):
            return
        sent_ms = int(sent_at)
        self._seen[signature] = (sent_ms, arrivals)
        while self._seen:
            oldest = next(iter(self._seen))
            # One clock may be ahead and the other behind; what is older is refused as too old.
            is_over = sent_ms - self._seen[oldest][0] > 2 * FRESH_MS
            if not is_over and len(self._seen) <= _MOST_SEEN:
                return
            del self._seen[oldest]


def _given(headers: Mapping[str, str]) -> str:
    return headers.get(TIMED_SIGNATURE.lower()) or headers.get(SIGNATURE.lower(), "")
