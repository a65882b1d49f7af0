"""Mail in by IMAP: looked for at intervals (`imap`), or told by the server (`imap-push`). [CO-5,
CO-16]

No mail is lost and none counts twice: the place in the folder moves on only after what was read is
durable, and a mail that is read again has the same id. Mails that are no messages are kept aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from rapport.communication.adapters.incoming.input_base import AdapterState, Arrival, Intake
from rapport.communication.adapters.mail.care import MailHandlers
from rapport.communication.adapters.mail.imap_mailbox import REFUSED, Mailbox
from rapport.communication.adapters.mail.limits import MailLimits
from rapport.communication.adapters.mail.reply import (
    AmbiguousAnswer,
    Bounce,
    MailContext,
    MailMeaning,
    MailWithAttachments,
    meaning_of,
)
from rapport.communication.adapters.mail.settings import ImapSettings
from rapport.communication.adapters.unusable import TOO_FAST, RejectedInput, kept_raw, refused_input
from rapport.communication.aside import run_aside
from rapport.core.errors import InvalidInput, SourceUnavailable, Unavailable
from rapport.core.ids import content_id
from rapport.core.message import Message

_PLACE = "place"
_PATIENCE = 4
"""One call to the server may take so many times its timeout: each answer has that for itself."""
_MOST_REFUSALS, _MOST_BREAKS = 3, 10
"""So often a mail is tried that the server refuses, or at which the connection ends; then it is
kept aside. With the pauses between looks the second takes a quarter of an hour.
"""
_NOT_GIVEN = "mail.refused_by_server"
_LOOK_SECONDS = 60
"""After so long a look ends with what it has read: one that takes too long is cut off, and without
any end it would begin with the same mails for ever.
"""
T = TypeVar("T")


class MailCursor(msgspec.Struct, frozen=True):
    """How far a folder was read: mails up to `uid`, in the numbering `validity`."""

    validity: int = 0
    uid: int = 0


class MailBatch(msgspec.Struct, frozen=True):
    """What one look found. `place` is where the next begins once all of it is durable."""

    place: MailCursor
    messages: list[Message]
    uids: list[int]
    """Mails that were read."""
    is_empty: bool
    """There was nothing new."""
    refused: list[MailWithAttachments] = []
    """Of `messages` those whose attachments are not kept."""
    is_cut: bool = False
    """The connection has ended on the way: what is to be done at the server needs another."""


class MailReader:
    """Reads a folder from its durable place on; what pull and push have in common."""

    def __init__(self, settings: ImapSettings, known: MailContext, care: MailHandlers) -> None:
        """The functions of `known` are called from a thread."""
        self.settings, self._known, self._care = settings, known, care
        depth = max(settings.most_parts // 10, 2)
        self._limits = MailLimits(
            parts=settings.most_parts, depth=depth, text=settings.largest_mail
        )
        self._state: AdapterState | None = None
        self._refusals: dict[int, int] = {}

    def open(self, state: AdapterState) -> None:
        """Takes up the durable memory."""
        self._state = state

    async def look(self, session: ImapSession) -> MailBatch:
        """The next mails, those aside and the bounces told already; empty = nothing new."""
        place = self._place_in(session.mailbox, await self._kept())
        new = await session.run(partial(session.mailbox.uids_after, place.uid))
        uids, messages, last, is_cut = list[int](), list[Message](), place.uid, False
        refused: list[MailWithAttachments] = []
        if new:
            await self._care.catch_up()
        loop = asyncio.get_running_loop()
        until = loop.time() + _LOOK_SECONDS
        for uid in new[: self.settings.most_mails]:
            if last != place.uid and loop.time() >= until:
                break  # the others come with the next look
            try:
                meaning = await session.run(partial(self._read, session.mailbox, uid))
            except Unavailable:
                if last == place.uid:
                    raise
                is_cut = True
                break  # perhaps because of this mail: what was read before it is not kept back
            last = uid
            if not (isinstance(meaning, RejectedInput) and meaning.code == _NOT_GIVEN):
                uids.append(uid)  # what nobody could read stays as it is for its owner
            if isinstance(meaning, Message):
                messages.append(meaning)
            elif isinstance(meaning, MailWithAttachments):
                messages.append(meaning.message)
                refused.append(meaning)
            elif isinstance(meaning, Bounce):
                await self._care.bounced(meaning)
            elif isinstance(meaning, RejectedInput):
                await self._care.set_aside(meaning)
            elif isinstance(meaning, AmbiguousAnswer):
                await self._care.set_aside(meaning.aside)
                messages.append(meaning.message)
        return MailBatch(
            MailCursor(place.validity, last),
            messages,
            uids,
            is_empty=last == place.uid,
            refused=refused,
            is_cut=is_cut,
        )

    async def settle(
        self, look: MailBatch, arrivals: Sequence[Arrival], session: ImapSession | None
    ) -> None:
        """Ends a look whose messages are durable: marks or moves the mails, then moves the place.

        In this order: after a crash in between, mails are at most looked at once more.
        """
        for message, arrival in zip(look.messages, arrivals, strict=True):
            if arrival.reason == TOO_FAST:
                return  # all of it comes again with the next look, what is known is dropped
            if not arrival.accepted:
                await self._care.set_aside(refused_input(message, arrival.why))
        taken = [arrival.accepted for arrival in arrivals]
        accepted = [message.id for message, took in zip(look.messages, taken, strict=True) if took]
        for one in look.refused:
            if one.message.id in accepted:
                await self._care.refuse_attachments(one)
        if look.uids and session is not None:
            await session.run(partial(session.mailbox.settle, look.uids))
        if look.place != await self._kept():
            await self._state_of().put(_PLACE, msgspec.msgpack.encode(look.place))

    def _read(self, mailbox: Mailbox, uid: int) -> MailMeaning | None:
        """In the session's thread; None when the mail has gone meanwhile."""
        try:
            mail = mailbox.fetch(uid)
        except SourceUnavailable as error:
            return self._refused(mailbox, uid, error)
        if mail is None:
            return None
        meaning = meaning_of(mail.raw, self._known, self._limits, cut=mail.cut)
        raw = b"" if mail.cut else kept_raw(mail.raw)
        if isinstance(meaning, RejectedInput):
            return msgspec.structs.replace(meaning, raw=raw)
        if isinstance(meaning, AmbiguousAnswer):
            aside = msgspec.structs.replace(meaning.aside, raw=raw)
            return msgspec.structs.replace(meaning, aside=aside)
        return meaning

    async def read_again(self, found: RejectedInput) -> Message | None:
        """What a mail means now, of which a dead letter was made; see ReadsAgain."""
        await self._care.catch_up()
        meaning = await run_aside(partial(meaning_of, found.raw, self._known, self._limits))
        match meaning:
            case Message():
                return meaning
            case MailWithAttachments():
                return meaning.message
            case Bounce():
                await self._care.bounced(meaning)
                return None
        aside = meaning.aside if isinstance(meaning, AmbiguousAnswer) else meaning
        raise InvalidInput(aside.reason, code=aside.code)

    def _refused(self, mailbox: Mailbox, uid: int, error: SourceUnavailable) -> RejectedInput:
        """A mail that the server cannot give must not keep back all later ones for ever. The
        connection was there a moment ago, so that it ends may be because of the mail.
        """
        most = _MOST_REFUSALS if error.code == REFUSED else _MOST_BREAKS
        failures = self._refusals.get(uid, 0) + 1
        self._refusals = {uid: failures}  # looks begin with it until it is dealt with
        if failures < most:
            raise error
        self._refusals = {}
        return RejectedInput(
            id=content_id("mail", self.settings.user, str(mailbox.validity), str(uid)),
            code=_NOT_GIVEN,
            reason=error.message,
        )

    def _place_in(self, mailbox: Mailbox, kept: MailCursor | None) -> MailCursor:
        """A new numbering begins at the start: what was taken before is known again by its id."""
        if kept is None and not self.settings.from_start:
            return MailCursor(mailbox.validity, mailbox.next_uid - 1)
        if kept is None or kept.validity != mailbox.validity:
            return MailCursor(mailbox.validity, 0)
        return kept

    async def _kept(self) -> MailCursor | None:
        kept = await self._state_of().get(_PLACE)
        return None if kept is None else msgspec.msgpack.decode(kept, type=MailCursor)

    def _state_of(self) -> AdapterState:
        if self._state is None:
            raise RuntimeError("the mail input was not opened")
        return self._state


