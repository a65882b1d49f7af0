"""What people say about being reached, from the site file to the ledger. [CO-9]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.actions import Action
from rapport.communication.adapters.base import Failed
from rapport.communication.assembly import Assembly, AssemblyOptions
from rapport.communication.config import communication_from_site
from rapport.communication.ledger_rows import summarise
from rapport.communication.peers import Peer, SiteDirectory
from rapport.communication.privacy import PrivacyRule, parse_hours, quiet_rule
from rapport.core.detection import Detection
from rapport.core.message import Identifier
from rapport.core.release import NOTIFY
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
            AssemblyOptions(phrases={"p": ["note"]}, site=self.directory),
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


def test_a_rule_about_the_sender_refuses_and_the_sender_is_notified(tmp_path):
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


def test_a_node_asks_again_before_it_sends_what_was_queued_before_it_stopped(tmp_path):
    async def scenario():
        small = Small('hours = "13:00-18:00"\nthen = "hold"\n', tmp_path)
        await small.start()
        await small.detect()
        small.clock.set_ms(MONDAY + 2 * HOUR)
        await small.start()
        small.assembly.engine.opened.set()
        for dispatch in small.assembly.dispatches:
            await dispatch.open()
            await dispatch.settle()
        await small.assembly.engine.settle()
        evening = MONDAY + 6 * HOUR
        assert await small.said() == [("queued", "", 0), ("held", "quiet hours", evening)]
        await small.assembly.close()

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


# --- while a message waits ---

EVENING = parse_time("2026-03-28T21:59:59Z")
MORNING = parse_time("2026-03-29T07:00:00Z")
NIGHT = quiet_rule([parse_hours("22:00-07:00")])


class Changing(SiteDirectory):
    """People who change while messages to them wait."""

    def __init__(self, room) -> None:
        super().__init__(room.peers, room.collectives)

    def now_is(self, peer: Peer) -> None:
        self._peers[peer.name] = peer

    def loses(self, name: str) -> None:
        del self._peers[name]


def ana_by(mail: str, *, privacy=(NIGHT,)) -> Peer:
    return Peer(name="ana", addresses=(f"mail:{mail}",), privacy=privacy)


def room_of_ana(new_room, medium, *, now_ms: int, privacy=(NIGHT,), **said):
    """Ana alone, told a note by mail."""
    room = new_room(now_ms=now_ms)
    room.adapters["mail"] = medium
    room.peers = {"ana": ana_by("old@example.org", privacy=privacy)}
    to = Identifier("peer", "ana")
    room.actions = {"note": Action(phrase="note", send_to=to, text="{A}", **said)}
    room.phrases = {"secure-building": ("note",)}
    room.directory = Changing(room)
    return room


def test_a_held_peer_is_reached_at_its_address_of_the_morning(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        room = room_of_ana(new_room, mail, now_ms=EVENING + 60_000)
        await room.start()
        await room.detect()
        await room.settle()
        room.directory.now_is(ana_by("new@example.org"))
        await room.restart()
        room.clock.set_ms(MORNING)
        await room.settle()
        assert [each.address for each in mail.sent] == ["mail:new@example.org"]
        assert [row.state for row in (await room.ledger()).rows()] == ["handed"]

    asyncio.run(scenario())


def test_a_held_peer_that_is_gone_in_the_morning_gets_nothing(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        room = room_of_ana(new_room, mail, now_ms=EVENING + 60_000)
        await room.start()
        await room.detect()
        await room.settle()
        room.directory.loses("ana")
        room.clock.set_ms(MORNING)
        await room.settle()
        assert not mail.sent
        (row,) = (await room.ledger()).rows()
        assert (row.state, row.reason) == ("failed", "peer.unknown")
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "failed")

    asyncio.run(scenario())


def test_nothing_is_repeated_to_who_is_gone_and_their_answer_counts(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        waits = {"done_when": "answered", "repeat_every_ms": 60_000}
        room = room_of_ana(new_room, mail, now_ms=EVENING, privacy=(), **waits)
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(90_000)
        assert len(mail.sent) == 2
        room.directory.loses("ana")
        await room.pass_time(200_000)
        assert len(mail.sent) == 2
        (message,) = (await room.ledger()).messages()
        await room.answer(message.message, "ana")
        await room.settle()
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "done")

    asyncio.run(scenario())


async def _states(room) -> list[str]:
    return [row.state for row in (await room.ledger()).rows()]


@pytest.mark.parametrize("is_urgent", [False, True], ids=["quiet", "urgent"])
def test_what_was_queued_in_the_evening_and_not_sent_waits_for_the_morning(
    new_room, scripted, is_urgent
):
    """The node was down when quiet hours began."""

    async def scenario():
        mail = scripted("mail")
        room = room_of_ana(new_room, mail, now_ms=EVENING, urgent=is_urgent)
        await room.start()
        await room.detect()
        await room.engine.settle()
        assert await _states(room) == ["queued"]
        room.clock.set_ms(EVENING + 3 * HOUR)
        await room.restart()
        await room.settle()
        if is_urgent:
            assert len(mail.sent) == 1
            return
        assert not mail.sent
        (row,) = (await room.ledger()).rows()
        assert (row.state, row.reason, row.until) == ("held", "quiet hours", MORNING)
        await room.restart()
        room.clock.set_ms(MORNING - 1)
        await room.settle()
        assert not mail.sent
        room.clock.set_ms(MORNING)
        await room.settle()
        assert len(mail.sent) == 1
        assert await _states(room) == ["handed"]

    asyncio.run(scenario())


@pytest.mark.parametrize("late_ms", [0, 24 * HOUR, -24 * HOUR], ids=["now", "late", "ahead"])
def test_what_waits_is_judged_by_when_it_was_sent_not_by_when_the_situation_was(
    new_room, scripted, late_ms
):
    """Readings may be released a day late, and clocks of devices may be ahead."""

    async def scenario():
        mail, until = scripted("mail"), 8 * 60
        night = msgspec.structs.replace(NIGHT, until=until)
        room = room_of_ana(new_room, mail, now_ms=EVENING, privacy=(night,))
        await room.start()
        now_ms = room.clock.now_ms()
        causes, bindings = ((now_ms, "e1"),), {"A": "5", "R": "r1"}
        found = Detection(
            policy="secure-building", time=now_ms - late_ms, bindings=bindings, causes=causes
        ).to_event(source="policy")
        released = msgspec.structs.replace(found, headers={**found.headers, NOTIFY: "true"})
        await room.channels.channel("detections").append([released])
        await room.engine.settle()
        room.clock.set_ms(EVENING + HOUR)
        await room.settle()
        assert not mail.sent
        (row,) = (await room.ledger()).rows()
        assert (row.state, row.until) == ("held", MORNING + HOUR)
        room.clock.set_ms(MORNING + HOUR)
        await room.engine.settle()
        room.clock.set_ms(MORNING + HOUR + 60_000)
        await room.settle()
        assert [one.attempt for one in mail.sent] == [2]

    asyncio.run(scenario())


def test_what_waited_by_day_and_what_waits_for_a_moment_goes_at_once(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        room = room_of_ana(new_room, mail, now_ms=EVENING - 5 * HOUR)
        await room.start()
        await room.detect()
        await room.engine.settle()
        room.clock.set_ms(EVENING)
        await room.restart()
        await room.settle()
        assert len(mail.sent) == 1
        await room.detect("6", event="e2")
        await room.engine.settle()
        room.clock.set_ms(EVENING + 2_000)  # queued a moment before ten
        await room.settle()
        assert len(mail.sent) == 2

    asyncio.run(scenario())


def test_what_waits_is_not_put_off_by_a_limit_that_it_is_counted_in(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        most = PrivacyRule(then="hold", at_most=1, per_ms=HOUR)
        room = room_of_ana(new_room, mail, now_ms=EVENING, privacy=(most,))
        await room.start()
        await room.detect()
        await room.engine.settle()
        room.clock.set_ms(EVENING + 60_000)
        await room.settle()
        assert len(mail.sent) == 1

    asyncio.run(scenario())


def test_what_was_decided_while_it_was_put_off_is_not_sent(new_room, scripted):
    async def scenario():
        mail = scripted("mail")
        room = room_of_ana(new_room, mail, now_ms=EVENING, done_when="answered")
        await room.start()
        await room.detect()
        await room.engine.settle()
        room.clock.set_ms(EVENING + HOUR)
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.answer(message.message, "ana")
        room.clock.set_ms(MORNING)
        await room.settle()
        assert not mail.sent
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "done")

    asyncio.run(scenario())


def test_what_failed_in_the_evening_is_tried_again_in_the_morning(new_room, scripted):
    async def scenario():
        mail = scripted("mail", Failed("the server is down", retry=True))
        room = room_of_ana(new_room, mail, now_ms=EVENING)
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(60_000)
        assert len(mail.sent) == 1
        (row,) = (await room.ledger()).rows()
        assert (row.state, row.reason, row.until) == ("held", "quiet hours", MORNING)
        assert summarise([row]).sentence() == "0 told, 0 answered, 1 held"
        await room.restart()
        room.clock.set_ms(MORNING)
        await room.settle()
        assert [each.attempt for each in mail.sent] == [1, 2]
        assert [row.state for row in (await room.ledger()).rows()] == ["handed"]

    asyncio.run(scenario())


def test_what_failed_is_not_tried_again_where_quiet_hours_refuse(new_room, scripted):
    async def scenario():
        mail = scripted("mail", Failed("the server is down", retry=True))
        refusing = quiet_rule([parse_hours("22:00-07:00")], then="refuse")
        room = room_of_ana(new_room, mail, now_ms=EVENING, privacy=(refusing,))
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(60_000)
        assert len(mail.sent) == 1
        assert ("refused", "ana", "mail") in await room.states()
        (message,) = (await room.ledger()).messages()
        assert (message.state, message.result) == ("closed", "failed")

    asyncio.run(scenario())


def test_a_second_attempt_is_no_second_message_to_a_limit(new_room, scripted):
    async def scenario():
        mail = scripted("mail", Failed("the server is down", retry=True))
        once = PrivacyRule(then="hold", at_most=1, per_ms=HOUR)
        room = room_of_ana(new_room, mail, now_ms=EVENING, privacy=(once,))
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(10_000)
        assert [each.attempt for each in mail.sent] == [1, 2]

    asyncio.run(scenario())


def test_an_urgent_attempt_is_made_again_at_night(new_room, scripted):
    async def scenario():
        mail = scripted("mail", Failed("the server is down", retry=True))
        room = room_of_ana(new_room, mail, now_ms=EVENING, urgent=True)
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(10_000)
        assert [each.attempt for each in mail.sent] == [1, 2]

    asyncio.run(scenario())
