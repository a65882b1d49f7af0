"""Circuit breakers of one adapter, one for each peer and address: whoever hangs is left alone for a
while. Pure; time is an argument. [CO-4]

Closed: calls go through. Open, after three failures in a row or two timeouts: calls are refused at
once. Half-open, when the pause is over: one call goes through as a probe; it closes the breaker or
opens it for twice as long. What a medium *knows* (`unavailable`, a refused address) is an answer,
not a failure: it costs no time, so there is nothing to protect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Literal

import msgspec

from rapport.communication.adapters.base import Delivery, Failed, Outcome
from rapport.communication.peers import shown_address

CircuitState = Literal["closed", "open", "half-open"]
OPEN_AFTER, TIMEOUT_COUNTS = 3, 2
"""Failures in a row, and for how many of them a timeout counts."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 2_000, 60_000
_MOST = 20_000
"""Peers and addresses with failures that are remembered; the oldest is forgotten first."""


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker that is not closed, as people see it."""

    peer: str
    address: str
    """In its shown form."""
    state: CircuitState
    failures: int
    """In a row; a timeout counts as two."""
    reason: str
    """Of the last failure."""
    probe_at: int
    """From then on one call goes through, ms UTC."""


class _Breaker(msgspec.Struct):
    failures: int = 0
    pause_ms: int = 0
    """0 while it is closed."""
    probe_at: int = 0
    reason: str = ""


class Breakers:
    """Holds the peers with a failure since their last success; the others cost nothing."""

    def __init__(self) -> None:
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        self._peers: Counter[str] = Counter()

    @property
    def suspects(self) -> Collection[str]:
        """Peers whose last call failed: a view that follows every change."""
        return self._peers.keys()

    def refusal(self, delivery: Delivery, now_ms: int) -> Failed | None:
        """Why a delivery is not to be sent now, or None. The first that is let through to a
        half-open one is its probe: until its outcome, or for a pause, no other is.
        """
        found = self._breakers.get((delivery.peer, delivery.address))
        if found is None or not found.pause_ms:
            return None
        # A clock that was set back opens nothing for longer than a pause.
        if found.probe_at <= now_ms or found.probe_at > now_ms + LONGEST_PAUSE_MS:
            found.probe_at = now_ms + found.pause_ms
            return None
        reason = f"circuit open, not tried: the last calls failed ({found.reason})"
        return Failed(reason, retry=True, unavailable=True)

    def note(self, delivery: Delivery, outcome: Outcome, now_ms: int, *, timed_out: bool) -> None:
        """Takes the outcome of a call."""
        key = delivery.peer, delivery.address
        if not isinstance(outcome, Failed):
            if self._breakers:
                self._close(key)
            return
        if outcome.unavailable or not outcome.retry:
            return
        found = self._breakers.get(key)
        if found is None:
            found = self._add(key)
        found.failures += TIMEOUT_COUNTS if timed_out else 1
        found.reason = outcome.reason
        if found.failures >= OPEN_AFTER:
            found.pause_ms = min(found.pause_ms * 2 or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
            found.probe_at = now_ms + found.pause_ms

    def status(self, now_ms: int) -> list[CircuitStatus]:
        """Those that are open or half-open, by peer and address."""
        return [
            CircuitStatus(
                peer=peer,
                address=shown_address(address),
                state="open" if now_ms < found.probe_at else "half-open",
                failures=found.failures,
                reason=found.reason,
                probe_at=found.probe_at,
            )
            for (peer, address), found in sorted(self._breakers.items())
            if found.pause_ms
        ]

    def _add(self, key: tuple[str, str]) -> _Breaker:
        if len(self._breakers) >= _MOST:
            self._close(next(iter(self._breakers)))
        self._peers[key[0]] += 1
        made = self._breakers[key] = _Breaker()
        return made

    def _close(self, key: tuple[str, str]) -> None:
        if self._breakers.pop(key, None) is None:
            return
        self._peers[key[0]] -= 1
        if not self._peers[key[0]]:
            del self._peers[key[0]]