class ImapSession:
    """An open mailbox and the one thread that may use it."""

    def __init__(self, settings: ImapSettings) -> None:
        self.mailbox, self._settings = Mailbox(settings), settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="imap")

    async def __aenter__(self) -> Self:
        try:
            await self.run(self.mailbox.open)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave()

    async def run(self, work: Callable[[], T], *, longest_ms: int = 0) -> T:
        """Runs blocking work; when cancelled or too slow the connection is cut, which ends it. What
        it gives all the same counts.
        """
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        longest_ms = longest_ms or self._settings.timeout_ms * _PATIENCE
        try:
            done, _ = await asyncio.wait([running], timeout=longest_ms / 1_000)
            if not done:
                self.mailbox.interrupt()
                await asyncio.wait([running])
        except BaseException:
            self.mailbox.interrupt()
            await asyncio.wait([running])
            raise
        if not done and running.exception() is not None:
            raise SourceUnavailable(
                f"the IMAP server {self._settings.host} did not answer in time",
                code="imap.unavailable",
            )
        return running.result()

    async def _leave(self) -> None:
        try:
            await self.run(self.mailbox.close)
        finally:
            self._thread.shutdown(wait=False)


class ImapInput:
    """Looks when asked: a pull adapter. Each look has a connection of its own."""

    name = "imap"

    def __init__(self, settings: ImapSettings, known: MailContext, care: MailHandlers) -> None:
        self._reader = MailReader(settings, known, care)
        self._look: MailBatch | None = None

    async def open(self, state: AdapterState) -> None:
        """Takes up the durable place."""
        self._reader.open(state)

    async def pull(self) -> list[Message]:
        """Messages of new mails; raises SourceUnavailable or NotAuthenticated."""
        async with ImapSession(self._reader.settings) as session:
            look = self._look = await self._reader.look(session)
            if not look.messages and not look.is_cut:
                await self._reader.settle(look, (), session)
        if not look.messages and look.is_cut:
            await _settle_anew(self._reader, look, ())
        return look.messages

    async def read_again(self, found: RejectedInput) -> Message | None:
        """See ReadsAgain."""
        return await self._reader.read_again(found)

    async def pulled(self, _messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """The messages are durable: the place moves on."""
        look, self._look = self._look, None
        if look is None or not look.messages:
            return
        await _settle_anew(self._reader, look, arrivals)


class ImapPushInput:
    """Is told by the server (IDLE): a push adapter with one connection kept open."""

    name = "imap-push"

    def __init__(self, settings: ImapSettings, known: MailContext, care: MailHandlers) -> None:
        self._reader = MailReader(settings, known, care)
        self._intake: Intake | None = None

    async def start(self, intake: Intake) -> None:
        """Begins to listen; a server that is away is tried again with growing pauses."""
        self._intake = intake
        self._reader.open(intake.state)
        intake.schedule(self._listen, name="imap")

    async def read_again(self, found: RejectedInput) -> Message | None:
        """See ReadsAgain."""
        return await self._reader.read_again(found)

    async def stop(self) -> None:
        """The listening was cancelled before, and with it the connection."""
        self._intake = None

    async def _listen(self) -> None:
        idle_ms = self._reader.settings.idle_ms
        async with ImapSession(self._reader.settings) as session:
            while (intake := self._intake) is not None:
                look = await self._reader.look(session)
                arrivals = await intake.publish(look.messages) if look.messages else ()
                if any(arrival.reason == TOO_FAST for arrival in arrivals):
                    # Whoever cares for this task calls it again, later each time.
                    raise Unavailable("the engine takes no more now", code="input.too_fast")
                if look.is_cut:
                    await _settle_anew(self._reader, look, arrivals)
                    raise Unavailable("the connection has ended", code="imap.unavailable")
                await self._reader.settle(look, arrivals, session)
                if look.is_empty:
                    wait = partial(session.mailbox.wait, idle_ms / 1_000)
                    longest_ms = idle_ms + self._reader.settings.timeout_ms * _PATIENCE
                    await session.run(wait, longest_ms=longest_ms)


async def _settle_anew(reader: MailReader, look: MailBatch, arrivals: Sequence[Arrival]) -> None:
    """As `settle`, with a connection of its own where one is needed."""
    if reader.settings.after == "leave":
        await reader.settle(look, arrivals, None)
        return
    async with ImapSession(reader.settings) as session:
        await reader.settle(look, arrivals, session)
