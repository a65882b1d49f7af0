"""Nobody answers, the alarm escalates; somebody answers on the second medium, everything else
stops: also when the node is killed in the middle. [CO-8, CO-10, CO-17, UX-5]

A real node in a process of its own, a real mail server, a real telephone gateway, real doors.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from rapport.kernel.clock import SystemClock
from rapport.scenarios.json_client import post_json
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.webhook_sink import WebhookSink
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
SITE = """
[site]
name = "dyke"
lateness = "50ms"
[concepts.gauge.attributes]
level = "number"
[sources.gauges]
concept = "gauge"
attribute = "level"
key = "where"
value = "level"
[policies]
files = ["*.dpl"]

[peers.ana]
addresses = ["mail:ana@example.org"]
[peers.ben]
addresses = ["mail:ben@example.org"]
[collectives.guards]
members = ["ana", "ben"]
[peers.lea]
addresses = ["mail:lea@example.org", "webhook:{phone}"]
[peers.max]
addresses = ["mail:max@example.org"]
[collectives.leads]
members = ["lea", "max"]

[adapters.mail]
host = "127.0.0.1"
port = {mail}
sender = "alarm@example.org"
"""
POLICY = """concepts
  gauge G
conditions
  level of G above 4
  at most once per 1 hour
actions
  call the guards
    to guards
    first answer wins
    on all channels
    answer within {within}
    then leads within 5 min
{repeat}    say "Water at {{G}}"
"""


class Town:
    """The node with its two media, and what can be seen from outside."""

    def __init__(self, process: NodeProcess, mailbox: LocalMailServer, phone: WebhookSink) -> None:
        self.process, self.mailbox, self.phone = process, mailbox, phone

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)

    async def raise_alarm(self) -> None:
        await post_json(f"{self._url}/sources/gauges", {"where": "the dyke", "level": 5})

    async def people(self) -> dict[str, dict[str, Any]]:
        """By person how the alarm stands; empty before there is one."""
        shown = await self.alarm()
        return {each["peer"]: each for each in shown["people"]} if shown else {}

    async def alarm(self) -> Any:
        """All that the ledger says about the one alarm, or None."""
        messages = await self._get("/ledger/messages")
        if not messages:
            return None
        (alarm,) = messages
        return await self._get(f"/ledger/messages/{alarm['message']}")

    async def states(self, state: str) -> list[str]:
        """The people of whom the ledger says this, in order."""
        shown = await self.alarm()
        lines = shown["timeline"] if shown else []
        return [line.get("peer", "") for line in lines if line["state"] == state]

    async def answer_on_the_phone(self, text: str) -> None:
        """Presses the button behind the link that the telephone was sent; the node may have another
        port by now.
        """
        data = msgspec.json.decode(self.phone.posted[0].body)["data"]
        await post_json(self._url + urlsplit(data["answer_at"]).path, {"answer": text})

    def mails_to(self, *people: str) -> int:
        """How many mails the server took for them."""
        wanted = [f"{person}@example.org" for person in people]
        return sum(recipients[0] in wanted for recipients in self.mailbox.recipients)

    @property
    def _url(self) -> str:
        assert self.process.doors is not None
        return f"http://{self.process.doors[0]}:{self.process.doors[1]}"

    async def _get(self, path: str) -> Any:
        def get() -> bytes:
            with urllib.request.urlopen(self._url + path, timeout=10) as answer:
                body: bytes = answer.read()
                return body

        return msgspec.json.decode(await asyncio.to_thread(get))


@asynccontextmanager
async def town(directory: Path, elsewhere: str, **said: str) -> AsyncIterator[Town]:
    async with LocalMailServer() as mailbox, WebhookSink() as phone:
        site = SITE.format(mail=mailbox.port, phone=phone.url) + elsewhere
        (directory / "site.toml").write_text(site)
        (directory / "flood.dpl").write_text(POLICY.format(**{"repeat": "", **said}))
        with NodeProcess(directory) as process:
            made = Town(process, mailbox, phone)
            await made.start()
            yield made
            await made.kill()


async def until(condition: Callable[[], Any], seconds: float = 40) -> None:
    """Looks ten times a second until an async condition holds; fails after the deadline."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await CLOCK.sleep(100)


