"""What an output adapter is: it takes one delivery to one address and says what became of it.
[CO-4]

Adapters know nothing of policies, channels or retries. A new medium is one file with one class
that fits `OutputAdapter`, registered as an entry point `rapport.adapters`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from rapport.communication.effects import Effect
from rapport.core.event import CAUSE, Event, make_event
from rapport.core.ids import content_id

DELIVERY = "rapport.output.delivery"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to bring one message to one address."""

    message: str
    peer: str
    address: str
    """Adapter and parameters: `mail:ana@example.org`."""
    attempt: int
    text: str
    policy: str = ""
    detection: str = ""
    time: int = 0
    """When the situation was, ms UTC."""
    queued: int = 0
    """When this attempt was queued, ms UTC."""
    expires: int = 0
    """After this nobody needs it any more; 0 = never."""
    urgent: bool = False
    wants_answer: bool = False
    effect: Effect | None = None
    """What is to be done, for an action that tells nobody."""

    @property
    def id(self) -> str:
        """Names this attempt; the same also when it is written again after a crash."""
        return content_id("delivery", self.message, self.peer, self.address, str(self.attempt))

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt, so a medium can drop what it knows. An
        action has the detection's id, by which receivers find what they know of it.
        """
        if self.effect is not None:
            return self.detection
        return content_id("key", self.message, self.peer, self.address)

    @property
    def target(self) -> str:
        """The address without the adapter's name."""
        return self.address.partition(":")[2]

    def to_event(self) -> Event:
        """The delivery as an event of `output.<adapter>`."""
        return make_event(
            source="communication",
            id=self.id,
            type=DELIVERY,
            subject=self.message,
            time=self.queued,
            data=self,
            headers={CAUSE: self.message},
        )

    @staticmethod
    def from_event(event: Event) -> Delivery:
        """The delivery that `to_event` wrote."""
        delivery: Delivery = event.payload_as(Delivery)
        return delivery


class Sent(msgspec.Struct, frozen=True, tag="handed"):
    """The medium took it; whether it arrived is not known."""

    reference: str = ""


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """The other side said that it has it."""

    reference: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It did not go; `retry` tells whether trying again can help."""

    reason: str
    retry: bool


Outcome = Sent | Confirmed | Failed


class OutputAdapter(Protocol):
    """A medium. Stateless: one instance serves all peers, several sends may run at once."""

    name: str

    async def send(self, delivery: Delivery) -> Outcome:
        """Hands the delivery to the medium. Failures are values; an exception is a fault of the
        adapter.

        May be cancelled when it takes too long; then nobody knows whether it went.
        """

    async def close(self) -> None:
        """Lets go of connections; a second call is no error."""
