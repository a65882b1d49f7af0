"""Decides what a mail means: an answer, a message, a bounce, or nothing usable. [CO-5, CO-10,
CO-11, CO-16]

A bounce, by the standard (RFC 3464) or as older servers write it, counts only when it names a
Message-ID of ours with the right token: its author has seen the mail. It becomes an outcome in
`control`. A mail that cannot be used becomes a dead letter with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from email.message import Message as ParsedMail
from functools import partial
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.attempts import OUTCOME, OutcomeData
from rapport.communication.adapters.input_base import (
    SHOWN_TEXT,
    RejectedInput,
    dead_letter_inputs,
)
from rapport.communication.adapters.mail import DOMAIN, SentMail, read_message_id
from rapport.communication.adapters.mail_parser import (
    MailContent,
    MailLimits,
    automatic_subject,
    decoded_text,
    header,
    inner_of,
    leaves_of,
    parse_mail,
    read_mail,
    reply_of,
)
from rapport.communication.delivery_state import LATEST_ATTEMPT
from rapport.communication.ledger import Ledger
from rapport.communication.ledger_events import PROOF, SOURCE
from rapport.communication.links import is_answer_token, name_from_link
from rapport.communication.notifications import ENGINE
from rapport.communication.peers import shown_address
from rapport.communication.texts import clean
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import CAUSE, Event, cause_text, content_id, make_event
from rapport.core.message import CONTROL, Identifier, Message
from rapport.kernel.clock import Clock

if TYPE_CHECKING:
    from rapport.communication.directory import StoredDirectory

ADAPTER = "mail"
_MAIL = f"{ADAPTER}:"
_BOOK_LIFE_NS = 60_000_000_000
ANSWER, MAIL = "ANSWER", "MAIL"
"""Types of messages: an answer refers to a message of ours, a mail to none."""
_LINK = re.compile(r"/answer/([^/\s<>\"]{1,300})/([^/\s<>\"]{1,300})/([0-9a-f]{40})(?![0-9a-f])")
_MOST_LINKS = 20
_MOST_NAMED = 5
_CLOCKS_DIFFER_MS = 120_000


class OpenQuestion(msgspec.Struct, frozen=True):
    """A message that waits for a peer's answer."""

    message: str
    sent_ms: int
    conversation: str = ""


class MailContext(msgspec.Struct, frozen=True):
    """The facts of the node that reading a mail needs."""

    proves: Callable[[str, str, str], bool]
    """Whether a token is right for message and peer; see `answers.is_answer_token`."""
    peer_of: Callable[[str], str | None]
    """The peer with that mail address (lower case), if there is exactly one."""
    open_questions: Callable[[str], Sequence[OpenQuestion]] = lambda _peer: ()
    """Messages sent to a peer by mail that have no answer yet."""
    vouched: bool = False
    """Whether the mailbox proves senders: then an address alone proves a peer."""


class Bounce(msgspec.Struct, frozen=True, kw_only=True):
    """A mail of ours that did not arrive; proven by the token in the id it names."""

    id: str
    """The notice's id: the same notice counts once."""
    message: str
    peer: str
    key: str
    """The idempotency key of the delivery; it determines which of the peer's addresses it was."""
    recipient: str
    """The address that the server names; may be empty, or a forwarding target."""
    reason: str


class AmbiguousAnswer(msgspec.Struct, frozen=True):
    """A mail that may be an answer but does not count as one: it is published as a mail, and is
    also a dead letter for an operator.
    """

    message: Message
    letter: RejectedInput


class MailWithAttachments(msgspec.Struct, frozen=True):
    """The message of a mail with attached files, which are not kept; its sender is notified."""

    message: Message
    attachments: tuple[str, ...]


MailMeaning = Message | Bounce | RejectedInput | AmbiguousAnswer | MailWithAttachments


def meaning_of(
    raw: bytes, known: MailContext, limits: MailLimits, *, cut: bool = False
) -> MailMeaning:
    """The meaning of a mail. Never raises because of its content; raises Unavailable while `known`
    has no answer: then the mail is read again later.
    """
    try:
        tree = parse_mail(raw, limits)
        mail = read_mail(tree, limits, cut=cut)
        is_peer = bool(mail.sender) and known.peer_of(mail.sender) is not None
        if notice := read_bounce(tree, mail.sender, limits, is_peer=is_peer):
            return _bounce(notice, mail, known)
        found = _message(mail, known)
        if isinstance(found, Message) and mail.attachments:
            return MailWithAttachments(_noted(found, mail.attachments), mail.attachments)
        return found
    except Unavailable:
        raise
    except Exception as error:  # the library's parsers raise anything: it harms only this mail
        code, reason = "mail.unreadable", f"the mail cannot be read ({type(error).__name__})"
        if isinstance(error, InvalidInput):
            code, reason = error.code, error.message
        return RejectedInput(id=content_id("mail", raw.decode("latin-1")), code=code, reason=reason)


