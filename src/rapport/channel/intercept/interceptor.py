"""What an interceptor is: one step of the chain around append, around delivery, or behind. [CH-10]

Three shapes, each with one method. `on_append` and `on_delivery` see every event in the caller's
own task and must be fast. `follow` is fed from the log, behind a place of its own that is durable:
what it does is done for every event, also after a crash, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from rapport.core.event import Event, StoredEvent

At = Literal["append", "delivery"]


@runtime_checkable
class AppendInterceptor(Protocol):
    """Sees events before they are appended."""

    def on_append(self, channel: str, event: Event) -> Sequence[Event]:
        """What is appended instead: the event itself, others, more than one; nothing = dropped."""


@runtime_checkable
class DeliveryInterceptor(Protocol):
    """Sees what a reader is given."""

    def on_delivery(self, channel: str, reader: str, stored: StoredEvent) -> Sequence[StoredEvent]:
        """What the reader is given instead, with the same position; nothing = passed over."""


@runtime_checkable
class FollowingInterceptor(Protocol):
    """Sees events once they are durable, in order; again after a crash, so it must do things under
    ids that follow from the event.
    """

    async def follow(self, channel: str, events: Sequence[StoredEvent]) -> None:
        """Does its work for these events; durable when it returns."""


class Missing:
    """Stands for one that is kept and cannot be made: its plug-in is not installed, or what it
    names is gone. Around append it does nothing, and is off; around delivery nothing is given out
    until it is made or removed, as nobody knows what it would hide.
    """


Interceptor = AppendInterceptor | DeliveryInterceptor | FollowingInterceptor | Missing


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """An interceptor as it is kept: what it does where. New fields go at the end with a default."""

    name: str
    channels: str
    """Name or pattern."""
    kind: str
    at: At = "append"
    settings: dict[str, Any] = {}
    order: float = 0.0
    """Lower ones come first."""


class Standing(msgspec.Struct):
    """An interceptor in the chain, and how it fared since the start."""

    declared: Declared
    interceptor: Interceptor
    is_kept: bool
    """Whether it outlives a restart."""
    seen: int = 0
    changed: int = 0
    dropped: int = 0
    faults: int = 0
    faults_in_a_row: int = 0
    last_error: str = ""
    is_off: bool = False
    """Switched off after too many faults in a row."""

    @property
    def holds_back(self) -> bool:
        """Whether it is a rule of delivery that cannot be made: nothing passes without it."""
        return self.declared.at == "delivery" and isinstance(self.interceptor, Missing)


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An interceptor as a door shows it."""

    name: str
    channels: str
    kind: str
    at: At
    settings: dict[str, Any]
    is_kept: bool
    state: Literal["on", "off", "holds back"]
    """`holds back`: it cannot be made, and nothing is delivered without it."""
    seen: int
    changed: int
    dropped: int
    faults: int
    last_error: str


def shown(standing: Standing) -> Shown:
    """The interceptor for people."""
    declared = standing.declared
    return Shown(
        name=declared.name,
        channels=declared.channels,
        kind=declared.kind,
        at=declared.at,
        settings=declared.settings,
        is_kept=standing.is_kept,
        state="holds back" if standing.holds_back else "off" if standing.is_off else "on",
        seen=standing.seen,
        changed=standing.changed,
        dropped=standing.dropped,
        faults=standing.faults,
        last_error=standing.last_error,
    )
