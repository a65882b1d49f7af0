"""Whom a member knows, and which of two claims about somebody holds. [EN-10]

News that a member passes on: what was told least often goes first, and each often enough.
[EN-10]

What a member heard of others and of itself, and what of that it passes on. [EN-10]
"""

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
    """What became of a member, as far as this node knows."""

    kind: ChangeKind
    address: Address
    name: str


class Member:
    """Another node."""

    __slots__ = ("accusers", "address", "incarnation", "name", "role", "since_ms", "state")

    def __init__(self, claim: Claim, time_ms: float) -> None:
        self.address, self.role, self.incarnation = claim.address, claim.role, claim.incarnation
        self.accusers: dict[Address | None, None] = {}
        self.become(claim, time_ms)

    def become(self, claim: Claim, time_ms: float) -> None:
        """Is as the claim says, since then."""
        if claim.role or claim.incarnation > self.incarnation:
            self.role = claim.role
        self.name, self.state = claim.name, claim.state
        self.incarnation, self.since_ms = claim.incarnation, time_ms
        self.accusers = {claim.by: None} if claim.state is State.SUSPECT else {}

    def claim(self) -> Claim:
        """What is held of it, to be told."""
        by = next(iter(self.accusers), None)
        return Claim(self.state, self.address, self.incarnation, self.name, by, self.role)


class MemberTable:
    """The other members. Of two claims the one with the greater incarnation holds, of equal ones
    the graver; so all who heard the same claims, in any order, hold the same.
    """

    def __init__(self, settings: SwimSettings) -> None:
        self._settings = settings
        self._members: dict[Address, Member] = {}
        self._suspects: dict[Address, float] = {}
        """When each is counted as dead."""
        self._suspicion_due_ms = _NEVER
        self.present: tuple[Address, ...] = ()
        """Who is not gone; replaced, never changed, when it changes."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, address: Address) -> Member | None:
        """The member at an address."""
        return self._members.get(address)

    @property
    def nodes(self) -> int:
        """How many are there, with this one."""
        return len(self.present) + 1

    @property
    def suspicion_due_ms(self) -> float:
        """When the next suspected one runs out of time; infinite for none."""
        return self._suspicion_due_ms

    def take(self, claim: Claim, time_ms: float) -> tuple[bool, Change | None]:
        """Whether the claim says something new, and what that changes."""
        member = self._members.get(claim.address)
        if member is None:
            return self._meet(claim, time_ms)
        held, said = (member.incarnation, member.state), (claim.incarnation, claim.state)
        if said == held and claim.role and not member.role:
            member.role = claim.role
            return True, Change("renamed", member.address, member.name)
        if said <= held:
            return said == held and self._confirm(member, claim, time_ms), None
        was, name, role = member.state, member.name, member.role
        member.become(claim, time_ms)
        self._watch(member, time_ms)
        if was.is_gone is not member.state.is_gone:
            self._count_present()
        return True, _change(was, name, role, member)

    def overdue(self, time_ms: float) -> list[Member]:
        """The suspected whose time is over."""
        return [self._members[one] for one, due in self._suspects.items() if due <= time_ms]

    def forget_gone(self, before_ms: float) -> list[Member]:
        """Drops those that are gone since before then."""
        old = [m for m in self._members.values() if m.state.is_gone and m.since_ms < before_ms]
        for member in old:
            del self._members[member.address]
        return old

    def digest(self, own: Claim) -> int:
        """All who are there and their incarnations in one number, the same for all who agree."""
        total = _hashed(own.address, own.incarnation)
        for address in self.present:
            total ^= _hashed(address, self._members[address].incarnation)
        return total

    def with_role(self, role: str) -> tuple[Address, ...]:
        """Who is there in a role."""
        return tuple(one for one in self.present if self._members[one].role == role)

    def namesakes(self, name: str) -> list[Address]:
        """Who is there under a name: should be one at most."""
        return [one for one in self.present if self._members[one].name == name]

    def _meet(self, claim: Claim, time_ms: float) -> tuple[bool, Change | None]:
        if claim.state.is_gone or len(self._members) >= self._settings.most_members:
            return False, None
        member = self._members[claim.address] = Member(claim, time_ms)
        self._count_present()
        self._watch(member, time_ms)
        return True, Change("joined", member.address, member.name)

    def _confirm(self, member: Member, claim: Claim, time_ms: float) -> bool:
        """One more says that it is suspect; whether that shortens its time."""
        if claim.state is not State.SUSPECT or claim.by in member.accusers:
            return False
        if len(member.accusers) > self._settings.confirmations:
            return False
        member.accusers[claim.by] = None
        self._watch(member, time_ms)
        return True

    def _watch(self, member: Member, time_ms: float) -> None:
        """Sets when a suspected one is counted as dead; the others are not suspected."""
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
"""What an array of claims needs beside them."""


class _Item(msgspec.Struct, gc=False):
    claim: Claim
    size: int
    told: int = 0


class UpdateQueue:
    """The claims that are passed on, at most one about each member: the latest.

    `take` costs in proportion to the claims that wait; without news nothing.
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
        """From now on this is told of the member, and nothing older."""
        self._items[claim.address] = _Item(claim, len(encode(claim)))

    def forget(self, address: Address) -> None:
        """Tells no more about it."""
        self._items.pop(address, None)

    def take(self, nodes: int, first: Claim | None = None) -> MemberUpdate:
        """What goes with the next message to one other, `first` before all else; news that is too
        large to go with others goes alone.
        """
        if not self._items:
            return () if first is None else (first,)
        chosen = [] if first is None else [first]
        room = self._settings.news_bytes - _HEADER_BYTES
        room -= len(encode(first)) if first is not None else 0
        most = self._settings.tellings(nodes)
        for item in sorted(self._items.values(), key=_times_told):
            if (item.size > room and chosen) or item.claim == first:
                continue
            room -= item.size
            chosen.append(item.claim)
            item.told += 1
            if item.told >= most:
                del self._items[item.claim.address]
        return tuple(chosen)


