"""Membership of a network by random probing and gossip: SWIM with Lifeguard's suspicion and local
health. [EN-10]

The detection time and the load of a node do not depend on the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Literal, NamedTuple

from rapport.kernel.clock import Chance
from rapport.overlay.neighbour_search import KnownMembers
from rapport.overlay.swim_members import Change, LocalHealth, Suspicions
from rapport.overlay.swim_protocol import (
    Ack,
    Claim,
    Digest,
    Gossip,
    Nack,
    Ping,
    PingFor,
    State,
    SwimMessage,
    SwimSettings,
    Table,
)
from rapport.transport.base import Address, Now

Step = Literal["ping", "ping indirectly", "end"]


class ProbeOrder:
    """The probe order: each member once per round, shuffled; new members at a random position."""

    __slots__ = ("_chance", "_order", "_waiting")

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._order: list[Address] = []
        self._waiting: set[Address] = set()

    def add(self, address: Address) -> None:
        if address not in self._waiting:
            self._order.insert(int(self._chance.random() * (len(self._order) + 1)), address)
            self._waiting.add(address)

    def prefer(self, address: Address) -> None:
        """Probes the member next, and again at its regular turn."""
        self._order.append(address)

    def next(self, present: tuple[Address, ...], is_there: Callable[[Address], bool]) -> Address:
        """The next member to probe; `present` must not be empty."""
        while True:
            if not self._order:
                self._order = list(present)
                self._chance.shuffle(self._order)
                self._waiting = set(self._order)
            chosen = self._order.pop()
            self._waiting.discard(chosen)
            if is_there(chosen):
                return chosen


class Probe:
    """One probe of a member: ping, repeated pings, then indirect pings through others."""

    __slots__ = (
        "_repeats",
        "ack_ms",
        "due_ms",
        "ends_ms",
        "is_answered",
        "nacks",
        "nacks_expected",
        "number",
        "target",
    )

    def __init__(
        self, target: Address, number: int, settings: SwimSettings, slowness: int, time_ms: float
    ) -> None:
        self.target, self.number = target, number
        self.ack_ms = settings.ack_ms * slowness
        self.ends_ms = time_ms + settings.period_ms * slowness
        self.due_ms = time_ms + self.ack_ms
        self.is_answered = False
        self.nacks = self.nacks_expected = 0
        self._repeats = settings.repeats

    def next_step(self, time_ms: float) -> Step | None:
        if time_ms >= self.ends_ms:
            return "end"
        if time_ms < self.due_ms:
            return None
        self.due_ms += self.ack_ms
        if self.is_answered:
            self.due_ms = self.ends_ms
            return None
        if self._repeats > 0:
            self._repeats -= 1
            return "ping"
        self.due_ms = self.ends_ms
        return "ping indirectly"

    def verdict(self) -> int:
        """The change of our health score: helpers that are silent too suggest a local fault."""
        if self.is_answered:
            return -1
        return self.nacks_expected - self.nacks if self.nacks_expected else 1


_MOST = 1_024


class Relay(NamedTuple):
    """A ping on behalf of another member: its origin, the origin's number and the deadline."""

    origin: Address
    number: int
    until_ms: float


