"""A message to a person or machine, with the twelve fields of the source and its JSON form. [CO-1,
CO-2]
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, Event, make_event

MESSAGE = "rapport.message"

Kind = Literal["peer", "collective", "component"]
MessagePolicy = Literal["unreliable", "acknowledged"]


class Identifier(msgspec.Struct, frozen=True, order=True):
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
        return Identifier(kind, name)


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is said to whom. `type`, `subtype` and `sender` are mandatory; the engine fills in `id`."""

    type: str
    subtype: str
    sender: Identifier
    id: str = ""
    receiver: Identifier | None = None
    conversation: str = ""
    content: str = ""
    ttl: int = 0
    """Milliseconds after which nobody needs it any more; 0 = never."""
    language: str = ""
    session_token: str = ""
    delivery_policy: MessagePolicy = "acknowledged"
    refers_to: str = ""
    urgent: bool = False
    """Ours: breaks through quiet hours."""

    def to_event(
        self, *, source: str, time: int, causes: tuple[str, ...] = (), **extra: Any
    ) -> Event:
        """The message as an event of the channel, naming what made us write it."""
        return make_event(
            source=source,
            id=self.id,
            type=MESSAGE,
            subject=str(self.receiver) if self.receiver else "",
            time=time,
            data=msgspec.to_builtins(self) | extra,
            headers={CAUSE: " ".join(causes)} if causes else {},
        )

    @staticmethod
    def from_event(event: Event) -> Message:
        """The message that `to_event` wrote."""
        message: Message = event.payload_as(Message)
        return message
