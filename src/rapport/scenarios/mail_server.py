"""A real SMTP server here for tests and the demo: keeps mails, fails when told to. [CO-16]"""

from __future__ import annotations

import asyncio
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, Literal

from aiosmtpd.smtp import SMTP

from rapport.scenarios.local_server import LocalServer

Mood = Literal["takes", "refuses", "busy", "hangs"]


class LocalMailServer(LocalServer):
    """Listens on a free port of the loopback; `mails` holds what was taken, oldest first.

    `mood` says how it treats the next mail: it takes it, refuses it for good (550), is busy (451)
    or never answers. `go_down` and `come_up` close and open the port, which stays the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.mood: Mood = "takes"
        self._arrived = asyncio.Event()

    def make_protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = SMTP(
            self, hostname="localhost", loop=asyncio.get_running_loop()
        )
        return protocol

    async def wait_for(self, count: int) -> None:
        """Returns when at least `count` mails were taken."""
        while len(self.mails) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        """Called by aiosmtpd with a whole mail; the reply goes to the sender."""
        if self.mood == "refuses":
            return "550 no such person"
        if self.mood == "busy":
            return "451 try again later"
        if self.mood == "hangs":
            await self.released.wait()
            return "421 going down"
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        self._arrived.set()
        return "250 taken"
