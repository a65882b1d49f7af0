"""How a message reaches people: the delivery policies of three levels as one pure state machine.
[CO-8]

`next_step(tracking, member, input, now_ms, judge)` gives the new states and the steps to take;
`cases.py` takes them. Decided where the source's algorithms 2.3-2.6 slip: AT_LEAST_ONE fails with
the last address only, TO_ALL_MEMBERS tries everybody and reports the first failure at once,
PREFERRED falls back only over the tries it was given.
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
    """The states after `input` and what is to be done; the given ones are not changed. Cost does
    not depend on how many members there are.

    `member` is the one that the input speaks of, None for inputs about the whole message. Inputs
    that say nothing new (an outcome twice, a tick too early) change nothing. Nothing is queued
    once the message is closed; outcomes and answers that come later are noted, since they happened.
    """
    member = input.member if isinstance(input, BeginMember) else member
    turn = _Turn(_copy_of(tracking), _copy_member(member) if member else None, now_ms, judge)
    turn.take(input)
    return turn.tracking, turn.member, turn.steps


class _Turn(MemberTransition):
    """One call of `next_step`: what the input means for the member, then for the message."""

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
            self._take_back(input)

    def _take_member(self, member: Member, input: DeliveryInput) -> None:
        match input:
            case BeginMember():
                self._begin_new(member)
            case AttemptOutcome():
                self._hear_outcome(member, input)
            case Answer():
                self._hear_answer(member, input)
            case MemberTick():
                self._resume(member)
            case TimeOutMember():
                self._time_out(member)
            case StopMember():
                self._stop(member, "decided before")

    # --- counting ---

    def _standing(self) -> _Standing | None:
        """Whether the member is done, out, waiting for the clock, and has declined."""
        member = self.member
        if member is None:
            return None
        done, out = self.tracking.is_satisfied(member), self.tracking.is_out(member)
        return done, out, member.due_ms() > 0, member.declined

    def _count(self, before: _Standing | None) -> None:
        """Brings the counters of stage and message up to what became of the member."""
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
        """The stage goes on with those who were begun, as it does when somebody is lost."""
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
        """Why the time of a stage is over without what was asked of it."""
        if not stage.satisfied:
            declined = f" ({stage.declined} declined)" if stage.declined else ""
            return f"no answer from {stage.receiver}{declined}"
        did = "answered" if self.tracking.done_when == "answered" else "were told"
        declined = f", {stage.declined} declined" if stage.declined else ""
        return f"{stage.satisfied} of {stage.needed()} {did} in time{declined}"

    # --- the message ---

    def _decide(self) -> None:
        """Closes, escalates or tells the sender when the policies say so."""
        tracking = self.tracking
        if tracking.closed or not tracking.stages:
            return
        if tracking.has_succeeded():
            self._close("done", "")
            return
        stage = tracking.stages[-1]
        # A stage that is over waits for the next one's `Ask`, which follows in the same
        # transaction.
        if stage.over or not stage.is_lost():
            return
        if tracking.escalate and not stage.spreading:
            self._escalate(stage, _why_lost(stage))
        elif tracking.escalate:
            return
        elif stage.is_settled():
            self._close("failed", _why_lost(stage))
        else:
            self._tell_failure(self._who_is_missing(stage))

    def _who_is_missing(self, stage: Stage) -> str:
        if stage.declined or stage.given_up:
            return _why_lost(stage)
        said = f"not everybody of {stage.receiver} could be reached"
        if stage.receiver.startswith("peer:"):
            said = f"{stage.receiver} could not be reached"
        return f"{said}: {stage.reason}" if stage.reason else said

    def _escalate(self, stage: Stage, reason: str) -> None:
        stage.over = True
        following = self.tracking.escalate.pop(0)
        said = f"{reason}; asking {following.receiver}"
        self._note(LedgerNote(state="escalated", reason=said, receiver=following.receiver))
        self.steps.append(Escalate(following.receiver, following.answer_within))

    def _close(self, result: DeliveryResult, reason: str) -> None:
        self.tracking.result = result
        if self.tracking.waiting:
            self.steps.append(VisitMembers("stop"))
        self._note(LedgerNote(state="closed", result=result, reason=reason))
        # Who was told of a failure is not told of success as well: the ledger has both.
        if result == "done" and self.tracking.acknowledge and not self.tracking.failure_told:
            self.steps.append(NotifySender("ack"))
        elif result == "timed_out":
            self.steps.append(NotifySender("timeout", reason))
        elif result == "failed":
            self._tell_failure(reason)

    def _take_back(self, failed: AttemptOutcome) -> None:
        """A medium may give back what it took from somebody by whom the message was done: then its
        sender believes what is not true.
        """
        tracking, member = self.tracking, self.member
        is_back = member is not None and not tracking.is_satisfied(member)
        if not is_back or tracking.result != "done" or tracking.has_succeeded():
            return
        if not tracking.failure_told:
            tracking.failure_told = True
            # Not COMERROR: the sender may have been told ACK.
            self.steps.append(NotifySender("error", failed.reason))

    def _tell_failure(self, reason: str) -> None:
        """COMERROR, once; never for a message that is done."""
        if not self.tracking.failure_told:
            self.tracking.failure_told = True
            self.steps.append(NotifySender("comerror", reason))


def _of_member(stage: Stage, member: Member) -> str:
    """Why a member is lost; of several it says which."""
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
