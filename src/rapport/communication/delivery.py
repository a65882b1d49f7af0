"""State machine of a message and its receivers: the delivery policies of three levels. Pure.
[CO-8, CO-9]

`next_step(state, member, input, now_ms, judge)` returns the new states and the steps to perform;
`delivery_runner.py` performs them. An input is applied to its member first (attempts, holds,
repeats, answers), then to the message. Where algorithms 2.3-2.6 of the source are ambiguous:
AT_LEAST_ONE fails with the last address only, TO_ALL_MEMBERS tries everybody and reports the first
failure at once, PREFERRED falls back only over the addresses it was given.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    AddReceiver,
    AddressState,
    Answer,
    AttemptOutcome,
    BeginMember,
    CloseMessage,
    DeliveryInput,
    DeliveryResult,
    DeliveryState,
    DeliveryStep,
    LedgerNote,
    LedgerState,
    Member,
    MembersAbandoned,
    MembersBegun,
    MemberTick,
    MessageTick,
    NotifySender,
    QueueDelivery,
    RetryPolicy,
    Stage,
    StopMember,
    TimeOutMember,
    VisitMembers,
)
from rapport.communication.privacy import AllowedDelivery, Hold, Verdict

_NEXT_LOOKUP = RetryPolicy()
_Standing = tuple[bool, bool, bool, bool]
PrivacyJudge = Callable[[Member], Verdict]
"""Whether the message may go to a member now, by the peer's privacy rules."""


def next_step(
    tracking: DeliveryState,
    member: Member | None,
    input: DeliveryInput,
    now_ms: int,
    judge: PrivacyJudge,
) -> tuple[DeliveryState, Member | None, list[DeliveryStep]]:
    """The states after `input` and the steps to perform; the given states are not changed. The cost
    does not depend on the number of members.

    `member` is the one that the input concerns, None for inputs about the whole message. A repeated
    outcome or an early tick changes nothing. Nothing is queued once the message is closed; later
    outcomes and answers are still noted.
    """
    member = input.member if isinstance(input, BeginMember) else member
    transition = _Transition(
        _copy_of(tracking), _copy_member(member) if member else None, now_ms, judge
    )
    transition.apply(input)
    return transition.tracking, transition.member, transition.steps


