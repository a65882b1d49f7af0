"""State shared by the parts of a broker's machine: table, membership, timers, outbox, effects.
[CX-3, CX-5, CX-7, CX-8, CX-9, CX-12]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.protocol import Message, Question
from rapport.context.records import RecordTable, StoredRecord, key_of
from rapport.context.rights import Ownership
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import Chance, Now
from rapport.overlay.membership import Membership
from rapport.transport.base import Address

TimerCall = Callable[..., None]
NEVER: Final = float("inf")


class TimerQueue:
    """Calls planned for a steady time. A call that is no longer needed checks that itself; none is
    ever cancelled.
    """

    __slots__ = ("_calls", "_number", "others_ms", "wake_ms")

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, TimerCall, tuple[Any, ...]]] = []
        self._number = 0
        self.wake_ms = NEVER
        """A time not after the first at which anything at all is due, also of what is kept
        elsewhere: a shell with many machines reads this instead of calling each of them.
        """
        self.others_ms = NEVER
        """The same for what seldom changes: membership, and the table."""

    def __len__(self) -> int:
        return len(self._calls)

    def at(self, due_ms: float, call: TimerCall, *arguments: Any) -> None:
        """Plans `call(*arguments, now)` for a steady time."""
        self._number += 1
        heappush(self._calls, (due_ms, self._number, call, arguments))
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    def wake_at(self, due_ms: float) -> None:
        """A hop, which keeps its own time, is due then."""
        if due_ms < self.wake_ms:
            self.wake_ms = due_ms

    def others_at(self, due_ms: float) -> None:
        """Membership or table have something to do then."""
        if due_ms < self.others_ms:
            self.others_ms = due_ms
            self.wake_at(due_ms)

    def settle(self, hops_ms: float | None) -> float:
        """The hops have nothing before that time (any more): what `wake_ms` is now."""
        wake_ms = self.others_ms
        if hops_ms is not None and hops_ms < wake_ms:
            wake_ms = hops_ms
        if self._calls and self._calls[0][0] < wake_ms:
            wake_ms = self._calls[0][0]
        self.wake_ms = wake_ms
        return wake_ms

    def next_due_ms(self) -> float | None:
        """When the first is due."""
        return self._calls[0][0] if self._calls else None

    def run(self, now: Now) -> None:
        """Makes every call that is due, in order; also those planned meanwhile for now."""
        calls = self._calls
        while calls and calls[0][0] <= now.steady_ms:
            _due, _number, call, arguments = heappop(calls)
            call(*arguments, now)


class StoreRecord(msgspec.Struct, frozen=True, gc=False):
    """Store a record; then call `kept(token)`, or `not_kept(token, why)`."""

    token: int
    record: ContextRecord
    identity: str
    owner: str = ""
    """The identity that the record belongs to, where that is another one."""


class AuditEffect(msgspec.Struct, frozen=True, gc=False):
    """An operation of a client: `what` is put, overwrite (of another's record, refused), request,
    watch, join, leave or monitor; `status` is the answer's (102 for an answered request). For a
    request also the time of the search, up to the time of the call, and the hops to the record.
    """

    what: str
    identity: str
    address: Address
    status: int
    entity: EntityRef | None = None
    scope: str = ""
    took_ms: float = 0.0
    hops: int = 0


class NeighbourLost(msgspec.Struct, frozen=True, gc=False):
    """A neighbour left, or fell silent."""

    address: Address
    abrupt: bool


class NetworkJoined(msgspec.Struct, frozen=True, gc=False):
    """The search for neighbours ended well."""

    neighbours: tuple[Address, ...]


class JoinFailed(msgspec.Struct, frozen=True, gc=False):
    """Too few answered; waits for a new list, or looks again if it was a member before."""

    answered: int
    needed: int


Effect = StoreRecord | AuditEffect | NeighbourLost | NetworkJoined | JoinFailed


Allows = Callable[[str, str, EntityRef | None, str], bool]
"""`(identity, right, entity, scope)`; rights are read, write, take_over and control (without
entity).
"""


def everybody_may(identity: str, right: str, entity: EntityRef | None, scope: str) -> bool:
    """Grants every right; used when no rights are declared."""
    return True


class BrokerState:
    """The state of one broker that its parts share."""

    __slots__ = (
        "address",
        "agenda",
        "allows",
        "chance",
        "counts",
        "effects",
        "is_key_owner",
        "membership",
        "outbox",
        "ownership",
        "settings",
        "table",
    )

    def __init__(
        self,
        address: Address,
        settings: BrokerSettings,
        chance: Chance,
        allows: Allows,
        former: Sequence[Address] = (),
        outbox: list[tuple[Message, Address]] | None = None,
    ) -> None:
        self.address, self.settings, self.chance, self.allows = address, settings, chance, allows
        self.table = RecordTable(settings.table)
        self.ownership = Ownership(settings.table.own_records)
        self.is_key_owner: Callable[[str], bool] = lambda _name: False
        """Whether a key's owner has that name: then only it provides under the name."""
        self.membership = Membership(
            address, settings.membership, chance, former=former, watching=settings.monitors
        )
        self.agenda = TimerQueue()
        self.outbox: list[tuple[Message, Address]] = [] if outbox is None else outbox
        self.effects: list[Effect] = []
        self.counts: defaultdict[str, int] = defaultdict(int)
        """Event counts, for metrics."""

    def answer(
        self, question: Question, without: tuple[Address, ...], now: Now, *, fresh: bool = False
    ) -> StoredRecord | None:
        """The record for a question from another broker. Replicas of the brokers `without` are
        excluded, with `fresh` all replicas; records in this broker's own name are not.
        """
        if fresh:
            return self.table.answer_own(key_of(question), now.wall_ms)
        held = self.table.answer(key_of(question), now.wall_ms)
        if not without or held is None or held.holder not in without:
            return held
        others = tuple(one for one in without if one != self.address)
        return self.table.answer_without(key_of(question), now.wall_ms, others)

    def send(self, message: Message, to: Address) -> None:
        """Puts a message into the outbox."""
        self.outbox.append((message, to))
