"""Runs deliveries: loads a message's record, lets `delivery.next_step` decide, and performs the
steps. [CO-3, CO-7, CO-8, CO-9, CO-10]

Synchronous and without a clock: the engine calls it inside one transaction with the time as an
argument. An input costs one read and one write of the message's record and of one member's.
`EngineParts` is the configuration of an engine, which all its handlers share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from rapport.communication.actions import (
    Action,
    Effect,
    EndPhrases,
    Phrases,
    PolicyActions,
    no_own_actions,
)
from rapport.communication.adapters.attempts import OutcomeData
from rapport.communication.adapters.base import Delivery
from rapport.communication.answers import USUAL_DECLINES, Declines
from rapport.communication.content_rules import ANY_CONTENT, Contents
from rapport.communication.delivery import next_step
from rapport.communication.delivery_state import (
    DEFAULT_OPTIONS,
    DEFAULT_RETRY,
    AddReceiver,
    AddressState,
    Answer,
    AttemptOutcome,
    BeginMember,
    CloseMessage,
    DeliveryInput,
    DeliveryOptions,
    DeliveryState,
    DeliveryStep,
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
from rapport.communication.duty import on_duty
from rapport.communication.ledger_events import line_event
from rapport.communication.message_plan import Route, no_routing
from rapport.communication.notifications import notify_sender
from rapport.communication.open_situations import OpenSituations
from rapport.communication.peers import (
    Peer,
    PeerDirectory,
    UnknownAdapterLog,
    adapter_of,
    select_addresses,
    shown_address,
)
from rapport.communication.privacy import (
    NO_FUNCTIONS,
    AllowedDelivery,
    Hold,
    PrivacyFacts,
    PrivacyFunctions,
    Refuse,
    Verdict,
    most_counted,
    verdict,
)
from rapport.communication.records import (
    SLICE,
    DeliveryRecord,
    DeliveryRecords,
    LookupCounts,
    MemberJob,
    MessageBody,
    Schedule,
    member_key,
    shown_key,
)
from rapport.communication.texts import (
    DEFAULT_READER,
    LONGEST_TEXT,
    Facts,
    TextPiece,
    TextReader,
    is_local,
    no_facts,
    render,
)
from rapport.communication.transaction import Transaction
from rapport.core.detection import ACT_WITHIN_MS, Detection
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.telemetry import get_logger


class EngineParts(msgspec.Struct, kw_only=True):
    """The configuration of an engine: directory, adapters, actions, rules."""

    directory: PeerDirectory
    adapters: Collection[str]
    """Names of the adapters that have a dispatch; looked at anew for each batch."""
    actions: dict[str, Action] = {}
    """Actions of the site by phrase, as `same_phrase` writes it."""
    phrases: Phrases | Mapping[str, Sequence[str]] = {}
    """The action phrases of each version of a policy."""
    own_actions: PolicyActions = no_own_actions
    """The actions that a version of a policy declares itself; they override those of the site."""
    end_phrases: EndPhrases | Mapping[str, Sequence[str]] = {}
    """The phrases of `actions when cleared`; None for a version without a situation."""
    facts: Facts = no_facts
    """Looks columns of an alias up in tables, for texts."""
    reader: TextReader = DEFAULT_READER
    """Zone and language of texts for people without their own."""
    act_within_ms: int = ACT_WITHIN_MS
    """Actions of older detections are recorded and not carried out."""
    contents: Contents = ANY_CONTENT
    """The schemas that the messages of actions have to fit."""
    route: Route = no_routing
    """The receivers that routing rules add to a message."""
    functions: PrivacyFunctions = NO_FUNCTIONS
    """The functions that privacy rules name."""
    retry: RetryPolicy = DEFAULT_RETRY
    declines: Declines = USUAL_DECLINES
    """Which answers decline."""
    lookups: LookupCounts = msgspec.field(default_factory=LookupCounts)
    """Counts receivers that could not be looked up."""
    fast_path: bool = True
    """Whether messages may go without a record of their own."""
    listening: Callable[[], bool] | None = None
    """Whether any notification callback is registered; None = as they are added to the engine."""

    def phrases_of(self, policy: str, version: str) -> Sequence[str]:
        """The action phrases of a version of a policy; a mapping holds for every version."""
        if isinstance(self.phrases, Mapping):
            return self.phrases.get(policy, ())
        return self.phrases(policy, version)

    def end_phrases_of(self, policy: str, version: str) -> Sequence[str] | None:
        """The phrases of `actions when cleared`; None when the version has no situation."""
        if isinstance(self.end_phrases, Mapping):
            return self.end_phrases.get(policy)
        return self.end_phrases(policy, version)

    def phrases_for(self, detection: Detection) -> Sequence[str]:
        """The phrases that a detection or the end of a situation triggers."""
        if detection.began is None:
            return self.phrases_of(detection.policy, detection.version)
        return self.end_phrases_of(detection.policy, detection.version) or ()

    def has_listeners(self) -> bool:
        """Whether messages to components reach a notification callback."""
        return self.listening is None or self.listening()


def _ignore_late_notice(_record: DeliveryRecord, _peer: str, _now_ms: int) -> None:
    """Nobody asks for it."""


KEEP_CLOSED_MS = 30 * 86_400_000
"""How long answers to a closed message are still recorded; its ledger lines stay."""
_NEXT_LOOKUP = RetryPolicy(longest_ms=60_000)
_SLICE_BYTES = 16_000_000
"""About as much is queued in one slice."""
_RECENT_SENDS = "communication.recent"
_LOOK_AGAIN_MS = 60_000
_ALLOWED = AllowedDelivery()
_UNKNOWN_PEER = Refuse("peer.unknown")
"""For a peer that was known when the message began: its rules are not known any more."""
_log = get_logger(__name__)


class DutyLookup(msgspec.Struct, frozen=True):
    """Who of a group with a roster gets a message now."""

    people: tuple[str, ...] = ()
    """Those on duty, sorted; empty = all members."""
    shortage: str = ""
    """Why it goes to all members although there is a roster."""


_NO_ROSTER = DutyLookup()


class ReceiverLookup:
    """Looks receivers up in the directory, each time anew: members may change between two sends."""

    def __init__(self, directory: PeerDirectory, adapters: Collection[str]) -> None:
        """`adapters`: the names of those that have a dispatch now; looked at each time."""
        self.directory, self.adapters = directory, adapters
        self._unserved = UnknownAdapterLog()

    def add_receiver(
        self, receiver: Identifier, options: DeliveryOptions = DEFAULT_OPTIONS
    ) -> AddReceiver:
        """How many members of a receiver have to be reached: as the options say, else as the
        collective says.
        """
        name, within = str(receiver), options.answer_within
        if receiver.kind != "collective":
            return AddReceiver(name, answer_within=within)
        if options.reach or options.least:
            return AddReceiver(name, options.reach or "at-least", max(options.least, 1), within)
        collective = self.directory.policy_of(receiver.name)
        if collective is None:
            return AddReceiver(name, "to-any", answer_within=within)
        return AddReceiver(name, collective.delivery, max(collective.least, 1), within)

    def names(self, receiver: Identifier, *, after: str = "", limit: int) -> list[str]:
        """The next member names of a receiver; a peer is its own only member."""
        if receiver.kind == "collective":
            return self.directory.member_names(receiver.name, after=after, limit=limit)
        return [receiver.name] if not after else []

    def duty(self, receiver: Identifier, now_ms: int, needed: int = 1) -> DutyLookup:
        """Those of a group who are on duty now. Where fewer are than are `needed`, all members get
        the message; people who have left the directory do not count.
        """
        is_group = receiver.kind == "collective"
        found = self.directory.policy_of(receiver.name) if is_group else None
        if found is None or found.roster is None:
            return _NO_ROSTER
        people = tuple(name for name in on_duty(found.roster, now_ms) if self._is_known(name))
        if len(people) >= needed:
            return DutyLookup(people)
        count = f"only {len(people)} of {needed}" if people else "nobody"
        was = "were" if len(people) > 1 else "was"
        return DutyLookup((), f"{count} {was} on duty; asking all of {receiver}")

    def _is_known(self, name: str) -> bool:
        try:
            return self.directory.peer(name) is not None
        except SourceUnavailable:
            return True  # looked up again later, as any other member

    def member(
        self, name: str, now_ms: int, *, stage: int = 0, delivery: PeerDelivery | None = None
    ) -> Member:
        """The state of a new member; `delivery` overrides what the peer says.

        An unknown name gives a member without an address, so that the ledger shows it. A peer for
        whose name the directory fails is looked up again later.
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
        return Member(
            peer=peer.name,
            tries=[AddressState(address=entry) for entry in dict.fromkeys(usable)],
            delivery=chosen,
            stage=stage,
            fallback_after=peer.fallback_after,
        )

    def refreshed(
        self, held: Member, now_ms: int, *, delivery: PeerDelivery | None = None
    ) -> Member:
        """A held member with the addresses that it has now."""
        found = self.member(held.peer, now_ms, stage=held.stage, delivery=delivery)
        found.peer, found.fate, found.held_until = held.peer, held.fate, held.held_until
        found.failed_lookups = held.failed_lookups + 1 if found.failed_lookups else 0
        return found

    def usable(self, peer: Peer, delivery: PeerDelivery, now_ms: int) -> tuple[str, ...]:
        """The addresses to use; an address without a registered adapter is logged and left out."""
        found = select_addresses(peer.addresses, delivery, self.adapters, fallback=peer.fallback)
        for name in self._unserved.to_log(found.unknown, now_ms) if found.unknown else ():
            _log.warning("no adapter for an address", peer=peer.name, adapter=name)
        return found.usable


