"""What happens to messages and people when a situation ends or somebody looks after it."""

from __future__ import annotations

import asyncio

import pytest

from rapport.communication.actions import Action
from rapport.communication.adapters.base import Failed, Sent
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.duty import Roster, Shift
from rapport.communication.open_situations import SITUATIONS
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.communication.privacy import DaySpan, LocalTimes
from rapport.core.detection import Acknowledgement, Detection
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.core.release import HISTORY
from tests.communication.conftest import NOON, SECOND, Room, Scripted

MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
FREEZER = {"F": "f1"}


def detection(began=None, time=NOON, **changes):
    return Detection(
        policy="freezer",
        time=time,
        bindings=FREEZER,
        causes=((time, "e1"),),
        began=began,
        **changes,
    )


async def tell(room, *detections, **headers):
    events = [each.to_event(source="policy") for each in detections]
    for event in events:
        event.headers.update(headers)
    await room.channels.channel("detections").append(events)
    await room.settle()
    return [event.id for event in events]


@pytest.fixture
def freezers(room: Room) -> Room:
    """Ana is asked, then the leads; the end is told to ben."""
    room.adapters["mail"] = Scripted("mail")
    for name in ("ana", "ben", "lea"):
        room.peers[name] = Peer(name=name, addresses=(f"mail:{name}@example.org",))
    room.actions = {
        "call duty": Action(
            phrase="call duty",
            send_to=Identifier("peer", "ana"),
            text="{F} is too warm",
            done_when="answered",
            answer_within_ms=5 * MINUTE,
            escalate=(NextReceiver("collective:security-leads"),),
            repeat_every_ms=MINUTE,
        ),
        "tell ben": Action(
            phrase="tell ben", send_to=Identifier("peer", "ben"), text="{F} is fine again"
        ),
    }
    room.phrases = {"freezer": ("call duty",)}
    room.end_phrases = {"freezer": ("tell ben",)}
    return room


def sent(room):
    return [(each.peer, each.text) for each in room.adapters["mail"].sent]


async def closings(room):
    found = []
    for stored in await room.channels.channel("log").read_after(0, limit=10_000):
        if stored.event.type == "rapport.delivery.closed":
            data = stored.event.payload()
            found.append((data.get("peer", ""), data.get("result", ""), data.get("reason", "")))
    return found


