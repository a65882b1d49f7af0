"""How much one adapter does at a time. [CO-4]"""

from __future__ import annotations

import msgspec


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one adapter does at a time."""

    workers: int = 16
    """Most calls of the adapter at once. A worker comes when something may be sent and goes when
    nothing may; more of them help while a call mostly waits for the medium. A call that takes
    longer than half a second counts no more, so that peers who hang hold up nobody else: then
    there may be up to 16 times as many. With 1 there is never a second call.
    """
    batch: int = 1_000
    """Most deliveries in one call, for adapters that take many."""
    deadline_ms: int = 15_000
    """A call that takes longer is cancelled and counts as failed, worth a retry."""
    in_flight: int = 4_000
    """Most deliveries read ahead; bounds memory together with their size."""


DEFAULT_SETTINGS = DispatchSettings()
