"""E-mail by SMTP: plain text with a link to answer; the message id carries the idempotency key and
the proof by which a reply is known. [CO-16]

With `smtp_connections.py` the only home of aiosmtplib: its exceptions become outcomes here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import aiosmtplib

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.mail.ids import TokenFor, message_id, no_token
from rapport.communication.adapters.mail.settings import MailSettings
from rapport.communication.adapters.mail.smtp_connections import SmtpConnections
from rapport.communication.addresses import address_fault
from rapport.communication.presentation import (
    is_answerable,
    shown_kind,
    shown_sender,
    shown_text,
    shown_time,
)
from rapport.communication.templates import clean
from rapport.kernel.clock import Clock, SystemClock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUBJECT_LENGTH = 120
_BODY_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"
}


@adapter("mail")
class MailAdapter:
    """Sends plain text; connections are kept for some seconds between mails."""

    name = "mail"

    def __init__(
        self,
        settings: MailSettings,
        link_for: Callable[[str, str], str],
        token_for: TokenFor = no_token,
        *,
        clock: Clock | None = None,
        zone_of: Callable[[str], Awaitable[str]] | None = None,
        reads_replies: bool = True,
    ) -> None:
        """`link_for(message, peer)` gives the address of the page to answer on; empty = none.
        `token_for(message, peer)` is the proof that makes a reply to the mail an answer.
        `zone_of(peer)` says on whose clock times are shown; None = UTC. A reply is asked for only
        where an input reads it (`reads_replies`).

        Raises InvalidInput when sender or reply address cannot stand in a mail.
        """
        for own in (settings.sender, settings.reply_to or settings.sender):
            if fault := address_fault(f"{self.name}:{own}", (self.name,)):
                raise fault
        self._settings, self._link_for, self._token_for = settings, link_for, token_for
        self._zone_of, self._reads_replies = zone_of, reads_replies
        self._connections = SmtpConnections(settings, clock or SystemClock())

    async def send(self, delivery: Delivery) -> Outcome:
        """Taken by the server = sent; a busy or unreachable server is worth a retry."""
        if address_fault(delivery.address, (self.name,)):
            return Failed("the address cannot be used", retry=False)
        most = self._settings.largest_text
        if len(delivery.text) > most or len(delivery.text.encode("utf-8", "replace")) > most:
            return Failed(f"message.too_long: the text has more than {most} bytes", retry=False)
        zone = await self._zone_of(delivery.peer) if self._zone_of is not None else "UTC"
        mail = self._mail(delivery, zone)
        try:
            reply = await self._connections.hand_over(mail)
        except aiosmtplib.SMTPRecipientsRefused as error:
            refusal = error.recipients[0]
            return _refused(refusal.code, refusal.message)
        except aiosmtplib.SMTPAuthenticationError as error:
            # Its words stay out: it may repeat what it was told.
            is_busy = 400 <= error.code < 500
            return Failed(f"the mail server refused the login ({error.code})", retry=is_busy)
        except aiosmtplib.SMTPResponseException as error:
            return _refused(error.code, error.message)
        except (aiosmtplib.SMTPTimeoutError, TimeoutError):
            return Failed("the mail server did not answer in time", retry=True)
        except (aiosmtplib.SMTPException, OSError, EOFError) as error:
            return Failed(f"the mail server cannot be reached: {clean(str(error))}", retry=True)
        return Sent(clean(reply)[:200])

    async def close(self) -> None:
        """Says goodbye to the server where a connection is kept."""
        await self._connections.close()

    def _mail(self, delivery: Delivery, zone: str) -> EmailMessage:
        names = delivery.message, delivery.peer
        return make_mail(
            delivery,
            sender=self._settings.sender,
            link=self._link_for(*names),
            token=self._token_for(*names),
            reply_to=self._settings.reply_to,
            zone=zone,
            reads_replies=self._reads_replies,
        )


def make_mail(
    delivery: Delivery,
    *,
    sender: str,
    link: str,
    token: str = "",
    reply_to: str = "",
    zone: str = "UTC",
    reads_replies: bool = True,
) -> EmailMessage:
    """The mail for a delivery; every header is one printable line, whatever the text holds."""
    text = shown_text(delivery.type, delivery.subtype, delivery.text)
    mail = EmailMessage(policy=SMTP)
    mail["From"] = clean(sender)
    mail["To"] = clean(delivery.target)
    if reply_to:
        mail["Reply-To"] = clean(reply_to)
    subject = next((line for line in text.splitlines() if line.strip()), "") or _kind(delivery)
    mail["Subject"] = _sayable(clean(subject[:_SUBJECT_LENGTH]))
    mail["Date"] = format_datetime(_EPOCH + timedelta(milliseconds=delivery.queued))
    mail["Message-ID"] = message_id(delivery, token)
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Rapport-Message"] = _sayable(clean(delivery.message))
    if delivery.urgent:
        mail["Importance"] = "high"
    by_reply = bool(token) and reads_replies
    mail.set_content(_sayable(_body(delivery, text, link, zone, by_reply=by_reply)))
    return mail


def _body(delivery: Delivery, text: str, link: str, zone: str, *, by_reply: bool) -> str:
    lines = [text.translate(_BODY_CONTROLS), "", *_about(delivery, zone)]
    if not is_answerable(delivery.type):
        return "\n".join(lines) + "\n"
    ask = "Please answer" if delivery.wants_answer else "You can answer"
    if link:
        lines += ["", f"{ask} here: {link}"]
    if by_reply:
        lines += ["", "Or reply to this mail." if link else f"{ask} by replying to this mail."]
    return "\n".join(lines) + "\n"


def _about(delivery: Delivery, zone: str) -> list[str]:
    """Who says it, what kind of message it is, in which conversation, and when."""
    said_at = delivery.sent or delivery.time or delivery.queued
    seen_at = delivery.time if delivery.policy and delivery.time != said_at else 0
    about = {
        "From": shown_sender(delivery.sender, delivery.policy),
        "Kind": _kind(delivery),
        "Conversation": delivery.conversation,
        "Seen": shown_time(seen_at, zone) if seen_at else "",
        "Date": shown_time(said_at, zone),
    }
    return [f"{name}: {clean(value)}" for name, value in about.items() if value]


def _kind(delivery: Delivery) -> str:
    return shown_kind(delivery.type, delivery.subtype) or "Message"


def _sayable(text: str) -> str:
    """Text that can be encoded: halves of characters become question marks."""
    return text.encode("utf-8", "replace").decode()


def _refused(code: int, message: str) -> Failed:
    """Replies 400 to 499 are temporary by the standard; others will not change by themselves."""
    return Failed(
        f"the mail server refused it: {code} {clean(message)[:200]}", retry=400 <= code < 500
    )