class _RecentSends(msgspec.Struct):
    """When messages went to a peer, newest first; as many as the peer's rules look at."""

    times: list[int]


class PrivacyCheck:
    """What the directory says of a member while a message is sent: privacy verdicts, and the zone
    and language of texts. A peer without rules costs one look into the directory."""

    def __init__(
        self,
        transaction: Transaction,
        directory: PeerDirectory,
        functions: PrivacyFunctions = NO_FUNCTIONS,
        reader: TextReader = DEFAULT_READER,
    ) -> None:
        """`reader`: zone and language of people without their own."""
        self._transaction, self._directory, self._functions = transaction, directory, functions
        self._reader = reader

    def reader_of(self, name: str) -> TextReader | None:
        """Zone and language of a peer; None where they are those of the site."""
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            return None  # the text of the site is better than none
        if peer is None or not (peer.zone or peer.language):
            return None
        return TextReader(peer.zone or self._reader.zone, peer.language or self._reader.language)

    def verdict(
        self,
        name: str,
        load_body: Callable[[], MessageBody],
        urgent: bool,
        now_ms: int,
        *,
        is_retry: bool = False,
    ) -> Verdict:
        """Whether a message may go to a peer now; the body is loaded only where rules need it.
        `is_retry`: it was allowed before and did not arrive, so that it is counted already, and a
        peer who was removed meanwhile still gets it.
        """
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            # Without the peer's rules, late is better than unwanted.
            return Hold(now_ms + _LOOK_AGAIN_MS, "people.directory_failed")
        if peer is not None and not peer.privacy:
            return _ALLOWED
        body = load_body()
        if body.effect is not None:
            return _ALLOWED
        if peer is None:
            return _ALLOWED if is_retry else _UNKNOWN_PEER
        facts = PrivacyFacts(
            type=body.type,
            subtype=body.subtype,
            sender=body.rule_sender or body.sender,
            urgent=urgent,
            now_ms=now_ms,
            peer=peer.name,
            sent_ms=body.sent,
            recent=lambda count: () if is_retry else self._times(name)[:count],
        )
        return verdict(peer.privacy, facts, self._functions)

    def count_send(self, name: str, now_ms: int) -> None:
        """Counts a message to a peer whose rules limit their number."""
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            return  # it answered for the verdict; the message goes out uncounted
        most = most_counted(peer.privacy) if peer is not None and peer.privacy else 0
        if most:
            times = [now_ms, *self._times(name)][:most]
            self._transaction.put(_RECENT_SENDS, name, _RecentSends(times))

    def _times(self, name: str) -> list[int]:
        kept = self._transaction.get_struct(_RECENT_SENDS, name, _RecentSends)
        return kept.times if kept else []


