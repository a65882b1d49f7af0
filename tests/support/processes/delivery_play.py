"""Drives the delivery machine the way the engine does, with the members in a dictionary and the
clock moved by hand. [CO-8]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rapport.communication.delivery import next_step
from rapport.communication.delivery_state import (
    AddReceiver,
    AddressState,
    Answer,
    AttemptOutcome,
    BeginMember,
    CollectiveDelivery,
    DeliveryInput,
    DeliveryState,
    DeliveryStep,
    LedgerNote,
    Member,
    MembersBegun,
    MemberTick,
    MessageTick,
    NextReceiver,
    NotifySender,
    OutcomeState,
    PeerDelivery,
    QueueDelivery,
    RetryPolicy,
    StopMember,
    TimeOutMember,
    VisitMembers,
)
from rapport.communication.privacy import AllowedDelivery, Verdict

NOW = 1_000_000
MAIL, INBOX = "mail:x@example.org", "inbox:"


def member(name: str = "ana", *addresses: str, delivery: PeerDelivery = "at-least-one") -> Member:
    """A peer with these addresses; with one when none is given."""
    tries = [AddressState(address=address) for address in (addresses or (MAIL,))]
    return Member(peer=name, tries=tries, delivery=delivery)


class Play:
    """One message under test: inputs in; queued sends, notes and what the sender was told out.

    `verdicts` say by peer what privacy says at a time. `next_ones` gives policy, least and members
    of receivers that are asked by escalation.
    """

    def __init__(
        self,
        *,
        verdicts: dict[str, Callable[[int], Verdict]] | None = None,
        next_ones: dict[str, tuple[CollectiveDelivery, int, list[Member]]] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("retry", RetryPolicy(attempts=3, first_ms=1_000, longest_ms=4_000))
        self.tracking = DeliveryState(message="m", **settings)
        self.members: dict[str, Member] = {}
        self.verdicts, self.next_ones = verdicts or {}, next_ones or {}
        self.now = NOW
        self.steps: list[DeliveryStep] = []

    # --- inputs ---

    def ask(
        self,
        *members: Member,
        delivery: CollectiveDelivery = "to-any",
        receiver: str = "collective:guards",
        least: int = 1,
        answer_within: int = 0,
    ) -> list[DeliveryStep]:
        """Asks a receiver and begins its members."""
        before = len(self.steps)
        self._take(None, AddReceiver(receiver, delivery, least, answer_within))
        number = len(self.tracking.stages) - 1
        for each in members:
            if each.peer not in self.members and not self.tracking.closed:
                each.stage = number
                self._take(None, BeginMember(each))
        if not self.tracking.closed:
            self._take(None, MembersBegun(number, len(members)))
        return self.steps[before:]

    def sent(
        self,
        peer: str = "ana",
        address: str = MAIL,
        attempt: int = 1,
        state: OutcomeState = "handed",
    ) -> list[DeliveryStep]:
        """A medium says that it took it, or what else."""
        return self.hear(AttemptOutcome(peer, address, attempt, state))

    def failed(
        self,
        peer: str = "ana",
        address: str = MAIL,
        attempt: int = 1,
        retry: bool = False,
        unavailable: bool = False,
    ) -> list[DeliveryStep]:
        """A medium says that it did not."""
        return self.hear(
            AttemptOutcome(
                peer,
                address,
                attempt,
                "failed",
                reason="no",
                retry=retry,
                unavailable=unavailable,
            )
        )

    def answer(self, peer: str = "ana", text: str = "yes") -> list[DeliveryStep]:
        """A person answers."""
        return self.hear(Answer(peer, text))

    def hear(self, input: AttemptOutcome | Answer) -> list[DeliveryStep]:
        """An outcome or an answer; of strangers it is none."""
        found = self.members.get(input.peer)
        before = len(self.steps)
        if found is not None:
            self._take(found, input)
        return self.steps[before:]

    def after(self, duration_ms: int) -> list[DeliveryStep]:
        """Lets time pass at once, then everybody looks at the clock."""
        before = len(self.steps)
        self.now += duration_ms
        self._take(None, MessageTick())
        for peer in list(self.members):
            due = self.members[peer].due_ms()
            if due and due <= self.now:
                self._take(self.members[peer], MemberTick())
        return self.steps[before:]

    def due(self) -> int | None:
        """When the clock alone changes something."""
        moments = [each.due_ms() for each in self.members.values()]
        moments.append(self.tracking.next_due_ms())
        return min((moment for moment in moments if moment), default=None)

    # --- what came of it ---

    @property
    def result(self) -> str:
        """How it was closed; empty while it is open."""
        return self.tracking.result

    def queued(self) -> list[tuple[str, str]]:
        """Peer and address of every sending so far."""
        return [(step.peer, step.address) for step in self.steps if isinstance(step, QueueDelivery)]

    def told(self) -> list[str]:
        """What the sender was told."""
        return [step.subtype for step in self.steps if isinstance(step, NotifySender)]

    def notes(self, state: str) -> list[str]:
        """The peers of all ledger lines of one state."""
        return [
            step.peer for step in self.steps if isinstance(step, LedgerNote) and step.state == state
        ]

    # --- the machine ---

    def _take(self, found: Member | None, input: DeliveryInput) -> None:
        given = self.tracking
        before = repr((given, found))
        self.tracking, after, steps = next_step(given, found, input, self.now, self._judge)
        assert repr((given, found)) == before, "the given state must not change"
        if after is not None:
            self.members[after.peer] = after
        for step in steps:
            self.steps.append(step)
            self._follow(step)

    def _follow(self, step: DeliveryStep) -> None:
        if isinstance(step, VisitMembers):
            for each in list(self.members.values()):
                if step.stage < 0 or each.stage == step.stage:
                    self._take(each, TimeOutMember() if step.kind == "time_out" else StopMember())
        elif isinstance(step, NextReceiver) and step.receiver in self.next_ones:
            delivery, least, members = self.next_ones[step.receiver]
            self.ask(
                *members,
                delivery=delivery,
                receiver=step.receiver,
                least=least,
                answer_within=step.answer_within,
            )

    def _judge(self, asked: Member) -> Verdict:
        verdict = self.verdicts.get(asked.peer)
        return verdict(self.now) if verdict else AllowedDelivery()
