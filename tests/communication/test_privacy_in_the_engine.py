"""What people say about being reached, from the site file to the ledger. [CO-9]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.memory import open_memory
from rapport.communication.assembly import Assembly
from rapport.communication.declare import communication_from_site
from rapport.core.detection import Detection
from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.toml import TomlFile

MONDAY = parse_time("2026-01-12T12:00:00Z")
HOUR = 3_600_000
ACTION = """
[actions.note]
send_to = "peer:ana"
text = "{A} seen"
"""
PERSON = '[peers.ana]\naddresses = ["inbox:"]\nzone = "UTC"\n[[peers.ana.privacy]]\n'


class Small:
    """One person, one action, and a clock that is moved by hand."""

    def __init__(self, rule: str, directory, clock=None) -> None:
        self.clock = clock or ManualClock(MONDAY)
        file = TomlFile.parse((PERSON + rule + ACTION).encode(), name="site.toml")
        self.declared, problems = communication_from_site(file, directory)
        assert problems == []
        self.channels, self.directory = open_memory(self.clock), directory
        self.count = 0

    async def start(self) -> None:
        """As a fresh process would."""
        self.assembly = Assembly(
            self.channels,
            self.channels.records,
            self.clock,
            self.declared,
            phrases={"p": ["note"]},
            site=self.directory,
        )
        await self.assembly.engine.open()

    async def detect(self) -> None:
        self.count += 1
        detection = Detection(
            policy="p",
            time=self.clock.now_ms(),
            bindings={"A": str(self.count)},
            causes=((self.clock.now_ms(), f"e{self.count}"),),
        )
        await self.channels.channel("detections").append([detection.to_event(source="policy")])
        await self.assembly.engine.settle()

    async def said(self) -> list[tuple[str, str, int]]:
        """State, reason and until of each line about the person."""
        lines = await self.channels.channel("log").read_after(0, limit=1_000)
        told = [
            (stored.event.type.removeprefix("rapport.delivery."), stored.event.payload())
            for stored in lines
            if stored.event.type.startswith("rapport.delivery.")
        ]
        return [
            (state, data.get("reason", ""), data.get("until", 0))
            for state, data in told
            if state in ("held", "refused", "queued")
        ]


def test_one_too_many_waits_until_the_first_is_an_hour_old_also_after_a_restart(tmp_path):
    async def scenario():
        small = Small('at_most = 2\nper = "1 hour"\nthen = "hold"\n', tmp_path)
        await small.start()
        for _ in range(3):
            await small.detect()
            small.clock.set_ms(small.clock.now_ms() + 60_000)
        reason = "at most 2 messages in 1h"
        assert await small.said() == [
            ("queued", "", 0),
            ("queued", "", 0),
            ("held", reason, MONDAY + HOUR),
        ]
        await small.start()
        small.clock.set_ms(MONDAY + HOUR - 1)
        await small.assembly.engine.settle()
        assert len(await small.said()) == 3
        small.clock.set_ms(MONDAY + HOUR)
        await small.assembly.engine.settle()
        assert (await small.said())[3:] == [("queued", "", 0)]

    asyncio.run(scenario())


def test_a_rule_about_the_sender_refuses_and_the_sender_is_told(tmp_path):
    async def scenario():
        small = Small('sender = "component:*"\nreason = "no machines"\n', tmp_path)
        await small.start()
        await small.detect()
        assert await small.said() == [("refused", "no machines", 0)]
        control = await small.channels.channel("control").read_after(0, limit=10)
        assert [stored.event.type for stored in control] == ["rapport.control.comerror"]

    asyncio.run(scenario())


def test_a_hold_until_the_morning_is_over_in_the_morning(tmp_path):
    async def scenario():
        small = Small('subtype = "note"\nthen = "hold"\nuntil = "08:00"\n', tmp_path)
        await small.start()
        await small.detect()
        morning = parse_time("2026-01-13T08:00:00Z")
        assert [(state, until) for state, _, until in await small.said()] == [("held", morning)]
        small.clock.set_ms(morning + 5 * HOUR)  # the node was down meanwhile
        await small.start()
        await small.assembly.engine.settle()
        assert (await small.said())[1:] == [("queued", "", 0)]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_function_of_the_site_decides_and_one_that_fails_refuses(tmp_path):
    (tmp_path / "rules.py").write_text(
        "asked = []\n"
        "def twice_no(message):\n"
        "    asked.append(message)\n"
        "    if len(asked) == 3:\n"
        "        raise OSError('no calendar')\n"
        "    return 'busy' if len(asked) < 3 else True\n"
    )

    async def scenario():
        small = Small('ask = "rules:twice_no"\n', tmp_path, SystemClock())
        await small.start()
        for _ in range(4):
            await small.detect()
        await small.assembly.close()
        assert await small.said() == [
            ("refused", "busy", 0),
            ("refused", "busy", 0),
            ("refused", "the privacy function 'rules:twice_no' failed", 0),
            ("queued", "", 0),
        ]

    asyncio.run(scenario())
