"""The events that arriving messages become: in `input`, and in `log` those that do not get there.
[CO-1, CO-12]

Where each arriving message goes: in, held, or refused with a reason; pure but for what it has
counted, time is an argument. [CO-1, CO-11]

`Arrivals` proves the senders first and writes afterwards what is decided here.

Messages that wait for their peer to log in again: bounded, durable, without their token.
[CO-11]

Blocks on the disk: called from a worker thread.

The way into `input`: what arrives is measured, its sender proven, its token dropped. [CO-1,
CO-11, CO-12]

Every message of peers comes through `Arrivals.publish`, every message of applications through
`Arrivals.send`; nobody else writes the headers `proof` and `adapter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.arrival_limits import (
    LARGEST_EVENT,
    Allowances,
    ArrivalSettings,
    SealHistory,
    shape_fault,
)
from rapport.communication.blocking import run_blocking
from rapport.communication.contents.rules import AnyContent, ContentFault, Contents
from rapport.communication.delivery_options import DEFAULT_OPTIONS, DeliveryOptions, with_options
from rapport.communication.fast_path_input import LEAST_LIMIT, fast_input_events
from rapport.communication.sender_notifications import ADAPTER, PROOF, PROVEN_SENDER
from rapport.communication.sender_proof import (
    EXPIRED,
    Proof,
    ProvenMessage,
    SenderProofs,
    Trusted,
    never,
    vouches,
)
from rapport.communication.sessions.authenticating import COMPONENT, Authenticating
from rapport.communication.sessions.sealing import FRESH_MS
from rapport.communication.sessions.tokens import INVALID
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, make_event
from rapport.core.ids import content_id
from rapport.core.message import AUTH, CONTROL, MESSAGEINFO, Message
from rapport.core.packed_events import PackedEvents
from rapport.core.usual_events import as_sound
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Delete, Put, RecordStore

GIVEN = "givenid"
"""Header: the id that a peer gave its message. Ours is another, so that nobody can take the place
of somebody else's message; the same one gives the same.
"""
APPLICATION = "application"
REFUSED = "rapport.arriving.refused"
HELD = "rapport.arriving.held"
ARRIVING = "arriving"
"""Source of events that strangers caused."""
_RENEW_EVERY_MS = 600_000
"""A peer is told this often to renew, however many of its messages come."""
_SHOWN = 200


def arrived_event(
    known: ProvenMessage, adapter: str, new_id: Callable[[], str], now_ms: int
) -> Event:
    """The message of a peer as an event of `input`."""
    message = known.message
    headers = way_headers(known.proof, adapter)
    if message.id:
        headers = headers | {GIVEN: message.id}
    if known.unique:
        id = known.unique
    elif message.id:
        id = content_id("arrived", adapter, str(message.sender), message.id)
    else:
        id = new_id()
    return _event(message, id, ARRIVING, headers, now_ms)


def own_event(
    message: Message, adapter: str, identity: str, new_id: Callable[[], str], now_ms: int
) -> Event:
    """The message of an application, or of the node itself, as an event of `input`."""
    headers = way_headers(APPLICATION, adapter, identity)
    return _event(message, message.id or new_id(), APPLICATION, headers, now_ms)


@lru_cache(maxsize=1_024)
def way_headers(proof: str, adapter: str, identity: str = "") -> dict[str, str]:
    """The same for all messages of a way: not to be changed. `identity`: that of an application
    which proved one, whatever name its messages give.
    """
    headers = {PROOF: proof, ADAPTER: adapter}
    return headers | {PROVEN_SENDER: f"component:{identity}"} if identity else headers


def renew_event(known: ProvenMessage, now_ms: int, *, may_hold: bool) -> Event:
    """What a peer is told whose token is over: the same event for all its messages of some
    minutes.
    """
    waits = " Messages wait until you have." if may_hold else ""
    told = Message(
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
    return _event(told, told.id, COMPONENT.name, headers, now_ms)


def refused_event(
    message: Message, adapter: str, reason: str, id: str, now_ms: int, *, place: str = ""
) -> Event:
    """The line of `log` about a message that did not get in. It has no content: a refused message
    is nobody's to read; `place` is where in it the fault is.
    """
    return _line(REFUSED, message, adapter, id, now_ms, reason=reason, place=place)


def held_event(event: Event, message: Message, adapter: str, id: str, now_ms: int) -> Event:
    """The line of `log` about a message that waits for its peer to log in again."""
    return _line(HELD, message, adapter, id, now_ms, held=event.id)


def event_fault(event: Event) -> str:
    """The code for an event that no channel would take; empty when it would."""
    return "message.too_long" if len(event.data) > LARGEST_EVENT else ""


def _event(message: Message, id: str, source: str, headers: dict[str, str], now_ms: int) -> Event:
    named = message if message.id == id else msgspec.structs.replace(message, id=id)
    return named.as_event(source, now_ms, headers)


def _line(type: str, message: Message, adapter: str, id: str, now_ms: int, **said: str) -> Event:
    about = {
        "adapter": adapter,
        "sender": str(message.sender),
        "receiver": str(message.receiver or ""),
        "type": message.type,
        "subtype": message.subtype,
        "given": message.id,
        "refers_to": message.refers_to,
    }
    data = {name: _shown(value) for name, value in (about | said).items() if value}
    subject = _shown(str(message.sender))
    return make_event(source=ARRIVING, id=id, type=type, subject=subject, time=now_ms, data=data)


def _shown(text: str) -> str:
    """What strangers wrote, as it may stand in an event."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])


