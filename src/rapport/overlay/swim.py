"""One probe after the other: whom to ask next, whether it answered, and how well this node itself
keeps up. [EN-10]

Pings that a member sends for others, until they are answered or their time is over. [EN-10]

Who is there: membership of a network by random probing and gossip (SWIM, with the suspicion and
local health of Lifeguard). [EN-10]

Detection takes the same time and each node sends the same, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Literal, NamedTuple

from rapport.kernel.chance import Chance
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

Step = Literal["ping", "ask others", "end"]


class ProbeOrder:
    """A fair order: everybody once, then again in a new order; newcomers at a random place."""

    __slots__ = ("_chance", "_order", "_waiting")

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._order: list[Address] = []
        self._waiting: set[Address] = set()

    def add(self, address: Address) -> None:
        """Takes part from this round on."""
        if address not in self._waiting:
            self._order.insert(int(self._chance.random() * (len(self._order) + 1)), address)
            self._waiting.add(address)

    def prefer(self, address: Address) -> None:
        """Has its turn next, and again when it would have had it."""
        self._order.append(address)

    def next(self, present: tuple[Address, ...], is_there: Callable[[Address], bool]) -> Address:
        """Whose turn it is; `present` must not be empty."""
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
    """The question to one member: pinged, pinged again, asked for through others."""

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
        """What is due now."""
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
        return "ask others"

    def verdict(self) -> int:
        """How the end of it changes our own health: helpers that are silent too are a sign that
        the fault is here.
        """
        if self.is_answered:
            return -1
        return self.nacks_expected - self.nacks if self.nacks_expected else 1


_MOST = 1_024


class Relay(NamedTuple):
    """Who asked, by which number, and until when it is waited for."""

    origin: Address
    number: int
    until_ms: float


class Relays:
    """What was asked for, oldest first; of more than 1,024 the oldest are dropped."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Relay] = {}

    @property
    def due_ms(self) -> float:
        """When the oldest is over; infinite for none."""
        for relay in self._waiting.values():
            return relay.until_ms
        return _NEVER

    def add(self, own_number: int, origin: Address, number: int, until_ms: float) -> None:
        """A ping with our own number is under way for somebody."""
        if len(self._waiting) >= _MOST:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[own_number] = Relay(origin, number, until_ms)

    def done(self, own_number: int) -> Relay | None:
        """It was answered; whom to tell."""
        return self._waiting.pop(own_number, None)

    def overdue(self, time_ms: float) -> list[Relay]:
        """Those that were not answered in time; they are not waited for any more."""
        over = [number for number, relay in self._waiting.items() if relay.until_ms <= time_ms]
        return [self._waiting.pop(number) for number in over]


_NEVER = float("inf")
_FORMER = 256
_ROUNDING_MS = 1e-3
_FAREWELLS = 8


