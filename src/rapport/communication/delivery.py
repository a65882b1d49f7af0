"""How a message reaches people: the delivery policies of three levels as one pure state machine.
[CO-8]

`next_step(tracking, input, now_ms)` gives the new state and the steps to take; `engine.py` takes
them. Decided where the source's algorithms 2.3-2.6 slip: AT_LEAST_ONE fails with the last address
only, TO_ALL_MEMBERS tries everybody and reports the first failure at once, PREFERRED falls back
only over the tries it was given.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rapport.communication.privacy import Allowed, Hold, may_receive
from rapport.communication.steps import (
    Answer,
    Ask,
    Escalate,
    Input,
    Note,
    Outcome,
    Queue,
    Step,
    Tell,
    Tick,
)
from rapport.communication.tracking import Member, Result, Stage, Tracking, Try

T = TypeVar("T")


def next_step(tracking: Tracking, input: Input, now_ms: int) -> tuple[Tracking, list[Step]]:
    """The state after `input` and what is to be done; the given state is not changed.

    Inputs that say nothing new (an outcome twice, a tick too early) change nothing. Nothing is
    queued once the message is closed; outcomes and answers that come later are noted, since they
    happened.
    """
    turn = _Turn(_copy(tracking, Tracking), now_ms)
    turn.take(input)
    return turn.tracking, turn.steps


class _Turn:
    """One call of `next_step`: a private copy of the state, the time, the steps so far."""

    def __init__(self, tracking: Tracking, now_ms: int) -> None:
        self.tracking, self.now_ms = tracking, now_ms
        self.steps: list[Step] = []

    def take(self, input: Input) -> None:
        match input:
            case Ask():
                self._ask(input)
            case Outcome():
                self._hear_outcome(input)
            case Answer():
                self._hear_answer(input)
            case Tick():
                self._pass_time()
        self._decide()

    # --- inputs ---

    def _ask(self, ask: Ask) -> None:
        if self.tracking.closed:
            return
        asked = {member.peer for member in self.tracking.members()}
        members = [_copy(member, Member) for member in ask.members if member.peer not in asked]
        stage = Stage(receiver=ask.receiver, delivery=ask.delivery, members=members)
        self.tracking.stages.append(stage)
        if not members:
            reason = "everybody was asked already" if ask.members else "nobody is in it"
            self._note(Note(state="failed", reason=f"{ask.receiver}: {reason}"))
        for member in members:
            self._begin(stage, member)

    def _hear_outcome(self, outcome: Outcome) -> None:
        member = self.tracking.member(outcome.peer)
        entry = _find_try(member, outcome.address)
        if member is None or entry is None or not _is_news(entry, outcome):
            return
        if outcome.state == "failed":
            self._fail(entry, outcome)
        else:
            entry.state = outcome.state
            self._note_try(member, entry, reason=outcome.reason)
        self._weigh(member)

    def _hear_answer(self, answer: Answer) -> None:
        member = self.tracking.member(answer.peer)
        if member is None:
            return
        self._note(Note(state="answered", peer=member.peer, answer=answer.text))
        member.answered = True
        if not self.tracking.closed:
            self._stop(member, "answered already")

    def _pass_time(self) -> None:
        if self.tracking.closed:
            return
        if self.tracking.expires and self.tracking.expires <= self.now_ms:
            self._time_out(self.tracking.members())
            self._close("timed_out", "its time to live is over")
            return
        self._check_deadline()
        if self.tracking.closed:
            return
        for stage in self.tracking.stages:
            for member in stage.members:
                self._resume(stage, member)

    # --- one member ---

    def _begin(self, stage: Stage, member: Member) -> None:
        """First sending to a member, if its privacy policy allows."""
        if not member.tries:
            member.fate = "lost"
            self._note(Note(state="failed", peer=member.peer, reason="peer.no_address"))
            return
        verdict = may_receive(member.privacy, urgent=self.tracking.urgent, now_ms=self.now_ms)
        match verdict:
            case Allowed():
                member.fate, member.held_until = "pending", 0
                self._send_first(stage, member)
            case Hold(until):
                member.fate, member.held_until = "held", until
                self._note(Note(state="held", peer=member.peer, reason="quiet hours", until=until))
            case _:
                member.fate = "refused"
                self._note(Note(state="refused", peer=member.peer, reason=verdict.reason))

    def _send_first(self, stage: Stage, member: Member) -> None:
        entries = member.tries[:1] if member.delivery == "preferred" else member.tries
        for entry in entries:
            self._queue(member, entry)
        if self.tracking.answer_within and not stage.answer_by:
            stage.answer_by = self.now_ms + self.tracking.answer_within

    def _resume(self, stage: Stage, member: Member) -> None:
        """What time alone brings: the end of a hold, the next attempt at an address."""
        if member.fate == "held" and member.held_until <= self.now_ms:
            self._begin(stage, member)
        for entry in member.tries:
            if entry.state == "retrying" and entry.retry_at <= self.now_ms:
                self._queue(member, entry)

    def _weigh(self, member: Member) -> None:
        """What the state of its tries means for the member."""
        if member.fate != "pending":
            return
        following = next((entry for entry in member.tries if entry.state == "idle"), None)
        if member.is_reached():
            member.fate = "reached"
        elif following and not self.tracking.closed and _all_others_failed(member, following):
            self._queue(member, following)
        elif member.is_lost():
            member.fate = "lost"
            self._note(Note(state="failed", peer=member.peer, reason="not reached"))

    def _fail(self, entry: Try, outcome: Outcome) -> None:
        retry_at = self.now_ms + self.tracking.retry.pause_ms(entry.attempt)
        in_time = not self.tracking.expires or retry_at < self.tracking.expires
        again = outcome.retry and in_time and entry.attempt < self.tracking.retry.attempts
        if again and not self.tracking.closed and not self._has_answered(outcome.peer):
            entry.state, entry.retry_at = "retrying", retry_at
        else:
            entry.state, entry.retry_at = "failed", 0
        self._note(
            Note(
                state="failed",
                peer=outcome.peer,
                address=entry.address,
                attempt=entry.attempt,
                reason=outcome.reason,
                until=entry.retry_at,
            )
        )

    def _has_answered(self, peer: str) -> bool:
        member = self.tracking.member(peer)
        return member is not None and member.answered

    def _stop(self, member: Member, reason: str) -> None:
        """No more is sent to this member: what waits is given up and said so."""
        if member.fate == "held":
            member.fate, member.held_until = "discarded", 0
            self._note(Note(state="closed", peer=member.peer, reason=reason))
        for entry in member.tries:
            if entry.state == "retrying":
                entry.state, entry.retry_at = "stopped", 0
                self._note_try(member, entry, state="closed", reason=reason)
            elif entry.state == "idle":
                entry.state = "stopped"

    # --- the message ---

    def _decide(self) -> None:
        """Closes, escalates or tells the sender when the policies say so."""
        tracking = self.tracking
        if tracking.closed or not tracking.stages:
            return
        if any(tracking.has_succeeded(stage) for stage in tracking.stages):
            self._close("done", "")
            return
        stage = tracking.stages[-1]
        # A stage that is over waits for the next one's `Ask`, which follows in the same
        # transaction.
        if stage.over or not tracking.is_lost(stage):
            return
        if tracking.escalate_to:
            self._escalate(stage, f"{stage.receiver} could not be reached")
        elif tracking.is_settled(stage):
            self._close("failed", f"{stage.receiver} could not be reached")
        else:
            self._tell_failure(f"not everybody of {stage.receiver} could be reached")

    def _check_deadline(self) -> None:
        stage = self.tracking.stages[-1] if self.tracking.stages else None
        if stage is None or not stage.answer_by or stage.answer_by > self.now_ms or stage.over:
            return
        self._time_out(stage.members)
        stage.answer_by = 0
        if self.tracking.escalate_to:
            self._escalate(stage, f"no answer from {stage.receiver}")
        else:
            self._close("timed_out", f"no answer from {stage.receiver}")

    def _time_out(self, members: list[Member]) -> None:
        for member in members:
            waited_for = member.fate in ("pending", "reached") and not member.timed_out
            if waited_for and not self.tracking.is_satisfied(member):
                member.timed_out = True
                self._note(Note(state="timed_out", peer=member.peer))

    def _escalate(self, stage: Stage, reason: str) -> None:
        if stage.over:
            return
        stage.over = True
        receiver = self.tracking.escalate_to.pop(0)
        self._note(Note(state="escalated", reason=f"{reason}; asking {receiver}"))
        self.steps.append(Escalate(receiver))

    def _close(self, result: Result, reason: str) -> None:
        for member in self.tracking.members():
            self._stop(member, "decided before")
        self.tracking.result = result
        self._note(Note(state="closed", result=result, reason=reason))
        if result == "done" and self.tracking.acknowledge:
            self.steps.append(Tell("ack"))
        elif result == "timed_out":
            self.steps.append(Tell("timeout", reason))
        elif result == "failed":
            self._tell_failure(reason)

    def _tell_failure(self, reason: str) -> None:
        if not self.tracking.failure_told:
            self.tracking.failure_told = True
            self.steps.append(Tell("comerror", reason))

    # --- steps ---

    def _queue(self, member: Member, entry: Try) -> None:
        entry.state, entry.retry_at, entry.attempt = "queued", 0, entry.attempt + 1
        self._note_try(member, entry)
        self.steps.append(Queue(member.peer, entry.address, entry.attempt))

    def _note_try(
        self, member: Member, entry: Try, *, state: str | None = None, reason: str = ""
    ) -> None:
        self._note(
            Note(
                state=state or entry.state,  # type: ignore[arg-type]
                peer=member.peer,
                address=entry.address,
                attempt=entry.attempt,
                reason=reason,
            )
        )

    def _note(self, note: Note) -> None:
        self.steps.append(note)


def _copy(value: T, kind: type[T]) -> T:
    return msgspec.convert(msgspec.to_builtins(value), kind)


def _find_try(member: Member | None, address: str) -> Try | None:
    entries = member.tries if member else []
    return next((entry for entry in entries if entry.address == address), None)


def _is_news(entry: Try, outcome: Outcome) -> bool:
    """An outcome counts once, for the attempt it speaks of; what was taken may be confirmed."""
    if outcome.attempt != entry.attempt:
        return False
    if entry.state == "handed":
        return outcome.state == "confirmed"
    return entry.state in ("queued", "unknown")


def _all_others_failed(member: Member, following: Try) -> bool:
    before = member.tries[: member.tries.index(following)]
    return all(entry.state == "failed" for entry in before)
