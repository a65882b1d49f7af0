"""Deliveries waiting for an adapter: one lane per peer, peers side by side. [CO-4]

Pure: what may be sent now is taken out, and given back when it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import msgspec

from rapport.communication.adapters.base import Delivery

_MOST_SPARE = 1_000


class PendingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery with its place in the adapter's channel."""

    position: int
    delivery: Delivery
    starts: int = 0
    """How often processes before this one began it, and died."""


class PeerQueues:
    """Holds what waits. A peer is busy while something of theirs is taken; then nothing more of it
    is given out, so one peer's deliveries stay in order. Peers are served in turn, suspects after
    the others.
    """

    def __init__(self, suspects: Collection[str] = ()) -> None:
        """`suspects`: a view of the peers whose last call failed."""
        self._suspects = suspects
        self._lanes: dict[str, deque[PendingDelivery]] = {}
        """The peers with something waiting or under way."""
        self._ready: deque[str] = deque()
        self._ready_suspects: deque[str] = deque()
        self._spare: list[deque[PendingDelivery]] = []
        """Empty ones: peers come and go with every batch, and a deque costs more than an entry."""

    def put(self, entries: Iterable[PendingDelivery]) -> None:
        """Queues behind what waits for the same peer."""
        lanes, ready, spare = self._lanes, self._ready, self._spare
        suspects = self._suspects
        for entry in entries:
            peer = entry.delivery.peer
            lane = lanes.get(peer)
            if lane is None:
                lane = lanes[peer] = spare.pop() if spare else deque()
                (self._ready_suspects if peer in suspects else ready).append(peer)
            lane.append(entry)

    def take(
        self, most: int, *, one_each: bool = True, with_suspects: bool = True
    ) -> list[PendingDelivery]:
        """Up to `most` of what may be sent now; of each peer one, or as many as wait in a row. With
        a suspect nothing else is taken.
        """
        taken: list[PendingDelivery] = []
        if not self._ready and with_suspects and self._ready_suspects:
            return [self._lanes[self._ready_suspects.popleft()].popleft()]
        while self._ready and len(taken) < most:
            lane = self._lanes[self._ready.popleft()]
            count = 1 if one_each else min(len(lane), most - len(taken))
            if count == len(lane):
                taken.extend(lane)
                lane.clear()
            else:
                taken.extend(lane.popleft() for _ in range(count))
        return taken

    def done(self, entries: Sequence[PendingDelivery]) -> None:
        """What was taken has ended: the next of each of its peers may go."""
        lanes, ready, spare = self._lanes, self._ready, self._spare
        suspects = self._suspects
        for peer in dict.fromkeys([entry.delivery.peer for entry in entries]):
            if lanes[peer]:
                (self._ready_suspects if peer in suspects else ready).append(peer)
            else:
                spare.append(lanes.pop(peer))
        del spare[_MOST_SPARE:]

    def waiting(self, peer: str) -> int:
        """How many wait for a peer, those that were taken left out."""
        return len(self._lanes.get(peer, ()))

    @property
    def ready(self) -> int:
        """How many peers have something that may be sent now, suspects left out."""
        return len(self._ready)

    @property
    def ready_suspects(self) -> int:
        """How many suspects have something that may be sent now."""
        return len(self._ready_suspects)

    def __bool__(self) -> bool:
        return bool(self._lanes)