class Relays:
    """Pending pings on behalf of others, oldest first; at most 1,024."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Relay] = {}

    @property
    def due_ms(self) -> float:
        """The deadline of the oldest; infinite if there is none."""
        for relay in self._waiting.values():
            return relay.until_ms
        return _NEVER

    def add(self, own_number: int, origin: Address, number: int, until_ms: float) -> None:
        if len(self._waiting) >= _MOST:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[own_number] = Relay(origin, number, until_ms)

    def done(self, own_number: int) -> Relay | None:
        return self._waiting.pop(own_number, None)

    def overdue(self, time_ms: float) -> list[Relay]:
        """Removes and returns the relays past their deadline."""
        over = [number for number, relay in self._waiting.items() if relay.until_ms <= time_ms]
        return [self._waiting.pop(number) for number in over]


_NEVER = float("inf")
_FORMER = 256
_ROUNDING_MS = 1e-3
_CONTACTS = 8


class Swim:
    """One node's view of all nodes. The caller sends the `outbox` and clears it after each call.

    Its time counts only while the process runs: a process that was stopped, or got no CPU, resumes
    where it was instead of declaring all others dead.
    """

    def __init__(
        self,
        name: str,
        own: Address,
        chance: Chance,
        settings: SwimSettings | None = None,
        *,
        role: str = "",
    ) -> None:
        """`own` is the address for others; `role` (32 characters) is published with the name."""
        self.name, self.own = name, own
        self.settings = settings = settings or SwimSettings()
        self.outbox: list[tuple[SwimMessage, Address]] = []
        self.changes: list[Change] = []
        """Changes of other members; the caller clears the list."""
        self.health = LocalHealth(settings.most_health)
        self._claims = Suspicions(name, own, settings, self.health, role)
        self.roster = self._claims.roster
        self._chance = chance
        self._order_of_probes = ProbeOrder(chance)
        self._relays = Relays()
        self._former = KnownMembers(own, _FORMER)
        self._numbers = count(chance.getrandbits(31) + 1)
        self._probe: Probe | None = None
        self._gossip_ms = self._sync_ms = self._revisit_ms = self._probe_ms = _NEVER
        self._greet_ms = -_NEVER
        self._slept_ms = 0.0
        self._is_open = False

    @property
    def present(self) -> tuple[Address, ...]:
        """The other members, including suspected ones."""
        return self.roster.present

    @property
    def incarnation(self) -> int:
        """The number of times this node refuted claims about itself."""
        return self._claims.incarnation

    def start(self, now: Now, known: Sequence[Address] = ()) -> None:
        """Joins through any of the known nodes."""
        time_ms = now.steady_ms - self._slept_ms
        period_ms = self.settings.period_ms
        self._is_open = True
        # Random, so that nodes that start together do not act in step.
        self._probe_ms = time_ms + period_ms * self._chance.random()
        self._sync_ms = time_ms + self._in_periods(self.settings.sync_periods)
        self._revisit_ms = time_ms + period_ms
        self._former.learn(known)
        for address in self._former.besides(())[:_CONTACTS]:
            self._introduce(address)

    def leave(self) -> None:
        if self._is_open:
            farewell = Gossip((self._claims.own_claim(State.LEFT),))
            self.outbox += [(farewell, address) for address in self._some(_CONTACTS)]
        self._is_open = False

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that does something."""
        due_ms = self._due_ms()
        return None if due_ms == _NEVER else due_ms + self._slept_ms

    def handle(self, message: SwimMessage, sender: Address, now: Now) -> None:
        if not self._is_open or sender == self.own:
            return
        time_ms = self._awake(now)
        if self._probe is not None and self._probe.target == sender:
            self._probe.is_answered = True
        match message:
            case Ping():
                self._learn(message.news, time_ms)
                self.outbox.append((Ack(message.number, self._claims.news_for(sender)), sender))
                self._greet(sender, time_ms)
            case Ack():
                self._learn(message.news, time_ms)
                self._answered(message.number)
            case PingFor():
                self._learn(message.news, time_ms)
                self._ping_for(message, sender, time_ms)
            case Nack():
                if self._probe is not None and self._probe.number == message.number:
                    self._probe.nacks += 1
            case Gossip():
                self._learn(message.news, time_ms)
            case Digest():
                if message.value != self._claims.digest():
                    self._send_tables(sender, wants_back=True)
            case Table():
                self._learn(self._claims.doubted(message.claims, sender), time_ms)
                if message.wants_back:
                    self._send_tables(sender, wants_back=False)

    def tick(self, now: Now) -> None:
        time_ms = self._awake(now)
        if not self._is_open:
            return
        for relay in self._relays.overdue(time_ms):
            self.outbox.append((Nack(relay.number), relay.origin))
        for member in self.roster.overdue(time_ms):
            dead = Claim(
                State.DEAD, member.address, member.incarnation, member.name, role=member.role
            )
            self._learn((dead,), time_ms)
        if self._probe_ms <= time_ms:
            self._continue_probe(time_ms)
        if self._sync_ms <= time_ms:
            self._sync(time_ms)
        if self._revisit_ms <= time_ms:
            self._revisit(time_ms)
        if self._gossip_ms <= time_ms:
            self._gossip_updates(time_ms)

    # --- time ---

    def _awake(self, now: Now) -> float:
        """The running time of this node. If it is much too late for a due action, the delay is not
        counted, because answers may be unread.
        """
        time_ms = now.steady_ms - self._slept_ms
        late_ms = time_ms - self._due_ms()
        if late_ms > self.settings.ack_ms:
            self._slept_ms += late_ms
            self.health.change(1)
            return time_ms - late_ms
        # Compensates the rounding of time differences.
        return time_ms - late_ms if -_ROUNDING_MS < late_ms < 0 else time_ms

    def _due_ms(self) -> float:
        if not self._is_open:
            return _NEVER
        return min(
            self._probe_ms,
            self._gossip_ms,
            self._sync_ms,
            self._revisit_ms,
            self._relays.due_ms,
            self.roster.suspicion_due_ms,
        )

    def _in_periods(self, number: int) -> float:
        return self.settings.period_ms * number * (0.5 + self._chance.random())

    # --- probing ---

    def _continue_probe(self, time_ms: float) -> None:
        probe = self._probe
        step = probe.next_step(time_ms) if probe is not None else "end"
        if probe is not None and step == "ping":
            self._ping(probe.target, probe.number)
        elif probe is not None and step == "ping indirectly":
            self._ping(probe.target, probe.number)
            self._request_indirect_pings(probe)
        if step == "end":
            self._end_probe(time_ms)
            self._begin_probe(time_ms)
        elif probe is not None:
            self._probe_ms = probe.due_ms

    def _begin_probe(self, time_ms: float) -> None:
        if not self.present:
            self._probe_ms = time_ms + self.settings.period_ms
            return
        target = self._order_of_probes.next(self.present, self._claims.is_present)
        number = next(self._numbers)
        slowness = self.health.slowness
        self._probe = probe = Probe(target, number, self.settings, slowness, time_ms)
        self._probe_ms = probe.due_ms
        self._ping(target, number)

    def _end_probe(self, time_ms: float) -> None:
        probe, self._probe = self._probe, None
        if probe is None:
            return
        self.health.change(probe.verdict())
        member = self.roster.get(probe.target)
        if not probe.is_answered and member is not None and not member.state.is_gone:
            suspect = Claim(
                State.SUSPECT,
                probe.target,
                member.incarnation,
                member.name,
                self.own,
                member.role,
            )
            self._learn((suspect,), time_ms)

    def _ping(self, to: Address, number: int) -> None:
        self.outbox.append((Ping(number, self._claims.news_for(to)), to))

    def _request_indirect_pings(self, probe: Probe) -> None:
        helpers = [one for one in self._some(self.settings.helpers + 1) if one != probe.target]
        for helper in helpers[: self.settings.helpers]:
            probe.nacks_expected += 1
            asking = PingFor(probe.number, probe.target, self._claims.news_for(helper))
            self.outbox.append((asking, helper))

    def _ping_for(self, message: PingFor, sender: Address, time_ms: float) -> None:
        number = next(self._numbers)
        self._relays.add(number, sender, message.number, time_ms + self.settings.ack_ms)
        self._ping(message.target, number)

    def _answered(self, number: int) -> None:
        if self._probe is not None and self._probe.number == number:
            self._probe.is_answered = True
        relay = self._relays.done(number)
        if relay is not None:
            self.outbox.append(
                (Ack(relay.number, self._claims.news_for(relay.origin)), relay.origin)
            )

    # --- claims about others ---

    def _learn(self, claims: Iterable[Claim], time_ms: float) -> None:
        for claim in claims:
            change = self._claims.take(claim, time_ms)
            if change is not None:
                self._changed(change, claim)
        if self._claims.news:
            self._gossip_ms = min(self._gossip_ms, time_ms + self.settings.gossip_ms)

    def _changed(self, change: Change, claim: Claim) -> None:
        self.changes.append(change)
        if change.kind == "joined":
            self._order_of_probes.add(change.address)
        elif change.kind == "suspected" and claim.by != self.own and self._should_confirm():
            self._order_of_probes.prefer(change.address)

    def _should_confirm(self) -> bool:
        """Decides by chance, so that twice as many members as needed probe a suspected one next."""
        wanted = 2 * self.settings.confirmations
        return self._chance.random() * len(self.present) < wanted

    def _gossip_updates(self, time_ms: float) -> None:
        for address in self._some(self.settings.fan_out):
            if self._claims.news:
                self.outbox.append((Gossip(self._claims.news_for(address)), address))
        is_more = bool(self._claims.news) and bool(self.present)
        self._gossip_ms = time_ms + self.settings.gossip_ms if is_more else _NEVER

    # --- comparing all ---

    def _introduce(self, to: Address) -> None:
        """Announces this node and requests the other's table."""
        self.outbox.append((Table((self._claims.own_claim(),), wants_back=True), to))

    def _greet(self, sender: Address, time_ms: float) -> None:
        """Introduces this node to an unknown sender, which may know it from before a restart."""
        if self.roster.get(sender) is None and time_ms >= self._greet_ms:
            self._greet_ms = time_ms + self.settings.period_ms
            self._introduce(sender)

    def _send_tables(self, to: Address, *, wants_back: bool) -> None:
        self.outbox += [(table, to) for table in self._claims.tables(wants_back=wants_back)]

    def _sync(self, time_ms: float) -> None:
        self._sync_ms = time_ms + self._in_periods(self.settings.sync_periods)
        forget_ms = self.settings.forget_periods * self.settings.period_ms
        for member in self.roster.forget_gone(time_ms - forget_ms):
            self._claims.news.forget(member.address)
            if member.state is State.DEAD:
                self._former.learn([member.address])
        for address in self._some(1):
            self.outbox.append((Digest(self._claims.digest()), address))

    def _revisit(self, time_ms: float) -> None:
        """Contacts a former member, which may be back; an isolated node does so each period."""
        periods = self.settings.revisit_periods if self.present else 1
        self._revisit_ms = time_ms + self._in_periods(periods)
        dead = [member.address for member in self.roster if member.state is State.DEAD]
        absent = dead + [
            one for one in self._former.besides(()) if not self._claims.is_present(one)
        ]
        if absent:
            self._introduce(absent[int(self._chance.random() * len(absent))])

    def _some(self, number: int) -> list[Address]:
        present = self.present
        return self._chance.sample(present, min(number, len(present)))
