"""Messages to a group with a roster reach those on duty, also by escalation and repeats. [CN-9]"""

from __future__ import annotations

import asyncio

from rapport.channel.backends.local import open_memory
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import communication_from_site
from rapport.communication.ledger import Ledger
from rapport.core.detection import Detection
from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile

SITE = """
[peers]
ana.addresses = ["inbox:"]
ben.addresses = ["inbox:"]
lea.addresses = ["inbox:"]
[collectives.guards]
members = ["ana", "ben", "lea"]
zone = "Europe/Vienna"
DELIVERY
roster = [
  { person = "ana", days = "Mon-Fri", hours = "08:00-20:00" },
  { person = "ben", days = "Mon-Fri", hours = "20:00-08:00" },
  { person = "lea", dates = "2026-03-03..2026-03-03", instead_of = "ben" },
]
[collectives.leads]
members = ["lea"]
[actions.note]
send_to = "collective:guards"
text = "{A} seen"
"""
MONDAY_NIGHT = parse_time("2026-03-02T22:00:00Z")  # 23:00 in Vienna
TUESDAY_NIGHT = MONDAY_NIGHT + 86_400_000
SUNDAY = parse_time("2026-03-08T12:00:00Z")
MINUTE = 60_000


class Watch:
    """A site with a roster, and a clock that is moved by hand."""

    def __init__(self, tmp_path, now_ms, *, action="", delivery="") -> None:
        self.clock = ManualClock(now_ms)
        text = SITE.replace("DELIVERY", delivery) + action
        declared, problems = communication_from_site(
            TomlFile.parse(text.encode(), name="site.toml"), tmp_path
        )
        assert {one.severity for one in problems} <= {"warning"}
        self.declared, self.site = declared, tmp_path
        self.channels = open_memory(self.clock)

    async def start(self) -> None:
        """As a fresh process would."""
        self.assembly = Assembly(
            self.channels,
            self.channels.records,
            self.clock,
            self.declared,
            AssemblyOptions(phrases={"p": ["note"]}, site=self.site),
        )
        await self.assembly.engine.open()
        for dispatch in self.assembly.dispatches:
            await dispatch.open()

    async def detect(self) -> None:
        detection = Detection(
            policy="p",
            time=self.clock.now_ms(),
            bindings={"A": "5"},
            causes=((self.clock.now_ms(), "e1"),),
        )
        await self.channels.channel("detections").append([detection.to_event(source="policy")])
        await self.settle()

    async def settle(self) -> None:
        busy = True
        while busy:
            busy = bool(await self.assembly.engine.settle())
            for dispatch in self.assembly.dispatches:
                busy = bool(await dispatch.settle()) or busy

    async def pass_minutes(self, minutes: int) -> None:
        for _ in range(minutes):
            self.clock.set_ms(self.clock.now_ms() + MINUTE)
            await self.settle()

    async def queued(self) -> list[tuple[str, int]]:
        """Who was sent it, and the minute since the first."""
        lines = await self.channels.channel("log").read_after(0, limit=1_000)
        found = [
            (one.event.payload()["peer"], one.event.time)
            for one in lines
            if one.event.type == "rapport.delivery.queued"
        ]
        return [(peer, (time - found[0][1]) // MINUTE) for peer, time in found]

    async def escalations(self) -> list[str]:
        """Why the message went further than to those on duty, as its page shows it."""
        ledger = Ledger(self.channels)
        await ledger.refresh()
        (message,) = ledger.messages()
        lines = await ledger.timeline(message.message)
        return [line.reason for line in lines if line.state == "escalated"]


def reached_at(tmp_path, now_ms, **more):
    async def scenario():
        watch = Watch(tmp_path, now_ms, **more)
        await watch.start()
        await watch.detect()
        return sorted(peer for peer, _ in await watch.queued()), await watch.escalations()

    return asyncio.run(scenario())


def test_a_detection_at_night_reaches_the_night_shift_and_nobody_else(tmp_path):
    assert reached_at(tmp_path, MONDAY_NIGHT) == (["ben"], [])


def test_the_substitute_of_the_night_shift_gets_it_instead(tmp_path):
    assert reached_at(tmp_path, TUESDAY_NIGHT) == (["lea"], [])


def test_with_nobody_on_duty_all_members_get_it_and_the_ledger_says_so(tmp_path):
    people, reasons = reached_at(tmp_path, SUNDAY)
    assert people == ["ana", "ben", "lea"]
    assert reasons == ["nobody was on duty; asking all of collective:guards"]


def test_fewer_on_duty_than_needed_are_not_enough(tmp_path):
    people, reasons = reached_at(tmp_path, MONDAY_NIGHT, delivery='delivery = "at-least 2"')
    assert people == ["ana", "ben", "lea"]
    assert reasons == ["only 1 of 2 was on duty; asking all of collective:guards"]


def test_an_escalation_asks_who_is_on_duty_then(tmp_path):
    action = 'done_when = "answered"\nanswer_within = "10 min"\n'

    async def scenario():
        text = action + 'escalate_to = ["collective:guards"]\n'
        watch = Watch(tmp_path, parse_time("2026-03-02T18:55:00Z"), action=text)
        await watch.start()
        await watch.detect()
        await watch.pass_minutes(11)  # 20:06 in Vienna
        assert await watch.queued() == [("ana", 0), ("ben", 10)]

    asyncio.run(scenario())


def test_a_repeat_asks_again_who_is_on_duty_and_leaves_the_former_shift_alone(tmp_path):
    action = 'done_when = "answered"\nrepeat_every = "10 min"\n'

    async def scenario():
        watch = Watch(tmp_path, parse_time("2026-03-02T18:45:00Z"), action=action)
        await watch.start()
        await watch.detect()
        await watch.pass_minutes(12)
        assert await watch.queued() == [("ana", 0), ("ana", 10)]
        await watch.start()  # the roster is asked after a restart, too
        await watch.pass_minutes(30)
        assert await watch.queued() == [
            ("ana", 0),
            ("ana", 10),
            ("ben", 20),  # 20:05 in Vienna
            ("ben", 30),
            ("ben", 40),
        ]

    asyncio.run(scenario())


def test_a_repeat_goes_to_everybody_once_nobody_is_on_duty(tmp_path):
    action = 'done_when = "answered"\nrepeat_every = "10 min"\n'

    async def scenario():
        watch = Watch(tmp_path, parse_time("2026-03-07T06:55:00Z"), action=action)  # Friday's night
        await watch.start()
        await watch.detect()
        await watch.pass_minutes(11)  # 08:06 on Saturday
        assert sorted(await watch.queued()) == [("ana", 10), ("ben", 0), ("ben", 10), ("lea", 10)]
        assert await watch.escalations() == ["nobody was on duty; asking all of collective:guards"]

    asyncio.run(scenario())
