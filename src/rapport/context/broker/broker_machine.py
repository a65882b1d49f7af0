"""One broker as a pure state machine: messages and time in, messages and effects out.
[CX-1, CX-2, CX-3, CX-5, CX-7]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.broker.broker_state import (
    NEVER,
    Allows,
    BrokerState,
    Effect,
    everybody_may,
)
from rapport.context.broker.hops import HopSender
from rapport.context.broker.neighbourhood import BrokerNeighbourhood
from rapport.context.broker.searches import OWN_CONSUMER, ConsumerRequests, Searches
from rapport.context.broker.subscriptions import Subscriptions, UpstreamSubscriptions
from rapport.context.broker.updates import RECALLED, RecordUpdates, ReplicaInvalidation
from rapport.context.broker.walks import AnswerRouter, NeighbourProbes, WalkForwarder
from rapport.context.broker_status import BrokerStatus, NeighbourStatus
from rapport.context.protocol import (
    Ask,
    Command,
    Departure,
    FoundRecord,
    Have,
    Hop,
    HopAck,
    Invalidation,
    Join,
    Message,
    Notice,
    NoticeAck,
    Ping,
    Pong,
    Probe,
    Put,
    Question,
    Request,
    SearchRefusal,
    Status,
    Unwatch,
    Watch,
    Welcome,
)
from rapport.context.records import Outcome, RecordTable, key_of
from rapport.context.rights import Ownership, is_genuine
from rapport.core.context_record import ContextRecord
from rapport.kernel.clock import Chance, Now
from rapport.transport.addresses import format_address
from rapport.transport.base import Address, Sender

PLANNED_AS_THEY_COME = frozenset((Ask, FoundRecord, SearchRefusal, Probe, Have, Request))
"""The most frequent messages; their timers are set when they are handled."""
HANDLERS: Final[dict[type[Message], Callable[[Any], Callable[..., None]]]] = {
    Put: attrgetter("_updates.put"),
    Request: attrgetter("_requests.request"),
    Ask: attrgetter("_walks.arrived"),
    FoundRecord: attrgetter("_answer_router.found"),
    SearchRefusal: attrgetter("_answer_router.refused"),
    HopAck: attrgetter("_hop_sender.acknowledged"),
    Probe: attrgetter("_probes.probed"),
    Have: attrgetter("_probes.have"),
    Ping: attrgetter("_neighbourhood.pinged"),
    Pong: attrgetter("_neighbourhood.ponged"),
    Join: attrgetter("_neighbourhood.join_requested"),
    Welcome: attrgetter("_neighbourhood.welcomed"),
    Departure: attrgetter("_neighbourhood.departed"),
    Command: attrgetter("_neighbourhood.commanded"),
    Watch: attrgetter("_subscriptions.watch"),
    Unwatch: attrgetter("_subscriptions.unwatch"),
    NoticeAck: attrgetter("_subscriptions.noticed"),
    Notice: attrgetter("_upstream_subscriptions.noticed_change"),
    Status: attrgetter("_upstream_subscriptions.answered"),
    Invalidation: attrgetter("_updates.outdated"),
}
"""Which part takes what. One table for all machines: ten thousand of them have no room for theirs
in a processor's cache.
"""


CARRY_RECORDS = frozenset((FoundRecord, Have, Notice))
"""Messages of brokers with the record of a provider."""
CLIENTS_MAY = frozenset((Put, Request, Watch, Unwatch, NoticeAck, Ping, Command))
"""Messages accepted from a sender of kind `client`."""

_SWEEP_MS = 1_000.0
_SWEEP_ON_MS = 10.0
_SWEPT_AT_ONCE = 2_000
"""Slots: some milliseconds, then messages have their turn."""


class BrokerMachine:
    """One broker.

    After each call the shell sends what is in `outbox`, carries out `effects`, and empties both;
    it calls `tick` when `next_due_ms` has come. No call raises because of the content of a message.
    """

    __slots__ = (
        "_answer_router",
        "_heard_ms",
        "_hop_sender",
        "_invalidation",
        "_last",
        "_neighbourhood",
        "_probes",
        "_requests",
        "_searches",
        "_silent",
        "_state",
        "_subscriptions",
        "_swept_ms",
        "_updates",
        "_upstream_subscriptions",
        "_walks",
        "address",
        "agenda",
        "busy",
        "counts",
        "effects",
        "outbox",
        "table",
    )

    def __init__(
        self,
        address: Address,
        settings: BrokerSettings,
        chance: Chance,
        *,
        allows: Allows = everybody_may,
        former: Sequence[Address] = (),
        outbox: list[tuple[Message, Address]] | None = None,
    ) -> None:
        """`former`: neighbours of a life before, asked when it joins again; `outbox`: one that the
        machines of a shell share, which then empties it after each call.
        """
        self._state = state = BrokerState(address, settings, chance, allows, former, outbox)
        self.agenda = state.agenda
        self.address = address
        self.table: RecordTable = state.table
        self.outbox: list[tuple[Message, Address]] = state.outbox
        """What to send, in order; the shell empties this very list."""
        self.effects: list[Effect] = state.effects
        self.counts = state.counts
        self.busy = 0.0
        """Load of the shell from 0 to 1, sent with pongs."""
        self._heard_ms = state.membership.heard_ms
        self._hop_sender = HopSender(state)
        self._silent = self._hop_sender.silent
        self._invalidation = ReplicaInvalidation(state)
        self._answer_router = AnswerRouter(state, self._hop_sender, self._invalidation)
        self._probes = NeighbourProbes(state, self._answer_router, self._invalidation)
        self._walks = WalkForwarder(state, self._hop_sender, self._answer_router, self._probes)
        self._searches = Searches(state, self._walks)
        self._requests = ConsumerRequests(state, self._searches)
        self._subscriptions = Subscriptions(state)
        self._upstream_subscriptions = UpstreamSubscriptions(
            state, self._searches, self._subscriptions
        )
        self._updates = RecordUpdates(state, self._subscriptions, self._invalidation)
        self._neighbourhood = BrokerNeighbourhood(state, self._probes)
        self._answer_router.entry = self._searches
        self._hop_sender.failed = self._hop_failed
        self._neighbourhood.lost = self._neighbour_lost
        self._neighbourhood.load = self.load
        self._swept_ms = 0.0
        self._last = Now(0, 0.0)
        """The latest time of a call: relates wall clock and steady clock."""

    # Messages and time

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        """Acts on a message. A request that the table answers costs some microseconds and leaves
        nothing behind.
        """
        self._last = now
        kind = type(message)
        if sender.kind == "client":
            if kind not in CLIENTS_MAY:
                self.counts["not_for_clients"] += 1
                return
        else:
            address = sender.address
            if address in self._heard_ms:
                self._heard_ms[address] = now.steady_ms
            if self._silent:
                self._hop_sender.alive(address)
        # Two of three messages in a network are one of these.
        if type(message) is Probe:
            if message.depth or self.table.may_answer(key_of(message.question)):
                self._probes.probed(message, sender, now)
            return
        if type(message) is HopAck:
            if message.kind == RECALLED:
                self._invalidation.acknowledged(message, sender)
            else:
                self._hop_sender.acknowledged(message, sender, now)
            return
        if kind in CARRY_RECORDS and not is_genuine(message.record):  # type: ignore[union-attr]
            self.counts["forged"] += 1
            return
        taker = HANDLERS.get(kind)
        if taker is None:
            self.counts["not_for_brokers"] += 1
            return
        taker(self)(message, sender, now)
        if kind not in PLANNED_AS_THEY_COME:
            self.next_due_ms()

    def tick(self, now: Now) -> None:
        self._last = now
        self._hop_sender.tick(now)
        self.agenda.run(now)
        if self.agenda.others_ms <= now.steady_ms:
            self._neighbourhood.carry_out(self._state.membership.tick(now), now)
            self._swept_ms = now.steady_ms
            for key in self.table.sweep(now.wall_ms, _SWEPT_AT_ONCE):
                self._updates.turned(key, now)
            self.next_due_ms()
        else:
            self.agenda.settle(self._hop_sender.next_due_ms())

    def next_due_ms(self) -> float | None:
        """The steady time of the earliest thing to do; none: nothing before a message."""
        due_ms = self._state.membership.next_due_ms()
        others_ms = NEVER if due_ms is None else due_ms
        turn_ms = self.table.next_turn_ms()
        if turn_ms is not None:
            others_ms = min(others_ms, self._sweep_due_ms(turn_ms))
        self.agenda.others_ms = others_ms
        wake_ms = self.agenda.settle(self._hop_sender.next_due_ms())
        return None if wake_ms == NEVER else wake_ms

    # Requests of the broker's own shell

    def ask(
        self,
        question: Question,
        now: Now,
        *,
        answer: Callable[[FoundRecord | SearchRefusal], None],
        within_ms: int = 2_000,
        identity: str = "",
    ) -> None:
        """Finds a record for this process itself; `answer` is called once, perhaps at once. Rights
        are for the caller to judge.
        """
        held = self.table.answer(key_of(question), now.wall_ms)
        if held is not None:
            holder = held.holder or self.address
            answer(FoundRecord(0, 0, 0, held.record, (OWN_CONSUMER,), (), holder))
            return
        self._searches.begin(
            OWN_CONSUMER, question, within_ms, identity, now, lambda ended, _now: answer(ended)
        )

    def put(self, record: ContextRecord, now: Now) -> Outcome:
        """Puts a record of this process, or a reloaded one; the caller stores it."""
        self._last = now
        outcome = self._updates.take(record, now)
        self.next_due_ms()
        return outcome

    def reserve_names(self, is_key_owner: Callable[[str], bool]) -> None:
        """From now on only the owner of a key provides under the owner's name."""
        self._state.is_key_owner = is_key_owner

    @property
    def ownership(self) -> Ownership:
        """Which key each provider's record belongs to."""
        return self._state.ownership

    def kept(self, token: int, now: Now) -> None:
        """The record of a StoreRecord effect is on disk: 102 goes out."""
        self._updates.kept(token, now)

    def not_kept(self, token: int, why: str, now: Now) -> None:
        """The record of a StoreRecord effect could not be stored: 201 goes out."""
        self._updates.not_kept(token, why, now)

    def join(self, candidates: Sequence[Address], now: Now) -> None:
        """Looks for neighbours among these; the effect NetworkJoined or JoinFailed reports the
        result.
        """
        self._neighbourhood.carry_out(self._state.membership.start(candidates, now), now)
        self.next_due_ms()

    def connect(self, brokers: Sequence[Address], now: Now) -> None:
        """Asks exactly these to be neighbours: a topology given by hand."""
        self._neighbourhood.carry_out(self._state.membership.connect(brokers, now), now)
        self.next_due_ms()

    def adopt(self, neighbours: Sequence[Address], now: Now) -> None:
        """Sets these neighbours without messages, for simulations."""
        self._state.membership.adopt(neighbours, now)
        self.next_due_ms()

    def leave(self, now: Now) -> None:
        """Takes leave of the neighbours."""
        self._neighbourhood.carry_out(self._state.membership.leave(now), now)
        self.next_due_ms()

    @property
    def has_left(self) -> bool:
        """Whether it was commanded to leave, and has not joined since."""
        return self._state.membership.has_left

    def monitor(self, now: Now) -> None:
        """Pings the neighbours from now on."""
        self._neighbourhood.carry_out(self._state.membership.monitor(now), now)
        self.next_due_ms()

    @property
    def neighbours(self) -> tuple[Address, ...]:
        """Those beside this broker."""
        return self._state.membership.neighbours

    def load(self) -> float:
        """From 0 (idle) to 1 (full): the fullest of what is bounded, and the shell."""
        limits = self._state.settings.limits
        return min(
            max(
                self.busy,
                len(self._searches) / max(limits.searches, 1),
                len(self._subscriptions) / max(limits.watches, 1),
                len(self._updates) / max(limits.keeping, 1),
            ),
            1.0,
        )

    def status(self) -> BrokerStatus:
        """The status of the broker, as far as its machine knows it."""
        membership = self._state.membership
        return BrokerStatus(
            address=format_address(self.address),
            neighbours=tuple(
                NeighbourStatus(address=format_address(one), round_trip_ms=membership.mean_ms(one))
                for one in membership.neighbours
            ),
            records=self.table.own_records,
            replicas=self.table.replicas,
            replica_bytes=self.table.replica_bytes,
            searches=len(self._searches),
            watches=len(self._subscriptions),
            load=round(self.load(), 3),
            counters=dict(self.counts),
        )

    # Inside

    def _hop_failed(self, message: Hop, to: Address, now: Now) -> None:
        if isinstance(message, Ask):
            self._walks.failed(message, to, now)
        else:
            self._answer_router.failed(message, to, now)

    def _neighbour_lost(self, address: Address, now: Now) -> None:
        self._hop_sender.lost(address, now)
        self._upstream_subscriptions.lost(address, now)

    def _sweep_due_ms(self, turn_ms: int) -> float:
        """When the table is swept next: in time for subscribers, else at leisure."""
        last = self._last
        due_ms = last.steady_ms + (turn_ms - last.wall_ms)
        if due_ms <= self._swept_ms:
            return self._swept_ms + _SWEEP_ON_MS  # so much ended at once that some was left
        return due_ms if len(self._subscriptions) else max(due_ms, self._swept_ms + _SWEEP_MS)