class DeliveryContext:
    """One delivery while an input is applied: a private copy of its record, saved at the end."""

    def __init__(
        self,
        before: DeliveryRecord | None,
        record: DeliveryRecord,
        load_body: Callable[[str], MessageBody],
        privacy: PrivacyCheck,
        now_ms: int,
        cause: str,
    ) -> None:
        """A copy of `record` changes; `before` is what is stored, None for a new delivery."""
        self.before, self.record, self.now_ms, self.cause = before, record, now_ms, cause
        self._load_body, self._privacy = load_body, privacy
        self._body: MessageBody | None = None
        self.has_queued = False
        self.begun: list[Member] = []
        """Members of a new delivery; deleted again when it fails at once."""

    @property
    def body(self) -> MessageBody:
        """The body of the message; loaded on first use, since most outcomes do not need it."""
        if self._body is None:
            self._body = self._load_body(self.record.key)
        return self._body

    def judge(self, member: Member) -> Verdict:
        """Whether the message may go to the member now."""
        return self._privacy.verdict(
            member.peer,
            lambda: self.body,
            self.record.tracking.urgent,
            self.now_ms,
            is_retry=_is_counted(member),
        )

    def _text_for(self, peer: str) -> str:
        """The text in the zone and language of a peer."""
        body = self.body
        reader = self._privacy.reader_of(peer) if body.pieces else None
        return body.text if reader is None else render(body.pieces, reader)[:LONGEST_TEXT]

    def delivery(self, step: QueueDelivery) -> Delivery:
        """The delivery for the adapter."""
        record, body, state = self.record, self.body, self.record.tracking
        return Delivery(
            message=record.message,
            peer=step.peer,
            address=step.address,
            attempt=step.attempt,
            text=self._text_for(step.peer),
            policy=record.policy,
            detection=record.detection,
            time=body.time,
            sent=body.sent if body.sent != body.time else 0,
            queued=self.now_ms,
            expires=state.expires,
            urgent=state.urgent,
            wants_answer=state.done_when == "answered",
            effect=body.effect,
            type=body.type,
            subtype=body.subtype,
            sender=body.sender,
            rule_sender=body.rule_sender,
            conversation=body.conversation,
            language=body.language,
            refers_to=body.refers_to,
            repeat=step.repeat,
            case=record.key if record.routed else "",
        )


