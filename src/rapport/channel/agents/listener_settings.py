"""What can be tuned of a listener, and how one stands. [CH-7]"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.channel.agents.node_line import TIMEOUT_SECONDS
from rapport.channel.agents.window import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Reason
from rapport.channel.requesting.batch import DEFAULT_LEASE_MINUTES, LONGEST_WAIT_MS, MOST_MESSAGES
from rapport.core.errors import InvalidInput

Activity = Literal["asking", "pausing", "full", "resting", "stopped", "closed"]
Mode = Literal["push", "pull"]
Acknowledging = Literal["automatic", "explicit"]


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit a program beside a node as well as one far away."""

    most_events: int = 10_000
    most_bytes: int = 16 * 1024 * 1024
    """Events that wait for the application at most, and their bytes (one set, 8 MiB or a single
    larger event, may come on top). While there are more, nothing is asked: memory is bounded, and
    the source keeps the rest.
    """
    batch_events: int = 500
    """Events per request. More is faster on slow lines; a lost answer repeats all of them."""
    wait_seconds: float = 30.0
    """How long the source may hold a request while there is nothing new: longer is fewer requests,
    shorter passes proxies that cut idle connections. At most a minute.
    """
    remote_lease_minutes: int = DEFAULT_LEASE_MINUTES
    """How long a source in memory keeps our session when we cannot reach it."""
    first_pause_ms: int = FIRST_PAUSE_MS
    longest_pause_ms: int = LONGEST_PAUSE_MS
    """After a failure the pause doubles from the first to the longest, less up to a half by
    chance.
    """
    request_seconds: float = TIMEOUT_SECONDS
    """How long an answer may be late."""
    attempts: int = 3
    """How often a callback is called with an event before it counts as failed."""
    retry_pause_ms: int = 100
    """Pause before the second attempt; doubles with each further one."""
    save_every_ms: int = 50
    """While events come without a gap the place is kept this often: what callbacks handled since
    then comes again after a kill. 0 = after each event, at the cost of two disk syncs.
    """


class ListenerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a listener stands."""

    activity: Activity
    mode: Mode
    waiting: int
    """Events in the cache."""
    handed_over: int
    """Events handed over in this run."""
    acknowledged: int
    """Position up to which everything is done."""
    failed: int
    """Events whose callback failed, and that were kept aside."""
    gone: int
    """Sets of which something was taken or let go before it came."""
    begun_again: int
    """Sessions that ran out at the source and were begun again."""
    trouble: Reason | None
    next_try_in_ms: int
    lease_left_ms: int | None
    """What is left of the local lease; None = it lasts as long as the listener."""
    remote_lease_minutes: int
    """The remote lease as it was granted last."""
    unreadable: int = 0
    """Positions that the source could not read; `Listener.gaps` names them."""


def check_settings(settings: ListenerSettings) -> None:
    """Raises InvalidInput for a number that cannot work."""
    limits = {
        "most_events": (settings.batch_events, 2**53),
        "most_bytes": (1, 2**53),
        "batch_events": (1, MOST_MESSAGES),
        "wait_seconds": (0, LONGEST_WAIT_MS / 1_000),
        "remote_lease_minutes": (1, 2**53),
        "first_pause_ms": (1, 2**53),
        "longest_pause_ms": (1, 2**53),
        "request_seconds": (0.001, 2**53),
        "attempts": (1, 2**53),
        "retry_pause_ms": (0, 2**53),
        "save_every_ms": (0, 2**53),
    }
    for name, (low, high) in limits.items():
        if not low <= getattr(settings, name) <= high:
            raise InvalidInput(
                f"{name} cannot be {getattr(settings, name)}",
                code="settings.out_of_range",
                hint=f"{low} to {high}" if high < 2**53 else f"at least {low}",
            )
