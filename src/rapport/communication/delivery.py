"""State machine of a message: the delivery policies of three levels. Pure. [CO-8]

`next_step(state, member, input, now_ms, judge)` returns the new states and the steps to perform;
`delivery_runner.py` performs them. Where algorithms 2.3-2.6 of the source are ambiguous:
AT_LEAST_ONE fails with the last address only, TO_ALL_MEMBERS tries everybody and reports the first
failure at once, PREFERRED falls back only over the addresses it was given.
"""

from __future__ import annotations

from msgspec.structs import replace

from rapport.communication.delivery_state import (
    AddReceiver,
    Answer,
    AttemptOutcome,
    BeginMember,
    DeliveryInput,
    DeliveryResult,
    DeliveryState,
    DeliveryStep,
    Escalate,
    LedgerNote,
    Member,
    MembersAbandoned,
    MembersBegun,
    MemberTick,
    MessageTick,
    NotifySender,
    Stage,
    StopMember,
    TimeOutMember,
    VisitMembers,
)
from rapport.communication.receiver import MemberTransition, PrivacyJudge

_Standing = tuple[bool, bool, bool, bool]


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
    transition.take(input)
    return transition.tracking, transition.member, transition.steps


class _Transition(MemberTransition):
    """One call of `next_step`: applies the input to the member, then to the message."""

    def take(self, input: DeliveryInput) -> None:
        before = None if isinstance(input, BeginMember) else self._standing()
        match input:
            case AddReceiver():
                self._ask(input)
            case MembersBegun():
                self._end_spreading(input)
            case MembersAbandoned():
                self._give_up(input)
            case MessageTick():
                self._pass_time()
            case _ if self.member is not None:
                self._take_member(self.member, input)
        self._count(before)
        self._decide()
        if isinstance(input, AttemptOutcome) and before is not None and before[0]:
            self._apply_bounce(input)

    def _take_member(self, member: Member, input: DeliveryInput) -> None:
        match input:
            case BeginMember():
                self._begin_new(member)
            case AttemptOutcome():
                self._apply_outcome(member, input)
            case Answer():
                self._apply_answer(member, input)
            case MemberTick():
                self._resume(member)
            case TimeOutMember():
                self._time_out(member)
            case StopMember():
                self._stop(member, "decided before")

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

    def _ask(self, ask: AddReceiver) -> None:
        if self.tracking.closed:
            return
        self.tracking.stages.append(
            Stage(ask.receiver, ask.delivery, ask.least, answer_within=ask.answer_within)
        )
        if self.tracking.expires and self.tracking.expires <= self.now_ms:
            self._close("timed_out", "its time to live is over")

    def _end_spreading(self, input: MembersBegun) -> None:
        stage = self.tracking.stages[input.stage]
        if not stage.spreading:
            return
        stage.spreading = False
        if not stage.asked and not self.tracking.closed:
            reason = "everybody was asked already" if input.found else "nobody is in it"
            self._note(LedgerNote(state="failed", reason=f"{stage.receiver}: {reason}"))

    def _give_up(self, input: MembersAbandoned) -> None:
        """The stage continues with the members that were begun, as if the others were lost."""
        stage = self.tracking.stages[input.stage]
        if not stage.spreading:
            return
        stage.spreading, stage.given_up = False, input.reason
        if not self.tracking.closed:
            self._note(LedgerNote(state="failed", reason=_why_lost(stage)))

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
        """Why a stage missed its deadline."""
        if not stage.satisfied:
            declined = f" ({stage.declined} declined)" if stage.declined else ""
            return f"no answer from {stage.receiver}{declined}"
        did = "answered" if self.tracking.done_when == "answered" else "were told"
        declined = f", {stage.declined} declined" if stage.declined else ""
        return f"{stage.satisfied} of {stage.needed()} {did} in time{declined}"

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
        self._note(LedgerNote(state="escalated", reason=text, receiver=following.receiver))
        self.steps.append(Escalate(following.receiver, following.answer_within))

    def _close(self, result: DeliveryResult, reason: str) -> None:
        self.tracking.result = result
        if self.tracking.waiting:
            self.steps.append(VisitMembers("stop"))
        self._note(LedgerNote(state="closed", result=result, reason=reason))
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