async def closed(here: Town) -> bool:
    shown = await here.alarm()
    return bool(shown) and shown["message"]["state"] == "closed"


def test_the_next_are_asked_and_an_answer_by_telephone_ends_it_on_every_medium(
    tmp_path: Path, elsewhere: str
) -> None:
    async def scenario() -> None:
        repeat = "    repeat every 1 s\n"
        async with town(tmp_path, elsewhere, within="3 s", repeat=repeat) as here:
            await here.raise_alarm()
            await until(lambda: _is(here.mails_to("ana", "ben") >= 4))  # told, and told again
            assert here.mails_to("lea", "max") == len(here.phone.posted) == 0
            await until(lambda: _is(here.mails_to("lea", "max") >= 2 and here.phone.posted))
            await here.answer_on_the_phone("I am there")
            await until(lambda: closed(here))
            before = len(here.mailbox.mails), len(here.phone.posted)
            await CLOCK.sleep(2_500)  # twice as long as the pause between repetitions
            assert (len(here.mailbox.mails), len(here.phone.posted)) == before
            shown = await here.alarm()
            assert shown["message"]["result"] == "done"
            assert shown["message"]["answered_by"] == "lea"
            assert await here.states("answered") == ["lea"]
            assert sorted(await here.states("timed_out")) == ["ana", "ben"]
            assert len(await here.states("escalated")) == 1
            # A server that was already being told may still say so after the end; nothing else may.
            states = [line["state"] for line in shown["timeline"]]
            assert set(states[states.index("closed") + 1 :]) <= {"handed", "confirmed"}

    asyncio.run(scenario())


async def _is(found: object) -> bool:
    return bool(found)


def test_a_node_that_is_killed_three_times_asks_on_hears_the_answer_and_stays_quiet(
    tmp_path: Path, elsewhere: str
) -> None:
    async def scenario() -> None:
        async with town(tmp_path, elsewhere, within="4 s") as here:
            await here.raise_alarm()
            await until(lambda: _is(here.mails_to("ana", "ben") == 2))
            await here.kill()  # the guards were told, perhaps not yet written down
            await here.start()
            await here.phone.wait_for(1)
            await here.kill()  # the telephone rang; nobody wrote down that it did
            await here.start()
            await until(lambda: _told(here, "ana", "ben", "lea", "max"))
            await here.answer_on_the_phone("I am there")
            await here.kill()  # the answer was taken
            await here.start()
            await until(lambda: closed(here))
            before = len(here.mailbox.mails), len(here.phone.posted)
            await CLOCK.sleep(1_500)
            assert (len(here.mailbox.mails), len(here.phone.posted)) == before
            await _check_ledger(here)
            # Whoever honours the key heard it once, however often it was tried.
            assert len({one.headers["idempotency-key"] for one in here.phone.posted}) == 1
            by_person = [
                {mail["Message-ID"] for mail in here.mailbox.mails if mail["To"] == address}
                for address in {mail["To"] for mail in here.mailbox.mails}
            ]
            assert [len(ids) for ids in by_person] == [1, 1, 1, 1]

    asyncio.run(scenario())


async def _told(here: Town, *people: str) -> bool:
    shown = await here.alarm()
    taken = {
        line["peer"]
        for line in (shown["timeline"] if shown else [])
        if line["state"] in ("handed", "confirmed")
    }
    return taken >= set(people)


async def _check_ledger(here: Town) -> None:
    shown = await here.alarm()
    assert (shown["message"]["state"], shown["message"]["result"]) == ("closed", "done")
    assert shown["message"]["answered_by"] == "lea"
    assert await here.states("answered") == ["lea"]
    assert sorted(await here.states("timed_out")) == ["ana", "ben"]
    assert len(await here.states("escalated")) == 1
    assert len(await here.states("closed")) == 1
    assert set(await here.people()) == {"ana", "ben", "lea", "max"}
