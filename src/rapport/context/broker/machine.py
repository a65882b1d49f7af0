"""A broker as a pure machine: messages and time in, messages and effects out.
[CX-2, CX-3, CX-4, CX-5, CX-7]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.context.broker.agenda import NEVER
from rapport.context.broker.answering import Answering
from rapport.context.broker.asking import OWN_CONSUMER, Asking
from rapport.context.broker.effects import Effect
from rapport.context.broker.following import Following
from rapport.context.broker.hopping import Hopping
from rapport.context.broker.looking import Looking
from rapport.context.broker.neighbourhood import Neighbourhood
from rapport.context.broker.recalling import RECALLED, Recalling
from rapport.context.broker.requests import Requests
from rapport.context.broker.settings import BrokerSettings
from rapport.context.broker.standing import MachineStatus, NeighbourStatus
from rapport.context.broker.takers import PLANNED_AS_THEY_COME, TAKERS
from rapport.context.broker.updates import Updates
from rapport.context.broker.walking import Walking
from rapport.context.broker.watching import Watching
from rapport.context.broker.workplace import Allows, Workplace, everybody_may
from rapport.context.messages import (
    Ask,
    Command,
    Found,
    Heard,
    Hop,
    Message,
    Noticed,
    Ping,
    Probe,
    Put,
    Question,
    Refused,
    Request,
    Unwatch,
    Watch,
)
from rapport.context.ownership import Ownership
from rapport.context.table import Outcome, Records, key_of
from rapport.core.context_record import ContextRecord
from rapport.kernel.chance import Chance
from rapport.transport.base import Address, Now, Sender

CLIENTS_MAY = frozenset((Put, Request, Watch, Unwatch, Noticed, Ping, Command))
"""What is taken from a sender of kind `client`."""

_SWEEP_MS = 1_000.0
_SWEEP_ON_MS = 10.0
_SWEPT_AT_ONCE = 2_000
"""Slots: some milliseconds, then messages have their turn."""


class BrokerMachine:
    """One broker.

    After each call the shell sends what is in `outbox`, carries out `effects`, and empties both;
    it calls `tick` when `next_due_ms` has come. No call raises because of what a message says.
    """

    __slots__ = (
        "_answering",
        "_asking",
        "_following",
        "_heard_ms",
        "_hopping",
        "_last",
        "_looking",
        "_neighbourhood",
        "_place",
        "_recalling",
        "_requests",
        "_silent",
        "_swept_ms",
        "_updates",
        "_walking",
        "_watching",
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
        self._place = place = Workplace(address, settings, chance, allows, former, outbox)
        self.agenda = place.agenda
        self.address = address
        self.table: Records = place.table
        self.outbox: list[tuple[Message, Address]] = place.outbox
        """What to send, in order; the shell empties this very list."""
        self.effects: list[Effect] = place.effects
        self.counts = place.counts
        self.busy = 0.0
        """How busy the shell is, from 0 to 1; told with pongs."""
        self._heard_ms = place.membership.heard_ms
        self._hopping = Hopping(place)
        self._silent = self._hopping.silent
        self._recalling = Recalling(place)
        self._answering = Answering(place, self._hopping, self._recalling)
        self._looking = Looking(place, self._answering, self._recalling)
        self._walking = Walking(place, self._hopping, self._answering, self._looking)
        self._asking = Asking(place, self._walking)
        self._requests = Requests(place, self._asking)
        self._watching = Watching(place)
        self._following = Following(place, self._asking, self._watching)
        self._updates = Updates(place, self._watching, self._recalling)
        self._neighbourhood = Neighbourhood(place, self._looking)
        self._answering.entry = self._asking
        self._hopping.failed = self._hop_failed
        self._neighbourhood.lost = self._neighbour_lost
        self._neighbourhood.load = self.load
        self._swept_ms = 0.0
        self._last = Now(0, 0.0)
        """The latest moment it was told: how wall and steady time lie to each other."""

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
                self._hopping.alive(address)
        # Two of three messages in a network are one of these.
        if type(message) is Probe:
            if message.depth or self.table.may_answer(key_of(message.question)):
                self._looking.probed(message, sender, now)
            return
        if type(message) is Heard:
            if message.kind == RECALLED:
                self._recalling.heard(message, sender)
            else:
                self._hopping.heard(message, sender, now)
            return
        taker = TAKERS.get(kind)
        if taker is None:
            self.counts["not_for_brokers"] += 1
            return
        taker(self)(message, sender, now)
        if kind not in PLANNED_AS_THEY_COME:
            self.next_due_ms()

    def tick(self, now: Now) -> None:
        """Does what is due."""
        self._last = now
        self._hopping.tick(now)
        self.agenda.run(now)
        if self.agenda.others_ms <= now.steady_ms:
            self._neighbourhood.carry_out(self._place.membership.tick(now), now)
            self._swept_ms = now.steady_ms
            for key in self.table.sweep(now.wall_ms, _SWEPT_AT_ONCE):
                self._updates.turned(key, now)
            self.next_due_ms()
        else:
            self.agenda.settle(self._hopping.next_due_ms())

    def next_due_ms(self) -> float | None:
        """The steady time of the earliest thing to do; none: nothing before a message."""
        due_ms = self._place.membership.next_due_ms()
        others_ms = NEVER if due_ms is None else due_ms
        turn_ms = self.table.next_turn_ms()
        if turn_ms is not None:
            others_ms = min(others_ms, self._sweep_due_ms(turn_ms))
        self.agenda.others_ms = others_ms
        wake_ms = self.agenda.settle(self._hopping.next_due_ms())
        return None if wake_ms == NEVER else wake_ms

    # What the broker's own shell asks for

    def ask(
        self,
        question: Question,
        now: Now,
        *,
        answer: Callable[[Found | Refused], None],
        within_ms: int = 2_000,
        identity: str = "",
    ) -> None:
        """Finds a record for this process itself; `answer` is called once, perhaps at once. Rights
        are for the caller to judge.
        """
        held = self.table.answer(key_of(question), now.wall_ms)
        if held is not None:
            holder = held.holder or self.address
            answer(Found(0, 0, 0, held.record, (OWN_CONSUMER,), (), holder))
            return
        self._asking.begin(
            OWN_CONSUMER, question, within_ms, identity, now, lambda ended, _now: answer(ended)
        )

    def put(self, record: ContextRecord, now: Now) -> Outcome:
        """Takes a record of this process itself, or one reloaded; keeping it is the caller's."""
        self._last = now
        outcome = self._updates.take(record, now)
        self.next_due_ms()
        return outcome

    @property
    def ownership(self) -> Ownership:
        """Which key each provider's record belongs to."""
        return self._place.ownership

    def kept(self, token: int, now: Now) -> None:
        """The record of a Kept effect is on disk: 102 goes out."""
        self._updates.kept(token, now)

    def not_kept(self, token: int, why: str, now: Now) -> None:
        """The record of a Kept effect could not be put on disk: 201 goes out."""
        self._updates.not_kept(token, why, now)

    def join(self, candidates: Sequence[Address], now: Now) -> None:
        """Looks for neighbours among these; NetworkJoined or NotJoined tells how it ended."""
        self._neighbourhood.carry_out(self._place.membership.start(candidates, now), now)
        self.next_due_ms()

    def connect(self, brokers: Sequence[Address], now: Now) -> None:
        """Asks exactly these to be neighbours: a topology given by hand."""
        self._neighbourhood.carry_out(self._place.membership.connect(brokers, now), now)
        self.next_due_ms()

    def adopt(self, neighbours: Sequence[Address], now: Now) -> None:
        """Has these as neighbours at once, without a message: simulations."""
        self._place.membership.adopt(neighbours, now)
        self.next_due_ms()

    def leave(self, now: Now) -> None:
        """Says good-bye to the neighbours."""
        self._neighbourhood.carry_out(self._place.membership.leave(now), now)
        self.next_due_ms()

    @property
    def has_left(self) -> bool:
        """Whether it was told to leave, and not to join again since."""
        return self._place.membership.has_left

    def monitor(self, now: Now) -> None:
        """Pings the neighbours from now on."""
        self._neighbourhood.carry_out(self._place.membership.monitor(now), now)
        self.next_due_ms()

    @property
    def neighbours(self) -> tuple[Address, ...]:
        """Those beside this broker."""
        return self._place.membership.neighbours

    def load(self) -> float:
        """From 0 (idle) to 1 (full): the fullest of what is bounded, and the shell."""
        limits = self._place.settings.limits
        return min(
            max(
                self.busy,
                len(self._asking) / max(limits.searches, 1),
                len(self._watching) / max(limits.watches, 1),
                len(self._updates) / max(limits.keeping, 1),
            ),
            1.0,
        )

    def status(self) -> MachineStatus:
        """How this broker stands; for people and metrics."""
        membership = self._place.membership
        return MachineStatus(
            tuple(NeighbourStatus(one, membership.mean_ms(one)) for one in membership.neighbours),
            self.table.own_records,
            self.table.replicas,
            self.table.replica_bytes,
            len(self._asking),
            len(self._hopping),
            len(self._looking),
            len(self._watching),
            len(self._following),
            self.load(),
            dict(self.counts),
        )

    # Inside

    def _hop_failed(self, message: Hop, to: Address, now: Now) -> None:
        if isinstance(message, Ask):
            self._walking.failed(message, to, now)
        else:
            self._answering.failed(message, to, now)

    def _neighbour_lost(self, address: Address, now: Now) -> None:
        self._hopping.lost(address, now)
        self._following.lost(address, now)

    def _sweep_due_ms(self, turn_ms: int) -> float:
        """When the table has its next turn: in time for those who watch, else at leisure."""
        last = self._last
        due_ms = last.steady_ms + (turn_ms - last.wall_ms)
        if due_ms <= self._swept_ms:
            return self._swept_ms + _SWEEP_ON_MS  # so much ended at once that some was left
        return due_ms if len(self._watching) else max(due_ms, self._swept_ms + _SWEEP_MS)
