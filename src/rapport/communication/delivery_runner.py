"""Who is asked now: a receiver's policy and its members with the addresses that can be used. [CO-3,
CO-8]

Whether a person may be told now: what their privacy policies say about a message. [CO-9]

Joins the pure rules with what they need to know: the message, the directory of now, and when the
person was told before.

One case while something happens to it. [CO-8]

Every message's case: loads it, lets `delivery.next_step` decide, and writes what follows.
[CO-7, CO-8, CO-10]

Synchronous and without a clock: called by the engine inside one transaction, with the time as an
argument. Cost of an input: one read and one write of the message's record and of one member's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from msgspec.structs import replace

from rapport.communication.adapters.base import Delivery
from rapport.communication.adapters.outgoing.outcomes import OutcomeData
from rapport.communication.adapters.outgoing.selection import Unserved, select_addresses
from rapport.communication.delivery import next_step
from rapport.communication.delivery_state import (
    AddReceiver,
    AddressState,
    Answer,
    AttemptOutcome,
    BeginMember,
    DeliveryInput,
    DeliveryStep,
    Escalate,
    LedgerNote,
    Member,
    MembersAbandoned,
    MembersBegun,
    MemberTick,
    MessageTick,
    NextReceiver,
    NotifySender,
    PeerDelivery,
    QueueDelivery,
    RetryPolicy,
    StopMember,
    TimeOutMember,
    VisitKind,
    VisitMembers,
)
from rapport.communication.ledger_events import line_event
from rapport.communication.peers import Peer, PeerDirectory, adapter_of, shown_address
from rapport.communication.privacy import (
    NO_FUNCTIONS,
    Allowed,
    Hold,
    PrivacyFacts,
    PrivacyFunctions,
    Refuse,
    Verdict,
    most_counted,
    verdict,
)
from rapport.communication.records import DeliveryRecord, DeliveryRecords, MessageBody, shown_key
from rapport.communication.schedule import SLICE, MemberJob, MemberJobs, member_key
from rapport.communication.sender_notifications import notify_sender
from rapport.communication.transaction import Transaction
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.telemetry import get_logger


class ReceiverLookup:
    """Looks receivers up in the directory, each time anew: members may change between two sends."""

    def __init__(self, directory: PeerDirectory, adapters: Collection[str]) -> None:
        """`adapters`: the names of those that have a dispatch now; looked at each time."""
        self.directory, self.adapters = directory, adapters
        self._unserved = Unserved()

    def ask(self, receiver: Identifier, answer_within: int = 0) -> AddReceiver:
        """How many of a receiver have to be reached."""
        collective = None
        if receiver.kind == "collective":
            collective = self.directory.policy_of(receiver.name)
            if collective is None:
                return AddReceiver(str(receiver), "to-any", answer_within=answer_within)
        if collective is None:
            return AddReceiver(str(receiver), answer_within=answer_within)
        least = max(collective.least, 1)
        return AddReceiver(str(receiver), collective.delivery, least, answer_within)

    def names(self, receiver: Identifier, *, after: str = "", limit: int) -> list[str]:
        """The next names behind a receiver; a peer stands for itself."""
        if receiver.kind == "collective":
            return self.directory.member_names(receiver.name, after=after, limit=limit)
        return [receiver.name] if not after else []

    def member(
        self, name: str, now_ms: int, *, stage: int = 0, delivery: PeerDelivery | None = None
    ) -> Member:
        """A peer as somebody who is told. `delivery` goes before what the peer says.

        A name that nobody knows gives a member without an address, so the ledger says who was
        missing. One whom the directory cannot tell now is looked for later.
        """
        try:
            peer = self.directory.peer(name)
        except SourceUnavailable as error:
            _log.warning("the directory failed", peer=name, error=error.message)
            return Member(peer=name, tries=[], stage=stage, failed_lookups=1)
        if peer is None:
            return Member(peer=name, tries=[], stage=stage, unknown=True)
        chosen = delivery or peer.delivery
        usable = self.usable(peer, chosen, now_ms)
        tries = [AddressState(address=entry) for entry in dict.fromkeys(usable)]
        return Member(
            peer=peer.name,
            tries=tries,
            delivery=chosen,
            stage=stage,
            fallback_after=peer.fallback_after,
        )

    def again(self, held: Member, now_ms: int, *, delivery: PeerDelivery | None = None) -> Member:
        """A member who was held, looked up once more: held as before, reached as they are now."""
        found = self.member(held.peer, now_ms, stage=held.stage, delivery=delivery)
        found.peer, found.fate, found.held_until = held.peer, held.fate, held.held_until
        found.failed_lookups = held.failed_lookups + 1 if found.failed_lookups else 0
        return found

    def usable(self, peer: Peer, delivery: PeerDelivery, now_ms: int) -> tuple[str, ...]:
        """The addresses to use; those without a registered adapter are logged, not fatal."""
        found = select_addresses(peer.addresses, delivery, self.adapters, fallback=peer.fallback)
        for name in self._unserved.to_tell(found.unknown, now_ms) if found.unknown else ():
            _log.warning("no adapter for an address", peer=peer.name, adapter=name)
        return found.usable


_TABLE = "communication.recent"
_LOOK_AGAIN_MS = 60_000
ALLOWED = Allowed()
_GONE = Refuse("peer.unknown")
"""Of somebody who was there when the message began: what they wanted is not known any more."""


class _Recent(msgspec.Struct):
    """When a person was told, newest first; as many as their rules look at."""

    times: list[int]


class PrivacyCheck:
    """Verdicts about members. Who has no privacy policy costs one look into the directory."""

    def __init__(
        self,
        transaction: Transaction,
        directory: PeerDirectory,
        functions: PrivacyFunctions = NO_FUNCTIONS,
    ) -> None:
        self._transaction, self._directory, self._functions = transaction, directory, functions

    def verdict(
        self,
        name: str,
        letter_of: Callable[[], MessageBody],
        urgent: bool,
        now_ms: int,
        *,
        is_retry: bool = False,
    ) -> Verdict:
        """Whether a message may go to a peer now; `letter_of` is asked only where a rule is.
        `is_retry`: it was allowed before and did not get there, so it is counted already, and goes
        on to who was asked and is gone.
        """
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            # Nobody knows what this person allows: better late than against their will.
            return Hold(now_ms + _LOOK_AGAIN_MS, "people.directory_failed")
        if peer is not None and not peer.privacy:
            return ALLOWED
        letter = letter_of()
        if letter.effect is not None:
            return ALLOWED
        if peer is None:
            return ALLOWED if is_retry else _GONE
        facts = PrivacyFacts(
            type=letter.type,
            subtype=letter.subtype,
            sender=letter.rule_sender or letter.sender,
            urgent=urgent,
            now_ms=now_ms,
            peer=peer.name,
            sent_ms=letter.sent,
            recent=lambda count: () if is_retry else self._times(name)[:count],
        )
        return verdict(peer.privacy, facts, self._functions)

    def told(self, name: str, now_ms: int) -> None:
        """Somebody is told a message now; remembered where a rule counts."""
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            return  # it was there for the verdict; the message goes, only uncounted
        most = most_counted(peer.privacy) if peer is not None and peer.privacy else 0
        if most:
            times = [now_ms, *self._times(name)][:most]
            self._transaction.put(_TABLE, name, _Recent(times))

    def _times(self, name: str) -> list[int]:
        kept = self._transaction.get_struct(_TABLE, name, _Recent)
        return kept.times if kept else []


class DeliveryContext:
    """One case while something happens to it: a private copy, saved at the end."""

    def __init__(
        self,
        before: DeliveryRecord | None,
        case: DeliveryRecord,
        load: Callable[[str], MessageBody],
        judging: PrivacyCheck,
        now_ms: int,
        cause: str,
    ) -> None:
        self.before, self.case, self.now_ms, self.cause = before, case, now_ms, cause
        self._load, self._judging = load, judging
        self._letter: MessageBody | None = None
        self.queued = False
        self.begun: list[Member] = []
        """Only while it is new: forgotten again when it fails at once."""

    @property
    def letter(self) -> MessageBody:
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

    def delivery(self, step: QueueDelivery) -> Delivery:
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


_NEXT_LOOKUP = RetryPolicy(longest_ms=60_000)
_SLICE_BYTES = 16_000_000
"""About as much is queued in one slice."""
_log = get_logger(__name__)
KEEP_CLOSED_MS = 30 * 86_400_000
"""How long a closed message can still be answered for the record; its ledger lines stay."""


class DeliveryRunner:
    """The cases of all messages."""

    def __init__(
        self,
        transaction: Transaction,
        records: DeliveryRecords,
        chores: MemberJobs,
        judging: PrivacyCheck,
        members: ReceiverLookup,
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
        self,
        case: DeliveryRecord,
        letter: MessageBody,
        ask: AddReceiver,
        *,
        now_ms: int,
        cause: str,
        only: Member | None,
    ) -> DeliveryRecord:
        """Begins a new case and returns it as it stands; one that fails at once leaves no record.
        `only` is told instead of the receiver's members.
        """
        self.records.save_letter(case.key, letter)
        course = self._course(None, case, now_ms, cause)
        if only is None:
            self._ask(course, ask)
        else:
            self._give(course, None, ask)
            self._give(course, None, BeginMember(only))
            self._give(course, None, MembersBegun(0, 1))
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
        outcome = AttemptOutcome(
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
            self._chores.put(MemberJob(case=key, kind="forget"))

    def _pass_time_of(self, case: DeliveryRecord, now_ms: int) -> None:
        """What the clock alone changes about a message; then whoever could not be asked before."""
        course = self._course(case, replace(case), now_ms, "")
        self._give(course, None, MessageTick())
        moved = course.case
        if moved.asking is not None and moved.ask_at <= now_ms and not moved.tracking.closed:
            self._ask_next(course, moved.asking)
        self._finish(course)

    def _looked_up(self, case: DeliveryRecord, member: Member, now_ms: int) -> Member:
        """The member; one whose hold ends is looked up once more: nothing was sent to them yet, and
        their addresses may be others than when they were held.
        """
        is_over = member.fate == "held" and member.held_until <= now_ms
        if not is_over or case.tracking.closed:
            return member
        delivery = self.records.letter(case.key).peer_delivery
        return self._members.again(member, now_ms, delivery=delivery)

    # --- chores ---

    def work_on(self, chore: MemberJob, now_ms: int) -> None:
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

    def give_up(self, chore: MemberJob, reason: str, now_ms: int) -> None:
        """Leaves undone what is left of a chore. Where that were people to be told, their message
        goes on without them: it fails if it cannot do without, and its sender is told why.
        """
        self._chores.done(chore)
        case = self.records.case(chore.case) if chore.kind == "begin" else None
        if case is not None:
            self._move(case, None, MembersAbandoned(chore.stage, reason), now_ms, "")

    def _begin_page(self, course: DeliveryContext, chore: MemberJob) -> None:
        names = self._chores.take_page(chore)
        if names is None:
            self._chores.done(chore)
            self._give(course, None, MembersBegun(chore.stage, chore.found))
            return
        self._begin_names(course, chore.stage, names)
        following = MemberJob(
            case=chore.case,
            kind="begin",
            stage=chore.stage,
            page=chore.page + 1,
            found=chore.found,
        )
        self._chores.put(following)

    def _forget(self, chore: MemberJob) -> None:
        members = list(self.records.members(chore.case, limit=SLICE))
        for member in members:
            self.records.drop_member(chore.case, member)
        if len(members) < SLICE:
            self._chores.done(chore)

    # --- a receiver and its members ---

    def _ask_next(self, course: DeliveryContext, following: NextReceiver) -> None:
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
                self._note(course, LedgerNote(state="held", reason=reason, until=case.ask_at))
            return
        case.failed_asks = 0
        self._ask(course, ask, pages)

    def _ask(
        self, course: DeliveryContext, ask: AddReceiver, pages: list[list[str]] | None = None
    ) -> None:
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
            self._give(course, None, MembersBegun(stage, found))

    def _pages(self, course: DeliveryContext, receiver: Identifier) -> list[list[str]]:
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
        chore = MemberJob(case=key, kind="begin", stage=stage, page=1)
        for page, names in enumerate(pages, 1):
            if names:
                self._chores.put_page(chore, page, names)
        self._chores.put(MemberJob(case=key, kind="begin", stage=stage, page=1, found=found))

    def _begin_names(self, course: DeliveryContext, stage: int, names: list[str]) -> None:
        key, delivery = course.case.key, course.letter.peer_delivery
        for name in names:
            if course.case.tracking.closed:
                return
            if stage and self.records.member(key, name) is not None:
                continue  # asked before
            member = self._members.member(name, course.now_ms, stage=stage, delivery=delivery)
            self._give(course, None, BeginMember(member))

    def _walk(self, course: DeliveryContext, kind: VisitKind, stage: int, after: str = "") -> None:
        """Does one slice of a walk over the members; what is left becomes a chore."""
        input: DeliveryInput = TimeOutMember() if kind == "time_out" else StopMember()
        chore = MemberJob(case=course.case.key, kind=kind, stage=stage, after=after)
        members = list(self.records.members(course.case.key, after=after, limit=SLICE))
        for member in members:
            if stage < 0 or member.stage == stage:
                self._give(course, member, input)
        if len(members) == SLICE:
            last = members[-1].peer
            self._chores.put(MemberJob(case=course.case.key, kind=kind, stage=stage, after=last))
        elif after:
            self._chores.done(chore)

    # --- what follows ---

    def _course(
        self, before: DeliveryRecord | None, case: DeliveryRecord, now_ms: int, cause: str
    ) -> DeliveryContext:
        return DeliveryContext(before, case, self.records.letter, self._judging, now_ms, cause)

    def _move(
        self,
        case: DeliveryRecord,
        member: Member | None,
        input: DeliveryInput,
        now_ms: int,
        cause: str,
    ) -> None:
        course = self._course(case, replace(case), now_ms, cause)
        self._give(course, member, input)
        self._finish(course)

    def _give(self, course: DeliveryContext, member: Member | None, input: DeliveryInput) -> None:
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

    def _take_step(self, course: DeliveryContext, step: DeliveryStep) -> None:
        match step:
            case LedgerNote():
                self._note(course, step)
            case QueueDelivery():
                self._queue(course, step)
            case Escalate():
                self._ask_next(course, NextReceiver(step.receiver, step.answer_within))
            case VisitMembers():
                self._walk(course, step.kind, step.stage)
            case NotifySender():
                self._tell(course, step)

    def _note(self, course: DeliveryContext, note: LedgerNote) -> None:
        case = course.case
        if case.routed and not note.peer:
            return  # an additional receiver decides nothing about the message
        case.lines += 1
        event = line_event(case, note, number=case.lines, now_ms=course.now_ms, cause=course.cause)
        self._transaction.emit("log", event)

    def _queue(self, course: DeliveryContext, step: QueueDelivery) -> None:
        course.queued = True
        if step.attempt == 1 and step.place == 0:
            self._judging.told(step.peer, course.now_ms)
        event = course.delivery(step).to_event()
        self._transaction.emit(f"output.{adapter_of(step.address)}", event)

    def _tell(self, course: DeliveryContext, tell: NotifySender) -> None:
        case = course.case
        receiver = case.tracking.stages[0].receiver
        subtype, reason = tell.subtype, tell.reason
        if case.routed:  # the message's receiver has an outcome of its own
            subtype, reason = "error", f"routed to {receiver}: {tell.reason}"
        notify_sender(
            self._transaction,
            case.sender,
            case.message,
            subtype,
            reason,
            now_ms=course.now_ms,
            about=shown_key(case.key),
        )

    def _finish(self, course: DeliveryContext) -> None:
        case, before = course.case, course.before
        if case.tracking.closed and not case.forget_at:
            case.forget_at = course.now_ms + KEEP_CLOSED_MS
            case.asking, case.ask_at = None, 0
            self._on_closed(case.key)
        if before is None and case.tracking.closed and not course.queued:
            self._leave_nothing(course)
        else:
            self.records.save_case(before, case)

    def _leave_nothing(self, course: DeliveryContext) -> None:
        """Nobody could be told: what was written about it is in the ledger."""
        for member in course.begun:
            self.records.drop_member(course.case.key, member)
        self.records.drop_case(course.case)
