"""What a mail that came in means: an answer, a message, a bounce, or nothing that can be used.
Pure. [CO-5, CO-11, CO-16]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

import msgspec

from rapport.communication.adapters.mail.bounce import Notice, read_bounce
from rapport.communication.adapters.mail.ids import SentMail, read_message_id
from rapport.communication.adapters.mail.limits import MailLimits
from rapport.communication.adapters.mail.parsing import ReadMail, parse_mail, read_mail
from rapport.communication.adapters.mail.quoting import reply_of
from rapport.communication.adapters.unusable import SHOWN_TEXT, Unusable
from rapport.communication.links import name_from_link
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message

ANSWER, MAIL = "ANSWER", "MAIL"
"""Types of messages: an answer refers to a message of ours, a mail to nothing we know."""

_LINK = re.compile(r"/answer/([^/\s<>\"]{1,300})/([^/\s<>\"]{1,300})/([0-9a-f]{40})(?![0-9a-f])")
_MOST_LINKS = 20
_MOST_NAMED = 5
_CLOCKS_DIFFER_MS = 120_000


class OpenQuestion(msgspec.Struct, frozen=True):
    """A message that waits for a peer's answer."""

    message: str
    sent_ms: int
    conversation: str = ""


class MailKnowledge(msgspec.Struct, frozen=True):
    """What reading a mail needs to know of the node."""

    proves: Callable[[str, str, str], bool]
    """Whether a token is right for message and peer; see `answers.is_answer_token`."""
    peer_of: Callable[[str], str | None]
    """The peer with that mail address (small letters), if there is exactly one."""
    conversation_of: Callable[[str], str] = lambda _message: ""
    """The conversation of a message; empty when unknown."""
    open_questions: Callable[[str], Sequence[OpenQuestion]] = lambda _peer: ()
    """What a peer was asked by mail and has not answered yet."""
    vouched: bool = False
    """Whether the mailbox vouches for senders: then an address alone proves a peer."""


class Bounced(msgspec.Struct, frozen=True, kw_only=True):
    """A mail of ours that did not arrive; proven by the token in the id it names."""

    id: str
    """Of the notice: the same one counts once."""
    message: str
    peer: str
    key: str
    """The idempotency key of the delivery: it tells which of the peer's addresses it was."""
    recipient: str
    """The address by the server's word; may be empty, or one it was forwarded to."""
    reason: str


class Doubtful(msgspec.Struct, frozen=True):
    """A mail that may be an answer, and why it does not count as one: it goes in as any mail, and
    is kept aside for who can ask.
    """

    message: Message
    aside: Unusable


class WithoutAttachments(msgspec.Struct, frozen=True):
    """A message of a mail whose attached files are not kept; its sender hears of that."""

    message: Message
    attachments: tuple[str, ...]


MailMeaning = Message | Bounced | Unusable | Doubtful | WithoutAttachments


def meaning_of(
    raw: bytes, known: MailKnowledge, limits: MailLimits, *, cut: bool = False
) -> MailMeaning:
    """What the mail means. Never raises for what a mail holds; raises Unavailable while `known`
    cannot say who has an address, or what they were asked: then it is read again later.
    """
    try:
        tree = parse_mail(raw, limits)
        mail = read_mail(tree, limits, cut=cut)
        is_peer = bool(mail.sender) and known.peer_of(mail.sender) is not None
        if notice := read_bounce(tree, mail.sender, limits, is_peer=is_peer):
            return _bounce(notice, mail, known)
        found = _message(mail, known)
        if isinstance(found, Message) and mail.attachments:
            return WithoutAttachments(_noted(found, mail.attachments), mail.attachments)
        return found
    except InvalidInput as error:
        return Unusable(id=content_id("mail", _as_text(raw)), code=error.code, reason=error.message)
    except Unavailable:
        raise
    except Exception as error:  # the library's parsers raise anything: it harms only this mail
        return Unusable(
            id=content_id("mail", _as_text(raw)),
            code="mail.unreadable",
            reason=f"the mail cannot be read ({type(error).__name__})",
        )


