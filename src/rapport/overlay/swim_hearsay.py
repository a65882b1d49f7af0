"""What a member heard of others and of itself, and what of that it passes on. [EN-10]"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.overlay.swim_messages import (
    MOST_INCARNATION,
    Claim,
    News,
    State,
    Table,
    tables_of,
)
from rapport.overlay.swim_news import NewsQueue
from rapport.overlay.swim_probing import Health
from rapport.overlay.swim_roster import Change, Roster
from rapport.overlay.swim_settings import SwimSettings
from rapport.transport.base import Address


class Hearsay:
    """Takes claims: those that say something new change the roster and become news; those that are
    wrong about this node are objected to.
    """

    def __init__(
        self, name: str, own: Address, settings: SwimSettings, health: Health, role: str
    ) -> None:
        self.roster = Roster(settings)
        self.news = NewsQueue(settings)
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

    def news_for(self, to: Address) -> News:
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
