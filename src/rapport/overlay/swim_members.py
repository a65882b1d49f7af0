"""The member table of SWIM: which of two claims holds, which updates to gossip. [EN-10]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Literal

import msgspec

from rapport.overlay.swim_protocol import (
    MOST_INCARNATION,
    Claim,
    MemberUpdate,
    State,
    SwimSettings,
    Table,
    encode,
    tables_of,
)
from rapport.transport.base import Address

_NEVER = float("inf")

ChangeKind = Literal["joined", "suspected", "cleared", "failed", "left", "renamed"]
"""`renamed`: another name, or another role."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change of a member in this node's view."""

    kind: ChangeKind
    address: Address
    name: str


class Member:
    __slots__ = ("accusers", "address", "incarnation", "name", "role", "since_ms", "state")

    def __init__(self, claim: Claim, time_ms: float) -> None:
        self.address, self.role, self.incarnation = claim.address, claim.role, claim.incarnation
        self.accusers: dict[Address | None, None] = {}
        self.become(claim, time_ms)

    def become(self, claim: Claim, time_ms: float) -> None:
        if claim.role or claim.incarnation > self.incarnation:
            self.role = claim.role
        self.name, self.state = claim.name, claim.state
        self.incarnation, self.since_ms = claim.incarnation, time_ms
        self.accusers = {claim.by: None} if claim.state is State.SUSPECT else {}

    def claim(self) -> Claim:
        by = next(iter(self.accusers), None)
        return Claim(self.state, self.address, self.incarnation, self.name, by, self.role)


