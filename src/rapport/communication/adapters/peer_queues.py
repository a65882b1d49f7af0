"""Per-peer queues and circuit breakers of one adapter: peers are served side by side, each in
order, and a peer whose calls hang is left alone for a while. Pure; time is an argument. [CO-4]

A breaker belongs to one peer and address. Closed: calls go through. Open, after three failures in a
row (a timeout counts as two): calls are refused at once. Half-open, when the pause is over: one
call goes through as a probe; it closes the breaker, or opens it for twice as long. A medium that
*knows* the answer (`unavailable`, a refused address) costs no time, so it opens no breaker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from rapport.communication.adapters.base import Delivery, Failed, Outcome
from rapport.communication.peers import shown_address

CircuitState = Literal["closed", "open", "half-open"]
OPEN_AFTER, TIMEOUT_COUNTS = 3, 2
"""Failures in a row, and for how many of them a timeout counts."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 2_000, 60_000
_MOST_BREAKERS = 20_000
"""Peers and addresses with failures that are remembered; the oldest is forgotten first."""
_MOST_SPARE = 1_000


class PendingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery with its position in the adapter's channel."""

    position: int
    delivery: Delivery
    starts: int = 0
    """How often earlier processes began it and died."""


class PeerQueues:
    """Deliveries that wait, one queue per peer. A peer is busy while one of its deliveries is being
    sent; nothing more of it is given out meanwhile, so its deliveries stay in order. Peers are
    served in turn, suspects after the others.
    """

    def __init__(self, suspects: Collection[str] = ()) -> None:
        """`suspects`: a view of the peers whose last call failed."""
        self._suspects = suspects
        self._queues: dict[str, deque[PendingDelivery]] = {}
        """Of peers that wait or are busy."""
        self._ready: deque[str] = deque()
        self._ready_suspects: deque[str] = deque()
        self._spare: list[deque[PendingDelivery]] = []
        """Empty ones: peers come and go with every batch, and a new deque costs more."""

    def put(self, entries: Iterable[PendingDelivery]) -> None:
        """Queues each behind others for the same peer."""
        queues, ready, spare = self._queues, self._ready, self._spare
        suspects = self._suspects
        for entry in entries:
            peer = entry.delivery.peer
            queue = queues.get(peer)
            if queue is None:
                queue = queues[peer] = spare.pop() if spare else deque()
                (self._ready_suspects if peer in suspects else ready).append(peer)
            queue.append(entry)

    def take(
        self, most: int, *, one_each: bool = True, with_suspects: bool = True
    ) -> list[PendingDelivery]:
        """Up to `most` deliveries that may be sent now; of each peer one, or as many as wait in a
        row. A suspect is taken alone.
        """
        taken: list[PendingDelivery] = []
        if not self._ready and with_suspects and self._ready_suspects:
            return [self._queues[self._ready_suspects.popleft()].popleft()]
        while self._ready and len(taken) < most:
            queue = self._queues[self._ready.popleft()]
            count = 1 if one_each else min(len(queue), most - len(taken))
            if count == len(queue):
                taken.extend(queue)
                queue.clear()
            else:
                taken.extend(queue.popleft() for _ in range(count))
        return taken

    def done(self, entries: Sequence[PendingDelivery]) -> None:
        """The taken ones have ended: their peers' next deliveries may be taken."""
        queues, ready, spare = self._queues, self._ready, self._spare
        suspects = self._suspects
        for peer in dict.fromkeys([entry.delivery.peer for entry in entries]):
            if queues[peer]:
                (self._ready_suspects if peer in suspects else ready).append(peer)
            else:
                spare.append(queues.pop(peer))
        del spare[_MOST_SPARE:]

    def waiting(self, peer: str) -> int:
        """Deliveries that wait for a peer, without those being sent."""
        return len(self._queues.get(peer, ()))

    @property
    def ready(self) -> int:
        """Peers with a delivery that may be sent now, without suspects."""
        return len(self._ready)

    @property
    def ready_suspects(self) -> int:
        """Suspects with a delivery that may be sent now."""
        return len(self._ready_suspects)

    def __bool__(self) -> bool:
        return bool(self._queues)


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker that is not closed, for people."""

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
    """The breakers of peers with a failure since their last success; other peers cost nothing."""

    def __init__(self) -> None:
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        self._peers: Counter[str] = Counter()

    @property
    def suspects(self) -> Collection[str]:
        """Peers whose last call failed: a view that follows every change."""
        return self._peers.keys()

    def refusal(self, delivery: Delivery, now_ms: int) -> Failed | None:
        """Why a delivery is not to be sent now, or None. The first that is let through to a
        half-open breaker is its probe: until its outcome, or for a pause, no other is.
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
        """Counts the outcome of a call."""
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
        """Open and half-open breakers, by peer and address."""
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
        if len(self._breakers) >= _MOST_BREAKERS:
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
