"""Reliable hops: a message to the next broker is repeated until acknowledged or given up. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.context.broker.broker_state import BrokerState
from rapport.context.protocol import NOT_FOUND, Ask, FoundRecord, Hop, HopAck, SearchRefusal
from rapport.kernel.clock import Now
from rapport.overlay.hops import HopFailed, HopRetries, HopSettings
from rapport.transport.base import Address, Sender

KINDS: dict[type[Hop], str] = {Ask: "ask", FoundRecord: "fnd", SearchRefusal: "ref"}
_WAYS_BACK_TIMEOUT_MS = 80.0
_PART_OF_WHAT_IS_LEFT = 24
_SILENT_MS = 1_000.0

EXPIRED = "what was found is not valid any more"

HopFailedCallback = Callable[[Hop, Address, Now], None]
HopId = tuple[int, int, int, str, Address]


class HopSender:
    """Sends a message of a search to a broker until it is acknowledged.

    A broker that let all tries pass is `silent` until something arrives from it, at most for a
    second: walkers go elsewhere meanwhile. With `tries` 1 nothing is acknowledged.
    """

    __slots__ = ("_acknowledges", "_hops", "_state", "failed", "silent")

    failed: HopFailedCallback
    """Called with a message that was not acknowledged; set by the machine."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        search = state.settings.search
        self._acknowledges = search.tries > 1
        remembered = state.settings.limits.remembered
        self._hops = HopRetries(HopSettings(tries=search.tries, remembered=remembered))
        self.silent: dict[Address, float] = {}

    def __len__(self) -> int:
        """How many hops wait for their acknowledgement."""
        return len(self._hops)

    def send(self, message: Hop, to: Address, now: Now) -> None:
        """Sends a message; calls `failed` if it is not acknowledged."""
        state = self._state
        state.outbox.append((message, to))
        if not self._acknowledges:
            return
        timeout_ms = state.membership.timeout_ms(to)
        if type(message) is Ask:
            # Tries and their doubling must leave time for going elsewhere.
            longest_ms = max(message.left_ms / _PART_OF_WHAT_IS_LEFT, 10.0)
        else:
            longest_ms = _WAYS_BACK_TIMEOUT_MS
        if timeout_ms > longest_ms:
            timeout_ms = longest_ms
        sent = (message, now.steady_ms)
        self._hops.sent(_id_of(message, to), to, sent, now, timeout_ms)
        state.agenda.wake_at(now.steady_ms + timeout_ms)

    def arrived(self, message: Hop, sender: Sender, now: Now) -> bool:
        """Acknowledges what came; false when it came before and was acted on."""
        if not self._acknowledges:
            return True
        kind = KINDS[type(message)]
        search, walker, hop = message.search, message.walker, message.hop
        ack = HopAck(search, walker, hop, kind)
        outbox = self._state.outbox
        outbox.append((ack, sender.address))
        if self._hops.arrived((search, walker, hop, kind), sender.address, now):
            return True
        # An acknowledgement was lost, so twice now: a hop that is believed to have failed though it
        # arrived makes two walkers of one.
        outbox.append((ack, sender.address))
        self._state.counts["repeated"] += 1
        return False

    def acknowledged(self, message: HopAck, sender: Sender, now: Now) -> None:
        by = sender.address
        id = (message.search, message.walker, message.hop, message.kind, by)
        if self._hops.acknowledged(id, by):
            self._state.agenda.settle(self._hops.next_due())

    def alive(self, address: Address) -> None:
        self.silent.pop(address, None)

    def lost(self, address: Address, now: Now) -> None:
        """It is no neighbour any more: what waits for it goes other ways at once."""
        for step in self._hops.forget(address):
            self.failed(_as_of_now(step.payload, now), step.to, now)

    def tick(self, now: Now) -> None:
        """Sends again what is due, and gives up what was sent often enough."""
        for step in self._hops.due(now):
            if isinstance(step, HopFailed):
                self._state.counts["hops_failed"] += 1
                self._fell_silent(step.to, now)
                self.failed(_as_of_now(step.payload, now), step.to, now)
            else:
                self._state.counts["resent"] += 1
                self._send_again(_as_of_now(step.payload, now), step.to, now)

    def next_due_ms(self) -> float | None:
        """When `tick` has something to do."""
        return self._hops.next_due()

    def avoided(self, now: Now) -> tuple[Address, ...]:
        """Neighbours to avoid on the next hop because they recently timed out."""
        if not self.silent:
            return ()
        over = [address for address, until in self.silent.items() if until <= now.steady_ms]
        for address in over:
            del self.silent[address]
        return tuple(self.silent)

    def _send_again(self, message: Hop, to: Address, now: Now) -> None:
        """Repeats a message; an expired record is replaced by a refusal."""
        if type(message) is FoundRecord and not message.record.is_valid_at(now.wall_ms):
            refused = SearchRefusal(
                message.search, message.walker, message.hop, message.path, NOT_FOUND, EXPIRED
            )
            self._hops.acknowledged(_id_of(message, to), to)
            self.send(refused, to, now)
        else:
            self._state.send(message, to)

    def _fell_silent(self, address: Address, now: Now) -> None:
        self.silent[address] = now.steady_ms + _SILENT_MS
        while len(self.silent) > self._state.settings.membership.known:
            del self.silent[next(iter(self.silent))]


def _id_of(message: Hop, to: Address) -> HopId:
    return message.search, message.walker, message.hop, KINDS[type(message)], to


def _as_of_now(sent: tuple[Hop, float], now: Now) -> Hop:
    """A question has less time left than when it was first sent."""
    message, sent_ms = sent
    if type(message) is not Ask:
        return message
    left_ms = max(message.left_ms - int(now.steady_ms - sent_ms), 0)
    return msgspec.structs.replace(message, left_ms=left_ms)
