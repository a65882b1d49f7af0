"""Whom a member knows, and which of two claims about somebody holds. [EN-10]"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal

import msgspec

from rapport.overlay.swim_messages import Claim, State
from rapport.overlay.swim_settings import SwimSettings
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


class Roster:
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