class MemberTable:
    """The other members. Of two claims the one with the greater incarnation holds, at equal ones
    the greater state; so all nodes with the same claims, in any order, have the same view.
    """

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._members: dict[Address, Member] = {}
        self._suspects: dict[Address, float] = {}
        """The time at which each is declared dead."""
        self._suspicion_due_ms = _NEVER
        self.present: tuple[Address, ...] = ()
        """Members that are not gone; replaced on change, never mutated."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, address: Address) -> Member | None:
        return self._members.get(address)

    @property
    def nodes(self) -> int:
        """The number of present members, including this one."""
        return len(self.present) + 1

    @property
    def suspicion_due_ms(self) -> float:
        """The next time a suspected member is declared dead; infinite if there is none."""
        return self._suspicion_due_ms

    def take(self, claim: Claim, time_ms: float) -> tuple[bool, Change | None]:
        member = self._members.get(claim.address)
        if member is None:
            return self._meet(claim, time_ms)
        held, claimed = (member.incarnation, member.state), (claim.incarnation, claim.state)
        if claimed == held and claim.role and not member.role:
            member.role = claim.role
            return True, Change("renamed", member.address, member.name)
        if claimed <= held:
            return claimed == held and self._confirm(member, claim, time_ms), None
        was, name, role = member.state, member.name, member.role
        member.become(claim, time_ms)
        self._watch(member, time_ms)
        if was.is_gone is not member.state.is_gone:
            self._count_present()
        return True, _change(was, name, role, member)

    def overdue(self, time_ms: float) -> list[Member]:
        """Suspected members past their deadline."""
        return [self._members[one] for one, due in self._suspects.items() if due <= time_ms]

    def forget_gone(self, before_ms: float) -> list[Member]:
        """Removes members that have been gone since before that time."""
        old = [m for m in self._members.values() if m.state.is_gone and m.since_ms < before_ms]
        for member in old:
            del self._members[member.address]
        return old

    def digest(self, own: Claim) -> int:
        """A hash of the present members and their incarnations."""
        total = _hashed(own.address, own.incarnation)
        for address in self.present:
            total ^= _hashed(address, self._members[address].incarnation)
        return total

    def with_role(self, role: str) -> tuple[Address, ...]:
        return tuple(one for one in self.present if self._members[one].role == role)

    def namesakes(self, name: str) -> list[Address]:
        """The present members with a name; normally at most one."""
        return [one for one in self.present if self._members[one].name == name]

    def _meet(self, claim: Claim, time_ms: float) -> tuple[bool, Change | None]:
        if claim.state.is_gone or len(self._members) >= self._settings.most_members:
            return False, None
        member = self._members[claim.address] = Member(claim, time_ms)
        self._count_present()
        self._watch(member, time_ms)
        return True, Change("joined", member.address, member.name)

    def _confirm(self, member: Member, claim: Claim, time_ms: float) -> bool:
        """Counts another accuser; returns whether that shortens the deadline."""
        if claim.state is not State.SUSPECT or claim.by in member.accusers:
            return False
        if len(member.accusers) > self._settings.confirmations:
            return False
        member.accusers[claim.by] = None
        self._watch(member, time_ms)
        return True

    def _watch(self, member: Member, time_ms: float) -> None:
        """Sets the deadline of a suspected member; clears it for others."""
        if member.state is State.SUSPECT:
            confirmed = len(member.accusers) - 1
            patience_ms = self._settings.suspicion_ms(self.nodes, confirmed)
            self._suspects[member.address] = max(member.since_ms + patience_ms, time_ms)
        elif self._suspects.pop(member.address, None) is None:
            return
        self._suspicion_due_ms = min(self._suspects.values(), default=_NEVER)

    def _count_present(self) -> None:
        self.present = tuple(m.address for m in self._members.values() if not m.state.is_gone)


def _change(was: State, name: str, role: str, member: Member) -> Change | None:
    kind: ChangeKind | None = None
    now = member.state
    if now.is_gone:
        kind = None if was.is_gone else ("left" if now is State.LEFT else "failed")
    elif was.is_gone:
        kind = "joined"
    elif now is not was:
        kind = "suspected" if now is State.SUSPECT else "cleared"
    elif (member.name, member.role) != (name, role):
        kind = "renamed"
    return None if kind is None else Change(kind, member.address, member.name)


def _hashed(address: Address, incarnation: int) -> int:
    text = f"{address[0]} {address[1]} {incarnation}".encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")


_HEADER_BYTES = 5
"""Size of the array header."""


class _Item(msgspec.Struct, gc=False):
    claim: Claim
    size: int
    sent: int = 0


class UpdateQueue:
    """The claims to gossip, at most one for each member: the latest. The least sent go first.

    `take` costs O(claims in the queue).
    """

    __slots__ = ("_items", "_settings")

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._items: dict[Address, _Item] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, claim: Claim) -> None:
        """Adds a claim in place of an older one about the member."""
        self._items[claim.address] = _Item(claim, len(encode(claim)))

    def forget(self, address: Address) -> None:
        self._items.pop(address, None)

    def take(self, nodes: int, first: Claim | None = None) -> MemberUpdate:
        """The claims for the next message, `first` before all others; a claim that is too large for
        the limit is sent alone.
        """
        if not self._items:
            return () if first is None else (first,)
        chosen = [] if first is None else [first]
        room = self._settings.news_bytes - _HEADER_BYTES
        room -= len(encode(first)) if first is not None else 0
        most = self._settings.transmissions(nodes)
        for item in sorted(self._items.values(), key=_times_sent):
            if (item.size > room and chosen) or item.claim == first:
                continue
            room -= item.size
            chosen.append(item.claim)
            item.sent += 1
            if item.sent >= most:
                del self._items[item.claim.address]
        return tuple(chosen)


def _times_sent(item: _Item) -> int:
    return item.sent


class Suspicions:
    """Applies claims: new ones are gossiped, wrong ones about this node refuted."""

    def __init__(
        self, name: str, own: Address, settings: SwimSettings, health: LocalHealth, role: str
    ) -> None:
        self.roster = MemberTable(settings)
        self.news = UpdateQueue(settings)
        self.incarnation = 0
        self._name, self._own, self._health, self._role = name, own, health, role

    def own_claim(self, state: State = State.ALIVE) -> Claim:
        return Claim(state, self._own, self.incarnation, self._name, role=self._role)

    def take(self, claim: Claim, time_ms: float) -> Change | None:
        if claim.address == self._own:
            self._refute(claim)
            return None
        is_new, change = self.roster.take(claim, time_ms)
        if is_new:
            self.news.add(claim)
        return change

    def doubted(self, claims: Iterable[Claim], sender: Address) -> list[Claim]:
        """The claims of a table, with `dead` weakened to `suspect` for members present here: they
        may only be unreachable for the sender, and can still refute it.
        """
        return [
            Claim(State.SUSPECT, claim.address, claim.incarnation, claim.name, sender, claim.role)
            if claim.state is State.DEAD and self.is_present(claim.address)
            else claim
            for claim in claims
        ]

    def news_for(self, to: Address) -> MemberUpdate:
        """The updates for a message; a suspected receiver gets the claim about itself first."""
        member = self.roster.get(to)
        about = member.claim() if member is not None and member.state is not State.ALIVE else None
        return self.news.take(self.roster.nodes, about)

    def tables(self, *, wants_back: bool) -> list[Table]:
        claims = [self.own_claim(), *(member.claim() for member in self.roster)]
        return tables_of(claims, wants_back=wants_back)

    def digest(self) -> int:
        return self.roster.digest(self.own_claim())

    def is_present(self, address: Address) -> bool:
        member = self.roster.get(address)
        return member is not None and not member.state.is_gone

    def _refute(self, claim: Claim) -> None:
        """Refutes a wrong claim about this node, or one about its predecessor at the address."""
        is_about_predecessor = (
            claim.incarnation > self.incarnation
            or claim.name != self._name
            or claim.role not in ("", self._role)  # older versions omit the role
        )
        is_wrong = claim.state is not State.ALIVE or is_about_predecessor
        if claim.incarnation < self.incarnation or not is_wrong:
            return
        # Other nodes reject greater incarnations.
        self.incarnation = min(claim.incarnation + 1, MOST_INCARNATION)
        if claim.state is not State.ALIVE:
            self._health.change(1)
        self.news.add(self.own_claim())


class LocalHealth:
    """Lifeguard's local health: 0 is healthy; a slow node probes more slowly."""

    __slots__ = ("_most", "score")

    def __init__(self, most: int) -> None:
        self.score, self._most = 0, most

    @property
    def slowness(self) -> int:
        """The factor of periods and time-outs."""
        return self.score + 1

    def change(self, by: int) -> None:
        """Negative is better, positive is worse."""
        self.score = min(max(self.score + by, 0), self._most)
