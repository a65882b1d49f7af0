"""The way into `input`: what arrives is measured, its sender proven, its token dropped. [CO-1,
CO-11, CO-12]

Every message of peers comes through `Arrivals.publish`, every message of applications through
`Arrivals.send`; nobody else writes the headers `proof` and `adapter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from rapport.channel.channel import Channels
from rapport.communication.arriving.events import APPLICATION
from rapport.communication.arriving.held import Held, HeldMessages
from rapport.communication.arriving.limits import ArrivalSettings, shape_fault
from rapport.communication.arriving.proving import (
    EXPIRED,
    ClosedBefore,
    Proof,
    Proofs,
    Proven,
    Trusted,
    never,
)
from rapport.communication.arriving.sorting import (
    TOO_FAST,
    Arrived,
    Sorting,
    Work,
    asks_for_session,
)
from rapport.communication.aside import run_aside
from rapport.communication.content_rules import AnyContent, Contents
from rapport.communication.delivering.telling import ADAPTER
from rapport.communication.delivering.wishes import NO_WISHES, Wishes, with_wishes
from rapport.communication.sessions.logins import Authenticator
from rapport.core.codec import as_trusted
from rapport.core.encoded_batch import EncodedBatch
from rapport.core.message import Message
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.store.base import RecordStore

INPUT, LOG = "input", "log"
_LOOK_EVERY_MS, _FORGET_EVERY_MS = 60_000, 3_600_000


class Arrivals:
    """The one way in. Cost per message is some microseconds; one append per batch and channel."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        authenticating: Authenticator,
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
        self._proofs = Proofs(
            authenticating.sessions, secret, clock, answer_links_ms=self.settings.answer_links_ms
        )
        self._held = HeldMessages(records, self.settings)
        self._contents = contents or AnyContent()
        ids = Ids(clock, Chance.from_machine())
        self._sorting = Sorting(self.settings, ids.new, self._contents, ids.many)
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
        wishes: Wishes = NO_WISHES,
        identity: str = "",
    ) -> list[str]:
        """Takes messages of the node's own applications, all or none, and returns their ids;
        durable when it returns. Ids that are given are kept; `wishes` are asked of every delivery.
        `identity`: the one that the application proved, which routing rules and privacy policies
        see as `component:IDENTITY`; empty for who may use any name.

        Raises InvalidInput for one that cannot be sent; `message.bad_content` when it does not fit
        the JSON Schema of its type.
        """
        await self._contents.refresh()
        now_ms = self._clock.now_ms()
        events = self._sorting.own_events(messages, adapter, identity, now_ms)
        if wishes != NO_WISHES:
            events = [with_wishes(event, wishes) for event in events]
        await self._channels.channel(INPUT).append(as_trusted(events))
        return list(events.ids) if isinstance(events, EncodedBatch) else [one.id for one in events]

    async def publish(
        self,
        messages: Sequence[Message],
        *,
        adapter: str,
        trusted: Trusted = never,
        origin: str = "",
        answers_back: bool = False,
    ) -> list[Arrived]:
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
        held = await run_aside(lambda: list(self._held.of_peer(peer)))
        alive = [one for one in held if one.until_ms > self._clock.now_ms()]
        if alive:
            # First in, then forgotten: a crash in between lets them in again, as repetitions.
            await self._channels.channel(INPUT).append([one.event for one in alive])
        await self._refuse_held([one for one in held if one not in alive], EXPIRED)
        await run_aside(partial(self._held.forget, held))
        return len(alive)

    async def drop(self, peer: str) -> int:
        """Refuses what waits for a peer whose sessions were ended: the token that it came with may
        have been stolen. Returns how many.
        """
        held = await run_aside(lambda: list(self._held.of_peer(peer)))
        await self._refuse_held(held, "session.ended")
        await run_aside(partial(self._held.forget, held))
        return len(held)

    async def run(self) -> None:
        """Ends what has waited too long and forgets what is over, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_LOOK_EVERY_MS)

    async def look(self) -> None:
        """One round of `run`; sessions and attempts, which may be many, are gone through hourly."""
        over = await run_aside(partial(self._held.over, self._clock.now_ms()))
        await self._refuse_held(over, EXPIRED)
        await run_aside(partial(self._held.forget, over))
        if self._clock.now_ms() >= self._forget_at_ms:
            self._forget_at_ms = self._clock.now_ms() + _FORGET_EVERY_MS
            await self._authenticating.forget_old()

    # --- messages of peers ---

    async def _take(
        self, messages: Sequence[Message], adapter: str, trusted: Trusted, now_ms: int
    ) -> list[Arrived]:
        await self._contents.refresh()
        events = self._sorting.vouched_events(messages, adapter, trusted, now_ms)
        if isinstance(events, EncodedBatch):
            await self._channels.channel(INPUT).append(events)
            return [Arrived(id=id, accepted=True, proof="medium") for id in events.ids]
        others = [one for one, event in zip(messages, events, strict=True) if event is None]
        known = iter(await self._known(others, trusted) if others else ())
        work, found = Work(), []
        for event in events:
            if event is None:
                found.append(self._sorting.sort(next(known), adapter, now_ms, work))
            else:
                work.events.append(event)
                found.append(Arrived(id=event.id, accepted=True, proof="medium"))
        await self._carry_out(work, now_ms)
        return found

    async def _known(self, messages: Sequence[Message], trusted: Trusted) -> list[Proven]:
        """What is wrong with each message, or how we know its sender."""
        faults = [self._sorting.form_fault(message) for message in messages]
        well = [one for one, fault in zip(messages, faults, strict=True) if not fault]
        proven = iter(await self._proofs.of(well, trusted) if well else ())
        return [
            Proven(message, fault=fault) if fault else next(proven)
            for message, fault in zip(messages, faults, strict=True)
        ]

    async def _carry_out(self, work: Work, now_ms: int) -> None:
        by_peer = groupby(sorted(work.held, key=lambda held: held[0]), key=lambda held: held[0])
        for peer, pairs in by_peer:
            events = [event for _peer, event in pairs]
            gone = await run_aside(partial(self._held.hold, peer, events, now_ms))
            await self._refuse_held(gone, "message.too_many_held")
        if work.lines:
            await self._channels.channel(LOG).append(work.lines)
        if work.events:
            await self._channels.channel(INPUT).append(as_trusted(work.events))
        self._sorting.note_written(work, now_ms)

    async def _ask(self, message: Message, adapter: str, origin: str, back: bool) -> Arrived:
        """Logs a peer in. Its message is in no log: what came of it is, in `auth`."""
        now_ms = self._clock.now_ms()
        shape = shape_fault(message, self.settings)
        fault = shape.code if shape is not None else "" if back else "auth.no_way_back"
        if not self._sorting.may_ask(adapter, now_ms):
            return Arrived(accepted=False, reason=TOO_FAST)
        if fault:
            line = self._sorting.refused(message, adapter, fault, now_ms)
            await self._channels.channel(LOG).append([line])
            return Arrived(accepted=False, reason=fault)
        reply = await self._authenticating.request(message, origin=origin)
        is_in = reply.subtype == "REPLY"
        reason = "" if is_in else "auth.failed"
        proof: Proof = "session" if is_in else "none"
        return Arrived(accepted=is_in, proof=proof, reason=reason, reply=reply)

    async def _refuse_held(self, held: Sequence[Held], fault: str) -> None:
        """Writes down that messages wait no more and were not let in."""
        now_ms, lines = self._clock.now_ms(), []
        for one in held:
            message, adapter = Message.from_event(one.event), one.event.headers[ADAPTER]
            lines.append(self._sorting.refused(message, adapter, fault, now_ms))
        if lines:
            await self._channels.channel(LOG).append(lines)