def _noted(message: Message, attachments: Sequence[str]) -> Message:
    """The message with a note about the files that came with it."""
    note = f"[not kept: {', '.join(attachments)}]"
    content = f"{message.content}\n\n{note}" if message.content else note
    return msgspec.structs.replace(message, content=content)


def _bounce(notice: BounceNotice, mail: MailContent, known: MailContext) -> MailMeaning:
    sent = notice.mail
    if not known.proves(sent.message, sent.peer, sent.token):
        return _unusable(mail, "mail.bad_token", "a notice about a mail that was never sent")
    if notice.state != "failed":
        return _unusable(mail, "mail.notice", f"{notice.state}: {notice.reason}")
    return Bounce(
        id=mail.id,
        message=sent.message,
        peer=sent.peer,
        key=sent.key,
        recipient=notice.recipient,
        reason=notice.reason,
    )


def _message(mail: MailContent, known: MailContext) -> MailMeaning:
    if mail.automatic:
        return _unusable(mail, "mail.automatic", f"no person wrote it: {mail.automatic}")
    named = [*_referred_to(mail), *_links_in(mail.text)]
    for sent in named:
        if known.proves(sent.message, sent.peer, sent.token):
            return _answer(mail, sent.message, sent.peer, token=sent.token)
    peer = known.peer_of(mail.sender) if mail.sender else None
    if peer is None:
        return _unusable(mail, "mail.unknown_sender", "no peer has this address, and no proof")
    if named:
        return _answer(mail, named[0].message, peer)
    return _unnamed(mail, peer, known)


def _unnamed(mail: MailContent, peer: str, known: MailContext) -> Message | AmbiguousAnswer:
    """The meaning of a peer's mail that names no message of ours: the answer to the only open
    question, if the mailbox proves its sender. With several questions none is guessed.
    """
    waiting = [one for one in known.open_questions(peer) if _may_answer(mail, one)]
    if not waiting:
        return _mail(mail, peer)
    if len(waiting) == 1 and known.vouched:
        return _answer(mail, waiting[0].message, peer, conversation=waiting[0].conversation)
    names = ", ".join(one.message for one in waiting[:_MOST_NAMED])
    if len(waiting) == 1:
        code, why = "mail.unproven_answer", "its sender is not proven"
    else:
        code, why = "mail.ambiguous_answer", f"{len(waiting)} questions to {peer} are open"
    reason = f"the mail may answer {names}, but names none of our mails, and {why}"
    return AmbiguousAnswer(_mail(mail, peer), _unusable(mail, code, reason))


def _may_answer(mail: MailContent, question: OpenQuestion) -> bool:
    """Whether the mail was written after the question, as far as clocks agree."""
    return not mail.written_ms or mail.written_ms + _CLOCKS_DIFFER_MS >= question.sent_ms


def _mail(mail: MailContent, peer: str) -> Message:
    content = f"{mail.subject}\n\n{reply_of(mail.text)}".strip("\n")
    return Message(
        type=MAIL,
        subtype="",
        sender=Identifier("peer", peer),
        id=mail.id,
        content=content,
        language=mail.language,
    )


def _answer(
    mail: MailContent, message: str, peer: str, *, token: str = "", conversation: str = ""
) -> Message:
    """An answer; its token stands in the place of a session token and is checked on arrival."""
    return Message(
        type=ANSWER,
        subtype="",
        sender=Identifier("peer", peer),
        id=mail.id,
        conversation=conversation,
        content=reply_of(mail.text),
        language=mail.language,
        session_token=token,
        refers_to=message,
    )


def _referred_to(mail: MailContent) -> Iterator[SentMail]:
    for reference in mail.references:
        if sent := read_message_id(reference):
            yield sent


def _links_in(text: str) -> Iterator[SentMail]:
    """Answer links in the quoted text, for servers that replace our Message-ID."""
    for number, found in enumerate(_LINK.finditer(text)):
        if number >= _MOST_LINKS:
            return
        message, peer, token = found.groups()
        yield SentMail("", name_from_link(unquote(message)), name_from_link(unquote(peer)), token)


