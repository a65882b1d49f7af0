"""One case while something happens to it. [CO-8]"""

from __future__ import annotations

from collections.abc import Callable

from rapport.communication.adapters.base import Delivery
from rapport.communication.delivering.case_records import Case, Letter
from rapport.communication.delivering.judging import Judging
from rapport.communication.delivering.steps import Queue
from rapport.communication.delivering.tracking import Member
from rapport.communication.privacy.verdict import Verdict


class Course:
    """One case while something happens to it: a private copy, saved at the end."""

    def __init__(
        self,
        before: Case | None,
        case: Case,
        load: Callable[[str], Letter],
        judging: Judging,
        now_ms: int,
        cause: str,
    ) -> None:
        self.before, self.case, self.now_ms, self.cause = before, case, now_ms, cause
        self._load, self._judging = load, judging
        self._letter: Letter | None = None
        self.queued = False
        self.begun: list[Member] = []
        """Only while it is new: forgotten again when it fails at once."""

    @property
    def letter(self) -> Letter:
        """What the message says; read when it is asked for, since most outcomes need it not."""
        if self._letter is None:
            self._letter = self._load(self.case.key)
        return self._letter

    def judge(self, member: Member) -> Verdict:
        """Whether the member may be told now."""
        return self._judging.verdict(
            member.peer,
            lambda: self.letter,
            self.case.tracking.urgent,
            self.now_ms,
            is_retry=_is_counted(member),
        )

    def delivery(self, step: Queue) -> Delivery:
        """What an adapter gets."""
        case, letter = self.case, self.letter
        return Delivery(
            message=case.message,
            peer=step.peer,
            address=step.address,
            attempt=step.attempt,
            text=letter.text,
            policy=case.policy,
            detection=case.detection,
            time=letter.time,
            sent=letter.sent if letter.sent != letter.time else 0,
            queued=self.now_ms,
            expires=case.tracking.expires,
            urgent=case.tracking.urgent,
            wants_answer=case.tracking.done_when == "answered",
            effect=letter.effect,
            type=letter.type,
            subtype=letter.subtype,
            sender=letter.sender,
            rule_sender=letter.rule_sender,
            conversation=letter.conversation,
            language=letter.language,
            refers_to=letter.refers_to,
            repeat=step.repeat,
            case=case.key if case.routed else "",
        )


def _is_counted(member: Member) -> bool:
    """Whether the message was let through to the member before and no medium took it yet, so that
    another attempt, at whatever address, is no further message.
    """
    if any(entry.state == "retrying" for entry in member.tries):
        return True
    return member.fate == "pending" and any(entry.attempt for entry in member.tries)
