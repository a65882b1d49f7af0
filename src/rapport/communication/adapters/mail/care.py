"""What a node does with mails that are no messages, and what it knows to read mails. [CO-10, CO-16]

A bounce becomes an outcome in `control`: the medium took the mail and says no afterwards. A mail
that nobody can use becomes a dead letter with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from rapport.channel.channel import Channels
from rapport.communication.adapters.mail.imap import MailCare
from rapport.communication.adapters.mail.reply import (
    Bounced,
    MailKnowledge,
    OpenQuestion,
    WithoutAttachments,
)
from rapport.communication.adapters.outgoing.outcomes import OUTCOME, OutcomeData
from rapport.communication.adapters.unusable import bury_unusable
from rapport.communication.answers import is_answer_token
from rapport.communication.delivery_state import LATEST_ATTEMPT
from rapport.communication.ledger import Ledger
from rapport.communication.ledger_events import SOURCE
from rapport.communication.peers import Peer, shown_address
from rapport.communication.sender_notifications import ENGINE, PROOF
from rapport.core.event import CAUSE, Event, cause_text, make_event
from rapport.core.ids import content_id
from rapport.core.message import CONTROL, Message
from rapport.kernel.clock import Clock

ADAPTER = "mail"
_MAIL = f"{ADAPTER}:"
_BOOK_LIFE_NS = 60_000_000_000


class PeerNames(Protocol):
    """What finding a peer by its address needs of a directory."""

    def peer_names(self) -> Iterable[str]: ...
    def peer(self, name: str) -> Peer | None: ...


class AddressBook:
    """Peers by their mail address, read from the directory once a minute."""

    def __init__(self, directory: PeerNames, clock: Clock) -> None:
        self._directory, self._clock = directory, clock
        self._peers: dict[str, str | None] = {}
        self._read_ns: int | None = None

    def peer_of(self, address: str) -> str | None:
        """The one peer with that address; None also when several share it."""
        now_ns = self._clock.steady_ns()
        if self._read_ns is None or now_ns - self._read_ns > _BOOK_LIFE_NS:
            self._peers, self._read_ns = self._read(), now_ns
        return self._peers.get(address.lower())

    def address_of(self, bounced: Bounced) -> str:
        """The peer's address that a mail came back from: by the key, else by the server's word."""
        peer = self._directory.peer(bounced.peer)
        mails = [one for one in peer.addresses if one.startswith(_MAIL)] if peer else []
        for address in mails:
            if content_id("key", bounced.message, bounced.peer, address) == bounced.key:
                return address
        named = [one for one in mails if one.lower() == f"{_MAIL}{bounced.recipient}"]
        return named[0] if named else f"{_MAIL}{bounced.recipient}"

    def _read(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name in self._directory.peer_names():
            peer = self._directory.peer(name)
            for address in set(peer.addresses if peer else ()):
                if address.startswith(_MAIL):
                    key = address.removeprefix(_MAIL).lower()
                    found[key] = name if found.get(key, name) == name else None
        return found


class AskedByMail:
    """What people were asked by mail, by the ledger; nothing as long as there is none."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None

    async def catch_up(self) -> None:
        """Brings the ledger up to date."""
        if self.ledger is not None:
            await self.ledger.refresh()

    def open_to(self, peer: str) -> list[OpenQuestion]:
        """What the mail took for this peer and they have not answered, as of `catch_up`; blocks."""
        rows = self.ledger.open_to(peer, (ADAPTER,)) if self.ledger is not None else []
        return [OpenQuestion(row.message, row.time, row.conversation) for row in rows]


def mail_knowledge(
    secret: bytes,
    book: AddressBook,
    conversation_of: Callable[[str], str] | None = None,
    *,
    asked: AskedByMail | None = None,
    vouched: bool = False,
) -> MailKnowledge:
    """What reading mails needs, from the node's secret for answers, its directory and ledger."""
    return MailKnowledge(
        partial(is_answer_token, secret),
        book.peer_of,
        conversation_of or _unknown,
        asked.open_to if asked is not None else _nothing_asked,
        vouched,
    )


def _unknown(_message: str) -> str:
    return ""


def _nothing_asked(_peer: str) -> list[OpenQuestion]:
    return []


def mail_care(
    name: str,
    channels: Channels,
    book: AddressBook,
    clock: Clock,
    asked: AskedByMail | None = None,
) -> MailCare:
    """Bounces go to `control`, unusable mails to `dead_letters`; `name` is the input's."""
    asked = asked or AskedByMail()

    async def bounced(mail: Bounced) -> None:
        event = bounce_event(mail, book.address_of(mail), now_ms=clock.now_ms())
        await channels.channel("control").append([event])

    async def refuse_attachments(mail: WithoutAttachments) -> None:
        event = attachments_report(mail).to_event(
            source=SOURCE, time=clock.now_ms(), causes=(mail.message.id,)
        )
        event.headers[PROOF] = "application"
        await channels.channel("input").append([event])

    set_aside = bury_unusable(name, channels, clock)
    return MailCare(bounced, set_aside, refuse_attachments, asked.catch_up)


def attachments_report(mail: WithoutAttachments) -> Message:
    """What the sender of a mail hears of its attached files; one mail is told of once."""
    names = ", ".join(mail.attachments)
    return Message(
        type=CONTROL,
        subtype="ERROR",
        sender=ENGINE,
        id=content_id("attachments", mail.message.id),
        receiver=mail.message.sender,
        conversation=mail.message.conversation,
        content=f"its text was taken, but attached files are not kept ({names})",
        delivery_policy="unreliable",
        refers_to=mail.message.id,
    )


def bounce_event(mail: Bounced, address: str, *, now_ms: int) -> Event:
    """The outcome of a delivery that the medium took and gave back; one notice is one outcome."""
    data = OutcomeData(
        message=mail.message,
        peer=mail.peer,
        address=shown_address(address),
        attempt=LATEST_ATTEMPT,
        state="failed",
        reason=f"the mail came back: {mail.reason}",
        retry=False,
    )
    return make_event(
        source="adapter/mail",
        id=content_id("bounce", mail.id, mail.message, mail.peer),
        type=OUTCOME,
        subject=mail.message,
        time=now_ms,
        data=data,
        headers={CAUSE: cause_text(mail.message)},
    )
