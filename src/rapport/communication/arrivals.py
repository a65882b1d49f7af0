"""The way into `input`: arriving messages are checked, their senders proven, their tokens dropped.
[CO-1, CO-11, CO-12]

Every message of a peer comes through `Arrivals.publish`, every message of an application through
`Arrivals.send`; nothing else writes the headers `proof` and `adapter`. A message goes to `input`,
waits until its peer logs in again, or is refused with a line in `log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.arrival_checks import (
    EXPIRED,
    Allowances,
    ArrivalSettings,
    ClosedBefore,
    Proof,
    ProvenMessage,
    RecentEntries,
    SenderProofs,
    Trusted,
    never,
    shape_fault,
)
from rapport.communication.content_rules import ANY_CONTENT, ContentFault, Contents
from rapport.communication.delivery_state import DEFAULT_OPTIONS, DeliveryOptions, with_options
from rapport.communication.ledger_events import ADAPTER, LARGEST_EVENT, PROOF, PROVEN_SENDER
from rapport.communication.sessions.logins import COMPONENT, Authenticator
from rapport.communication.sessions.seals import FRESH_MS, INVALID
from rapport.communication.texts import printable
from rapport.core.codec import TrustedEvents
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, content_id, make_event
from rapport.core.message import AUTH, CONTROL, MESSAGEINFO, Message
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.tasks import in_thread
from rapport.store.base import Change, Delete, Put, RecordStore, all_records

INPUT, LOG = "input", "log"
GIVEN = "givenid"
"""Header: the id that a peer gave its message. The event has another one, derived from it, so that
nobody can take the place of another peer's message.
"""
APPLICATION = "application"
REFUSED = "rapport.arriving.refused"
HELD = "rapport.arriving.held"
ARRIVING = "arriving"
"""Source of events that strangers cause."""
TOO_FAST = "message.too_fast"
"""The reason of a message that may be sent again later."""
_HELD_TABLE = "arriving.held"
_RENEW_EVERY_MS = 600_000
"""A peer is requested this often to log in again, however many of its messages come."""
_LOOK_EVERY_MS, _FORGET_EVERY_MS = 60_000, 3_600_000
_SHOWN = 200
_MOST_SEALS = 1_000_000
_STRANGERS, _FAULTY = "", "?"
"""Allowances of unproven and of refused messages; no peer has such a name."""


class ArrivalResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of publishing one message: it is in `input`, or why not."""

    id: str = ""
    accepted: bool
    proof: Proof = "none"
    reason: str = ""
    """A code for the outside; every fault of a token is `session.invalid`."""
    fault: ContentFault | None = None
    """Where and why the content does not fit the schema of its type."""
    held: bool = False
    """It waits until its peer logs in again."""
    reply: Message | None = None
    """The answer to an AUTH REQUEST, for its sender alone."""

    @property
    def why(self) -> str:
        """The reason with the fault of the content."""
        return f"{self.reason}: {self.fault.message}" if self.fault is not None else self.reason

    def __repr__(self) -> str:
        return f"ArrivalResult(id={self.id!r}, accepted={self.accepted}, reason={self.reason!r})"


# --- events ---


def arrived_event(
    known: ProvenMessage, adapter: str, new_id: Callable[[], str], now_ms: int
) -> Event:
    """The message of a peer as an event of `input`."""
    message = known.message
    headers = source_headers(known.proof, adapter)
    if message.id:
        headers = headers | {GIVEN: message.id}
    if known.unique:
        id = known.unique
    elif message.id:
        id = content_id("arrived", adapter, str(message.sender), message.id)
    else:
        id = new_id()
    return _event(message, id, ARRIVING, headers, now_ms)


@lru_cache(maxsize=1_024)
def source_headers(proof: str, adapter: str, identity: str = "") -> dict[str, str]:
    """The headers of messages from one source; shared, not to be changed. `identity`: the proven
    identity of an application, whatever sender its messages name.
    """
    headers = {PROOF: proof, ADAPTER: adapter}
    return headers | {PROVEN_SENDER: f"component:{identity}"} if identity else headers


