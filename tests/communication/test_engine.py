"""The walk of a detection to people and back, on channels in memory and a clock moved by hand."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.communication.actions import Action
from rapport.communication.adapters.attempts import OutcomeData
from rapport.communication.adapters.base import Failed
from rapport.communication.adapters.inbox import OpenPages, PageAdapter, PageSettings
from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.ledger_rows import summarise
from rapport.communication.peers import Peer
from rapport.communication.privacy import PrivacyRule, parse_hours, quiet_rule
from rapport.communication.texts import shown_time
from rapport.core.detection import Detection, still_lasts_event
from rapport.core.errors import StoreUnavailable
from rapport.core.event import make_event
from rapport.core.message import Identifier
from rapport.core.release import HISTORY, LATE, NOTIFY
from rapport.core.times import format_time, parse_time

SECOND = 1_000


class Page:
    """An open page that shows everything at once."""

    def __init__(self, pages):
        self.pages, self.taken = pages, []

    def take(self, delivery):
        self.taken.append(delivery)
        asyncio.get_running_loop().call_soon(self.pages.shown, delivery.peer, delivery.key)
        return True


def test_an_alarm_is_put_before_every_guard_and_the_first_answer_closes_it(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert message.text == "Guest 5 alone in r1"
        assert message.state == "open"
        assert {row.peer: row.state for row in ledger.rows()} == {"ana": "handed", "ben": "handed"}

        await room.answer(message.message, "ben")
        await room.settle()
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "done")
        assert (message.answered_by, message.answer) == ("ben", "on my way")

    asyncio.run(scenario())


def to_ana(room, *addresses, urgent=True, done_when="sent", **changes):
    """One alarm to ana alone, by the first address that works."""
    room.peers["ana"] = Peer(
        name="ana", addresses=addresses, delivery="preferred", fallback=True, **changes
    )
    room.actions["raise alarm"] = Action(
        phrase="raise alarm",
        send_to=Identifier("peer", "ana"),
        text="Guest {A} alone in {R}",
        urgent=urgent,
        done_when=done_when,
    )


def test_without_an_open_page_a_message_is_in_the_inbox_at_once(room):
    async def scenario():
        to_ana(room, "ws:", "inbox:")
        room.adapters["ws"] = PageAdapter(OpenPages(), PageSettings(), room.clock)
        await room.start()
        await room.detect()
        await room.settle()
        assert await room.states() == [
            ("queued", "ana", "ws"),
            ("failed", "ana", "ws"),
            ("queued", "ana", "inbox"),
            ("handed", "ana", "inbox"),
            ("closed", "ana", "ws"),
            ("closed", "", ""),
        ]
        (message,) = (await room.ledger()).messages()
        assert message.result == "done"

    asyncio.run(scenario())


def test_a_page_that_is_opened_after_the_fallback_is_still_shown_the_message(room, scripted):
    async def scenario():
        to_ana(room, "ws:", "mail:ana@example.org", done_when="answered")
        pages = OpenPages()
        page = Page(pages)
        room.adapters["ws"] = PageAdapter(pages, PageSettings(), room.clock)
        room.adapters["mail"] = scripted("mail")
        await room.start()
        await room.detect()
        await room.settle()
        (sent,) = room.adapters["mail"].sent
        assert [row.message for row in (await room.ledger()).inbox("ana")] == [sent.message]
        pages.enter("ana", page)
        await room.pass_time(2 * SECOND)
        assert [one.message for one in page.taken] == [sent.message]
        await room.answer(sent.message, "ana")
        await room.settle()
        assert (await room.ledger()).inbox("ana") == []

    asyncio.run(scenario())


def test_a_medium_that_is_down_is_left_after_thirty_seconds_also_across_a_restart(room, scripted):
    async def scenario():
        to_ana(room, "mail:ana@example.org", "inbox:")
        room.adapters["mail"] = scripted("mail", *[Failed("no server", retry=True)] * 9)
        room.retry = RetryPolicy(first_ms=20 * SECOND)
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(20 * SECOND)
        await room.restart()
        await room.pass_time(9 * SECOND)
        assert ("queued", "ana", "inbox") not in await room.states()
        await room.pass_time(1 * SECOND)
        assert (await room.states())[-3:] == [
            ("handed", "ana", "inbox"),
            ("closed", "ana", "mail"),
            ("closed", "", ""),
        ]

    asyncio.run(scenario())


def test_a_fallback_is_no_second_message_for_who_limits_their_number(room, scripted):
    async def scenario():
        limit = PrivacyRule(at_most=1, per_ms=3_600_000)
        to_ana(room, "mail:ana@example.org", "inbox:", urgent=False, privacy=(limit,))
        room.adapters["mail"] = scripted("mail", Failed("no such box", retry=False))
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        assert message.result == "done"

    asyncio.run(scenario())


def test_a_detection_is_acted_on_by_what_its_own_version_says(room):
    async def scenario():
        said = {"old": ("raise alarm",), "new": ("raise alarm", "wave")}
        room.phrases = lambda policy, version: said[version] if policy == "secure-building" else ()
        await room.start()
        now_ms = room.clock.now_ms()
        old = Detection(policy="secure-building", time=now_ms, bindings={}, causes=())
        for version in ("old", "new"):
            found = msgspec.structs.replace(old, version=version, bindings={"A": version, "R": "r"})
            await room.channels.channel("detections").append([found.to_event(source="policy")])
        await room.settle()
        ledger = await room.ledger()
        told = sorted(row.text for row in ledger.messages() if row.text)
        assert told == ["Guest new alone in r", "Guest old alone in r"]
        log = await room.channels.channel("log").read_after(0)
        assert sum(b"'wave'" in one.event.data for one in log) == 1

    asyncio.run(scenario())


def test_the_lead_is_asked_when_nobody_answers_for_sixty_seconds(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(59_000)
        assert not (await room.ledger()).inbox("lea")
        await room.pass_time(1_000)
        ledger = await room.ledger()
        (message,) = ledger.inbox("lea")
        assert message.state == "escalated"
        assert {row.peer for row in ledger.rows(state="timed_out")} == {"ana", "ben"}

    asyncio.run(scenario())


def test_the_lead_is_not_asked_when_a_guard_answered(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(30_000)
        (message,) = (await room.ledger()).inbox("ana")
        await room.answer(message.message, "ana")
        await room.pass_time(600_000)
        ledger = await room.ledger()
        assert not ledger.rows(peer="lea")
        assert not ledger.rows(state="timed_out")

    asyncio.run(scenario())


def test_a_forged_token_is_no_answer_and_is_written_down(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.channels.channel("control").append(
            [forged_answer(message.message, "ana"), forged_answer("no-such-message", "ana")]
        )
        await room.settle()
        (message,) = (await room.ledger()).messages()
        assert message.state == "open"
        assert not message.answered_by
        log = await room.channels.channel("log").read_after(0)
        refused = [s.event for s in log if s.event.type == "rapport.answer.refused"]
        assert len(refused) == 2
        assert all(b"forged-token" not in event.data for event in refused)

    asyncio.run(scenario())


def test_answering_twice_is_written_down_twice_and_decides_once(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.answer(message.message, "ana", "coming")
        await room.answer(message.message, "ana", "no, I am not")
        await room.answer(message.message, "ben", "me too")
        await room.settle()
        states = await room.states()
        assert [peer for state, peer, _ in states if state == "answered"] == ["ana", "ana", "ben"]
        assert [peer for state, peer, _ in states if state == "closed"] == [""]
        (message,) = (await room.ledger()).messages()
        assert (message.answered_by, message.answer) == ("ana", "coming")

    asyncio.run(scenario())


def test_an_answer_that_came_in_time_counts_even_when_it_is_read_after_the_deadline(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        room.clock.set_ms(room.clock.now_ms() + 55_000)
        await room.answer(message.message, "ana")
        room.clock.set_ms(room.clock.now_ms() + 15_000)
        await room.restart()
        await room.settle()
        assert not (await room.ledger()).rows(peer="lea")

    asyncio.run(scenario())


def test_an_answer_in_time_counts_where_a_channel_is_read_in_small_portions(room):
    """Fewer events than were asked for are not all there are."""

    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        room.clock.set_ms(room.clock.now_ms() + 55_000)
        await room.channels.channel("control").append(
            [forged_answer(message.message, peer) for peer in ("ben", "lea")]
        )
        await room.answer(message.message, "ana")
        room.clock.set_ms(room.clock.now_ms() + 15_000)
        control = room.channels.channel("control")
        read_after = control.read_after
        control.read_after = lambda position, limit: read_after(position, limit=1)
        await room.restart()
        await room.settle()
        assert not (await room.ledger()).rows(peer="lea")

    asyncio.run(scenario())


def test_a_message_that_may_wait_is_held_in_quiet_hours_and_sent_once_in_the_morning(new_room):
    async def scenario():
        room = new_room(now_ms=parse_time("2026-03-28T22:00:00Z"))  # the clock goes forward
        night = quiet_rule([parse_hours("22:00-07:00")], "Europe/Vienna")
        room.peers["ana"] = Peer(name="ana", addresses=("inbox:",), privacy=(night,))
        room.actions["note"] = Action(
            phrase="note", send_to=Identifier("peer", "ana"), text="{A} seen in {R}"
        )
        room.phrases = {"secure-building": ("note",)}
        await room.start()
        await room.detect()
        await room.settle()
        (row,) = (await room.ledger()).rows()
        assert (row.state, row.until) == ("held", parse_time("2026-03-29T05:00:00Z"))
        await room.restart()
        room.clock.set_ms(row.until - 1)
        await room.settle()
        assert [state for state, _, _ in await room.states()] == ["held"]
        room.clock.set_ms(row.until)
        await room.settle()
        room.clock.set_ms(row.until - 3_600_000)  # somebody sets the machine's clock back
        await room.settle()
        room.clock.set_ms(row.until + 3_600_000)
        await room.settle()
        states = [state for state, _, _ in await room.states()]
        assert states == ["held", "queued", "handed", "closed"]

    asyncio.run(scenario())


def test_an_urgent_alarm_breaks_through_quiet_hours(new_room):
    async def scenario():
        room = new_room(now_ms=parse_time("2026-03-28T23:30:00Z"))
        night = quiet_rule([parse_hours("22:00-07:00")], "Europe/Vienna")
        room.peers["ana"] = Peer(name="ana", addresses=("inbox:",), privacy=(night,))
        await room.start()
        await room.detect()
        await room.settle()
        assert (await room.ledger()).inbox("ana")

    asyncio.run(scenario())


def test_an_action_that_the_site_does_not_know_is_a_failure_in_the_ledger(room):
    async def scenario():
        room.phrases = {"secure-building": ("open doors", "raise alarm")}
        await room.start()
        await room.detect()
        await room.settle()
        unmapped, alarm = (await room.ledger()).messages()[::-1]
        assert unmapped.state == "failed"
        assert unmapped.reason.startswith("action.unmapped")
        assert alarm.state == "open"

    asyncio.run(scenario())


def test_events_of_other_types_are_passed_over_and_broken_ones_are_set_aside(room):
    async def scenario():
        await room.start()
        late = make_event(source="policy", id="x", type="rapport.policy.late", time=1, data={})
        broken = make_event(source="policy", id="y", type="rapport.policy.detected", time=1, data=7)
        await room.channels.channel("detections").append([late, broken])
        nonsense = make_event(source="z", id="z", type="rapport.control.outcome", time=1, data=[])
        await room.channels.channel("control").append([nonsense])
        await room.detect()
        await room.settle()
        letters = await room.channels.channel("dead_letters").read_after(0)
        buried = [stored.event.payload() for stored in letters]
        assert {letter["event"]["id"] for letter in buried} == {"y", "z"}
        assert {letter["code"] for letter in buried} == {"event.bad_data"}
        assert len((await room.ledger()).messages()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["m" * 300, "a\nb"], ids=["long", "unprintable"])
def test_an_outcome_of_what_can_be_no_message_is_set_aside_and_stops_nobody(room, name):
    async def scenario():
        await room.start()
        back = OutcomeData(message=name, peer="ana", address="inbox:", attempt=0, state="failed")
        event = make_event(source="z", id="z", type="rapport.control.outcome", time=1, data=back)
        await room.channels.channel("control").append([event])
        await room.settle()
        await room.restart()
        await room.detect()
        await room.settle()
        assert len(await room.channels.channel("dead_letters").read_after(0)) == 1
        assert len((await room.ledger()).messages()) == 1

    asyncio.run(scenario())


def test_a_detection_again_makes_no_second_message(room):
    async def scenario():
        await room.start()
        first = await room.detect()
        await room.settle()
        again = msgspec.structs.replace(first.to_event(source="another engine"))
        await room.channels.channel("detections").append([again])
        await room.settle()
        assert len((await room.ledger()).messages()) == 1
        assert [state for state, _, _ in await room.states()].count("queued") == 2

    asyncio.run(scenario())


def test_the_sender_is_notified_how_it_went(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        await room.pass_time(120_000)
        told = [
            stored.event
            for stored in await room.channels.channel("control").read_after(0)
            if stored.event.subject == "component:policy"
        ]
        assert [event.type for event in told] == ["rapport.control.timeout"]
        (message,) = (await room.ledger()).messages()
        assert told[0].payload()["refers_to"] == message.message

    asyncio.run(scenario())


def test_every_ledger_line_leads_back_to_the_detection(room):
    async def scenario():
        await room.start()
        detection = await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        ((_, stored),) = await room.channels.find_event(message.message)
        assert stored.event.causes() == (detection.id(),)
        for entry in await room.channels.channel("log").read_after(0):
            if entry.event.type.startswith("rapport.delivery."):
                assert entry.event.causes()[0] == message.message
                assert entry.event.payload()["detection"] == detection.id()

    asyncio.run(scenario())


def test_running_it_acts_on_what_comes_and_on_the_clock(room):
    async def scenario():
        await room.start()
        running = [asyncio.create_task(room.engine.run())]
        running += [asyncio.create_task(dispatch.run()) for dispatch in room.dispatches]
        try:
            await room.detect()
            await until_in_inbox(room, "ana")
            room.clock.set_ms(room.clock.now_ms() + 60_000)
            await until_in_inbox(room, "lea")
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(scenario())


async def until_in_inbox(room, peer):
    """Waits for work done in threads; fails after ten seconds."""
    log = room.channels.channel("log")
    async with asyncio.timeout(10):
        seen = log.last_position()
        while not (await room.ledger()).inbox(peer):
            await log.wait_after(seen)
            seen = log.last_position()


def forged_answer(message, peer):
    return make_event(
        source="answers",
        id=f"forged {message}",
        type="rapport.control.answer",
        time=1,
        data={"message": message, "peer": peer, "text": "fine", "token": "forged-token"},
    )


def test_a_closed_message_is_let_go_of_after_a_month_but_its_lines_stay(room):
    async def scenario():
        await room.start()
        await room.detect()
        await room.settle()
        (message,) = (await room.ledger()).messages()
        await room.answer(message.message, "ana")
        await room.settle()
        lines = await room.states()
        records = room.channels.records
        room.clock.set_ms(room.clock.now_ms() + 29 * 86_400_000)
        await room.settle()
        assert records.get("communication.messages", message.message)
        room.clock.set_ms(room.clock.now_ms() + 2 * 86_400_000)
        await room.settle()
        for table in ("messages", "members", "letters", "due", "chores"):
            assert not records.find(f"communication.{table}"), table
        assert await room.states() == lines

    asyncio.run(scenario())


def test_a_store_that_refuses_for_a_while_delays_but_loses_nothing(room):
    async def scenario():
        await room.start()
        await room.detect()
        records = room.channels.records
        apply = records.apply

        def refuse(changes):
            raise StoreUnavailable("the disk is full")

        records.apply = refuse
        with pytest.raises(StoreUnavailable):
            await room.engine.settle()
        assert await room.states() == []
        records.apply = apply
        await room.engine.open()  # what `run` does when it is started again
        await room.settle()
        assert [state for state, _, _ in await room.states()].count("handed") == 2

    asyncio.run(scenario())


def test_a_case_that_cannot_be_read_does_not_hold_up_the_others(room):
    async def scenario():
        await room.start()
        await room.detect(guest="5", event="e1")
        await room.detect(guest="6", event="e2")
        await room.settle()
        broken = (await room.ledger()).messages()[0].message
        records = room.channels.records
        kept = records.get("communication.messages", broken)
        records.put("communication.messages", broken, b"not a case")
        await room.pass_time(60_000)
        assert len((await room.ledger()).inbox("lea")) == 1
        records.put("communication.messages", broken, kept)
        await room.pass_time(60_000)
        assert len((await room.ledger()).inbox("lea")) == 1, "the other one was closed by then"
        assert [peer for state, peer, _ in await room.states() if state == "queued"].count(
            "lea"
        ) == 2

    asyncio.run(scenario())


def test_what_could_not_be_appended_is_appended_before_anything_else_is_done(room):
    async def scenario():
        room.direct = True
        await room.start()
        await room.detect()
        channel = room.channels.channel
        fails = [True]

        def broken(name):
            if name.startswith("output.") and fails:
                raise StoreUnavailable("the disk is full")
            return channel(name)

        room.channels.channel = broken
        with pytest.raises(StoreUnavailable):
            await room.engine.settle()
        fails.clear()
        other = OutcomeData(message="x", peer="y", address="z", attempt=1, state="handed")
        await room.engine.apply_outcomes([other])  # a commit of its own, and an outbox
        await room.settle()
        assert [state for state, _, _ in await room.states()].count("handed") == 2

    asyncio.run(scenario())


async def _found(room, *, age_ms: int, **headers: str) -> None:
    now_ms = room.clock.now_ms()
    found = Detection(
        policy="secure-building",
        time=now_ms - age_ms,
        bindings={"A": "5", "R": "r1"},
        causes=((now_ms - age_ms, "e1"),),
    ).to_event(source="policy")
    marked = msgspec.structs.replace(found, headers={**found.headers, **headers})
    await room.channels.channel("detections").append([marked])
    await room.settle()


def test_actions_of_a_detection_older_than_the_limit_are_recorded_and_not_carried_out(room):
    async def scenario():
        await room.start()
        await _found(room, age_ms=3 * 3_600_000 + 60_000)
        ledger = await room.ledger()
        (message,) = ledger.messages()
        assert (message.state, message.result) == ("closed", "skipped")
        (row,) = ledger.rows()
        assert (row.peer, row.state) == ("collective:guards", "skipped")
        when = format_time(room.clock.now_ms() - 3 * 3_600_000 - 60_000)
        assert row.reason == f"not carried out: detected for {when}, 3 h 1 min ago, limit 10min"
        assert message.reason == row.reason
        assert summarise(ledger.rows()).sentence() == "0 told, 0 answered, 1 not carried out"
        assert not ledger.inbox("ana")
        await room.pass_time(120_000)
        assert not (await room.ledger()).inbox("lea")

    asyncio.run(scenario())


def test_a_detection_just_within_the_limit_is_acted_on(room):
    async def scenario():
        await room.start()
        await _found(room, age_ms=600_000)
        assert (await room.ledger()).inbox("ana")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "is_told"),
    [
        ({HISTORY: "true"}, False),
        ({HISTORY: "true", LATE: "true", NOTIFY: "true"}, True),
        ({LATE: "true", NOTIFY: "true"}, True),
        ({LATE: "true"}, False),
    ],
    ids=["imported", "imported to notify", "released by an operator", "carried late"],
)
def test_only_who_asks_for_it_wakes_people_for_the_past(room, headers, is_told):
    async def scenario():
        await room.start()
        await _found(room, age_ms=86_400_000, **headers)
        ledger = await room.ledger()
        assert bool(ledger.inbox("ana")) == is_told
        reasons = [row.reason for row in ledger.rows(state="skipped")]
        assert bool(reasons) != is_told
        assert all("found in imported history" in one for one in reasons) or LATE in headers

    asyncio.run(scenario())


def test_a_state_that_is_still_true_after_an_outage_is_reported_now(room):
    async def scenario():
        await room.start()
        await _found(room, age_ms=3 * 3_600_000)
        (skipped,) = (await room.ledger()).messages()
        (stored,) = await room.channels.channel("detections").read_after(0)
        still = still_lasts_event(Detection.from_event(stored.event), source="policy")
        await room.channels.channel("detections").append([still])
        await room.settle()
        ledger = await room.ledger()
        (told,) = ledger.inbox("ana")
        assert told.message != skipped.message
        assert told.text.startswith(f"LATE, for {shown_time(stored.event.time)}: Guest 5")

    asyncio.run(scenario())