def test_the_end_reaches_whom_its_actions_name_and_everybody_who_was_notified(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        assert sent(freezers) == [("ana", "f1 is too warm")]
        freezers.adapters["mail"].sent.clear()
        (end,) = await tell(freezers, detection(began=NOON, time=NOON + SECOND))
        assert sorted(sent(freezers)) == [("ana", "f1 is fine again"), ("ben", "f1 is fine again")]
        ledger = await freezers.ledger()
        began, *ends = sorted(ledger.messages(), key=lambda row: row.first)
        assert (began.state, began.result, began.reason) == (
            "closed",
            "ended",
            "the situation ended",
        )
        assert {row.conversation for row in ends} == {began.conversation}
        assert {row.detection for row in ends} == {end}

    asyncio.run(scenario())


def test_repeats_and_escalation_stop_and_only_those_who_were_asked_are_told(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        await tell(freezers, detection(began=NOON, time=NOON + SECOND))
        before = len(sent(freezers))
        await freezers.pass_time(10 * MINUTE)
        assert len(sent(freezers)) == before
        assert "lea" not in {peer for peer, _ in sent(freezers)}

    asyncio.run(scenario())


def test_somebody_reached_by_the_escalation_is_told_of_the_end_too(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        await freezers.pass_time(6 * MINUTE)
        freezers.adapters["mail"].sent.clear()
        await tell(freezers, detection(began=NOON, time=NOON + 6 * MINUTE))
        assert sorted(peer for peer, _ in sent(freezers)) == ["ana", "ben", "lea"]

    asyncio.run(scenario())


def test_a_pending_attempt_is_dropped_with_the_reason_and_that_person_is_not_told(freezers):
    async def scenario():
        freezers.adapters["mail"] = Scripted("mail", Failed("no server", retry=True))
        await freezers.start()
        await tell(freezers, detection())
        await tell(freezers, detection(began=NOON, time=NOON + SECOND, reason="policy deleted"))
        await freezers.pass_time(MINUTE)
        assert [peer for peer, _ in sent(freezers)] == ["ana", "ben"]
        reason = "the situation ended: policy deleted"
        assert ("ana", "", reason) in await closings(freezers)

    asyncio.run(scenario())


class SlowMail(Scripted):
    """Takes a message only after the end of the situation was handled."""

    def __init__(self, room):
        super().__init__("mail")
        self.room, self.slow = room, True

    async def send(self, delivery):
        self.sent.append(delivery)
        if self.slow:
            self.slow = False
            end = detection(began=NOON, time=NOON + SECOND).to_event(source="policy")
            await self.room.channels.channel("detections").append([end])
            await self.room.engine.settle()
        return Sent()


def test_somebody_whom_a_slow_medium_notifies_after_the_end_is_told_of_the_end(freezers):
    async def scenario():
        freezers.adapters["mail"] = SlowMail(freezers)
        await freezers.start()
        await tell(freezers, detection())
        assert sorted(sent(freezers)) == [
            ("ana", "f1 is fine again"),
            ("ana", "f1 is too warm"),
            ("ben", "f1 is fine again"),
        ]

    asyncio.run(scenario())


def test_everybody_of_a_group_that_was_notified_gets_the_end_once(freezers):
    async def scenario():
        for phrase in ("call duty", "tell ben"):
            action = freezers.actions[phrase]
            freezers.actions[phrase] = Action(
                phrase=phrase,
                send_to=Identifier("collective", "guards"),
                text=action.text,
                done_when="sent",
                reach="to-any",
            )
        await freezers.start()
        await tell(freezers, detection())
        told = sorted(peer for peer, _ in sent(freezers))
        freezers.adapters["mail"].sent.clear()
        await tell(freezers, detection(began=NOON, time=NOON + SECOND))
        ends = sorted(peer for peer, _ in sent(freezers))
        assert set(told) <= set(ends)
        assert len(ends) == len(set(ends))

    asyncio.run(scenario())


def test_the_end_of_a_beginning_that_was_too_old_is_recorded_and_told_to_nobody(freezers):
    async def scenario():
        await freezers.start()
        long_ago = NOON - 60 * MINUTE
        await tell(freezers, detection(time=long_ago), detection(began=long_ago))
        assert sent(freezers) == []
        reasons = {row.reason for row in (await freezers.ledger()).messages()}
        assert "not carried out: nothing was done when the situation began" in reasons

    asyncio.run(scenario())


def test_an_end_that_is_found_late_is_told_all_the_same_and_says_so(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        freezers.clock.set_ms(NOON + 2 * DAY)
        await tell(freezers, detection(began=NOON, time=NOON + MINUTE))
        texts = [text for _, text in sent(freezers) if "fine" in text]
        assert texts == ["LATE, for 2 Mar 2026, 12:01 UTC: f1 is fine again"] * 2

    asyncio.run(scenario())


def test_the_end_of_an_imported_history_changes_no_situation_of_now(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        ended = detection(began=NOON, time=NOON + SECOND)
        await tell(freezers, ended, **{HISTORY: "import"})
        (row, *_) = sorted((await freezers.ledger()).messages(), key=lambda row: row.first)
        assert row.state == "open"

    asyncio.run(scenario())


def test_an_acknowledgement_stops_the_repeats_and_the_end_is_still_told(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        said = Acknowledgement(
            policy="freezer", bindings=FREEZER, began=NOON, by="tom", time=NOON + SECOND
        )
        await freezers.channels.channel("detections").append([said.to_event(source="api")])
        await freezers.settle()
        await freezers.pass_time(10 * MINUTE)
        assert [peer for peer, _ in sent(freezers)] == ["ana"]
        assert ("", "done", "tom looks after it") in await closings(freezers)
        await tell(freezers, detection(began=NOON, time=NOON + 10 * MINUTE))
        assert [peer for peer, _ in sent(freezers)] == ["ana", "ben", "ana"]

    asyncio.run(scenario())


def test_a_situation_of_two_months_still_knows_whom_to_tell_and_is_forgotten_afterwards(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        message = (await freezers.ledger()).messages()[0].message
        await freezers.answer(message, "ana")
        await freezers.settle()
        for day in range(31, 62, 30):
            freezers.clock.set_ms(NOON + day * DAY)
            await freezers.settle()
        await tell(freezers, detection(began=NOON, time=NOON + 61 * DAY))
        assert [peer for peer, text in sent(freezers) if "fine" in text] == ["ben", "ana"]
        freezers.clock.set_ms(NOON + 200 * DAY)
        await freezers.settle()
        assert freezers.channels.records.find(SITUATIONS) == []

    asyncio.run(scenario())


def test_a_restart_between_beginning_and_end_changes_nothing(freezers):
    async def scenario():
        await freezers.start()
        await tell(freezers, detection())
        await freezers.restart()
        ended = detection(began=NOON, time=NOON + SECOND)
        await tell(freezers, ended)
        await freezers.restart()
        await tell(freezers, ended)
        assert sorted(peer for peer, _ in sent(freezers)) == ["ana", "ana", "ben"]

    asyncio.run(scenario())


class FailingDirectory(SiteDirectory):
    """Does not know the guards while it is down."""

    down = True

    def member_names(self, name, *, after="", limit=1000):
        if self.down:
            raise SourceUnavailable("no directory", code="people.directory_failed", hint="wait")
        return super().member_names(name, after=after, limit=limit)

    def policy_of(self, name):
        if self.down:
            raise SourceUnavailable("no directory", code="people.directory_failed", hint="wait")
        return super().policy_of(name)


def test_a_beginning_that_waited_for_the_directory_is_not_sent_after_its_end(freezers):
    async def scenario():
        freezers.actions["call duty"] = Action(
            phrase="call duty", send_to=Identifier("collective", "guards"), text="{F} is too warm"
        )
        guards = {"guards": Collective(name="guards", members=("ana",))}
        directory = freezers.directory = FailingDirectory(freezers.peers, guards)
        await freezers.start()
        await tell(freezers, detection())
        await tell(freezers, detection(began=NOON, time=NOON + SECOND))
        directory.down = False
        await freezers.pass_time(2 * MINUTE)
        assert sent(freezers) == [("ben", "f1 is fine again")]
        assert freezers.channels.records.find(SITUATIONS) == []

    asyncio.run(scenario())


def test_the_end_reaches_the_shift_of_the_end_and_the_one_that_was_notified(freezers):
    async def scenario():
        shifts = (
            Shift(person="ana", when=LocalTimes(hours=(DaySpan(0, 750),))),
            Shift(person="ben", when=LocalTimes(hours=(DaySpan(750, 1440),))),
        )
        freezers.collectives["guards"] = Collective(
            name="guards", members=("ana", "ben", "lea"), roster=Roster(shifts=shifts)
        )
        guards = Identifier("collective", "guards")
        freezers.actions = {
            "call duty": Action(phrase="call duty", send_to=guards, text="{F} is too warm"),
            "tell ben": Action(phrase="tell ben", send_to=guards, text="{F} is fine again"),
        }
        await freezers.start()
        await tell(freezers, detection())
        assert sent(freezers) == [("ana", "f1 is too warm")]
        freezers.adapters["mail"].sent.clear()
        end_ms = NOON + 60 * MINUTE
        freezers.clock.set_ms(end_ms)
        await tell(freezers, detection(began=NOON, time=end_ms))
        assert sorted(sent(freezers)) == [("ana", "f1 is fine again"), ("ben", "f1 is fine again")]

    asyncio.run(scenario())