def renew_event(known: ProvenMessage, now_ms: int, *, may_hold: bool) -> Event:
    """Asks a peer with an expired token to log in again: one event for all its messages of some
    minutes.
    """
    waits = " Messages wait until you have." if may_hold else ""
    message = Message(
        type=AUTH,
        subtype="FAILED",
        id=content_id("renew", known.session, str(now_ms // _RENEW_EVERY_MS)),
        sender=COMPONENT,
        receiver=known.message.sender,
        content=f"renew: your session is over, log in again.{waits}",
        conversation=known.message.conversation,
        delivery_policy="unreliable",
    )
    headers = {PROOF: APPLICATION, ADAPTER: COMPONENT.name}
    return _event(message, message.id, COMPONENT.name, headers, now_ms)


def _event(message: Message, id: str, source: str, headers: dict[str, str], now_ms: int) -> Event:
    named = message if message.id == id else msgspec.structs.replace(message, id=id)
    return named.as_event(source, now_ms, headers)


def _event_fault(event: Event) -> str:
    return "message.too_long" if len(event.data) > LARGEST_EVENT else ""


def _log_line(
    type: str, message: Message, adapter: str, id: str, now_ms: int, **details: str
) -> Event:
    """A line of `log` about a message that is not in `input`; without its content, which nobody
    may read.
    """
    about = {
        "adapter": adapter,
        "sender": str(message.sender),
        "receiver": str(message.receiver or ""),
        "type": message.type,
        "subtype": message.subtype,
        "given": message.id,
        "refers_to": message.refers_to,
    }
    data = {name: printable(value, _SHOWN) for name, value in (about | details).items() if value}
    subject = printable(str(message.sender), _SHOWN)
    return make_event(source=ARRIVING, id=id, type=type, subject=subject, time=now_ms, data=data)


# --- messages that wait for a login ---


class HeldMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message that waits, as the event it will be."""

    peer: str
    since_ms: int
    number: int
    """Its index among those that came with it."""
    until_ms: int
    event: Event

    @property
    def key(self) -> str:
        """Key of its record: sorts by arrival, whichever node received it."""
        return f"{_peer_key(self.peer)}/{self.since_ms:015d}.{self.number:06d}.{self.event.id}"


def too_many(held: Sequence[HeldMessage], settings: ArrivalSettings) -> list[HeldMessage]:
    """The oldest messages to drop, so that the rest is within bounds; `held` is in order."""
    size, kept = 0, 0
    for one in reversed(held):
        size += len(one.event.data)
        if kept >= settings.most_held or size > settings.most_held_bytes:
            break
        kept += 1
    return list(held[: len(held) - kept])


class HeldMessages:
    """Messages that wait for their peer to log in again, without their token; durable, bounded."""

    def __init__(self, records: RecordStore, settings: ArrivalSettings) -> None:
        self._records, self._settings = records, settings

    @in_thread
    def hold(self, peer: str, events: Sequence[Event], now_ms: int) -> list[HeldMessage]:
        """Keeps events of one peer; returns those that were dropped for it. An event that waits
        already is kept once.
        """
        before = list(self._find(f"{_peer_key(peer)}/"))
        known = {one.event.id for one in before}
        until_ms = now_ms + self._settings.hold_ms
        since_ms, first = now_ms, 0
        if before and before[-1].since_ms >= now_ms:  # the clock stands still or was set back
            since_ms, first = before[-1].since_ms, before[-1].number + 1
        new = [
            HeldMessage(peer=peer, since_ms=since_ms, number=number, until_ms=until_ms, event=event)
            for number, event in enumerate(events, first)
            if event.id not in known
        ]
        gone = too_many([*before, *new], self._settings)
        dropped = {one.key for one in gone}
        changes: list[Change] = [
            Delete(_HELD_TABLE, one.key) for one in before if one.key in dropped
        ]
        changes += [
            Put(_HELD_TABLE, one.key, msgspec.msgpack.encode(one))
            for one in new
            if one.key not in dropped
        ]
        if changes:
            self._records.apply(changes)
        return gone

    @in_thread
    def of_peer(self, peer: str) -> list[HeldMessage]:
        """The messages of one peer, in order."""
        return list(self._find(f"{_peer_key(peer)}/"))

    @in_thread
    def expired(self, now_ms: int) -> list[HeldMessage]:
        """Messages that have waited long enough; reads all that wait."""
        return [one for one in self._find("") if one.until_ms <= now_ms]

    @in_thread
    def delete(self, held: Sequence[HeldMessage]) -> None:
        """Deletes messages; durable when it returns."""
        if held:
            self._records.apply([Delete(_HELD_TABLE, one.key) for one in held])

    def _find(self, prefix: str) -> Iterator[HeldMessage]:
        for _key, value in all_records(self._records, _HELD_TABLE, prefix=prefix):
            yield msgspec.msgpack.decode(value, type=HeldMessage)


def _peer_key(peer: str) -> str:
    return content_id("peer", peer)


# --- decisions ---


class ArrivalWork(msgspec.Struct):
    """The events and records to write for one batch."""

    events: list[Event] = []
    """For `input`."""
    lines: list[Event] = []
    """For `log`."""
    held: list[tuple[str, Event]] = []
    sealed: list[str] = []
    """Ids that seals gave."""


class ArrivalSorter:
    """Decides for each message whether it comes in, waits or is refused. Remembers allowances of
    senders and recent seals; time is an argument.
    """

    def __init__(
        self, settings: ArrivalSettings, new_id: Callable[[], str], contents: Contents = ANY_CONTENT
    ) -> None:
        self._settings, self._new_id, self._contents = settings, new_id, contents
        self._allowances = Allowances(settings.rate, settings.burst)
        # A clock ahead by as much as is allowed makes a seal last twice as long.
        self._seals = RecentEntries[bool](2 * FRESH_MS, _MOST_SEALS)

    def form_fault(self, message: Message) -> str:
        """Why a message cannot come from any peer, as a code; empty when it can."""
        shape = shape_fault(message, self._settings)
        if shape is not None:
            return shape.code
        if message.sender.kind != "peer":
            return "message.not_from_a_peer"
        # Only the node itself sends messages of the reserved types.
        is_request = message.type == MESSAGEINFO and message.subtype == "REQUEST"
        if message.type in (CONTROL, AUTH, MESSAGEINFO) and not is_request:
            return "message.reserved_type"
        return ""

    def _proof_fault(self, known: ProvenMessage) -> str:
        """Why the proof is not enough for this message; empty when it is."""
        receiver = known.message.receiver
        is_outward = receiver is not None and receiver.kind != "component"
        if known.proof == "answer" and is_outward:
            return "message.only_answers"
        if known.proof == "none":
            unproven = self._settings.unproven
            if unproven == "refuse" or (unproven == "inward" and is_outward):
                return "message.not_proven"
        return ""

    def sort(
        self, known: ProvenMessage, adapter: str, now_ms: int, work: ArrivalWork
    ) -> ArrivalResult:
        """Decides about one message of a peer and adds the resulting events to `work`."""
        message = known.message
        fault = known.fault or self._proof_fault(known)
        is_expired = fault == EXPIRED
        if self._settings.rate and not self._may_pass(known, fault, adapter, now_ms, work):
            return ArrivalResult(accepted=False, reason=TOO_FAST)
        if fault and not is_expired:
            work.lines.append(self.refused(message, adapter, fault, now_ms))
            return ArrivalResult(accepted=False, reason=_public_code(fault))
        if misfit := self._contents.fault(message):
            line = self.refused(message, adapter, misfit.code, now_ms, place=misfit.place)
            work.lines.append(line)
            return ArrivalResult(accepted=False, reason=misfit.code, fault=misfit)
        event = arrived_event(known, adapter, self._new_id, now_ms)
        if too_large := _event_fault(event):
            work.lines.append(self.refused(message, adapter, too_large, now_ms))
            return ArrivalResult(accepted=False, reason=too_large)
        if is_expired:
            return self._hold(known, event, adapter, now_ms, work)
        if known.unique:
            work.sealed.append(event.id)
        if not self._seals.get(event.id):
            work.events.append(event)
        return ArrivalResult(id=event.id, accepted=True, proof=known.proof)

    def _may_pass(
        self, known: ProvenMessage, fault: str, adapter: str, now_ms: int, work: ArrivalWork
    ) -> bool:
        payer = _payer(known, fault)
        if self._allowances.takes(adapter, payer, now_ms):
            return True
        if self._allowances.is_first_refusal(adapter, payer):
            work.lines.append(self.refused(known.message, adapter, TOO_FAST, now_ms))
        return False

    def _hold(
        self, known: ProvenMessage, event: Event, adapter: str, now_ms: int, work: ArrivalWork
    ) -> ArrivalResult:
        """Holds or refuses the message of a peer whose session is over, and notifies the peer."""
        may_hold, message = self._settings.on_expired == "hold", known.message
        work.events.append(renew_event(known, now_ms, may_hold=may_hold))
        if not may_hold:
            work.lines.append(self.refused(message, adapter, EXPIRED, now_ms))
            return ArrivalResult(accepted=False, reason=INVALID)
        work.held.append((message.sender.name, event))
        line = _log_line(HELD, message, adapter, self._new_id(), now_ms, held=event.id)
        work.lines.append(line)
        return ArrivalResult(id=event.id, accepted=False, held=True, reason=INVALID)

    def may_log_in(self, adapter: str, now_ms: int) -> bool:
        """Whether one more login may be tried through this adapter, and counts it."""
        return self._allowances.takes(adapter, _STRANGERS, now_ms)

    def note_written(self, work: ArrivalWork, now_ms: int) -> None:
        """Notes that the batch is in `input`: copies of its sealed messages have no effect."""
        for id in work.sealed:
            self._seals.note(id, now_ms, True)

    def refused(
        self, message: Message, adapter: str, fault: str, now_ms: int, *, place: str = ""
    ) -> Event:
        """The line of `log` about a refused message."""
        return _log_line(
            REFUSED, message, adapter, self._new_id(), now_ms, reason=fault, place=place
        )

    def own(self, message: Message, adapter: str, identity: str, now_ms: int) -> Event:
        """The event of an application's message; raises InvalidInput when it cannot be sent."""
        if is_login(message):
            raise InvalidInput(
                "credentials do not go through `input`: a log keeps all its events",
                code="auth.not_through_input",
                hint="call Authenticator.log_in, or POST /sessions",
            )
        fault = shape_fault(message, self._settings)
        if fault is not None:
            raise fault
        if misfit := self._contents.fault(message):
            raise misfit.as_error()
        headers = source_headers(APPLICATION, adapter, identity)
        event = _event(message, message.id or self._new_id(), APPLICATION, headers, now_ms)
        if code := _event_fault(event):
            raise InvalidInput(
                "the message does not fit into an event",
                code=code,
                hint="send a link to what is large",
            )
        return event


def is_login(message: Message) -> bool:
    """Whether a message is a request to log in."""
    return message.type == AUTH and message.subtype == "REQUEST"


def _payer(known: ProvenMessage, fault: str) -> str:
    """The owner of the allowance that a message uses; an unproven name has none of its own."""
    if fault and fault != EXPIRED:
        return _FAULTY
    return _STRANGERS if known.proof == "none" else f"peer:{known.message.sender.name}"


def _public_code(fault: str) -> str:
    return INVALID if fault.startswith(("session.", "seal.")) else fault


class Arrivals:
    """Takes messages in. A message costs some microseconds; one append per batch and channel."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        authenticating: Authenticator,
        *,
        secret: bytes,
        settings: ArrivalSettings | None = None,
        contents: Contents = ANY_CONTENT,
    ) -> None:
        """`secret`: that of answer links (`answer_secret`). `contents`: the schemas that contents
        have to fit.
        """
        self._channels, self._clock, self._authenticating = channels, clock, authenticating
        self.settings = settings or ArrivalSettings()
        self._proofs = SenderProofs(
            authenticating.sessions, secret, clock, answer_links_ms=self.settings.answer_links_ms
        )
        self._held = HeldMessages(records, self.settings)
        self._contents = contents
        new_id = Ids(clock, Chance.from_machine()).new
        self._sorter = ArrivalSorter(self.settings, new_id, contents)
        self._forget_at_ms = 0
        authenticating.after_login.append(self.release)
        authenticating.after_ending.append(self.drop)

    def expire_answers_by(self, closed_before: ClosedBefore) -> None:
        """From now on answer tokens count as long as their links do, by this ledger."""
        self._proofs.closed_before = closed_before

    async def send(
        self,
        messages: Sequence[Message],
        *,
        adapter: str = APPLICATION,
        options: DeliveryOptions = DEFAULT_OPTIONS,
        identity: str = "",
    ) -> list[str]:
        """Takes messages of the node's own applications, all or none, and returns their ids;
        durable when it returns. Given ids are kept; `options` hold for every delivery. `identity`:
        what the application proved, which routing and privacy rules see as `component:IDENTITY`;
        empty for an application that may use any name.

        Raises InvalidInput for a message that cannot be sent; `message.bad_content` when it does
        not fit the JSON Schema of its type.
        """
        await self._contents.refresh()
        now_ms, sorter = self._clock.now_ms(), self._sorter
        events = [sorter.own(message, adapter, identity, now_ms) for message in messages]
        if options != DEFAULT_OPTIONS:
            events = [with_options(event, options) for event in events]
        await self._channels.channel(INPUT).append(TrustedEvents(events))
        return [event.id for event in events]

    async def publish(
        self,
        messages: Sequence[Message],
        *,
        adapter: str,
        trusted: Trusted = never,
        origin: str = "",
        answers_back: bool = False,
    ) -> list[ArrivalResult]:
        """Takes messages from outside; accepted ones are durable when it returns.

        A refused message does not harm the others. A message that comes twice (same adapter, sender
        and id, or the same seal) is in `input` once.

        Args:
            adapter: The input adapter or endpoint they came through.
            trusted: Tells of a message without a token whether the medium vouches for its sender.
            origin: Where they came from, for the limit on logins.
            answers_back: The caller returns `reply` to the sender. Without it nobody can log in
                this way: a token must not pass through a log.
        """
        now_ms = self._clock.now_ms()
        logins = [is_login(message) for message in messages]
        others = [one for one, login in zip(messages, logins, strict=True) if not login]
        taken = iter(await self._admit(others, adapter, trusted, now_ms) if others else ())
        return [
            await self._log_in(message, adapter, origin, answers_back) if login else next(taken)
            for message, login in zip(messages, logins, strict=True)
        ]

    async def release(self, peer: str) -> int:
        """Admits the held messages of a peer that has logged in again; returns their number."""
        held = await self._held.of_peer(peer)
        alive = [one for one in held if one.until_ms > self._clock.now_ms()]
        if alive:
            # Appended before deleted: a crash in between appends duplicates, which are dropped.
            await self._channels.channel(INPUT).append([one.event for one in alive])
        await self._end_held([one for one in held if one not in alive], EXPIRED)
        await self._held.delete(alive)
        return len(alive)

    async def drop(self, peer: str) -> int:
        """Refuses the held messages of a peer whose sessions were ended, since its token may have
        been stolen; returns their number.
        """
        held = await self._held.of_peer(peer)
        await self._end_held(held, "session.ended")
        return len(held)

    async def run(self) -> None:
        """Refuses messages that were held too long and deletes old sessions, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_EVERY_MS)

    async def look(self) -> None:
        """One round of `run`; sessions and attempts, which may be many, are scanned hourly."""
        await self._end_held(await self._held.expired(self._clock.now_ms()), EXPIRED)
        if self._clock.now_ms() >= self._forget_at_ms:
            self._forget_at_ms = self._clock.now_ms() + _FORGET_EVERY_MS
            await self._authenticating.forget_old()

    async def _admit(
        self, messages: Sequence[Message], adapter: str, trusted: Trusted, now_ms: int
    ) -> list[ArrivalResult]:
        await self._contents.refresh()
        work = ArrivalWork()
        known = await self._prove(messages, trusted)
        found = [self._sorter.sort(each, adapter, now_ms, work) for each in known]
        await self._carry_out(work, now_ms)
        return found

    async def _prove(self, messages: Sequence[Message], trusted: Trusted) -> list[ProvenMessage]:
        faults = [self._sorter.form_fault(message) for message in messages]
        if not any(faults):
            return await self._proofs.of(messages, trusted)
        sound = [one for one, fault in zip(messages, faults, strict=True) if not fault]
        proven = iter(await self._proofs.of(sound, trusted))
        return [
            ProvenMessage(message, fault=fault) if fault else next(proven)
            for message, fault in zip(messages, faults, strict=True)
        ]

    async def _carry_out(self, work: ArrivalWork, now_ms: int) -> None:
        by_peer = groupby(sorted(work.held, key=lambda held: held[0]), key=lambda held: held[0])
        for peer, pairs in by_peer:
            events = [event for _peer, event in pairs]
            gone = await self._held.hold(peer, events, now_ms)
            await self._log_refusals(gone, "message.too_many_held")
        if work.lines:
            await self._channels.channel(LOG).append(work.lines)
        if work.events:
            await self._channels.channel(INPUT).append(TrustedEvents(work.events))
        self._sorter.note_written(work, now_ms)

    async def _log_in(
        self, message: Message, adapter: str, origin: str, back: bool
    ) -> ArrivalResult:
        """Logs a peer in. The message itself is not logged; the result is, in `auth`."""
        now_ms = self._clock.now_ms()
        shape = shape_fault(message, self.settings)
        fault = shape.code if shape is not None else "" if back else "auth.no_way_back"
        if not self._sorter.may_log_in(adapter, now_ms):
            return ArrivalResult(accepted=False, reason=TOO_FAST)
        if fault:
            line = self._sorter.refused(message, adapter, fault, now_ms)
            await self._channels.channel(LOG).append([line])
            return ArrivalResult(accepted=False, reason=fault)
        reply = await self._authenticating.request(message, origin=origin)
        if reply.subtype == "REPLY":
            return ArrivalResult(accepted=True, proof="session", reply=reply)
        return ArrivalResult(accepted=False, reason="auth.failed", reply=reply)

    async def _end_held(self, held: Sequence[HeldMessage], fault: str) -> None:
        """Logs that messages were refused, then deletes them."""
        await self._log_refusals(held, fault)
        await self._held.delete(held)

    async def _log_refusals(self, held: Sequence[HeldMessage], fault: str) -> None:
        now_ms, lines = self._clock.now_ms(), []
        for one in held:
            message, adapter = Message.from_event(one.event), one.event.headers[ADAPTER]
            lines.append(self._sorter.refused(message, adapter, fault, now_ms))
        if lines:
            await self._channels.channel(LOG).append(lines)