def _times_told(item: _Item) -> int:
    return item.told


class Suspicions:
    """Takes claims: those that say something new change the roster and become news; those that are
    wrong about this node are objected to.
    """

    def __init__(
        self, name: str, own: Address, settings: SwimSettings, health: LocalHealth, role: str
    ) -> None:
        self.roster = MemberTable(settings)
        self.news = UpdateQueue(settings)
        self.incarnation = 0
        self._name, self._own, self._health, self._role = name, own, health, role

    def own_claim(self, state: State = State.ALIVE) -> Claim:
        """What this node says of itself."""
        return Claim(state, self._own, self.incarnation, self._name, role=self._role)

    def take(self, claim: Claim, time_ms: float) -> Change | None:
        """Somebody says so; what it changes."""
        if claim.address == self._own:
            self._object(claim)
            return None
        is_new, change = self.roster.take(claim, time_ms)
        if is_new:
            self.news.add(claim)
        return change

    def doubted(self, claims: Iterable[Claim], sender: Address) -> list[Claim]:
        """The claims of a table. Who is dead for its sender may only be beyond a cut: whoever is
        present here is suspected, and may still object.
        """
        return [
            Claim(State.SUSPECT, claim.address, claim.incarnation, claim.name, sender, claim.role)
            if claim.state is State.DEAD and self.is_present(claim.address)
            else claim
            for claim in claims
        ]

    def news_for(self, to: Address) -> MemberUpdate:
        """What goes with a message; a suspected or dead one is first told that it is."""
        member = self.roster.get(to)
        about = member.claim() if member is not None and member.state is not State.ALIVE else None
        return self.news.take(self.roster.nodes, about)

    def tables(self, *, wants_back: bool) -> list[Table]:
        """All that is known."""
        claims = [self.own_claim(), *(member.claim() for member in self.roster)]
        return tables_of(claims, wants_back=wants_back)

    def digest(self) -> int:
        """All that is known, in one number."""
        return self.roster.digest(self.own_claim())

    def is_present(self, address: Address) -> bool:
        """Whether it is a member that is not gone."""
        member = self.roster.get(address)
        return member is not None and not member.state.is_gone

    def _object(self, claim: Claim) -> None:
        """Somebody says of this node what is not so, or what was so of one that was here before."""
        said_of_before = (
            claim.incarnation > self.incarnation
            or claim.name != self._name
            or claim.role not in ("", self._role)  # nodes of before pass claims on without it
        )
        is_wrong = claim.state is not State.ALIVE or said_of_before
        if claim.incarnation < self.incarnation or not is_wrong:
            return
        # Beyond that nobody would read a word of this node.
        self.incarnation = min(claim.incarnation + 1, MOST_INCARNATION)
        if claim.state is not State.ALIVE:
            self._health.change(1)
        self.news.add(self.own_claim())


class LocalHealth:
    """How far this node can trust its own accusations: 0 is well. A node that is slow, or cut off,
    probes more slowly and waits longer (Lifeguard).
    """

    __slots__ = ("_most", "score")

    def __init__(self, most: int) -> None:
        self.score, self._most = 0, most

    @property
    def slowness(self) -> int:
        """By how much periods and time-outs are stretched."""
        return self.score + 1

    def change(self, by: int) -> None:
        """Better below 0, worse above."""
        self.score = min(max(self.score + by, 0), self._most)
