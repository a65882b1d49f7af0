"""E-mail by SMTP: plain text with a link to answer; the message id comes from the idempotency key.
[CO-16]

The only home of aiosmtplib: its exceptions become outcomes here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import aiosmtplib

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.adapters.settings import MailSettings
from rapport.communication.addresses import address_fault
from rapport.communication.templates import clean
from rapport.core.times import format_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUBJECT_LENGTH = 120
_GOODBYE_SECONDS = 1


class MailAdapter:
    """Sends each delivery over its own connection; a server that comes back is used at once."""

    name = "mail"

    def __init__(self, settings: MailSettings, link_for: Callable[[str, str], str]) -> None:
        """`link_for(message, peer)` gives the address of the page to answer on; empty = none."""
        self._settings, self._link_for = settings, link_for

    async def send(self, delivery: Delivery) -> Outcome:
        """Taken by the server = sent; a busy or unreachable server is worth a retry."""
        link = self._link_for(delivery.message, delivery.peer)
        if address_fault(delivery.address, (self.name,)):
            return Failed("the address cannot be used", retry=False)
        mail = make_mail(delivery, sender=self._settings.sender, link=link)
        try:
            reply = await self._hand_over(mail)
        except aiosmtplib.SMTPRecipientsRefused as error:
            refusal = error.recipients[0]
            return _refused(refusal.code, refusal.message)
        except aiosmtplib.SMTPAuthenticationError as error:
            return Failed(f"the mail server refused the login ({error.code})", retry=False)
        except aiosmtplib.SMTPResponseException as error:
            return _refused(error.code, error.message)
        except (aiosmtplib.SMTPTimeoutError, TimeoutError):
            return Failed("the mail server did not answer in time", retry=True)
        except (aiosmtplib.SMTPException, OSError, EOFError) as error:
            return Failed(f"the mail server cannot be reached: {clean(str(error))}", retry=True)
        return Sent(clean(reply)[:200])

    async def _hand_over(self, mail: EmailMessage) -> str:
        """The server's reply. The connection is cut at once when cancelled or refused: the driver's
        own way out would wait for the goodbye of a server that hangs.
        """
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            username=settings.user or None,
            password=settings.password or None,
            start_tls=settings.starttls,
            timeout=settings.timeout_ms / 1_000,
        )
        try:
            await client.connect()
            _, reply = await client.send_message(mail)
            # The mail is taken; however the goodbye goes, it must not be sent again.
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_GOODBYE_SECONDS)
            return str(reply)
        finally:
            client.close()

    async def close(self) -> None:
        """Connections live for one mail only."""


def make_mail(delivery: Delivery, *, sender: str, link: str) -> EmailMessage:
    """The mail for a delivery; every header is one printable line, whatever the text holds."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = clean(sender)
    mail["To"] = clean(delivery.target)
    mail["Subject"] = clean(delivery.text.splitlines()[0] if delivery.text else "")[
        :_SUBJECT_LENGTH
    ]
    mail["Date"] = format_datetime(_EPOCH + timedelta(milliseconds=delivery.queued))
    mail["Message-ID"] = f"<{delivery.key}@rapport.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Rapport-Message"] = clean(delivery.message)
    if delivery.urgent:
        mail["Importance"] = "high"
    mail.set_content(_body(delivery, link))
    return mail


def _body(delivery: Delivery, link: str) -> str:
    lines = [
        delivery.text,
        "",
        f"Seen at {format_time(delivery.time)} by policy {delivery.policy}.",
    ]
    if link:
        ask = "Please answer here" if delivery.wants_answer else "You can answer here"
        lines += ["", f"{ask}: {link}"]
    return "\n".join(lines) + "\n"


def _refused(code: int, message: str) -> Failed:
    """Replies 400 to 499 are temporary by the standard; others will not change by themselves."""
    return Failed(
        f"the mail server refused it: {code} {clean(message)[:200]}", retry=400 <= code < 500
    )