def _noted(message: Message, attachments: Sequence[str]) -> Message:
    """The message that also says which files came with it: whoever reads it can ask for them."""
    note = f"[not kept: {', '.join(attachments)}]"
    content = f"{message.content}\n\n{note}" if message.content else note
    return msgspec.structs.replace(message, content=content)


def _bounce(notice: Notice, mail: ReadMail, known: MailKnowledge) -> MailMeaning:
    sent = notice.mail
    if not known.proves(sent.message, sent.peer, sent.token):
        return _unusable(mail, "mail.bad_token", "a notice about a mail that was never sent")
    if notice.state != "failed":
        return _unusable(mail, "mail.notice", f"{notice.state}: {notice.reason}")
    return Bounced(
        id=mail.id,
        message=sent.message,
        peer=sent.peer,
        key=sent.key,
        recipient=notice.recipient,
        reason=notice.reason,
    )


def _message(mail: ReadMail, known: MailKnowledge) -> MailMeaning:
    if mail.automatic:
        return _unusable(mail, "mail.automatic", f"no person wrote it: {mail.automatic}")
    named = [*_referred_to(mail), *_links_in(mail.text)]
    for sent in named:
        if known.proves(sent.message, sent.peer, sent.token):
            return _answer(mail, sent.message, sent.peer, known, token=sent.token)
    peer = known.peer_of(mail.sender) if mail.sender else None
    if peer is None:
        return _unusable(mail, "mail.unknown_sender", "no peer has this address, and no proof")
    if named:
        return _answer(mail, named[0].message, peer, known)
    return _unnamed(mail, peer, known)


def _unnamed(mail: ReadMail, peer: str, known: MailKnowledge) -> Message | Doubtful:
    """A peer's mail that names nothing of ours: the answer to the only open question there is, if
    the mailbox vouches for its sender. Of several none is guessed.
    """
    waiting = [one for one in known.open_questions(peer) if _may_answer(mail, one)]
    if not waiting:
        return _mail(mail, peer)
    if len(waiting) == 1 and known.vouched:
        answer = _answer(mail, waiting[0].message, peer, known)
        conversation = answer.conversation or waiting[0].conversation
        return msgspec.structs.replace(answer, conversation=conversation)
    names = ", ".join(one.message for one in waiting[:_MOST_NAMED])
    if len(waiting) == 1:
        code, why = "mail.unproven_answer", "nothing proves who sent it"
    else:
        code, why = "mail.ambiguous_answer", f"{len(waiting)} questions to {peer} are open"
    reason = f"the mail may answer {names}, but names none of our mails, and {why}"
    return Doubtful(_mail(mail, peer), _unusable(mail, code, reason))


def _may_answer(mail: ReadMail, question: OpenQuestion) -> bool:
    """Whether the mail was written after the question, as far as clocks agree."""
    return not mail.written_ms or mail.written_ms + _CLOCKS_DIFFER_MS >= question.sent_ms


def _mail(mail: ReadMail, peer: str) -> Message:
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
    mail: ReadMail, message: str, peer: str, known: MailKnowledge, token: str = ""
) -> Message:
    """The token goes along where a session's would: whoever takes the message in checks it."""
    return Message(
        type=ANSWER,
        subtype="",
        sender=Identifier("peer", peer),
        id=mail.id,
        conversation=known.conversation_of(message),
        content=reply_of(mail.text),
        language=mail.language,
        session_token=token,
        refers_to=message,
    )


def _referred_to(mail: ReadMail) -> Iterator[SentMail]:
    for reference in mail.references:
        if sent := read_message_id(reference):
            yield sent


def _links_in(text: str) -> Iterator[SentMail]:
    """Answer links that the reply quotes: some servers put an id of their own into what we send."""
    for number, found in enumerate(_LINK.finditer(text)):
        if number >= _MOST_LINKS:
            return
        message, peer, token = found.groups()
        yield SentMail("", name_from_link(unquote(message)), name_from_link(unquote(peer)), token)


def _unusable(mail: ReadMail, code: str, reason: str) -> Unusable:
    return Unusable(
        id=mail.id,
        code=code,
        reason=reason,
        sender=mail.sender,
        subject=mail.subject[:200],
        text=mail.text[:SHOWN_TEXT],
    )


def _as_text(raw: bytes) -> str:
    return raw.decode("latin-1")
