"""Connections to the mail server: kept for some seconds, so that several mails need one greeting.
[CO-16]

With `email.py` the only home of aiosmtplib. A kept connection is asked (RSET) before it is used
again; one that the server has closed meanwhile is no failure, a new one is made.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from email.message import EmailMessage

import aiosmtplib

from rapport.communication.adapters.mail.settings import MailSettings
from rapport.kernel.clock import Clock

_GOODBYE_SECONDS = 1
_MOST_IDLE = 4
"""Idle connections beyond these are closed at once: servers limit how many one client may have."""


class SmtpConnections:
    """Hands mails over; as many connections as there are mails under way, few of them kept."""

    def __init__(self, settings: MailSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._idle: list[tuple[aiosmtplib.SMTP, int]] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def hand_over(self, mail: EmailMessage) -> str:
        """The server's reply once it has taken the mail; raises the driver's errors.

        The connection is cut at once when cancelled or refused: the driver's own way out would wait
        for the goodbye of a server that hangs.
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
        """Says goodbye on every kept connection; a second call is no error."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        idle, self._idle = self._idle, []
        for client, _since in idle:
            await _say_goodbye(client)

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
        """A kept connection that still answers, the one used last first."""
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
        """The mail is taken; whatever happens to the connection, it must not be sent again."""
        if self._settings.keep_ms <= 0 or len(self._idle) >= _MOST_IDLE:
            await _say_goodbye(client)
            return
        self._idle.append((client, self._clock.steady_ns()))
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._close_the_idle())

    async def _close_the_idle(self) -> None:
        """Runs while something is kept; ended by the loop's end, it cuts what is left."""
        try:
            while self._idle:
                await self._clock.sleep(self._settings.keep_ms)
                oldest = self._clock.steady_ns() - self._settings.keep_ms * 1_000_000
                old = [entry for entry in self._idle if entry[1] <= oldest]
                self._idle = [entry for entry in self._idle if entry[1] > oldest]
                for client, _since in old:
                    await _say_goodbye(client)
        except asyncio.CancelledError:
            for client, _since in self._idle:
                client.close()
            self._idle.clear()
            raise


async def _say_goodbye(client: aiosmtplib.SMTP) -> None:
    """However it goes: a connection that is closed needs no goodbye."""
    try:
        with suppress(aiosmtplib.SMTPException, OSError, EOFError):
            await client.quit(timeout=_GOODBYE_SECONDS)
    finally:
        client.close()
