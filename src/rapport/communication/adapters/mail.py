"""E-mail by SMTP: plain text with a link to answer, `[adapters.mail]`. [CO-11, CO-16, UX-2]

The Message-ID is `<KEY.MESSAGE.PEER.TOKEN@rapport.invalid>`: the idempotency key, and the proof by
which a reply or a bounce is recognised. So no table of sent mails is kept, and any node with the
secret can read replies. Connections are kept for some seconds, so that several mails need one
greeting; a kept one is tested (RSET) before it is used again. This file is the only user of
aiosmtplib; its exceptions become outcomes here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from pathlib import Path
from typing import Annotated, Literal, cast
from urllib.parse import quote, unquote

import aiosmtplib
import msgspec
from msgspec import Meta

from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    Sent,
    TokenFor,
    adapter,
    no_token,
    read_secret_field,
)
from rapport.communication.peers import address_fault
from rapport.communication.texts import (
    clean,
    is_answerable,
    shown_kind,
    shown_sender,
    shown_text,
    shown_time,
)
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.config_fields import Fields, keys_of

# --- settings ---


Encryption = Literal["tls", "starttls", "none"]
"""TLS from the first byte, STARTTLS before the login, or none (a server on this machine)."""
ENCRYPTIONS: tuple[Encryption, ...] = ("tls", "starttls", "none")
SMTP_PORTS: dict[Encryption, int] = {"tls": 465, "starttls": 587, "none": 25}
_ENCRYPT = 'write encryption = "tls"'
_LOCAL = ("127.0.0.1", "::1", "localhost")
LARGEST_MAIL = 32 * 1024 * 1024


class MailSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.mail]` table. The password is read from a file or variable, never shown."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65_535)] = 25
    encryption: Encryption = "none"
    sender: str = "rapport@localhost"
    """Also the address that bounces go to: read that mailbox."""
    reply_to: str = ""
    """Where replies go; empty = to `sender`. An `imap` input should read it."""
    user: str = ""
    password: str = ""
    timeout_ms: Annotated[int, Meta(ge=1)] = 10_000
    keep_ms: int = 5_000
    """How long an idle connection is kept: longer saves greetings, shorter frees the server."""
    largest_text: Annotated[int, Meta(ge=1, le=LARGEST_MAIL)] = 1_000_000
    """Bytes of the longest text; longer ones fail at once."""

    def __repr__(self) -> str:
        return f"MailSettings(host={self.host!r}, port={self.port}, user={self.user!r})"


MAIL_KEYS = (*keys_of(MailSettings), "starttls")


def read_mail_settings(table: Fields, directory: Path) -> MailSettings:
    """The `[adapters.mail]` table; the caller checks the addresses."""
    default = MailSettings()
    # `starttls = true` means `encryption = "starttls"` until release 0.3.
    default_encryption: Encryption = "starttls" if table.flag("starttls") else default.encryption
    encryption = cast(Encryption, table.choice("encryption", ENCRYPTIONS, default_encryption))
    settings = table.settings(
        MailSettings(port=SMTP_PORTS[encryption]),
        encryption=encryption,
        password=read_secret_field("password", table, directory),
    )
    if settings.password and encryption == "none" and settings.host not in _LOCAL:
        message = "the password would go over the network in the clear"
        table.fault("encryption", "adapter.not_encrypted", message, hint=_ENCRYPT)
    return settings


# --- Message-IDs ---


DOMAIN = "rapport.invalid"
"""A name that belongs to nobody (RFC 2606)."""
_LONGEST = 400
"""Mail servers may cut lines at 998 characters, and References holds several ids."""
_OURS = re.compile(
    r"([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_%~-]{1,300})\.([A-Za-z0-9_%~-]{1,300})\.([0-9A-Za-z]{1,64})"
    rf"@{re.escape(DOMAIN)}\Z"
)


class SentMail(msgspec.Struct, frozen=True):
    """The fields of a Message-ID of ours. Unproven until the token is checked."""

    key: str
    message: str
    peer: str
    token: str


def message_id(delivery: Delivery, token: str) -> str:
    """The Message-ID in angle brackets, the same for every attempt. Without a token, or with names
    too long for it, only the key: replies are then recognised by the answer link that they quote.
    """
    whole = f"{delivery.key}.{_name(delivery.message)}.{_name(delivery.peer)}.{token}@{DOMAIN}"
    if not token or len(whole) > _LONGEST or read_message_id(whole) is None:
        return f"<{delivery.key}@{DOMAIN}>"
    return f"<{whole}>"


def read_message_id(text: str) -> SentMail | None:
    """The fields of a Message-ID of ours; None for any other."""
    found = _OURS.match(text.strip().strip("<>"))
    if found is None:
        return None
    key, message, peer, token = found.groups()
    try:
        return SentMail(
            key, unquote(message, errors="strict"), unquote(peer, errors="strict"), token
        )
    except UnicodeDecodeError:
        return None


def _name(text: str) -> str:
    """The name without dots and characters that are special in headers."""
    return quote(text, safe="", errors="replace").replace(".", "%2E")


# --- sending ---


_QUIT_SECONDS = 1
_MOST_IDLE = 4
"""More idle connections are closed at once: servers limit how many a client may have."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SUBJECT_LENGTH = 120
_BODY_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in range(32) if chr(code) not in "\t\n\r"
}