def _is_counted(member: Member) -> bool:
    """Whether the message was allowed before and no medium took it yet: another attempt, at
    whatever address, is no further message.
    """
    if any(entry.state == "retrying" for entry in member.tries):
        return True
    return member.fate == "pending" and any(entry.attempt for entry in member.tries)


class DeliveryRunner:
    """The deliveries of all messages that have a record."""

    def __init__(
        self,
        transaction: Transaction,
        schedule: Schedule,
        privacy: PrivacyCheck,
        lookup: ReceiverLookup,
        *,
        retry: RetryPolicy = DEFAULT_RETRY,
        on_closed: Callable[[str], None] = lambda _key: None,
    ) -> None:
        """`on_closed` gets the key of every closed delivery and of every member who has answered:
        nothing more is sent of it.
        """
        self.on_late_notice: Callable[[DeliveryRecord, str, int], None] = _ignore_late_notice
        """Gets a record, a peer and the time when a medium took a message about a situation that
        had ended."""
        self.situations = OpenSituations(transaction)
        self._transaction, self._schedule = transaction, schedule
        self.records = DeliveryRecords(transaction, schedule)
        self._privacy, self._lookup = privacy, lookup
        self._retry, self._on_closed = retry, on_closed

    # --- inputs ---

    def begin(
        self,
        message: Message,
        to: Identifier,
        options: DeliveryOptions,
        *,
        key: str,
        sender: str,
        time: int,
        sent: int,
        expires: int,
        now_ms: int,
        cause: str,
        rule_sender: str = "",
        routed: bool = False,
        policy: str = "",
        detection: str = "",
        situation: str = "",
        pieces: Sequence[TextPiece] = (),
        effect: Effect | None = None,
        only: Member | None = None,
    ) -> DeliveryRecord:
        """Begins the delivery of a message to a receiver and returns its record; one that fails at
        once leaves none behind. The fields are those of `DeliveryRecord` and `MessageBody`.
        `routed`: to an additional receiver; `pieces`: of a text that readers may see differently;
        `only`: the one member of an effect, in place of those
        of the receiver.
        """
        state = DeliveryState(
            message=key,
            done_when=options.counts(),
            urgent=message.urgent,
            acknowledge=message.delivery_policy == "acknowledged" and not routed,
            escalate=list(options.escalate),
            repeat_every=options.repeat_every,
            repeat_most=options.repeat_most,
            expires=expires,
            retry=self._retry,
        )
        record = DeliveryRecord(
            tracking=state,
            message=message.id,
            sender=sender,
            policy=policy,
            detection=detection,
            situation=situation,
            routed=routed,
        )
        body = MessageBody(
            text=message.content,
            time=time,
            sent=sent,
            sender=str(message.sender),
            rule_sender=rule_sender,
            type=message.type,
            subtype=message.subtype,
            conversation=message.conversation,
            refers_to=message.refers_to,
            language=message.language,
            pieces=tuple(pieces) if is_local(pieces) else (),
            effect=effect,
            peer_delivery=options.peer_delivery,
        )
        self.records.save_body(key, body)
        context = self._context(None, record, now_ms, cause)
        # The directory is not read for a message whose time to live is over.
        if only is not None or 0 < expires <= now_ms:
            request = AddReceiver(str(to), answer_within=options.answer_within)
        else:
            request = self._lookup.add_receiver(to, options)
        if only is None:
            self._add_receiver(context, request)
        else:
            self._apply(context, None, request)
            self._apply(context, None, BeginMember(only))
            self._apply(context, None, MembersBegun(0, 1))
        self._finish(context)
        return context.record

    def apply_outcome(self, data: OutcomeData, *, now_ms: int, cause: str) -> bool:
        """Applies the outcome of an attempt; False when there is no such delivery or address."""
        key = data.case or data.message
        record = self.records.get(key)
        member = self.records.member(key, data.peer) if record else None
        if record is None or member is None:
            return False
        # Outcomes carry the shown form of the address, since people read `control`, too.
        addresses = [e.address for e in member.tries if shown_address(e.address) == data.address]
        if not addresses:
            return False
        outcome = AttemptOutcome(
            data.peer,
            addresses[0],
            data.attempt,
            data.state,
            reason=data.reason,
            retry=data.retry,
            unavailable=data.unavailable,
        )
        self._apply_alone(record, member, outcome, now_ms, cause)
        if record.situation and not member.was_notified():
            after = self.records.member(key, data.peer)
            if after is not None and after.was_notified():
                self.on_late_notice(record, data.peer, now_ms)
        return True

    def close(self, key: str, input: CloseMessage, *, now_ms: int, cause: str) -> None:
        """Closes an open message, so that nobody is asked any more; an effect goes on."""
        record = self.records.get(key)
        is_open = record is not None and not record.tracking.closed
        if record is not None and is_open and self.records.body(key).effect is None:
            self._apply_alone(record, None, input, now_ms, cause)

    def notified(self, key: str) -> Iterator[str]:
        """The people that a message may have reached; none for an effect."""
        after, members = "", list(self.records.members(key, limit=SLICE))
        if not members or self.records.body(key).effect is not None:
            return
        while members:
            yield from (member.peer for member in members if member.was_notified())
            after = members[-1].peer
            members = list(self.records.members(key, after=after, limit=SLICE))

    def member_names(self, receiver: Identifier, now_ms: int) -> Iterator[str]:
        """The names of all members of a receiver who would get a message now."""
        people = self._lookup.duty(receiver, now_ms).people
        names = list(people) or self._lookup.names(receiver, limit=SLICE)
        if people:
            yield from people
            return
        while names:
            yield from names
            names = self._lookup.names(receiver, after=names[-1], limit=SLICE)

    def apply_answer(self, key: str, answer: Answer, *, now_ms: int, cause: str) -> bool:
        """Applies a person's answer; False when the message was not sent to them."""
        record = self.records.get(key)
        member = self.records.member(key, answer.peer) if record else None
        if record is None or member is None:
            return False
        self._apply_alone(record, member, answer, now_ms, cause)
        self._on_closed(member_key(key, answer.peer))
        return True

    def pass_time(self, key: str, peer: str, now_ms: int) -> None:
        """Handles the due time of a delivery (no `peer`) or of a member."""
        record = self.records.get(key)
        if record is None:
            return
        if peer:
            member = self.records.member(key, peer)
            if member is not None:
                member = self._refreshed(record, member, now_ms)
                context = self._context(record, replace(record), now_ms, "")
                is_relieved = self._ask_who_is_on_duty(context, member)
                self._apply(context, member, MemberTick(is_relieved))
                self._finish(context)
        elif not record.tracking.closed:
            self._pass_time_of_message(record, now_ms)
        elif record.forget_at <= now_ms and self.situations.is_open(record.situation):
            # Its members are told of the end.
            kept = replace(record, forget_at=now_ms + KEEP_CLOSED_MS)
            self.records.save(record, kept)
        elif record.forget_at <= now_ms:
            self.records.delete(record)
            self.situations.forget_message(record.situation, key)
            self._schedule.put_job(MemberJob(case=key, kind="forget"))

    def _pass_time_of_message(self, record: DeliveryRecord, now_ms: int) -> None:
        context = self._context(record, replace(record), now_ms, "")
        self._apply(context, None, MessageTick())
        moved = context.record
        if moved.asking is not None and moved.ask_at <= now_ms and not moved.tracking.closed:
            self._add_next(context, moved.asking)
        self._finish(context)

    def _ask_who_is_on_duty(self, context: DeliveryContext, member: Member) -> bool:
        """When a repeat is due: members who came on duty meanwhile get the message. Returns whether
        they replace this member, whose shift is over.
        """
        tracking, key = context.record.tracking, context.record.key
        stage = tracking.stages[member.stage]
        is_due = 0 < member.repeat_at <= context.now_ms and not tracking.closed
        if not is_due or stage.over or stage.spreading:
            return False
        needed = stage.least if stage.delivery == "at-least" else 1
        receiver = Identifier.parse(stage.receiver)
        try:
            found = self._lookup.duty(receiver, context.now_ms, needed)
            if found == _NO_ROSTER or member.peer in found.people:
                return False
            names = list(found.people) or list(self.member_names(receiver, context.now_ms))
        except SourceUnavailable as error:
            _log.warning("the roster is unknown", receiver=stage.receiver, error=error.message)
            return False
        fresh = [name for name in names if self.records.member(key, name) is None]
        if fresh and found.shortage:
            self._note_shortage(context, receiver, found)
        self._begin_names(context, member.stage, fresh)
        others = (self.records.member(key, name) for name in found.people)
        return any(other is not None and not tracking.is_out(other) for other in others)

    def _note_shortage(
        self, context: DeliveryContext, receiver: Identifier, found: DutyLookup
    ) -> None:
        if context.record.routed:  # the ledger has no line for it
            _log.warning("roster", message=context.record.message, reason=found.shortage)
        note = LedgerNote(state="escalated", reason=found.shortage, receiver=str(receiver))
        self._note(context, note)

    def _refreshed(self, record: DeliveryRecord, member: Member, now_ms: int) -> Member:
        """The member; one whose hold ends is looked up again: nothing was sent to it yet, and its
        addresses may have changed.
        """
        is_over = member.fate == "held" and member.held_until <= now_ms
        if not is_over or record.tracking.closed:
            return member
        delivery = self.records.body(record.key).peer_delivery
        return self._lookup.refreshed(member, now_ms, delivery=delivery)

    # --- jobs over many members ---

    def work_on(self, job: MemberJob, now_ms: int) -> None:
        if job.kind == "forget":
            self._delete_members(job)
            return
        record = self.records.get(job.case)
        if record is None:
            self._schedule.finish_job(job)
            return
        context = self._context(record, replace(record), now_ms, "")
        if job.kind == "begin":
            self._begin_page(context, job)
        else:
            self._visit(context, job.kind, job.stage, job.after)
        self._finish(context)

    def give_up(self, job: MemberJob, reason: str, now_ms: int) -> None:
        """Abandons the rest of a job. A message whose members were to be begun goes on without
        them: it fails if it cannot, and its sender is notified.
        """
        self._schedule.finish_job(job)
        record = self.records.get(job.case) if job.kind == "begin" else None
        if record is not None:
            self._apply_alone(record, None, MembersAbandoned(job.stage, reason), now_ms, "")

    def _begin_page(self, context: DeliveryContext, job: MemberJob) -> None:
        names = self._schedule.pop_names(job)
        if names is None:
            self._schedule.finish_job(job)
            self._apply(context, None, MembersBegun(job.stage, job.found))
            return
        self._begin_names(context, job.stage, names)
        self._schedule.put_job(replace(job, page=job.page + 1))

    def _delete_members(self, job: MemberJob) -> None:
        members = list(self.records.members(job.case, limit=SLICE))
        for member in members:
            self.records.delete_member(job.case, member)
        if len(members) < SLICE:
            self._schedule.finish_job(job)

    def _visit(
        self, context: DeliveryContext, kind: VisitKind, stage: int, after: str = ""
    ) -> None:
        """Visits one slice of the members; the rest becomes a job."""
        input: DeliveryInput = TimeOutMember() if kind == "time_out" else StopMember()
        job = MemberJob(case=context.record.key, kind=kind, stage=stage, after=after)
        members = list(self.records.members(job.case, after=after, limit=SLICE))
        for member in members:
            if stage < 0 or member.stage == stage:
                self._apply(context, member, input)
        if len(members) == SLICE:
            self._schedule.put_job(replace(job, after=members[-1].peer))
        elif after:
            self._schedule.finish_job(job)

    # --- a receiver and its members ---

    def _add_next(self, context: DeliveryContext, following: NextReceiver) -> None:
        """Adds the next receiver. While the directory fails, the message waits at growing
        intervals up to its time to live; the ledger says so once.
        """
        record, receiver = context.record, Identifier.parse(following.receiver)
        record.asking, record.ask_at = None, 0
        try:
            options = DeliveryOptions(answer_within=following.answer_within)
            request = self._lookup.add_receiver(receiver, options)
            pages = self._name_pages(context, receiver, request)
        except SourceUnavailable as error:
            record.failed_asks += 1
            record.asking = following
            record.ask_at = context.now_ms + _NEXT_LOOKUP.pause_ms(record.failed_asks)
            if record.failed_asks == 1:
                _log.warning(
                    "next receiver unknown",
                    message=record.message,
                    receiver=following.receiver,
                    code=error.code,
                    error=error.message,
                    hint=error.hint,
                )
                reason = f"{following.receiver}: {error.code}"
                self._note(context, LedgerNote(state="held", reason=reason, until=record.ask_at))
            return
        record.failed_asks = 0
        self._add_receiver(context, request, pages)

    def _add_receiver(
        self, context: DeliveryContext, request: AddReceiver, pages: list[list[str]] | None = None
    ) -> None:
        """`pages`: the member names of the receiver, where they are known."""
        self._apply(context, None, request)
        if context.record.tracking.closed:
            return
        stage = len(context.record.tracking.stages) - 1
        if pages is None:
            pages = self._name_pages(context, Identifier.parse(request.receiver), request)
        names, *others = pages
        self._begin_names(context, stage, names)
        found = sum(map(len, pages))
        if not others:
            self._apply(context, None, MembersBegun(stage, found))
            return
        job = MemberJob(case=context.record.key, kind="begin", stage=stage, page=1, found=found)
        for page, later in enumerate(others, 1):
            if later:
                self._schedule.put_names(job, page, later)
        self._schedule.put_job(job)

    def _name_pages(
        self, context: DeliveryContext, receiver: Identifier, request: AddReceiver
    ) -> list[list[str]]:
        """The member names of a receiver in slices, smaller ones for a long message; the first
        slice may be empty. Of a group with a roster those on duty now; where they are too few, all,
        which the ledger shows.
        """
        needed = request.least if request.delivery == "at-least" else 1
        found = self._lookup.duty(receiver, context.now_ms, needed)
        is_whole = not found.people and receiver.kind == "collective"
        pages = [list(found.people) or self._lookup.names(receiver, limit=SLICE)]
        while is_whole and len(pages[-1]) == SLICE:
            pages.append(self._lookup.names(receiver, after=pages[-1][-1], limit=SLICE))
        if found.shortage:
            self._note_shortage(context, receiver, found)
        size = max(_SLICE_BYTES // (len(context.body.text) + 1), 1)
        if size >= SLICE:
            return pages
        names = [name for page in pages for name in page]
        return [names[start : start + size] for start in range(0, len(names), size)] or [[]]

    def _begin_names(self, context: DeliveryContext, stage: int, names: list[str]) -> None:
        key, delivery = context.record.key, context.body.peer_delivery
        for name in names:
            if context.record.tracking.closed:
                return
            if stage and self.records.member(key, name) is not None:
                continue  # a member of an earlier stage
            member = self._lookup.member(name, context.now_ms, stage=stage, delivery=delivery)
            self._apply(context, None, BeginMember(member))

    # --- steps ---

    def _context(
        self, before: DeliveryRecord | None, record: DeliveryRecord, now_ms: int, cause: str
    ) -> DeliveryContext:
        return DeliveryContext(before, record, self.records.body, self._privacy, now_ms, cause)

    def _apply_alone(
        self,
        record: DeliveryRecord,
        member: Member | None,
        input: DeliveryInput,
        now_ms: int,
        cause: str,
    ) -> None:
        context = self._context(record, replace(record), now_ms, cause)
        self._apply(context, member, input)
        self._finish(context)

    def _apply(self, context: DeliveryContext, member: Member | None, input: DeliveryInput) -> None:
        record = context.record
        record.tracking, after, steps = next_step(
            record.tracking, member, input, context.now_ms, context.judge
        )
        if after is not None and after != member:
            self.records.save_member(record.key, member, after)
            if context.before is None:
                context.begun.append(after)
        for step in steps:
            self._perform(context, step)

    def _perform(self, context: DeliveryContext, step: DeliveryStep) -> None:
        match step:
            case LedgerNote():
                self._note(context, step)
            case QueueDelivery():
                self._queue(context, step)
            case NextReceiver():
                self._add_next(context, step)
            case VisitMembers():
                self._visit(context, step.kind, step.stage)
            case NotifySender():
                self._notify_sender(context, step)

    def _note(self, context: DeliveryContext, note: LedgerNote) -> None:
        record = context.record
        if record.routed and not note.peer:
            return  # an additional receiver decides nothing about the message
        record.lines += 1
        event = line_event(
            record, note, number=record.lines, now_ms=context.now_ms, cause=context.cause
        )
        self._transaction.emit("log", event)

    def _queue(self, context: DeliveryContext, step: QueueDelivery) -> None:
        context.has_queued = True
        if step.attempt == 1 and step.place == 0:
            self._privacy.count_send(step.peer, context.now_ms)
        event = context.delivery(step).to_event()
        self._transaction.emit(f"output.{adapter_of(step.address)}", event)

    def _notify_sender(self, context: DeliveryContext, step: NotifySender) -> None:
        record = context.record
        subtype, reason = step.subtype, step.reason
        if record.routed:  # the message's own receiver has a result of its own
            receiver = record.tracking.stages[0].receiver
            subtype, reason = "error", f"routed to {receiver}: {step.reason}"
        notify_sender(
            self._transaction,
            record.sender,
            record.message,
            subtype,
            reason,
            now_ms=context.now_ms,
            about=shown_key(record.key),
        )

    def _finish(self, context: DeliveryContext) -> None:
        record, before = context.record, context.before
        if record.tracking.closed and not record.forget_at:
            record.forget_at = context.now_ms + KEEP_CLOSED_MS
            record.asking, record.ask_at = None, 0
            self._on_closed(record.key)
        if before is None and record.tracking.closed and not context.has_queued:
            # Nobody could be reached: the ledger has it, no record is needed.
            for member in context.begun:
                self.records.delete_member(record.key, member)
            self.records.delete(record)
        else:
            self.records.save(before, record)