TOO_FAST = "message.too_fast"
_STRANGERS, _FAULTY = "", "?"
"""Who pays for messages that prove nothing, and for those that are refused; names of no peer."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of one message: it is in `input` for good, or why not."""

    id: str = ""
    accepted: bool
    proof: Proof = "none"
    reason: str = ""
    """A code for the outside: whatever is wrong with a token, it is `session.invalid`."""
    fault: ContentFault | None = None
    """Where and why the content does not fit the schema of its type."""
    held: bool = False
    """Not in `input` yet: it waits for its peer to log in again."""
    reply: Message | None = None
    """The answer to an AUTH REQUEST, for its asker alone."""

    @property
    def why(self) -> str:
        """The reason for who reads it later."""
        return f"{self.reason}: {self.fault.message}" if self.fault is not None else self.reason

    def __repr__(self) -> str:
        return f"Arrived(id={self.id!r}, accepted={self.accepted}, reason={self.reason!r})"


class ArrivalWork(msgspec.Struct):
    """What is to be done about one batch."""

    events: list[Event] = []
    """Those that go to `input`."""
    lines: list[Event] = []
    """What `log` is told."""
    held: list[tuple[str, Event]] = []
    sealed: list[str] = []
    """Ids that seals gave."""


class ArrivalSorter:
    """Holds what senders may still send, and the seals that came lately."""

    def __init__(
        self,
        settings: ArrivalSettings,
        new_id: Callable[[], str],
        contents: Contents | None = None,
        new_ids: Callable[[int], Sequence[str]] | None = None,
    ) -> None:
        """`contents`: None = any content of any type is taken. `new_ids`: many ids at once."""
        self._settings, self._new_id = settings, new_id
        self._new_ids = new_ids or (lambda count: [new_id() for _ in range(count)])
        self._contents = contents or AnyContent()
        self._takes_any = isinstance(self._contents, AnyContent)
        self._has_usual = settings.most_bytes >= LEAST_LIMIT
        self._allowances = Allowances(settings.rate, settings.burst)
        # A clock ahead by as much as is allowed makes a seal last twice as long.
        self._seals = SealHistory(2 * FRESH_MS)

    # --- many at once ---

    def own_events(
        self, messages: Sequence[Message], adapter: str, identity: str, now_ms: int
    ) -> Sequence[Event]:
        """As `own` for each; raises InvalidInput for the first that cannot be sent."""
        found = self._usual(messages, APPLICATION, APPLICATION, adapter, now_ms, identity)
        if isinstance(found, PackedEvents) and not any(map(self._misfits, messages)):
            return found
        return [
            self.own(message, adapter, identity, now_ms)
            if event is None or self._misfits(message)
            else event
            for message, event in zip(messages, found, strict=True)
        ]

    def vouched_events(
        self, messages: Sequence[Message], adapter: str, trusted: Trusted, now_ms: int
    ) -> Sequence[Event | None]:
        """The events of messages that come in on the medium's word for their senders, the usual
        way; None for those that are to be proven and sorted one by one.
        """
        found = self._usual(messages, ARRIVING, "medium", adapter, now_ms)
        is_free = self._takes_any and not self._settings.rate
        if isinstance(found, PackedEvents):
            let_in = [
                message.sender.kind == "peer" and vouches(trusted, message) if is_free
                else self._is_let_in(message, adapter, trusted, now_ms)
                for message in messages
            ]  # fmt: skip
            if all(let_in):
                return found
            return [event if may else None for event, may in zip(found, let_in, strict=True)]
        return [
            event if event is not None and self._is_let_in(message, adapter, trusted, now_ms)
            else None
            for message, event in zip(messages, found, strict=True)
        ]  # fmt: skip

    def _usual(
        self,
        messages: Sequence[Message],
        source: str,
        proof: str,
        adapter: str,
        now_ms: int,
        identity: str = "",
    ) -> Sequence[Event | None]:
        if not self._has_usual:
            return [None] * len(messages)
        ids = self._new_ids(len(messages))
        return fast_input_events(
            messages, ids, source, way_headers(proof, adapter, identity), now_ms
        )

    def _is_let_in(self, message: Message, adapter: str, trusted: Trusted, now_ms: int) -> bool:
        """Whether nothing is to be said against a message of the usual form."""
        if message.sender.kind != "peer" or self._misfits(message):
            return False
        if not vouches(trusted, message):
            return False
        if not self._settings.rate:
            return True
        return self._allowances.takes(adapter, f"peer:{message.sender.name}", now_ms)

    def _misfits(self, message: Message) -> bool:
        return not self._takes_any and self._contents.fault(message) is not None

    # --- one by one ---

    def form_fault(self, message: Message) -> str:
        """Why a message cannot come from any peer, as a code; empty when it can."""
        shape = shape_fault(message, self._settings)
        if shape is not None:
            return shape.code
        if message.sender.kind != "peer":
            return "message.not_from_a_peer"
        # What the node itself says about messages cannot be said from outside.
        is_asking = message.type == MESSAGEINFO and message.subtype == "REQUEST"
        if message.type in (CONTROL, AUTH, MESSAGEINFO) and not is_asking:
            return "message.reserved_type"
        return ""

    def _right_fault(self, known: ProvenMessage) -> str:
        """Why this proof is not enough for this message; empty when it is."""
        receiver = known.message.receiver
        is_outward = receiver is not None and receiver.kind != "component"
        if known.proof == "answer" and is_outward:
            return "message.only_answers"
        if known.proof == "none":
            needed = self._settings.unproven
            if needed == "refuse" or (needed == "inward" and is_outward):
                return "message.not_proven"
        return ""

    def sort(self, known: ProvenMessage, adapter: str, now_ms: int, work: ArrivalWork) -> Arrival:
        """Where one message goes; what is to be written is added to `work`."""
        fault = known.fault or self._right_fault(known)
        is_expired = fault == EXPIRED
        if self._settings.rate and not self._may_pass(known, fault, adapter, now_ms, work):
            return Arrival(accepted=False, reason=TOO_FAST)
        if fault and not is_expired:
            work.lines.append(self.refused(known.message, adapter, fault, now_ms))
            return Arrival(accepted=False, reason=_told(fault))
        if misfit := self._contents.fault(known.message):
            line = self.refused(known.message, adapter, misfit.code, now_ms, misfit)
            work.lines.append(line)
            return Arrival(accepted=False, reason=misfit.code, fault=misfit)
        event = arrived_event(known, adapter, self._new_id, now_ms)
        if too_large := event_fault(event):
            work.lines.append(self.refused(known.message, adapter, too_large, now_ms))
            return Arrival(accepted=False, reason=too_large)
        if is_expired:
            return self._put_off(known, event, adapter, now_ms, work)
        if known.unique:
            work.sealed.append(event.id)
        if event.id not in self._seals:
            work.events.append(event)
        return Arrival(id=event.id, accepted=True, proof=known.proof)

    def _may_pass(
        self, known: ProvenMessage, fault: str, adapter: str, now_ms: int, work: ArrivalWork
    ) -> bool:
        payer = _payer(known, fault)
        if self._allowances.takes(adapter, payer, now_ms):
            return True
        if self._allowances.is_first_refusal(adapter, payer):
            work.lines.append(self.refused(known.message, adapter, TOO_FAST, now_ms))
        return False

    def _put_off(
        self, known: ProvenMessage, event: Event, adapter: str, now_ms: int, work: ArrivalWork
    ) -> Arrival:
        """The message of a peer whose session is over: held or refused, and the peer is told."""
        may_hold, message = self._settings.on_expired == "hold", known.message
        work.events.append(renew_event(known, now_ms, may_hold=may_hold))
        if not may_hold:
            work.lines.append(self.refused(message, adapter, EXPIRED, now_ms))
            return Arrival(accepted=False, reason=INVALID)
        work.held.append((message.sender.name, event))
        work.lines.append(held_event(event, message, adapter, self._new_id(), now_ms))
        return Arrival(id=event.id, accepted=False, held=True, reason=INVALID)

    def may_ask(self, adapter: str, now_ms: int) -> bool:
        """Whether one more login may be tried by this way, and counts it."""
        return self._allowances.takes(adapter, _STRANGERS, now_ms)

    def note_written(self, work: ArrivalWork, now_ms: int) -> None:
        """What is in `input` for good: copies of sealed messages have no effect from now on."""
        for id in work.sealed:
            self._seals.note(id, now_ms)

    def refused(
        self,
        message: Message,
        adapter: str,
        fault: str,
        now_ms: int,
        misfit: ContentFault | None = None,
    ) -> Event:
        """The line of `log` about a message that did not get in."""
        place = misfit.place if misfit is not None else ""
        return refused_event(message, adapter, fault, self._new_id(), now_ms, place=place)

    def own(self, message: Message, adapter: str, identity: str, now_ms: int) -> Event:
        """The event of an application's message; raises InvalidInput for what cannot be sent."""
        if asks_for_session(message):
            raise InvalidInput(
                "credentials do not go through `input`: a log keeps what it is given",
                code="auth.not_through_input",
                hint="call Authenticating.log_in, or POST /sessions",
            )
        fault = shape_fault(message, self._settings)
        if fault is not None:
            raise fault
        if misfit := self._contents.fault(message):
            raise misfit.as_error()
        event = own_event(message, adapter, identity, self._new_id, now_ms)
        if code := event_fault(event):
            raise InvalidInput(
                "the message does not fit into an event",
                code=code,
                hint="send a link to what is large",
            )
        return event


