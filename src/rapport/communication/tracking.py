"""What is known about one message on its way: stages, members and tries, and questions about them.
[CO-8]

The state that `delivery.next_step` moves; kept as one record per message. Three levels, as in the
source: the tries of a peer's addresses, the members of a collective, and the message. No I/O and
no clock here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.communication.privacy import PrivacyPolicy

PeerDelivery = Literal["to-all-channels", "at-least-one", "preferred"]
CollectiveDelivery = Literal["to-any", "to-all-members"]
DoneWhen = Literal["sent", "answered"]
Result = Literal["", "done", "failed", "timed_out"]
TryState = Literal[
    "idle", "queued", "unknown", "handed", "confirmed", "retrying", "failed", "stopped"
]
Fate = Literal["pending", "held", "refused", "reached", "lost", "discarded"]


class Retry(msgspec.Struct, frozen=True):
    """How often and how far apart an address is tried: pauses double from `first_ms` up to
    `longest_ms`.

    The defaults give up after about 20 minutes; a message's time to live ends it earlier.
    """

    attempts: int = 10
    first_ms: int = 2_000
    longest_ms: int = 300_000

    def pause_ms(self, attempt: int) -> int:
        """The pause after the failure of that attempt (from 1).

        >>> [Retry().pause_ms(attempt) for attempt in (1, 2, 3, 60)]
        [2000, 4000, 8000, 300000]
        """
        return min(self.first_ms << min(attempt - 1, 30), self.longest_ms)


DEFAULT_RETRY = Retry()


class Try(msgspec.Struct):
    """One address of one peer and how far the message got there."""

    address: str
    state: TryState = "idle"
    attempt: int = 0
    retry_at: int = 0


class Member(msgspec.Struct):
    """One peer who is told, as the directory had them when the stage began."""

    peer: str
    tries: list[Try]
    delivery: PeerDelivery = "at-least-one"
    privacy: PrivacyPolicy | None = None
    fate: Fate = "pending"
    held_until: int = 0
    answered: bool = False
    timed_out: bool = False

    def is_reached(self) -> bool:
        """Whether the media took it as the peer's policy demands; who answered was reached."""
        if self.answered:
            return True
        sent = [entry.state in ("handed", "confirmed") for entry in self.tries]
        return all(sent) and bool(sent) if self.delivery == "to-all-channels" else any(sent)

    def is_lost(self) -> bool:
        """Whether the peer's delivery policy cannot be met any more."""
        failed = [entry.state == "failed" for entry in self.tries]
        return any(failed) if self.delivery == "to-all-channels" else all(failed)


class Stage(msgspec.Struct):
    """One receiver that was asked: its policy, its members, and the deadline for an answer."""

    receiver: str
    delivery: CollectiveDelivery
    members: list[Member]
    answer_by: int = 0
    """0 until somebody was sent the message: nobody is late who was not asked."""
    over: bool = False
    """Its deadline passed or it was lost: the next receiver is asked."""


class Tracking(msgspec.Struct, kw_only=True):
    """One message from the first sending to its close; `stages` grow by escalation."""

    message: str
    done_when: DoneWhen = "sent"
    urgent: bool = False
    acknowledge: bool = True
    answer_within: int = 0
    escalate_to: list[str] = []
    expires: int = 0
    retry: Retry = DEFAULT_RETRY
    stages: list[Stage] = []
    result: Result = ""
    failure_told: bool = False

    @property
    def closed(self) -> bool:
        """Whether it is decided; nothing is sent after that."""
        return self.result != ""

    def members(self) -> list[Member]:
        """Everybody who was asked, in order."""
        return [member for stage in self.stages for member in stage.members]

    def member(self, peer: str) -> Member | None:
        """The member of that name; a peer is asked once per message."""
        return next((member for member in self.members() if member.peer == peer), None)

    def next_due_ms(self) -> int | None:
        """When the clock alone changes something; None when only an outcome or an answer can."""
        if self.closed:
            return None
        due = [self.expires]
        due += [stage.answer_by for stage in self.stages if not stage.over]
        for member in self.members():
            due.append(member.held_until if member.fate == "held" else 0)
            due += [entry.retry_at for entry in member.tries if entry.state == "retrying"]
        return min((moment for moment in due if moment), default=None)

    def is_satisfied(self, member: Member) -> bool:
        """Whether this member counts as done: answered, or reached when that is enough."""
        return member.answered or (self.done_when == "sent" and member.fate == "reached")

    def has_succeeded(self, stage: Stage) -> bool:
        """Whether the collective's delivery policy is met."""
        satisfied = [self.is_satisfied(member) for member in stage.members]
        return any(satisfied) if stage.delivery == "to-any" else all(satisfied) and bool(satisfied)

    def is_lost(self, stage: Stage) -> bool:
        """Whether it cannot be met any more; a held member counts as pending."""
        lost = [self._is_out(member) for member in stage.members]
        return all(lost) if stage.delivery == "to-any" else any(lost) or not lost

    def is_settled(self, stage: Stage) -> bool:
        """Whether nobody of the stage can still change anything."""
        return all(self.is_satisfied(member) or self._is_out(member) for member in stage.members)

    @staticmethod
    def _is_out(member: Member) -> bool:
        return member.fate in ("lost", "refused") and not member.answered
