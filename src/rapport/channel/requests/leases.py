"""Leases of messages: tries, acks, naks and renewals. Pure; time is an argument. [CH-2]

A leased message belongs to one worker until its lease ends. An ack consumes it; a nak, or the end
of the lease, makes it available to the next worker, until its tries are used up. A renewal moves
the end of the lease and does not count as a try.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport.core.errors import InvalidInput, LeaseExpired, RapportError

_LITTLE = 64
LONGEST_ERROR = 2_000
"""Characters of a worker's error that are kept."""


class MessageLease(msgspec.Struct, frozen=True, array_like=True):
    """The lease of one message. New fields go at the end with a default."""

    until_ms: int
    """No other worker gets the message before; afterwards any may."""
    lease: str
    """Names the worker's lease; empty after a nak."""
    tries: int
    """How often the message was delivered to a worker."""
    max_tries: int
    """After so many deliveries without an ack the message is dead-lettered."""
    error: str = ""
    """The error of the last nak."""

    @property
    def is_exhausted(self) -> bool:
        return self.tries >= self.max_tries

    def failure(self) -> RapportError:
        """The error of the last try, for the dead letter."""
        if self.lease:
            return LeaseExpired("the lease ended, and the worker had not answered")
        return RapportError(self.error or "the worker gave no reason", code="worker.failed")


class Answers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's answers to its deliveries, by their ids."""

    ack: tuple[str, ...] = ()
    """Done: they are never delivered again."""
    nak: tuple[str, ...] = ()
    """Not done: the next worker gets them, after `delay_ms`."""
    delay_ms: int = 0
    error: str = ""
    """Kept for the dead letter of a message whose tries are used up."""
    renew: tuple[str, ...] = ()
    """Still being worked on: their lease lasts at least `lease_ms` from now on."""
    lease_ms: int = 0


class SettlementResult(msgspec.Struct, frozen=True, kw_only=True):
    acked: int = 0
    returned: int = 0
    buried: int = 0
    """Of the returned ones, how many had used up their tries and are dead letters now."""
    stale: tuple[str, ...] = ()
    """Ids whose message another worker has by now: their answer has no effect."""
    renewed: int = 0


class Settlement(msgspec.Struct, frozen=True):
    acked: tuple[int, ...]
    returned: dict[int, MessageLease]
    stale: tuple[str, ...]
    renewed: dict[int, MessageLease]
    known: int = 0
    """Acks of messages that were acked before."""


class MessageLeases:
    """The leases of one channel by position, the ended ones too."""

    def __init__(self) -> None:
        self._leases: dict[int, MessageLease] = {}
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, position: object) -> bool:
        return position in self._leases

    def get(self, position: int) -> MessageLease | None:
        return self._leases.get(position)

    def is_leased(self, position: int, now_ms: int) -> bool:
        lease = self._leases.get(position)
        return lease is not None and lease.until_ms > now_ms

    def all(self) -> dict[int, MessageLease]:
        return dict(self._leases)

    def put(self, position: int, lease: MessageLease) -> None:
        self._leases[position] = lease
        heapq.heappush(self._due, (lease.until_ms, position))
        if len(self._due) > 2 * len(self._leases) + _LITTLE:
            self._due = [(one.until_ms, at) for at, one in self._leases.items()]
            heapq.heapify(self._due)

    def drop(self, position: int) -> None:
        self._leases.pop(position, None)

    def drop_before(self, position: int) -> None:
        for gone in [one for one in self._leases if one < position]:
            del self._leases[gone]

    def due(self, now_ms: int) -> list[int]:
        """Positions of messages that the next worker may have, in order."""
        if not self._leases or (first := self.next_due_ms()) is None or first > now_ms:
            return []
        return sorted(at for at, one in self._leases.items() if one.until_ms <= now_ms)

    def next_due_ms(self) -> int | None:
        while self._due:
            until_ms, position = self._due[0]
            lease = self._leases.get(position)
            if lease is not None and lease.until_ms == until_ms:
                return until_ms
            heapq.heappop(self._due)  # settled or leased again meanwhile
        return None

    def granted(
        self, positions: Iterable[int], lease: str, *, until_ms: int, max_tries: int
    ) -> dict[int, MessageLease]:
        """The leases of messages that a worker receives now."""
        granted = {}
        for position in positions:
            former = self._leases.get(position)
            tries = 1 if former is None else former.tries + 1
            granted[position] = MessageLease(until_ms, lease, tries, max_tries)
        return granted

    def decide(
        self, answers: Answers, is_done: Mapping[int, bool] | None, now_ms: int
    ) -> Settlement:
        """The changes that answers cause. Answers of the latest lease of a message count, also
        after its end while no other worker has the message. `is_done` holds which positions were
        acked before.
        """
        acked: list[int] = []
        returned: dict[int, MessageLease] = {}
        stale: list[str] = []
        known = 0
        for id, is_ack in (
            *((one, True) for one in answers.ack),
            *((one, False) for one in answers.nak),
        ):
            position, lease = split_id(id)
            current = self._leases.get(position)
            if current is not None and current.lease == lease:
                if is_ack:
                    acked.append(position)
                else:
                    until_ms = now_ms + answers.delay_ms
                    error = answers.error[:LONGEST_ERROR]
                    returned[position] = msgspec.structs.replace(
                        current, until_ms=until_ms, lease="", error=error
                    )
            elif is_ack and current is None and is_done is not None and is_done.get(position):
                known += 1
            else:
                stale.append(id)
        for position in acked:
            returned.pop(position, None)
        renewed: dict[int, MessageLease] = {}
        for id in answers.renew:
            position, lease = split_id(id)
            current = self._leases.get(position)
            if current is None or current.lease != lease:
                stale.append(id)
            elif position not in returned and position not in acked:
                until_ms = max(current.until_ms, now_ms + answers.lease_ms)
                renewed[position] = msgspec.structs.replace(current, until_ms=until_ms)
        return Settlement(tuple(sorted(set(acked))), returned, tuple(stale), renewed, known)


def delivery_id(position: int, lease: str) -> str:
    """The id by which a worker answers.

    >>> delivery_id(17, "a0b1"), split_id("17.a0b1")
    ('17.a0b1', (17, 'a0b1'))
    """
    return f"{position}.{lease}"


def split_id(id: str) -> tuple[int, str]:
    """Position and lease of a delivery; raises InvalidInput."""
    position, dot, lease = id.partition(".")
    if not (dot and lease and position.isascii() and position.isdigit() and len(position) < 20):
        raise InvalidInput(
            f"{id[:80]!r} is not the id of a delivery",
            code="request.bad_delivery",
            hint="send the ids of the batch's deliveries as they came",
        )
    return int(position), lease


def positions_of(answers: Answers) -> Sequence[int]:
    """The positions that answers name; raises InvalidInput."""
    return [split_id(id)[0] for id in (*answers.ack, *answers.nak, *answers.renew)]