def asks_for_session(message: Message) -> bool:
    """Whether a message is a login."""
    return message.type == AUTH and message.subtype == "REQUEST"


def _payer(known: ProvenMessage, fault: str) -> str:
    """Whose allowance a message is taken from: a name that anybody could write is nobody's."""
    if fault and fault != EXPIRED:
        return _FAULTY
    return _STRANGERS if known.proof == "none" else f"peer:{known.message.sender.name}"


def _told(fault: str) -> str:
    return INVALID if fault.startswith(("session.", "seal.")) else fault


_TABLE = "arriving.held"
_PAGE = 500


class HeldMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message that waits, as the event it will be."""

    peer: str
    since_ms: int
    number: int
    """Its place among those that came with it."""
    until_ms: int
    event: Event

    @property
    def key(self) -> str:
        """Where it is kept: in the order in which they came, whichever node took them."""
        return f"{_of(self.peer)}/{self.since_ms:015d}.{self.number:06d}.{self.event.id}"


def too_many(held: Sequence[HeldMessage], settings: ArrivalSettings) -> list[HeldMessage]:
    """The oldest that have to go, so that the rest is within bounds; `held` is in order."""
    size, kept = 0, 0
    for one in reversed(held):
        size += len(one.event.data)
        if kept >= settings.most_held or size > settings.most_held_bytes:
            break
        kept += 1
    return list(held[: len(held) - kept])


class HeldMessages:
    """All that waits, by peer."""

    def __init__(self, records: RecordStore, settings: ArrivalSettings) -> None:
        self._records, self._settings = records, settings

    def hold(self, peer: str, events: Sequence[Event], now_ms: int) -> list[HeldMessage]:
        """Keeps events of one peer; returns those (older or among them) that had to go for it. An
        event that waits already waits once.
        """
        before = list(self.of_peer(peer))
        known = {one.event.id for one in before}
        until_ms = now_ms + self._settings.hold_ms
        since_ms, first = _after(before, now_ms)
        new = [
            HeldMessage(peer=peer, since_ms=since_ms, number=number, until_ms=until_ms, event=event)
            for number, event in enumerate(events, first)
            if event.id not in known
        ]
        gone = too_many([*before, *new], self._settings)
        dropped = {one.key for one in gone}
        changes: list[Change] = [Delete(_TABLE, one.key) for one in before if one.key in dropped]
        changes += [
            Put(_TABLE, one.key, msgspec.msgpack.encode(one))
            for one in new
            if one.key not in dropped
        ]
        if changes:
            self._records.apply(changes)
        return gone

    def of_peer(self, peer: str) -> Iterator[HeldMessage]:
        """What waits for one peer, in order."""
        return self._find(f"{_of(peer)}/")

    def over(self, now_ms: int) -> list[HeldMessage]:
        """What waits no longer; reads all that waits."""
        return [one for one in self._find("") if one.until_ms <= now_ms]

    def forget(self, held: Sequence[HeldMessage]) -> None:
        """They wait no more; durable when it returns."""
        if held:
            self._records.apply([Delete(_TABLE, one.key) for one in held])

    def _find(self, prefix: str) -> Iterator[HeldMessage]:
        after = ""
        while page := self._records.find(_TABLE, prefix=prefix, after=after, limit=_PAGE):
            yield from (msgspec.msgpack.decode(value, type=HeldMessage) for _key, value in page)
            after = page[-1][0]


def _after(before: Sequence[HeldMessage], now_ms: int) -> tuple[int, int]:
    """Time and first number of what comes behind those; the clock may have stood still, or been
    set back.
    """
    if not before or before[-1].since_ms < now_ms:
        return now_ms, 0
    return before[-1].since_ms, before[-1].number + 1


def _of(peer: str) -> str:
    return content_id("peer", peer)


INPUT, LOG = "input", "log"
_LOOK_EVERY_MS, _FORGET_EVERY_MS = 60_000, 3_600_000


class Arrivals:
    """The one way in. Cost per message is some microseconds; one append per batch and channel."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        authenticating: Authenticating,
        *,
        secret: bytes,
        settings: ArrivalSettings | None = None,
        contents: Contents | None = None,
    ) -> None:
        """`secret`: that of answer links (`answer_secret`). `contents`: what contents of messages
        must be like; None = any.
        """
        self._channels, self._clock, self._authenticating = channels, clock, authenticating
        self.settings = settings or ArrivalSettings()
        self._proofs = SenderProofs(authenticating.sessions, secret, clock)
        self._held = HeldMessages(records, self.settings)
        self._contents = contents or AnyContent()
        ids = Ids(clock, Chance.from_machine())
        self._sorting = ArrivalSorter(self.settings, ids.new, self._contents, ids.many)
        self._forget_at_ms = 0
        authenticating.after_login.append(self.release)
        authenticating.after_ending.append(self.drop)

    async def send(
        self,
        messages: Sequence[Message],
        *,
        adapter: str = APPLICATION,
        options: DeliveryOptions = DEFAULT_OPTIONS,
        identity: str = "",
    ) -> list[str]:
        """Takes messages of the node's own applications, all or none, and returns their ids;
        durable when it returns. Ids that are given are kept; `options` are asked of every delivery.
        `identity`: the one that the application proved, which routing rules and privacy policies
        see as `component:IDENTITY`; empty for who may use any name.

        Raises InvalidInput for one that cannot be sent; `message.bad_content` when it does not fit
        the JSON Schema of its type.
        """
        await self._contents.refresh()
        now_ms = self._clock.now_ms()
        events = self._sorting.own_events(messages, adapter, identity, now_ms)
        if options != DEFAULT_OPTIONS:
            events = [with_options(event, options) for event in events]
        await self._channels.channel(INPUT).append(as_sound(events))
        return list(events.ids) if isinstance(events, PackedEvents) else [one.id for one in events]

    async def publish(
        self,
        messages: Sequence[Message],
        *,
        adapter: str,
        trusted: Trusted = never,
        origin: str = "",
        answers_back: bool = False,
    ) -> list[Arrival]:
        """Takes messages that came from outside; what is accepted is durable when it returns.

        One that is refused does not harm the others. A message taken twice (same adapter, sender
        and id, or the same seal) is in `input` once.

        Args:
            adapter: The input adapter or door they came through.
            trusted: Says of a message without a token whether the medium vouches for its sender.
            origin: Where they came from, for the limit on logins.
            answers_back: The caller gives `reply` to who sent the message. Without it nobody can
                log in this way: a token must not pass through a log.
        """
        now_ms = self._clock.now_ms()
        asked = [asks_for_session(message) for message in messages]
        if not any(asked):
            return await self._take(messages, adapter, trusted, now_ms)
        others = [one for one, is_request in zip(messages, asked, strict=True) if not is_request]
        arrived = iter(await self._take(others, adapter, trusted, now_ms))
        found = []
        for message, is_request in zip(messages, asked, strict=True):
            if is_request:
                found.append(await self._ask(message, adapter, origin, answers_back))
            else:
                found.append(next(arrived))
        return found

    async def release(self, peer: str) -> int:
        """Lets in what waits for a peer who has logged in again; returns how many."""
        held = await run_blocking(lambda: list(self._held.of_peer(peer)))
        alive = [one for one in held if one.until_ms > self._clock.now_ms()]
        if alive:
            # First in, then forgotten: a crash in between lets them in again, as repetitions.
            await self._channels.channel(INPUT).append([one.event for one in alive])
        await self._refuse_held([one for one in held if one not in alive], EXPIRED)
        await run_blocking(partial(self._held.forget, held))
        return len(alive)

    async def drop(self, peer: str) -> int:
        """Refuses what waits for a peer whose sessions were ended: the token that it came with may
        have been stolen. Returns how many.
        """
        held = await run_blocking(lambda: list(self._held.of_peer(peer)))
        await self._refuse_held(held, "session.ended")
        await run_blocking(partial(self._held.forget, held))
        return len(held)

    async def run(self) -> None:
        """Ends what has waited too long and forgets what is over, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_EVERY_MS)

    async def look(self) -> None:
        """One round of `run`; sessions and attempts, which may be many, are gone through hourly."""
        over = await run_blocking(partial(self._held.over, self._clock.now_ms()))
        await self._refuse_held(over, EXPIRED)
        await run_blocking(partial(self._held.forget, over))
        if self._clock.now_ms() >= self._forget_at_ms:
            self._forget_at_ms = self._clock.now_ms() + _FORGET_EVERY_MS
            await self._authenticating.forget_old()

    # --- messages of peers ---

    async def _take(
        self, messages: Sequence[Message], adapter: str, trusted: Trusted, now_ms: int
    ) -> list[Arrival]:
        await self._contents.refresh()
        events = self._sorting.vouched_events(messages, adapter, trusted, now_ms)
        if isinstance(events, PackedEvents):
            await self._channels.channel(INPUT).append(events)
            return [Arrival(id=id, accepted=True, proof="medium") for id in events.ids]
        others = [one for one, event in zip(messages, events, strict=True) if event is None]
        known = iter(await self._known(others, trusted) if others else ())
        work, found = ArrivalWork(), []
        for event in events:
            if event is None:
                found.append(self._sorting.sort(next(known), adapter, now_ms, work))
            else:
                work.events.append(event)
                found.append(Arrival(id=event.id, accepted=True, proof="medium"))
        await self._carry_out(work, now_ms)
        return found

    async def _known(self, messages: Sequence[Message], trusted: Trusted) -> list[ProvenMessage]:
        """What is wrong with each message, or how we know its sender."""
        faults = [self._sorting.form_fault(message) for message in messages]
        well = [one for one, fault in zip(messages, faults, strict=True) if not fault]
        proven = iter(await self._proofs.of(well, trusted) if well else ())
        return [
            ProvenMessage(message, fault=fault) if fault else next(proven)
            for message, fault in zip(messages, faults, strict=True)
        ]

    async def _carry_out(self, work: ArrivalWork, now_ms: int) -> None:
        by_peer = groupby(sorted(work.held, key=lambda held: held[0]), key=lambda held: held[0])
        for peer, pairs in by_peer:
            events = [event for _peer, event in pairs]
            gone = await run_blocking(partial(self._held.hold, peer, events, now_ms))
            await self._refuse_held(gone, "message.too_many_held")
        if work.lines:
            await self._channels.channel(LOG).append(work.lines)
        if work.events:
            await self._channels.channel(INPUT).append(as_sound(work.events))
        self._sorting.note_written(work, now_ms)

    async def _ask(self, message: Message, adapter: str, origin: str, back: bool) -> Arrival:
        """Logs a peer in. Its message is in no log: what came of it is, in `auth`."""
        now_ms = self._clock.now_ms()
        shape = shape_fault(message, self.settings)
        fault = shape.code if shape is not None else "" if back else "auth.no_way_back"
        if not self._sorting.may_ask(adapter, now_ms):
            return Arrival(accepted=False, reason=TOO_FAST)
        if fault:
            line = self._sorting.refused(message, adapter, fault, now_ms)
            await self._channels.channel(LOG).append([line])
            return Arrival(accepted=False, reason=fault)
        reply = await self._authenticating.request(message, origin=origin)
        is_in = reply.subtype == "REPLY"
        reason = "" if is_in else "auth.failed"
        proof: Proof = "session" if is_in else "none"
        return Arrival(accepted=is_in, proof=proof, reason=reason, reply=reply)

    async def _refuse_held(self, held: Sequence[HeldMessage], fault: str) -> None:
        """Writes down that messages wait no more and were not let in."""
        now_ms, lines = self._clock.now_ms(), []
        for one in held:
            message, adapter = Message.from_event(one.event), one.event.headers[ADAPTER]
            lines.append(self._sorting.refused(message, adapter, fault, now_ms))
        if lines:
            await self._channels.channel(LOG).append(lines)