class _Transition:
    """One call of `next_step`, on private copies of the states: applies the input to the member,
    then to the message, and collects the steps."""

    def __init__(
        self, tracking: DeliveryState, member: Member | None, now_ms: int, judge: PrivacyJudge
    ) -> None:
        self.tracking, self.member = tracking, member
        self.now_ms, self.judge = now_ms, judge
        self.steps: list[DeliveryStep] = []

    def apply(self, input: DeliveryInput) -> None:
        before = None if isinstance(input, BeginMember) else self._standing()
        match input:
            case AddReceiver():
                self._add_receiver(input)
            case MembersBegun():
                self._end_spreading(input)
            case MembersAbandoned():
                self._give_up(input)
            case MessageTick():
                self._pass_time()
            case CloseMessage():
                self._close_early(input)
            case _ if self.member is not None:
                self._apply_to_member(self.member, input)
        self._count(before)
        self._decide()
        if isinstance(input, AttemptOutcome) and before is not None and before[0]:
            self._apply_bounce(input)

    def _apply_to_member(self, member: Member, input: DeliveryInput) -> None:
        match input:
            case BeginMember():
                if self.tracking.closed:
                    self.member = None  # the message was closed meanwhile
                else:
                    self._begin(member)
            case AttemptOutcome():
                self._apply_outcome(member, input)
            case Answer():
                self._apply_answer(member, input)
            case MemberTick():
                self._resume(member, is_relieved=input.is_relieved)
            case TimeOutMember():
                self._time_out(member)
            case StopMember():
                self._stop(member, self._why_stopped())

    # --- counting ---

    def _standing(self) -> _Standing | None:
        """Whether the member is done, out, has a due time, and has declined."""
        member = self.member
        if member is None:
            return None
        done, out = self.tracking.is_satisfied(member), self.tracking.is_out(member)
        return done, out, member.due_ms() > 0, member.declined

    def _count(self, before: _Standing | None) -> None:
        """Updates the counters of stage and message by the change of the member."""
        after = self._standing()
        if self.member is None or after is None:
            return
        stage = self.tracking.stages[self.member.stage]
        if before is None:
            stage.asked += 1
            before = (False, False, False, False)
        if after[1] and not before[1] and not self.member.declined:
            stage.reason = _of_member(stage, self.member)
        stage.satisfied += after[0] - before[0]
        stage.out += after[1] - before[1]
        self.tracking.waiting += after[2] - before[2]
        stage.declined += after[3] - before[3]

    # --- inputs about the message ---

    def _add_receiver(self, added: AddReceiver) -> None:
        if self.tracking.closed:
            return
        stage = Stage(added.receiver, added.delivery, added.least, added.answer_within)
        self.tracking.stages.append(stage)
        if self.tracking.expires and self.tracking.expires <= self.now_ms:
            self._close("timed_out", "its time to live is over")

    def _end_spreading(self, input: MembersBegun) -> None:
        stage = self.tracking.stages[input.stage]
        if not stage.spreading:
            return
        stage.spreading = False
        if not stage.asked and not self.tracking.closed:
            reason = "everybody was asked already" if input.found else "nobody is in it"
            self.steps.append(LedgerNote(state="failed", reason=f"{stage.receiver}: {reason}"))

    def _give_up(self, input: MembersAbandoned) -> None:
        """The stage continues with the members that were begun, as if the others were lost."""
        stage = self.tracking.stages[input.stage]
        if not stage.spreading:
            return
        stage.spreading, stage.given_up = False, input.reason
        if not self.tracking.closed:
            self.steps.append(LedgerNote(state="failed", reason=_why_lost(stage)))

    def _pass_time(self) -> None:
        tracking = self.tracking
        if tracking.closed:
            return
        if tracking.expires and tracking.expires <= self.now_ms:
            self.steps.append(VisitMembers("time_out"))
            self._close("timed_out", "its time to live is over")
            return
        number = len(tracking.stages) - 1
        stage = tracking.stages[number] if tracking.stages else None
        if stage is None or not stage.answer_by or stage.answer_by > self.now_ms or stage.over:
            return
        self.steps.append(VisitMembers("time_out", number))
        stage.answer_by = 0
        if tracking.escalate:
            self._escalate(stage, self._why_late(stage))
        else:
            self._close("timed_out", self._why_late(stage))

    def _why_late(self, stage: Stage) -> str:
        if not stage.satisfied:
            declined = f" ({stage.declined} declined)" if stage.declined else ""
            return f"no answer from {stage.receiver}{declined}"
        did = "answered" if self.tracking.done_when == "answered" else "were reached"
        declined = f", {stage.declined} declined" if stage.declined else ""
        return f"{stage.satisfied} of {stage.needed()} {did} in time{declined}"

    def _close_early(self, input: CloseMessage) -> None:
        if not self.tracking.closed:
            self.tracking.closed_because = input.reason
            self._close(input.result, input.reason)

    def _why_stopped(self) -> str:
        """Why a member of a closed message gets nothing more."""
        return self.tracking.closed_because or "decided before"

    # --- the message ---

    def _decide(self) -> None:
        """Closes, escalates or notifies the sender when the policies say so."""
        tracking = self.tracking
        if tracking.closed or not tracking.stages:
            return
        if tracking.has_succeeded():
            self._close("done", "")
            return
        stage = tracking.stages[-1]
        # A stage that is over waits for the next receiver, which follows in the same transaction.
        if stage.over or not stage.is_lost():
            return
        if tracking.escalate and not stage.spreading:
            self._escalate(stage, _why_lost(stage))
        elif tracking.escalate:
            return
        elif stage.is_settled():
            self._close("failed", _why_lost(stage))
        else:
            self._notify_failure(self._missing_members(stage))

    def _missing_members(self, stage: Stage) -> str:
        if stage.declined or stage.given_up:
            return _why_lost(stage)
        text = f"not everybody of {stage.receiver} could be reached"
        if stage.receiver.startswith("peer:"):
            text = f"{stage.receiver} could not be reached"
        return f"{text}: {stage.reason}" if stage.reason else text

    def _escalate(self, stage: Stage, reason: str) -> None:
        stage.over = True
        following = self.tracking.escalate.pop(0)
        text = f"{reason}; asking {following.receiver}"
        self.steps.append(LedgerNote(state="escalated", reason=text, receiver=following.receiver))
        self.steps.append(following)

    def _close(self, result: DeliveryResult, reason: str) -> None:
        self.tracking.result = result
        if self.tracking.waiting:
            self.steps.append(VisitMembers("stop"))
        self.steps.append(LedgerNote(state="closed", result=result, reason=reason))
        # A sender that was notified of a failure gets no ACK as well: the ledger has both.
        if result == "done" and self.tracking.acknowledge and not self.tracking.failure_told:
            self.steps.append(NotifySender("ack"))
        elif result == "timed_out":
            self.steps.append(NotifySender("timeout", reason))
        elif result == "failed":
            self._notify_failure(reason)

    def _apply_bounce(self, failed: AttemptOutcome) -> None:
        """Notifies the sender of a bounce after which the message is done no more."""
        tracking, member = self.tracking, self.member
        is_back = member is not None and not tracking.is_satisfied(member)
        if not is_back or tracking.result != "done" or tracking.has_succeeded():
            return
        if not tracking.failure_told:
            tracking.failure_told = True
            # Not COMERROR: the sender may have got an ACK.
            self.steps.append(NotifySender("error", failed.reason))

    def _notify_failure(self, reason: str) -> None:
        """COMERROR, once; never for a message that is done."""
        if not self.tracking.failure_told:
            self.tracking.failure_told = True
            self.steps.append(NotifySender("comerror", reason))

    # --- inputs about a member ---

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
            reason = self.tracking.closed_because or outcome.reason or self._why_stopped()
            reason = "answered already" if is_of_member else reason
            self._note_try(member, entry, state="closed", reason=reason)
        elif outcome.state == "put_off":
            entry.state, entry.retry_at = "retrying", self.now_ms
            if self.tracking.closed or member.has_spoken():
                is_closed = self.tracking.closed
                self._stop(member, self._why_stopped() if is_closed else "answered already")
            else:
                self._try_again(member, [entry])
        else:
            entry.state = outcome.state
            entry.failures = entry.failures if outcome.state == "unknown" else 0
            self._note_try(member, entry, reason=outcome.reason)
        self._weigh(member)

    def _apply_answer(self, member: Member, answer: Answer) -> None:
        self._note_member(member, "answered", answer=answer.text, declined=answer.declined)
        member.answered, member.declined = not answer.declined, answer.declined
        if not self.tracking.closed:
            self._stop(member, "answered already")

    def _resume(self, member: Member, *, is_relieved: bool) -> None:
        """Handles due times: the end of a hold, the next attempt, the next repeat."""
        if self.tracking.closed:
            self._stop(member, self._why_stopped())
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
            self._repeat(member, is_relieved=is_relieved)
        if member.fallback_at and member.fallback_at <= self.now_ms:
            member.fallback_at = 0
            self._fall_back(member)
            self._weigh(member)

    def _time_out(self, member: Member) -> None:
        waited_for = member.fate in ("pending", "reached") and not member.timed_out
        if waited_for and not member.declined and not self.tracking.is_satisfied(member):
            member.timed_out = True
            self._note_member(member, "timed_out")

    # --- one member ---

    def _begin(self, member: Member) -> None:
        """The first sending to a member, if its privacy rules allow."""
        if member.failed_lookups:
            self._wait_for_directory(member)
            return
        if not member.tries:
            member.fate = "lost"
            reason = member.reason = "peer.unknown" if member.unknown else "peer.no_address"
            self._note_member(member, "failed", reason=reason)
            return
        match self.judge(member):
            case AllowedDelivery():
                member.fate, member.held_until = "pending", 0
                self._send_first(member)
            case Hold() as hold:
                member.fate, member.held_until = "held", hold.until
                self._note_member(member, "held", reason=hold.reason, until=hold.until)
            case refuse:
                member.fate, member.reason = "refused", refuse.reason
                self._note_member(member, "refused", reason=refuse.reason)

    def _wait_for_directory(self, member: Member) -> None:
        """Holds the member until the next look-up; the ledger shows it once."""
        pause_ms = _NEXT_LOOKUP.pause_ms(member.failed_lookups)
        member.fate, member.held_until = "held", self.now_ms + pause_ms
        if member.failed_lookups == 1:
            reason = "people.directory_failed"
            self._note_member(member, "held", reason=reason)

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
            case AllowedDelivery():
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

    def _repeat(self, member: Member, *, is_relieved: bool) -> None:
        """Sends once more to the addresses that took it, if nobody answered: not after an
        escalation, nor in quiet hours, nor while others are on duty instead.
        """
        most, tracking = self.tracking.repeat_most, self.tracking
        verdict = self.judge(member)
        if tracking.stages[member.stage].over or tracking.is_out(member):
            member.repeat_at = 0
        elif isinstance(verdict, Hold):
            member.repeat_at = max(verdict.until, self.now_ms + 1)
        elif not isinstance(verdict, AllowedDelivery):
            member.repeat_at = 0
        else:
            sent = ("handed", "confirmed", "failed") if member.fate == "reached" else ()
            again = [entry for entry in member.tries if entry.state in sent]
            member.repeats += bool(again)
            for entry in again if not is_relieved else ():
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
            self._note_member(member, "failed", reason="not reached")

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
                case AllowedDelivery():
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
        """Drops the pending attempts, holds and repeats of this member."""
        member.repeat_at = member.fallback_at = 0
        if member.fate == "held":
            member.fate, member.held_until = "discarded", 0
            self._note_member(member, "closed", reason=reason)
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
        self.steps.append(
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

    def _note_member(
        self,
        member: Member,
        state: LedgerState,
        *,
        reason: str = "",
        until: int = 0,
        answer: str = "",
        declined: bool = False,
    ) -> None:
        self.steps.append(
            LedgerNote(
                state=state,
                peer=member.peer,
                reason=reason,
                answer=answer,
                declined=declined,
                until=until,
                stage=member.stage + 1,
            )
        )


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


def _of_member(stage: Stage, member: Member) -> str:
    """Why a member is lost; names it where there are several."""
    if not member.reason or stage.receiver.startswith("peer:"):
        return member.reason
    return f"{member.peer}: {member.reason}"


def _why_lost(stage: Stage) -> str:
    """Why a stage cannot be met any more."""
    if stage.given_up:
        return f"not everybody of {stage.receiver} could be asked: {stage.given_up}"
    if not stage.declined:
        why = f": {stage.reason}" if stage.reason else ""
        return f"{stage.receiver} could not be reached{why}"
    if stage.receiver.startswith("peer:"):
        return f"{stage.receiver} declined"
    others = stage.out - stage.declined
    why = f" ({stage.reason})" if stage.reason else ""
    unreached = f", {others} could not be reached{why}" if others else ""
    return f"{stage.declined} of {stage.receiver} declined{unreached}"


def _copy_of(tracking: DeliveryState) -> DeliveryState:
    made = replace(tracking)
    made.stages = [replace(stage) for stage in tracking.stages]
    made.escalate = list(tracking.escalate)
    return made


def _copy_member(member: Member) -> Member:
    made = replace(member)
    made.tries = [replace(entry) for entry in member.tries]
    return made
