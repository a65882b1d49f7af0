"""The people of the secure building, simulated: a guard who reads mail and clicks."""

from __future__ import annotations

import re
from collections.abc import Callable
from email.message import EmailMessage

from rapport.kernel.clock import Clock
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer

_LINK = re.compile(r"http\S+/answer/\S+")
SECONDS_TO_READ = 1.5
NOBODY_ANSWERS_ABOUT = "archive"
"""The guards are out of reach when the alarm is about this room, so that the lead is asked."""


def answer_link_of(mail: EmailMessage) -> str | None:
    """The link to answer on, as a person would find it in the text."""
    body = mail.get_body(("plain",))
    found = _LINK.search(body.get_content()) if body is not None else None
    return found[0] if found else None


class Guard:
    """Ana: reads her mail and presses the button, except when she is out of reach."""

    def __init__(self, mailbox: LocalMailServer, clock: Clock, tell: Callable[[str], None]) -> None:
        self._mailbox, self._clock, self._tell = mailbox, clock, tell

    async def run(self) -> None:
        """Works until cancelled."""
        read = 0
        while True:
            await self._mailbox.wait_for(read + 1)
            mail, to = self._mailbox.mails[read], self._mailbox.recipients[read]
            read += 1
            self._tell(f"mail to {', '.join(to)}: {mail['Subject']}")
            link = answer_link_of(mail)
            if "ana@example.org" not in to or link is None:
                continue
            if NOBODY_ANSWERS_ABOUT in str(mail["Subject"]):
                self._tell("ana is out of reach and does not answer")
                continue
            await self._clock.sleep(SECONDS_TO_READ * 1_000)
            await post_json(link, {"answer": "on my way"})
            self._tell("ana pressed the button: on my way")
