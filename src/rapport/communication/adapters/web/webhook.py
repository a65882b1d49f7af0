"""HTTP webhook: the delivery as a CloudEvent by POST, signed, with an idempotency key. [CO-16,
PO-10]

The only home of httpx2 in this room: its exceptions become outcomes here.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import msgspec

from rapport.channel.push.signing import SENT_AT, TIMED_SIGNATURE, timed_signature
from rapport.channel.push.signing import SIGNATURE as SIGNATURE
from rapport.channel.push.signing import signature as signature
from rapport.communication.actions import Effect
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Outcome, adapter
from rapport.communication.adapters.settings import WebhookSettings
from rapport.communication.templates import clean
from rapport.core.times import format_time
from rapport.kernel.clock import Clock, SystemClock

_WORTH_A_RETRY = frozenset((408, 425, 429))


@adapter("webhook")
class WebhookAdapter:
    """Posts to the peer's address; redirects are not followed, since they could lead anywhere.

    Addresses within the own network are allowed: peers are declared by who runs the site.
    """

    name = "webhook"
    seals = True
    """Addresses that end with `;sealed` carry sealed texts (see sealed.py)."""

    def __init__(
        self,
        settings: WebhookSettings,
        link_for: Callable[[str, str], str],
        clock: Clock | None = None,
    ) -> None:
        """`link_for(message, peer)` gives the address to answer at; empty = none."""
        self._settings, self._link_for = settings, link_for
        self._clock = clock or SystemClock()
        self._client = httpx2.AsyncClient(
            timeout=settings.timeout_ms / 1_000, follow_redirects=False, trust_env=False
        )

    async def send(self, delivery: Delivery) -> Outcome:
        """2xx = confirmed; 5xx, 408, 425, 429 and an unreachable server are worth a retry."""
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
        with it, by which receivers refuse copies that are sent again later.
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
        """Closes kept connections."""
        await self._client.aclose()


def webhook_body(delivery: Delivery, link: str) -> bytes:
    """Structured CloudEvents JSON; the same bytes for every attempt, so receivers can compare."""
    if delivery.effect is not None:
        return _action_body(delivery, delivery.effect)
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": delivery.key,
            "source": "rapport",
            "type": "rapport.message",
            "subject": f"peer:{delivery.peer}",
            "time": format_time(delivery.time),
            "datacontenttype": "application/json",
            "data": {
                "message": delivery.message,
                "peer": delivery.peer,
                "text": delivery.text,
                "policy": delivery.policy,
                "detection": delivery.detection,
                "urgent": delivery.urgent,
                "wants_answer": delivery.wants_answer,
                "answer_at": link,
                **_said(delivery),
            },
        }
    )


def _said(delivery: Delivery) -> dict[str, str]:
    """What the message says of itself, as far as it does."""
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
    """The action's own data, with the detection that it follows from."""
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": effect.id,
            "source": "rapport",
            "type": effect.type,
            "subject": effect.subject or f"policy/{delivery.policy}",
            "time": format_time(effect.time),
            "datacontenttype": "application/json",
            "detection": delivery.detection,
            "data": msgspec.Raw(effect.data.encode()),
        }
    )


def _text(error: Exception) -> str:
    return clean(str(error))[:200] or type(error).__name__
