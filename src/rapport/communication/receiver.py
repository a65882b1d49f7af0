"""State machine of one receiver of a message: attempts, holds, repeats, answers. Pure.
[CO-8, CO-9]

The lower level of `delivery.next_step`: it knows one member and reads the message's settings; the
consequences for the message are decided above.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    AddressState,
    Answer,
    AttemptOutcome,
    DeliveryState,
    DeliveryStep,
    LedgerNote,
    Member,
    QueueDelivery,
    RetryPolicy,
)
from rapport.communication.privacy import Allowed, Hold, Verdict

_NEXT_LOOKUP = RetryPolicy()

PrivacyJudge = Callable[[Member], Verdict]
"""Whether the message may go to a member now, by the peer's privacy rules."""


class MemberTransition:
    """One input about one member, on private copies of the states; collects the steps."""

    def __init__(
        self, tracking: DeliveryState, member: Member | None, now_ms: int, judge: PrivacyJudge
    ) -> None:
        self.tracking, self.member = tracking, member
        self.now_ms, self.judge = now_ms, judge
        self.steps: list[DeliveryStep] = []

    # --- inputs ---

    def _begin_new(self, member: Member) -> None:
        if self.tracking.closed:
            self.member = None  # the message was closed meanwhile
        else:
            self._begin(member)

    def _apply_outcome(self, member: Member, outcome: AttemptOutcome) -> None:
        entry = next((each for each in member.tries if each.address == outcome.address), None)
        if entry is None or not _is_news(entry, outcome):
            return
        if outcome.state == "failed":
            self._fail(member, entry, outcome)
            is_bounce = outcome.attempt == LATEST_ATTEMPT
            if is_bounce and member.fate == "reached" and not member.is_reached():
                member.fate = "pending"  # a bounce
            self._fall_back_from(member, entry, outcome)
        elif outcome.state == "dropped":
            entry.state = "stopped"
            is_of_member = member.has_spoken() and not self.tracking.closed
            reason = "answered already" if is_of_member else outcome.reason or "decided before"
            self._note_try(member, entry, state="closed", reason=reason)
        elif outcome.state == "put_off":
            entry.state, entry.retry_at = "retrying", self.now_ms
            if self.tracking.closed or member.has_spoken():
                self._stop(member, "decided before" if self.tracking.closed else "answered already")
            else:
                self._try_again(member, [entry])
        else:
            entry.state = outcome.state
            entry.failures = entry.failures if outcome.state == "unknown" else 0
            self._note_try(member, entry, reason=outcome.reason)
        self._weigh(member)

    def _apply_answer(self, member: Member, answer: Answer) -> None:
        note = LedgerNote(
            state="answered", peer=member.peer, answer=answer.text, declined=answer.declined
        )
        self._note_member(note)
        member.answered, member.declined = not answer.declined, answer.declined
        if not self.tracking.closed:
            self._stop(member, "answered already")

    def _resume(self, member: Member) -> None:
        """Handles due times: the end of a hold, the next attempt, the next repeat."""
        if self.tracking.closed:
            self._stop(member, "decided before")
            return
        if member.fate == "held" and member.held_until <= self.now_ms:
            self._begin(member)
        again = [
            entry
            for entry in member.tries
            if entry.state == "retrying" and entry.retry_at <= self.now_ms
        ]
        if again:
            self._try_again(member, again)
        if member.repeat_at and member.repeat_at <= self.now_ms:
            self._repeat(member)
        if member.fallback_at and member.fallback_at <= self.now_ms:
            member.fallback_at = 0
            self._fall_back(member)
            self._weigh(member)

    def _time_out(self, member: Member) -> None:
        waited_for = member.fate in ("pending", "reached") and not member.timed_out
        if waited_for and not member.declined and not self.tracking.is_satisfied(member):
            member.timed_out = True
            self._note_member(LedgerNote(state="timed_out", peer=member.peer))

    # --- one member ---

    def _begin(self, member: Member) -> None:
        """The first sending to a member, if its privacy rules allow."""
        if member.failed_lookups:
            self._wait_for_directory(member)
            return
        if not member.tries:
            member.fate = "lost"
            reason = member.reason = why_unreachable(member)
            self._note_member(LedgerNote(state="failed", peer=member.peer, reason=reason))
            return
        match self.judge(member):
            case Allowed():
                member.fate, member.held_until = "pending", 0
                self._send_first(member)
            case Hold() as hold:
                member.fate, member.held_until = "held", hold.until
                self._note_member(
                    LedgerNote(state="held", peer=member.peer, reason=hold.reason, until=hold.until)
                )
            case refuse:
                member.fate, member.reason = "refused", refuse.reason
                self._note_member(
                    LedgerNote(state="refused", peer=member.peer, reason=refuse.reason)
                )

    def _wait_for_directory(self, member: Member) -> None:
        """Holds the member until the next look-up; the ledger shows it once."""
        pause_ms = _NEXT_LOOKUP.pause_ms(member.failed_lookups)
        member.fate, member.held_until = "held", self.now_ms + pause_ms
        if member.failed_lookups == 1:
            reason = "people.directory_failed"
            self._note_member(LedgerNote(state="held", peer=member.peer, reason=reason))

    def _send_first(self, member: Member) -> None:
        for entry in member.tries[:1] if member.delivery == "preferred" else member.tries:
            self._queue(member, entry)
        self._set_fallback(member)
        stage = self.tracking.stages[member.stage]
        if stage.answer_within and not stage.answer_by:
            stage.answer_by = self.now_ms + stage.answer_within
        if self.tracking.repeat_every and self.tracking.done_when == "answered":
            member.repeat_at = self.now_ms + self.tracking.repeat_every

    def _try_again(self, member: Member, entries: list[AddressState]) -> None:
        """The next attempt at failed addresses, if privacy rules still allow it."""
        match self.judge(member):
            case Allowed():
                for entry in entries:
                    self._queue(member, entry)
            case Hold() as hold:
                for entry in entries:
                    entry.retry_at = max(hold.until, self.now_ms + 1)
                    self._note_try(member, entry, state="held", reason=hold.reason)
            case refuse:
                for entry in entries:
                    entry.state, entry.retry_at = "failed", 0
                    member.reason = refuse.reason
                    self._note_try(member, entry, state="refused", reason=refuse.reason)
                self._weigh(member)

    def _repeat(self, member: Member) -> None:
        """Sends once more to the addresses that took it, if nobody answered: not after an
        escalation, nor in quiet hours.
        """
        most, tracking = self.tracking.repeat_most, self.tracking
        verdict = self.judge(member)
        if tracking.stages[member.stage].over or tracking.is_out(member):
            member.repeat_at = 0
        elif isinstance(verdict, Hold):
            member.repeat_at = max(verdict.until, self.now_ms + 1)
        elif not isinstance(verdict, Allowed):
            member.repeat_at = 0
        else:
            again = [entry for entry in member.tries if _may_be_repeated(member, entry)]
            member.repeats += bool(again)
            for entry in again:
                entry.failures = 0
                self._queue(member, entry)
            is_last = most and member.repeats >= most
            member.repeat_at = 0 if is_last else self.now_ms + tracking.repeat_every

    def _weigh(self, member: Member) -> None:
        """Derives the state of the member from those of its addresses."""
        if member.fate != "pending":
            return
        if member.is_reached():
            member.fate, member.fallback_at = "reached", 0
        elif member.is_lost():
            member.fate, member.repeat_at, member.fallback_at = "lost", 0, 0
            self._note_member(LedgerNote(state="failed", peer=member.peer, reason="not reached"))

    # --- the next address ---

    def _set_fallback(self, member: Member) -> None:
        """Starts the time of the newest address, where there is another one."""
        has_next = member.next_address() is not None
        member.fallback_at = self.now_ms + self.tracking.fallback_ms(member) if has_next else 0

    def _fall_back_from(
        self, member: Member, failed: AddressState, outcome: AttemptOutcome
    ) -> None:
        """Tries the next address at once when the newest one failed for good, or when its medium
        knows that it cannot deliver now; then that one is retried all the same.
        """
        following = member.next_address()
        if following is None or member.fate != "pending":
            return
        is_newest = member.tries.index(failed) + 1 == member.tries.index(following)
        if is_newest and (failed.state == "failed" or outcome.unavailable):
            self._fall_back(member)
        elif not member.fallback_at:
            self._set_fallback(member)

    def _fall_back(self, member: Member) -> None:
        """Tries the next address of a member, if privacy rules allow it now."""
        while following := member.next_address():
            if self.tracking.closed or member.has_spoken() or member.fate != "pending":
                return
            match self.judge(member):
                case Allowed():
                    self._queue(member, following)
                    self._set_fallback(member)
                    return
                case Hold() as hold:
                    member.fallback_at = max(hold.until, self.now_ms + 1)
                    return
                case refuse:
                    following.state, member.reason = "failed", refuse.reason
                    self._note_try(member, following, state="refused", reason=refuse.reason)

    def _fail(self, member: Member, entry: AddressState, outcome: AttemptOutcome) -> None:
        entry.failures += 1
        member.reason = outcome.reason
        retry, expires = self.tracking.retry, self.tracking.expires
        retry_at = self.now_ms + retry.pause_ms(entry.failures)
        in_time = not expires or retry_at < expires
        again = outcome.retry and in_time and entry.failures < retry.attempts
        if again and not self.tracking.closed and not member.has_spoken():
            entry.state, entry.retry_at = "retrying", retry_at
        else:
            entry.state, entry.retry_at = "failed", 0
        self._note_try(member, entry, state="failed", reason=outcome.reason)

    def _stop(self, member: Member, reason: str) -> None:
        """Drops what is pending for this member."""
        member.repeat_at = member.fallback_at = 0
        if member.fate == "held":
            member.fate, member.held_until = "discarded", 0
            self._note_member(LedgerNote(state="closed", peer=member.peer, reason=reason))
        for entry in member.tries:
            if entry.state == "retrying":
                entry.state, entry.retry_at = "stopped", 0
                self._note_try(member, entry, state="closed", reason=reason)
            elif entry.state == "idle":
                entry.state = "stopped"

    # --- steps ---

    def _queue(self, member: Member, entry: AddressState) -> None:
        entry.state, entry.retry_at, entry.attempt = "queued", 0, entry.attempt + 1
        self._note_try(member, entry)
        place = member.tries.index(entry)
        self.steps.append(
            QueueDelivery(member.peer, entry.address, entry.attempt, place, member.repeats)
        )

    def _note_try(
        self, member: Member, entry: AddressState, *, state: str | None = None, reason: str = ""
    ) -> None:
        self._note(
            LedgerNote(
                state=state or entry.state,  # type: ignore[arg-type]
                peer=member.peer,
                address=entry.address,
                attempt=entry.attempt,
                reason=reason,
                until=entry.retry_at,
                stage=member.stage + 1,
            )
        )

    def _note_member(self, note: LedgerNote) -> None:
        number = self.member.stage + 1 if self.member else 0
        self._note(replace(note, stage=number))

    def _note(self, note: LedgerNote) -> None:
        self.steps.append(note)


def _is_news(entry: AddressState, outcome: AttemptOutcome) -> bool:
    """Whether an outcome changes anything: it counts once for its attempt; a sent message may still
    be confirmed or bounce.
    """
    if outcome.attempt == LATEST_ATTEMPT:
        return outcome.state == "failed" and entry.state in ("handed", "confirmed")
    if outcome.attempt != entry.attempt:
        return False
    if entry.state == "handed":
        return outcome.state == "confirmed"
    return entry.state in ("queued", "unknown")


def _may_be_repeated(member: Member, entry: AddressState) -> bool:
    taken = entry.state in ("handed", "confirmed", "failed")
    return taken and member.fate == "reached"


def why_unreachable(member: Member) -> str:
    """Why a member without a usable address is not reached."""
    return "peer.unknown" if member.unknown else "peer.no_address"