def _unusable(mail: MailContent, code: str, reason: str) -> RejectedInput:
    return RejectedInput(
        id=mail.id,
        code=code,
        reason=reason,
        sender=mail.sender,
        subject=mail.subject[:200],
        text=mail.text[:SHOWN_TEXT],
    )


# --- bounces ---


BounceState = Literal["failed", "delayed", "delivered"]
_OURS = re.compile(rf"<([^<>\s]{{1,500}}@{re.escape(DOMAIN)})>")
_ROBOTS = ("mailer-daemon", "postmaster", "mail-daemon", "mailerdaemon")
_CODE = re.compile(r"\b([245])(?:\.\d{1,3}\.\d{1,3}|\d\d)\b")
_FOR_GOOD = re.compile(
    r"undeliver|could ?n[o']t be delivered|delivery.{0,30}fail|failed.{0,30}deliver|permanent"
    r"|user unknown|unknown user|no such (user|person|mailbox)|does not exist|unzustellbar",
    re.IGNORECASE,
)
_NOT_YET = re.compile(r"delayed|still trying|will (be )?retr|warning", re.IGNORECASE)
_LONGEST_REASON = 300


class BounceNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A server's statement about one mail of ours."""

    mail: SentMail
    state: BounceState
    reason: str
    recipient: str = ""
    """The address, without `mail:`; empty when it is not named."""


def read_bounce(
    tree: ParsedMail, sender: str, limits: MailLimits, *, is_peer: bool = False
) -> BounceNotice | None:
    """The statement about a mail of ours, None when there is none. The token is not checked here.
    `is_peer`: the sender is one of our peers.
    """
    if not _is_from_server(tree, sender, limits, is_peer=is_peer):
        return None
    mail = next(_named(tree, limits), None)
    if mail is None:
        return None
    for fields in _status_blocks(tree):
        if notice := _by_standard(fields, mail, limits):
            return notice
    return _by_words(tree, mail, limits)


def _is_from_server(tree: ParsedMail, sender: str, limits: MailLimits, *, is_peer: bool) -> bool:
    """Whether a mail server wrote it. An out-of-office reply has an empty path, too, and telephone
    numbers look like codes: it comes from a peer, or is marked as a reply.
    """
    if tree.get_content_type() == "multipart/report":
        report = str(tree.get_param("report-type", "delivery-status")).lower()
        return report == "delivery-status"
    empty_path = "".join(str(tree.get("Return-Path", "")).split()) == "<>"
    automatic = header(tree, "Auto-Submitted", limits).lower()
    robot = sender.partition("@")[0] in _ROBOTS or bool(tree.get("X-Failed-Recipients"))
    is_reply = is_peer or automatic.startswith("auto-replied")
    if robot or is_reply or not empty_path:
        return robot
    return not automatic_subject(header(tree, "Subject", limits))


def _named(tree: ParsedMail, limits: MailLimits) -> Iterator[SentMail]:
    """Our Message-IDs in the mail: in the copy of the mail sent, in references, in the text."""
    texts = [str(tree.get("References", "")), str(tree.get("In-Reply-To", ""))]
    for leaf in leaves_of(tree, limits):
        if leaf.is_multipart():
            texts += [str(one.get("Message-ID", "")) for one in inner_of(leaf)]
        elif leaf.get_content_maintype() in ("text", "message"):
            texts.append(_readable(leaf, limits))
    for text in texts:
        for found in _OURS.findall("".join(text[: limits.text].split("\r\n "))):
            if mail := read_message_id(found):
                yield mail


def _status_blocks(tree: ParsedMail) -> Iterator[ParsedMail]:
    """The groups of fields in `message/delivery-status`, one per recipient."""
    for part in inner_of(tree):
        if part.get_content_type() == "message/delivery-status":
            yield from inner_of(part)


def _by_standard(fields: ParsedMail, mail: SentMail, limits: MailLimits) -> BounceNotice | None:
    action = header(fields, "Action", limits).strip().lower()
    states: dict[str, BounceState] = {
        "failed": "failed",
        "delayed": "delayed",
        "delivered": "delivered",
        "relayed": "delivered",
        "expanded": "delivered",
    }
    if action not in states:
        return None
    text = header(fields, "Diagnostic-Code", limits).partition(";")[2].strip()
    reason = " ".join(part for part in (header(fields, "Status", limits), text) if part)
    recipient = header(fields, "Final-Recipient", limits) or header(
        fields, "Original-Recipient", limits
    )
    return BounceNotice(
        mail=mail,
        state=states[action],
        reason=_shown(reason or action),
        recipient=recipient.partition(";")[2].strip().lower(),
    )