class Swim:
    """One node's view of all nodes. Send the `outbox` and clear it after each call.

    Its time is that in which it was awake: a process that was stopped for a while, or got no
    processor, takes up where it was instead of calling everybody dead.
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
        """`own`: the address by which the others reach it; `role`: what all others learn of it
        beside its name, 32 characters at most.
        """
        self.name, self.own = name, own
        self.settings = settings = settings or SwimSettings()
        self.outbox: list[tuple[SwimMessage, Address]] = []
        self.changes: list[Change] = []
        """What became of others since somebody last looked and cleared it."""
        self.health = LocalHealth(settings.most_health)
        self._hearsay = Suspicions(name, own, settings, self.health, role)
        self.roster = self._hearsay.roster
        self._chance = chance
        self._turns = ProbeOrder(chance)
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
        """The others that are there, the suspected among them."""
        return self.roster.present

    @property
    def incarnation(self) -> int:
        """How often this node had to object to what others said of it."""
        return self._hearsay.incarnation

    def start(self, now: Now, known: Sequence[Address] = ()) -> None:
        """Takes part from now on, through any of the nodes that are known."""
        time_ms = now.steady_ms - self._slept_ms
        period_ms = self.settings.period_ms
        self._is_open = True
        # Drawn, so that nodes that start together do not act together.
        self._probe_ms = time_ms + period_ms * self._chance.random()
        self._sync_ms = time_ms + self._in_periods(self.settings.sync_periods)
        self._revisit_ms = time_ms + period_ms
        self._former.learn(known)
        for address in self._former.besides(())[:_FAREWELLS]:
            self._introduce(address)

    def leave(self) -> None:
        """Says goodbye; nothing is heard or due any more."""
        if self._is_open:
            farewell = Gossip((self._hearsay.own_claim(State.LEFT),))
            self.outbox += [(farewell, address) for address in self._some(_FAREWELLS)]
        self._is_open = False

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that does something."""
        due_ms = self._due_ms()
        return None if due_ms == _NEVER else due_ms + self._slept_ms

    def handle(self, message: SwimMessage, sender: Address, now: Now) -> None:
        """Takes what another node sent."""
        if not self._is_open or sender == self.own:
            return
        time_ms = self._awake(now)
        if self._probe is not None and self._probe.target == sender:
            self._probe.is_answered = True
        match message:
            case Ping():
                self._learn(message.news, time_ms)
                self.outbox.append((Ack(message.number, self._hearsay.news_for(sender)), sender))
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
                if message.value != self._hearsay.digest():
                    self._tell_all(sender, wants_back=True)
            case Table():
                self._learn(self._hearsay.doubted(message.claims, sender), time_ms)
                if message.wants_back:
                    self._tell_all(sender, wants_back=False)

    def tick(self, now: Now) -> None:
        """Does what is due."""
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
            self._go_on_probing(time_ms)
        if self._sync_ms <= time_ms:
            self._sync(time_ms)
        if self._revisit_ms <= time_ms:
            self._revisit(time_ms)
        if self._gossip_ms <= time_ms:
            self._tell_news(time_ms)

    # --- time ---

    def _awake(self, now: Now) -> float:
        """The time in which this node was awake. When it comes much too late to what was due, the
        rest of that time is not counted: answers may lie unread.
        """
        time_ms = now.steady_ms - self._slept_ms
        late_ms = time_ms - self._due_ms()
        if late_ms > self.settings.ack_ms:
            self._slept_ms += late_ms
            self.health.change(1)
            return time_ms - late_ms
        # What is due now is due, whatever the rounding of differences between times.
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
        """About so many periods, not the same for all."""
        return self.settings.period_ms * number * (0.5 + self._chance.random())

    # --- probing ---

    def _go_on_probing(self, time_ms: float) -> None:
        probe = self._probe
        step = probe.next_step(time_ms) if probe is not None else "end"
        if probe is not None and step == "ping":
            self._ping(probe.target, probe.number)
        elif probe is not None and step == "ask others":
            self._ping(probe.target, probe.number)
            self._ask_others(probe)
        if step == "end":
            self._end_probe(time_ms)
            self._begin_probe(time_ms)
        elif probe is not None:
            self._probe_ms = probe.due_ms

    def _begin_probe(self, time_ms: float) -> None:
        if not self.present:
            self._probe_ms = time_ms + self.settings.period_ms
            return
        target = self._turns.next(self.present, self._hearsay.is_present)
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
        self.outbox.append((Ping(number, self._hearsay.news_for(to)), to))

    def _ask_others(self, probe: Probe) -> None:
        helpers = [one for one in self._some(self.settings.helpers + 1) if one != probe.target]
        for helper in helpers[: self.settings.helpers]:
            probe.nacks_expected += 1
            asking = PingFor(probe.number, probe.target, self._hearsay.news_for(helper))
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
                (Ack(relay.number, self._hearsay.news_for(relay.origin)), relay.origin)
            )

    # --- what is said of others ---

    def _learn(self, claims: Iterable[Claim], time_ms: float) -> None:
        for claim in claims:
            change = self._hearsay.take(claim, time_ms)
            if change is not None:
                self._changed(change, claim)
        if self._hearsay.news:
            self._gossip_ms = min(self._gossip_ms, time_ms + self.settings.gossip_ms)

    def _changed(self, change: Change, claim: Claim) -> None:
        self.changes.append(change)
        if change.kind == "joined":
            self._turns.add(change.address)
        elif change.kind == "suspected" and claim.by != self.own and self._is_to_confirm():
            self._turns.prefer(change.address)

    def _is_to_confirm(self) -> bool:
        """Twice as many as are needed probe a suspected one next, so that it is soon certain."""
        wanted = 2 * self.settings.confirmations
        return self._chance.random() * len(self.present) < wanted

    def _tell_news(self, time_ms: float) -> None:
        for address in self._some(self.settings.fan_out):
            if self._hearsay.news:
                self.outbox.append((Gossip(self._hearsay.news_for(address)), address))
        is_more = bool(self._hearsay.news) and bool(self.present)
        self._gossip_ms = time_ms + self.settings.gossip_ms if is_more else _NEVER

    # --- comparing all ---

    def _introduce(self, to: Address) -> None:
        """Says that this node is there, and asks for what the other knows."""
        self.outbox.append((Table((self._hearsay.own_claim(),), wants_back=True), to))

    def _greet(self, sender: Address, time_ms: float) -> None:
        """A stranger takes us for a member: perhaps of a life before."""
        if self.roster.get(sender) is None and time_ms >= self._greet_ms:
            self._greet_ms = time_ms + self.settings.period_ms
            self._introduce(sender)

    def _tell_all(self, to: Address, *, wants_back: bool) -> None:
        self.outbox += [(table, to) for table in self._hearsay.tables(wants_back=wants_back)]

    def _sync(self, time_ms: float) -> None:
        self._sync_ms = time_ms + self._in_periods(self.settings.sync_periods)
        forget_ms = self.settings.forget_periods * self.settings.period_ms
        for member in self.roster.forget_gone(time_ms - forget_ms):
            self._hearsay.news.forget(member.address)
            if member.state is State.DEAD:
                self._former.learn([member.address])
        for address in self._some(1):
            self.outbox.append((Digest(self._hearsay.digest()), address))

    def _revisit(self, time_ms: float) -> None:
        """Asks one that was there whether it is back; who is alone asks each period."""
        periods = self.settings.revisit_periods if self.present else 1
        self._revisit_ms = time_ms + self._in_periods(periods)
        dead = [member.address for member in self.roster if member.state is State.DEAD]
        absent = dead + [
            one for one in self._former.besides(()) if not self._hearsay.is_present(one)
        ]
        if absent:
            self._introduce(absent[int(self._chance.random() * len(absent))])

    def _some(self, number: int) -> list[Address]:
        present = self.present
        return self._chance.sample(present, min(number, len(present)))
