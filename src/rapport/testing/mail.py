"""A real SMTP server here for tests and the demo: keeps mails, fails when told to. [CO-16]"""

from __future__ import annotations

import asyncio
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from types import TracebackType
from typing import Any, Literal

from aiosmtpd.smtp import SMTP

Mood = Literal["takes", "refuses", "busy", "hangs"]


class LocalMailServer:
    """Listens on a free port of the loopback; `mails` holds what was taken, oldest first.

    `mood` says how it treats the next mail: it takes it, refuses it for good (550), is busy (451)
    or never answers. `go_down` and `come_up` close and open the port, which stays the same.
    """

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.mood: Mood = "takes"
        self.port = 0
        self._server: asyncio.Server | None = None
        self._protocols: list[SMTP] = []
        self._arrived = asyncio.Event()
        self._released = asyncio.Event()

    async def __aenter__(self) -> LocalMailServer:
        await self.come_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.go_down()

    async def come_up(self) -> None:
        """Opens the port; a server that is up stays as it is."""
        if self._server is not None:
            return
        self._released.clear()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_protocol, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def go_down(self) -> None:
        """Closes the port and cuts open connections."""
        if self._server is None:
            return
        self._released.set()
        self._server.close()
        for protocol in self._protocols:
            if protocol.transport is not None:
                protocol.transport.close()
        self._protocols.clear()
        await self._server.wait_closed()
        self._server = None

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
            await self._released.wait()
            return "421 going down"
        mail = message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        self._arrived.set()
        return "250 taken"

    def _make_protocol(self) -> SMTP:
        protocol = SMTP(self, hostname="localhost", loop=asyncio.get_running_loop())
        self._protocols.append(protocol)
        return protocol