class SmtpConnections:
    """Sends mails over as many connections as needed, and keeps few of them."""

    def __init__(self, settings: MailSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._idle: list[tuple[aiosmtplib.SMTP, int]] = []
        self._sweeper: asyncio.Task[None] | None = None

    async def send(self, mail: EmailMessage) -> str:
        """The server's reply after it accepted the mail; raises the driver's errors. The connection
        is cut when the call is cancelled or refused: the driver's own way out would wait for a
        server that hangs.
        """
        client = await self._reused() or await self._opened()
        try:
            _, reply = await client.send_message(mail)
        except BaseException:
            client.close()
            raise
        await self._keep(client)
        return str(reply)

    async def close(self) -> None:
        """Closes every kept connection; a second call is no error."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        idle, self._idle = self._idle, []
        for client, _since in idle:
            await _quit(client)

    async def _opened(self) -> aiosmtplib.SMTP:
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            username=settings.user or None,
            password=settings.password or None,
            use_tls=settings.encryption == "tls",
            start_tls=settings.encryption == "starttls",
            timeout=settings.timeout_ms / 1_000,
        )
        try:
            await client.connect()
        except BaseException:
            client.close()
            raise
        return client

    async def _reused(self) -> aiosmtplib.SMTP | None:
        """A kept connection that still answers, the last used first."""
        while self._idle:
            client, _since = self._idle.pop()
            try:
                await client.rset()
            except (aiosmtplib.SMTPException, OSError, EOFError):
                client.close()  # the server has had enough of it: a new one will do
            except BaseException:
                client.close()
                raise
            else:
                return client
        return None

    async def _keep(self, client: aiosmtplib.SMTP) -> None:
        """Keeps or closes a connection. The mail is accepted: no error here may cause a retry."""
        if self._settings.keep_ms <= 0 or len(self._idle) >= _MOST_IDLE:
            await _quit(client)
            return
        self._idle.append((client, self._clock.steady_ns()))
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._close_idle())

    async def _close_idle(self) -> None:
        """Runs while connections are kept; when cancelled it cuts them."""
        try:
            while self._idle:
                await self._clock.sleep(self._settings.keep_ms)
                oldest = self._clock.steady_ns() - self._settings.keep_ms * 1_000_000
                old = [entry for entry in self._idle if entry[1] <= oldest]
                self._idle = [entry for entry in self._idle if entry[1] > oldest]
                for client, _since in old:
                    await _quit(client)
        except asyncio.CancelledError:
            for client, _since in self._idle:
                client.close()
            self._idle.clear()
            raise


async def _quit(client: aiosmtplib.SMTP) -> None:
    """Closes a connection politely; errors do not matter."""
    try:
        with suppress(aiosmtplib.SMTPException, OSError, EOFError):
            await client.quit(timeout=_QUIT_SECONDS)
    finally:
        client.close()


@adapter("mail")
class MailAdapter:
    """Sends plain text."""

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
        """`link_for(message, peer)` gives the answer page; empty = none. `token_for(message, peer)`
        is the proof that makes a reply an answer. `zone_of(peer)` is the zone in which times are
        shown; None = UTC. The mail invites replies only where an input reads them
        (`reads_replies`). Raises InvalidInput for a sender or reply address that cannot stand in a
        mail.
        """
        for own in (settings.sender, settings.reply_to or settings.sender):
            if fault := address_fault(f"{self.name}:{own}", (self.name,)):
                raise fault
        self._settings, self._link_for, self._token_for = settings, link_for, token_for
        self._zone_of, self._reads_replies = zone_of, reads_replies
        self._connections = SmtpConnections(settings, clock or SystemClock())

    async def send(self, delivery: Delivery) -> Outcome:
        """Accepted by the server = sent; a busy or unreachable server is worth a retry."""
        if address_fault(delivery.address, (self.name,)):
            return Failed("the address cannot be used", retry=False)
        most = self._settings.largest_text
        if len(delivery.text) > most or len(delivery.text.encode("utf-8", "replace")) > most:
            return Failed(f"message.too_long: the text has more than {most} bytes", retry=False)
        zone = await self._zone_of(delivery.peer) if self._zone_of is not None else "UTC"
        mail = self._mail(delivery, zone)
        try:
            reply = await self._connections.send(mail)
        except aiosmtplib.SMTPRecipientsRefused as error:
            refusal = error.recipients[0]
            return _refused(refusal.code, refusal.message)
        except aiosmtplib.SMTPAuthenticationError as error:
            # The server's words stay out: it may repeat the password.
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
    """The mail for a delivery; every header is one printable line."""
    text = shown_text(delivery.type, delivery.subtype, delivery.text)
    mail = EmailMessage(policy=SMTP)
    mail["From"] = clean(sender)
    mail["To"] = clean(delivery.target)
    if reply_to:
        mail["Reply-To"] = clean(reply_to)
    subject = next((line for line in text.splitlines() if line.strip()), "") or _kind(delivery)
    mail["Subject"] = _encodable(clean(subject[:_SUBJECT_LENGTH]))
    mail["Date"] = format_datetime(_EPOCH + timedelta(milliseconds=delivery.queued))
    mail["Message-ID"] = message_id(delivery, token)
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Rapport-Message"] = _encodable(clean(delivery.message))
    if delivery.urgent:
        mail["Importance"] = "high"
    by_reply = bool(token) and reads_replies
    mail.set_content(_encodable(_body(delivery, text, link, zone, by_reply=by_reply)))
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
    """Lines about sender, kind, conversation and time."""
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


def _encodable(text: str) -> str:
    """Text that can be encoded: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _refused(code: int, message: str) -> Failed:
    """Replies 400 to 499 are temporary by the standard; others are final."""
    return Failed(
        f"the mail server refused it: {code} {clean(message)[:200]}", retry=400 <= code < 500
    )
