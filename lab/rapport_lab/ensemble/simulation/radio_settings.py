"""What a simulated radio is like, and what it counts. [EN-11]"""

from __future__ import annotations

from typing import Final

import msgspec

from rapport.core.errors import InvalidInput


class RadioSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the radio is like; every part can be switched off."""

    queue_ms: float = 100.0
    """What is to be sent waits so long before it is tried to send it."""
    queue_length: int = 100
    """Messages of one node that wait; more are dropped."""
    bit_rate: float = 250_000.0
    """Bits per second, for the time on air."""
    air_ms: float | None = None
    """The time on air of every message, whatever its size."""
    largest_bytes: int = 1_152
    """More does not fit a message, who sends it has to part it: 1,024 bytes of content, and names
    and numbers around it.
    """
    carrier_sense: bool = True
    unit_ms: float = 0.32
    """The unit of back-off."""
    least_exponent: int = 3
    """The first wait is drawn from 0 to 2**this - 1 units; one more after each time it was busy, up
    to: """
    greatest_exponent: int = 5
    most_back_offs: int = 4
    """Waits after the first; still busy then, the message is dropped."""
    turnaround_ms: float = 0.192
    """From listening to sending; two in range that listen within it collide."""
    collisions: bool = True
    """Who hears two at once, or sends itself, receives neither."""
    loss: float = 0.0
    """The chance that one receiver does not receive a message, for any other reason."""

    def __post_init__(self) -> None:
        times = (self.queue_ms, self.air_ms or 0.0, self.unit_ms, self.turnaround_ms)
        counts = (self.queue_length - 1, self.largest_bytes - 1, self.most_back_offs)
        exponents = 0 <= self.least_exponent <= self.greatest_exponent <= 20
        if min(*times, *counts) < 0 or not exponents or not 0 <= self.loss <= 1:
            raise _bad_settings(self)
        if not self.bit_rate > 0:
            raise _bad_settings(self)


def _bad_settings(settings: RadioSettings) -> InvalidInput:
    return InvalidInput(
        f"no radio is like this: {settings}",
        code="ensemble.bad_radio",
        hint="times and counts of 0 or more, a bit rate above 0, a loss from 0 to 1",
    )


EXACT: Final = RadioSettings(air_ms=1.0, carrier_sense=False, collisions=False)
"""One hop takes exactly 101 ms and nothing is ever lost."""


class RadioCounters(msgspec.Struct):
    """What became of messages; only ever growing.

    sent = on_air + gave_up + overflowed + cut + those that wait.
    offered = delivered + collided + lost + away.
    """

    sent: int = 0
    on_air: int = 0
    gave_up: int = 0
    """Dropped, because the air was never free."""
    overflowed: int = 0
    """Dropped, because the queue was full."""
    cut: int = 0
    """Waited when their node was switched off."""
    back_offs: int = 0
    """Times that somebody listened and heard another."""
    bytes: int = 0
    air_ms: float = 0.0
    """The time on air of all together."""
    offered: int = 0
    """Messages on air times those in range."""
    delivered: int = 0
    collided: int = 0
    lost: int = 0
    away: int = 0
    """In range, but switched off; or the sender was, in the midst of it."""