def _by_words(tree: ParsedMail, mail: SentMail, limits: MailLimits) -> BounceNotice | None:
    """The statement of a server that does not follow the standard: by subject and text, up to our
    own mail.
    """
    texts = [header(tree, "Subject", limits)]
    texts += [
        _readable(leaf, limits)
        for leaf in leaves_of(tree, limits)
        if leaf.get_content_type() == "text/plain"
    ]
    text = "\n".join(texts).partition(f"@{DOMAIN}")[0][:20_000]
    code = _CODE.search(text)
    for_good = bool(_FOR_GOOD.search(text)) or (code is not None and code[1] == "5")
    if not for_good and not _NOT_YET.search(text):
        return None
    state: BounceState = "failed" if for_good else "delayed"
    recipient = header(tree, "X-Failed-Recipients", limits).split(",")[0].strip().lower()
    line = next((line for line in text.splitlines() if code and code[0] in line), texts[0])
    return BounceNotice(mail=mail, state=state, reason=_shown(line), recipient=recipient)


def _readable(part: ParsedMail, limits: MailLimits) -> str:
    """A part's text; empty for one that cannot be read."""
    try:
        return decoded_text(part, limits)
    except InvalidInput:
        return ""


def _shown(text: str) -> str:
    return " ".join(clean(text).split())[:_LONGEST_REASON]


# --- the node's side ---


class AddressBook:
    """Peers by mail address, read from the directory once a minute."""

    def __init__(self, directory: StoredDirectory, clock: Clock) -> None:
        self._directory, self._clock = directory, clock
        self._peers: dict[str, str | None] = {}
        self._read_ns: int | None = None

    def peer_of(self, address: str) -> str | None:
        """The only peer with that address; None also when several share it."""
        now_ns = self._clock.steady_ns()
        if self._read_ns is None or now_ns - self._read_ns > _BOOK_LIFE_NS:
            self._peers, self._read_ns = self._read(), now_ns
        return self._peers.get(address.lower())

    def address_of(self, bounced: Bounce) -> str:
        """The address that bounced: by the delivery's key, else as the server names it."""
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


class MailQuestions:
    """Open questions sent by mail, from the ledger; none before there is one."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None

    async def catch_up(self) -> None:
        """Brings the ledger up to date."""
        if self.ledger is not None:
            await self.ledger.refresh()

    def open_to(self, peer: str) -> list[OpenQuestion]:
        """Questions mailed to this peer that have no answer, as of `catch_up`; blocks."""
        rows = self.ledger.open_to(peer, (ADAPTER,)) if self.ledger is not None else []
        return [OpenQuestion(row.message, row.time, row.conversation) for row in rows]


def mail_context(
    secret: bytes,
    book: AddressBook,
    *,
    questions: MailQuestions | None = None,
    vouched: bool = False,
) -> MailContext:
    """The context of mails, from the node's secret for answers, its directory and ledger."""
    return MailContext(
        proves=partial(is_answer_token, secret),
        peer_of=book.peer_of,
        open_questions=(questions or MailQuestions()).open_to,
        vouched=vouched,
    )


class MailHandlers:
    """Writes bounces to `control` and unusable mails to `dead_letters`. Every method is durable on
    return, and may be called again for the same mail.
    """

    def __init__(
        self,
        name: str,
        channels: Channels,
        book: AddressBook,
        clock: Clock,
        questions: MailQuestions | None = None,
    ) -> None:
        """`name`: the input's."""
        self._channels, self._book, self._clock = channels, book, clock
        self.dead_letter = dead_letter_inputs(name, channels, clock)
        self.catch_up = (questions or MailQuestions()).catch_up

    async def bounced(self, mail: Bounce) -> None:
        """Reports a delivery that was sent and bounced as failed."""
        event = bounce_event(mail, self._book.address_of(mail), now_ms=self._clock.now_ms())
        await self._channels.channel("control").append([event])

    async def refuse_attachments(self, mail: MailWithAttachments) -> None:
        """Notifies the sender of an accepted message that its attached files were not kept."""
        event = attachments_report(mail).to_event(
            source=SOURCE, time=self._clock.now_ms(), causes=(mail.message.id,)
        )
        event.headers[PROOF] = "application"
        await self._channels.channel("input").append([event])


def attachments_report(mail: MailWithAttachments) -> Message:
    """The message to the sender of a mail about its attached files; one for each mail."""
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


def bounce_event(mail: Bounce, address: str, *, now_ms: int) -> Event:
    """The failed outcome of a delivery that was sent and bounced; one for each notice."""
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
