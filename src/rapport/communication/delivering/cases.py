"""Every message's case: loads it, lets `delivery.next_step` decide, and writes what follows.
[CO-7, CO-8, CO-10]

Synchronous and without a clock: called by the engine inside one transaction, with the time as an
argument. Cost of an input: one read and one write of the message's record and of one member's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rapport.communication.adapters.outcome_events import OutcomeData
from rapport.communication.delivering.case_records import (
    Case,
    CaseRecords,
    Letter,
    member_key,
    shown_key,
)
from rapport.communication.delivering.chores import SLICE, Chore, Chores
from rapport.communication.delivering.course import Course
from rapport.communication.delivering.delivery import next_step
from rapport.communication.delivering.judging import Judging
from rapport.communication.delivering.members import Members
from rapport.communication.delivering.steps import (
    AllBegun,
    Answer,
    Ask,
    Begin,
    Escalate,
    GivenUp,
    Input,
    MemberTick,
    Note,
    Outcome,
    Queue,
    Step,
    Stop,
    Tell,
    Tick,
    TimeUp,
    Walk,
    WalkKind,
)
from rapport.communication.delivering.telling import tell_sender
from rapport.communication.delivering.tracking import Member, NextReceiver, Retry
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.ledger import line_event
from rapport.communication.peers import adapter_of, shown_address
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.telemetry import get_logger

_NEXT_LOOKUP = Retry(longest_ms=60_000)
_SLICE_BYTES = 16_000_000
"""About as much is queued in one slice."""
_log = get_logger(__name__)
KEEP_CLOSED_MS = 30 * 86_400_000
"""How long a closed message can still be answered for the record; its ledger lines stay."""


class Cases:
    """The cases of all messages."""

    def __init__(
        self,
        transaction: Transaction,
        records: CaseRecords,
        chores: Chores,
        judging: Judging,
        members: Members,
        *,
        on_closed: Callable[[str], None] = lambda _message: None,
    ) -> None:
        """`on_closed` hears the key of every case that is decided, and of every member who has
        answered: nothing more is sent of it.
        """
        self._transaction, self.records, self._chores = transaction, records, chores
        self._judging, self._members, self._on_closed = judging, members, on_closed

    # --- what happens ---

    def begin(
        self, case: Case, letter: Letter, ask: Ask, *, now_ms: int, cause: str, only: Member | None
    ) -> Case:
        """Begins a new case and returns it as it stands; one that fails at once leaves no record.
        `only` is told instead of the receiver's members.
        """
        self.records.save_letter(case.key, letter)
        course = self._course(None, case, now_ms, cause)
        if only is None:
            self._ask(course, ask)
        else:
            self._give(course, None, ask)
            self._give(course, None, Begin(only))
            self._give(course, None, AllBegun(0, 1))
        self._finish(course)
        return course.case

    def hear_outcome(self, data: OutcomeData, *, now_ms: int, cause: str) -> bool:
        """What a medium said; False when there is no case or no such address of a member."""
        key = data.case or data.message
        case = self.records.case(key)
        member = self.records.member(key, data.peer) if case else None
        if case is None or member is None:
            return False
        # Outcomes carry the shown form, since `control` is read by people too.
        addresses = [e.address for e in member.tries if shown_address(e.address) == data.address]
        if not addresses:
            return False
        state, reason = data.state, data.reason
        outcome = Outcome(
            data.peer,
            addresses[0],
            data.attempt,
            state,
            reason=reason,
            retry=data.retry,
            unavailable=data.unavailable,
        )
        self._move(case, member, outcome, now_ms, cause)
        return True

    def hear_answer(self, key: str, answer: Answer, *, now_ms: int, cause: str) -> bool:
        """A person answered; False when nothing was sent to them."""
        case = self.records.case(key)
        member = self.records.member(key, answer.peer) if case else None
        if case is None or member is None:
            return False
        self._move(case, member, answer, now_ms, cause)
        self._on_closed(member_key(key, answer.peer))
        return True

    def pass_time(self, key: str, peer: str, now_ms: int) -> None:
        """A message's or a member's time has come."""
        case = self.records.case(key)
        if case is None:
            return
        if peer:
            member = self.records.member(key, peer)
            if member is not None:
                self._move(case, self._looked_up(case, member, now_ms), MemberTick(), now_ms, "")
        elif not case.tracking.closed:
            self._pass_time_of(case, now_ms)
        elif case.forget_at <= now_ms:
            self.records.drop_case(case)
            self._chores.put(Chore(case=key, kind="forget"))

    def _pass_time_of(self, case: Case, now_ms: int) -> None:
        """What the clock alone changes about a message; then whoever could not be asked before."""
        course = self._course(case, replace(case), now_ms, "")
        self._give(course, None, Tick())
        moved = course.case
        if moved.asking is not None and moved.ask_at <= now_ms and not moved.tracking.closed:
            self._ask_next(course, moved.asking)
        self._finish(course)

    def _looked_up(self, case: Case, member: Member, now_ms: int) -> Member:
        """The member; one whose hold ends is looked up once more: nothing was sent to them yet, and
        their addresses may be others than when they were held.
        """
        is_over = member.fate == "held" and member.held_until <= now_ms
        if not is_over or case.tracking.closed:
            return member
        delivery = self.records.letter(case.key).peer_delivery
        return self._members.again(member, now_ms, delivery=delivery)

    # --- chores ---

    def work_on(self, chore: Chore, now_ms: int) -> None:
        """Does one slice of a chore."""
        if chore.kind == "forget":
            self._forget(chore)
            return
        case = self.records.case(chore.case)
        if case is None:
            self._chores.done(chore)
            return
        course = self._course(case, replace(case), now_ms, "")
        if chore.kind == "begin":
            self._begin_page(course, chore)
        else:
            self._walk(course, chore.kind, chore.stage, chore.after)
        self._finish(course)

    def give_up(self, chore: Chore, reason: str, now_ms: int) -> None:
        """Leaves undone what is left of a chore. Where that were people to be told, their message
        goes on without them: it fails if it cannot do without, and its sender is told why.
        """
        self._chores.done(chore)
        case = self.records.case(chore.case) if chore.kind == "begin" else None
        if case is not None:
            self._move(case, None, GivenUp(chore.stage, reason), now_ms, "")

    def _begin_page(self, course: Course, chore: Chore) -> None:
        names = self._chores.take_page(chore)
        if names is None:
            self._chores.done(chore)
            self._give(course, None, AllBegun(chore.stage, chore.found))
            return
        self._begin_names(course, chore.stage, names)
        following = Chore(
            case=chore.case,
            kind="begin",
            stage=chore.stage,
            page=chore.page + 1,
            found=chore.found,
        )
        self._chores.put(following)

    def _forget(self, chore: Chore) -> None:
        members = list(self.records.members(chore.case, limit=SLICE))
        for member in members:
            self.records.drop_member(chore.case, member)
        if len(members) < SLICE:
            self._chores.done(chore)

    # --- a receiver and its members ---

    def _ask_next(self, course: Course, following: NextReceiver) -> None:
        """Asks who comes next. While the directory cannot say who that is, the message waits for
        it with growing pauses, up to its time to live; said once.
        """
        case, receiver = course.case, Identifier.parse(following.receiver)
        case.asking, case.ask_at = None, 0
        try:
            ask = self._members.ask(receiver, following.answer_within)
            pages = self._pages(course, receiver)
        except SourceUnavailable as error:
            case.failed_asks += 1
            case.asking = following
            case.ask_at = course.now_ms + _NEXT_LOOKUP.pause_ms(case.failed_asks)
            if case.failed_asks == 1:
                _log.warning(
                    "nobody says who is asked next",
                    message=case.message,
                    receiver=following.receiver,
                    code=error.code,
                    error=error.message,
                    hint=error.hint,
                )
                reason = f"{following.receiver}: {error.code}"
                self._note(course, Note(state="held", reason=reason, until=case.ask_at))
            return
        case.failed_asks = 0
        self._ask(course, ask, pages)

    def _ask(self, course: Course, ask: Ask, pages: list[list[str]] | None = None) -> None:
        """`pages`: who is behind the receiver, where that is known."""
        self._give(course, None, ask)
        if course.case.tracking.closed:
            return
        stage = len(course.case.tracking.stages) - 1
        receiver = Identifier.parse(ask.receiver)
        names, *others = self._pages(course, receiver) if pages is None else pages
        self._begin_names(course, stage, names)
        found = len(names) + sum(map(len, others))
        if others:
            self._keep_names(course.case.key, stage, others, found)
        else:
            self._give(course, None, AllBegun(stage, found))

    def _pages(self, course: Course, receiver: Identifier) -> list[list[str]]:
        """Who is behind a receiver now, in slices, smaller ones where the message is long; the
        first may be empty.
        """
        pages = [self._members.names(receiver, limit=SLICE)]
        while len(pages[-1]) == SLICE and receiver.kind == "collective":
            pages.append(self._members.names(receiver, after=pages[-1][-1], limit=SLICE))
        size = max(_SLICE_BYTES // (len(course.letter.text) + 1), 1)
        if size >= SLICE:
            return pages
        names = [name for page in pages for name in page]
        return [names[start : start + size] for start in range(0, len(names), size)] or [[]]

    def _keep_names(self, key: str, stage: int, pages: list[list[str]], found: int) -> None:
        """Keeps who else is in a large collective now, to be begun slice by slice."""
        chore = Chore(case=key, kind="begin", stage=stage, page=1)
        for page, names in enumerate(pages, 1):
            if names:
                self._chores.put_page(chore, page, names)
        self._chores.put(Chore(case=key, kind="begin", stage=stage, page=1, found=found))

    def _begin_names(self, course: Course, stage: int, names: list[str]) -> None:
        key, delivery = course.case.key, course.letter.peer_delivery
        for name in names:
            if course.case.tracking.closed:
                return
            if stage and self.records.member(key, name) is not None:
                continue  # asked before
            member = self._members.member(name, course.now_ms, stage=stage, delivery=delivery)
            self._give(course, None, Begin(member))

    def _walk(self, course: Course, kind: WalkKind, stage: int, after: str = "") -> None:
        """Does one slice of a walk over the members; what is left becomes a chore."""
        input: Input = TimeUp() if kind == "time_out" else Stop()
        chore = Chore(case=course.case.key, kind=kind, stage=stage, after=after)
        members = list(self.records.members(course.case.key, after=after, limit=SLICE))
        for member in members:
            if stage < 0 or member.stage == stage:
                self._give(course, member, input)
        if len(members) == SLICE:
            last = members[-1].peer
            self._chores.put(Chore(case=course.case.key, kind=kind, stage=stage, after=last))
        elif after:
            self._chores.done(chore)

    # --- what follows ---

    def _course(self, before: Case | None, case: Case, now_ms: int, cause: str) -> Course:
        return Course(before, case, self.records.letter, self._judging, now_ms, cause)

    def _move(
        self, case: Case, member: Member | None, input: Input, now_ms: int, cause: str
    ) -> None:
        course = self._course(case, replace(case), now_ms, cause)
        self._give(course, member, input)
        self._finish(course)

    def _give(self, course: Course, member: Member | None, input: Input) -> None:
        case = course.case
        case.tracking, after, steps = next_step(
            case.tracking, member, input, course.now_ms, course.judge
        )
        if after is not None and after != member:
            self.records.save_member(case.key, member, after)
            if course.before is None:
                course.begun.append(after)
        for step in steps:
            self._take_step(course, step)

    def _take_step(self, course: Course, step: Step) -> None:
        match step:
            case Note():
                self._note(course, step)
            case Queue():
                self._queue(course, step)
            case Escalate():
                self._ask_next(course, NextReceiver(step.receiver, step.answer_within))
            case Walk():
                self._walk(course, step.kind, step.stage)
            case Tell():
                self._tell(course, step)

    def _note(self, course: Course, note: Note) -> None:
        case = course.case
        if case.routed and not note.peer:
            return  # an additional receiver decides nothing about the message
        case.lines += 1
        event = line_event(case, note, number=case.lines, now_ms=course.now_ms, cause=course.cause)
        self._transaction.emit("log", event)

    def _queue(self, course: Course, step: Queue) -> None:
        course.queued = True
        if step.attempt == 1 and step.place == 0:
            self._judging.told(step.peer, course.now_ms)
        event = course.delivery(step).to_event()
        self._transaction.emit(f"output.{adapter_of(step.address)}", event)

    def _tell(self, course: Course, tell: Tell) -> None:
        case = course.case
        receiver = case.tracking.stages[0].receiver
        subtype, reason = tell.subtype, tell.reason
        if case.routed:  # the message's receiver has an outcome of its own
            subtype, reason = "error", f"routed to {receiver}: {tell.reason}"
        tell_sender(
            self._transaction,
            case.sender,
            case.message,
            subtype,
            reason,
            now_ms=course.now_ms,
            about=shown_key(case.key),
        )

    def _finish(self, course: Course) -> None:
        case, before = course.case, course.before
        if case.tracking.closed and not case.forget_at:
            case.forget_at = course.now_ms + KEEP_CLOSED_MS
            case.asking, case.ask_at = None, 0
            self._on_closed(case.key)
        if before is None and case.tracking.closed and not course.queued:
            self._leave_nothing(course)
        else:
            self.records.save_case(before, case)

    def _leave_nothing(self, course: Course) -> None:
        """Nobody could be told: what was written about it is in the ledger."""
        for member in course.begun:
            self.records.drop_member(course.case.key, member)
        self.records.drop_case(course.case)
