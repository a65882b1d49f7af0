"""From `output.<adapter>` to the medium and back: order, deadlines, and what a restart does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Delivery, Sent
from rapport.communication.adapters.dispatch import Dispatch, DispatchSettings
from rapport.communication.adapters.isolation import SendTimeout
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.testing.suites.adapter import make_delivery
from support.adapters import GatedAdapter, ScriptedAdapter

NOW = 1_772_452_800_000


class Office:
    """Channels in memory, a clock moved by hand, and a dispatch on top."""

    def __init__(self, adapter=None, *, handed_in=None, **settings):
        self.handed_in = handed_in or {}
        self.clock = ManualClock(NOW)
        self.channels = open_memory(self.clock)
        self.adapter = adapter or GatedAdapter()
        self.settings = settings

    def dispatch(self):
        return Dispatch(
            self.adapter,
            self.channels,
            self.channels.records,
            self.clock,
            settings=DispatchSettings(**self.settings),
            **self.handed_in,
        )

    async def put(self, *deliveries):
        await self.channels.channel("output.mail").append([d.to_event() for d in deliveries])

    async def outcomes(self):
        stored = await self.channels.channel("control").read_after(0)
        return [entry.event.payload() for entry in stored]

    @asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.dispatch().run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_outcomes(self, count):
        """Returns when that many outcomes are in `control`; positions count from 1."""
        async with asyncio.timeout(10):
            await self.channels.channel("control").wait_after(count - 1)

    async def until_committed(self, position):
        """Returns when the place has moved on, which comes after the outcome."""
        async with asyncio.timeout(10):
            while (await self.place()) < position:
                await SystemClock().sleep(1)

    async def place(self):
        return (await self.channels.subscribe("output.mail", "adapter.mail")).position


def mail_to(peer, number=1, **changes):
    return make_delivery(f"mail:{peer}@example.org", peer=peer, message=f"m{number}", **changes)


class HangingAdapter:
    """Never answers for some peers, and at once for the others."""

    name = "mail"

    def __init__(self, *hanging):
        self.hanging, self.called, self.sent = set(hanging), [], asyncio.Event()

    async def send(self, delivery):
        self.called.append(delivery.peer)
        if delivery.peer in self.hanging:
            await asyncio.Event().wait()
        self.sent.set()
        return Sent()

    async def close(self):
        """Nothing to let go of."""


async def turn_until(condition):
    """Lets the event loop turn until something is so; the clock of the test stands still."""
    async with asyncio.timeout(10):
        while not condition():
            await SystemClock().sleep(1)


def test_a_hundred_peers_who_hang_delay_a_good_one_by_seconds_not_by_their_deadlines():
    async def scenario():
        names = [f"p{n}" for n in range(100)]
        adapter = HangingAdapter(*names)
        office = Office(adapter)
        async with office.running():
            await office.put(*(mail_to(name) for name in names), mail_to("ana"))
            for half_seconds in range(8):
                await turn_until(
                    lambda seen=half_seconds: len(adapter.called) >= min(16 * (seen + 1), 100)
                )
                if adapter.sent.is_set():
                    break
                await office.clock.advance(500)
            await asyncio.wait_for(adapter.sent.wait(), 10)
        assert office.clock.now_ms() - NOW <= 3_500

    asyncio.run(scenario())


def test_peers_who_hung_before_delay_nobody_at_all():
    async def scenario():
        names = [f"p{n}" for n in range(100)]
        adapter = HangingAdapter(*names)
        office = Office(adapter, workers=4)
        dispatch = office.dispatch()
        for name in names * 2:
            outcome = SendTimeout("no answer", retry=True)
            dispatch.breakers.note(mail_to(name), outcome, NOW - 10_000, timed_out=True)
        running = asyncio.create_task(dispatch.run())
        await office.put(*(mail_to(name) for name in names), mail_to("ana"))
        await asyncio.wait_for(adapter.sent.wait(), 10)
        assert len(adapter.called) <= 3, "two of the four workers may probe"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_peer_who_hung_is_left_alone_probed_and_served_again():
    async def scenario():
        adapter = HangingAdapter("ana")
        office = Office(adapter, deadline_ms=1_000)
        dispatch = office.dispatch()
        running = asyncio.create_task(dispatch.run())
        await office.put(*(mail_to("ana", n) for n in (1, 2, 3, 4)))
        for calls in (1, 2):
            await turn_until(lambda calls=calls: len(adapter.called) == calls)
            await office.clock.advance(1_000)
        await office.until_outcomes(4)
        first, second, *others = await office.outcomes()
        assert [first["message"], second["message"]] == ["m1", "m2"]
        assert first["reason"] == second["reason"] == "no answer within 1s"
        assert "unavailable" not in first
        assert [one["message"] for one in others] == ["m3", "m4"]
        assert all(one["unavailable"] and "circuit open" in one["reason"] for one in others)
        (circuit,) = dispatch.breakers.status(office.clock.now_ms())
        assert (circuit.peer, circuit.state) == ("ana", "open")
        await office.clock.advance(10_000)
        assert dispatch.breakers.status(office.clock.now_ms())[0].state == "half-open"
        adapter.hanging.clear()
        await office.put(mail_to("ana", 5), mail_to("ana", 6))
        await office.until_outcomes(6)
        assert [one["state"] for one in await office.outcomes()][4:] == ["handed", "handed"]
        assert dispatch.breakers.status(office.clock.now_ms()) == []
        assert adapter.called == ["ana"] * 4, "what was refused did not reach the medium"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_one_worker_never_makes_a_second_call_beside_a_slow_one():
    async def scenario():
        adapter = HangingAdapter("ana")
        office = Office(adapter, workers=1)
        async with office.running():
            await office.put(mail_to("ana"), mail_to("ben"))
            await turn_until(lambda: adapter.called)
            await office.clock.advance(14_000)
            assert adapter.called == ["ana"]
            await office.clock.advance(1_000)
            await asyncio.wait_for(adapter.sent.wait(), 10)

    asyncio.run(scenario())


def test_what_waits_behind_a_call_that_hangs_keeps_nobody_else_from_being_read():
    async def scenario():
        adapter = HangingAdapter("ana")
        office = Office(adapter, in_flight=10)
        async with office.running():
            await office.put(*(mail_to("ana", n) for n in range(20)), mail_to("ben"))
            await turn_until(lambda: adapter.called)
            await office.clock.advance(500)
            await asyncio.wait_for(adapter.sent.wait(), 10)

    asyncio.run(scenario())


def test_a_call_that_hangs_keeps_later_deliveries_from_being_read_only_far_ahead():
    async def scenario():
        adapter = HangingAdapter("ana")
        office = Office(adapter, in_flight=10)
        async with office.running():
            await office.put(mail_to("ana"), *(mail_to(f"p{n}") for n in range(35)))
            await office.until_outcomes(35)

    asyncio.run(scenario())


def test_messages_of_one_peer_stay_in_order_while_peers_are_served_side_by_side():
    async def scenario():
        office = Office()
        await office.put(*(mail_to(peer, n) for n in range(5) for peer in ("ana", "ben")))
        office.adapter.gate("ana").set()
        office.adapter.gate("ben").set()
        async with office.running():
            await office.until_outcomes(10)
        for peer in ("ana", "ben"):
            messages = [d.message for d in office.adapter.ended if d.peer == peer]
            assert messages == [f"m{n}" for n in range(5)]

    asyncio.run(scenario())


def test_a_peer_whose_server_hangs_does_not_hold_up_the_others_and_is_cut_off():
    async def scenario():
        office = Office(deadline_ms=15_000)
        office.adapter.gate("ben").set()
        await office.put(mail_to("ana", 1), mail_to("ana", 2), mail_to("ben", 3))
        async with office.running():
            await office.until_outcomes(1)
            (outcome,) = await office.outcomes()
            assert (outcome["peer"], outcome["state"]) == ("ben", "handed")
            await office.clock.advance(15_000)
            await office.until_outcomes(2)
            outcome = (await office.outcomes())[1]
            assert (outcome["peer"], outcome["state"]) == ("ana", "failed")
            assert outcome["retry"] is True
            assert outcome["reason"] == "no answer within 15s"

    asyncio.run(scenario())


def test_no_more_than_the_allowed_number_are_sent_at_once():
    async def scenario():
        office = Office(workers=3)
        peers = [f"p{n}" for n in range(10)]
        await office.put(*(mail_to(peer) for peer in peers))
        async with office.running():
            await office.adapter.has_begun(3)
            for peer in peers:
                office.adapter.gate(peer).set()
            await office.until_outcomes(10)
        assert office.adapter.most_at_once == 3

    asyncio.run(scenario())


def test_no_more_than_the_allowed_number_are_read_ahead():
    async def scenario():
        office = Office(in_flight=100, workers=1_000)
        await office.put(*(mail_to(f"p{n}") for n in range(250)))
        async with office.running():
            await office.adapter.has_begun(100)
            await asyncio.sleep(0.02)
            assert len(office.adapter.begun) == 100
            for n in range(250):
                office.adapter.gate(f"p{n}").set()
            await office.until_outcomes(250)

    asyncio.run(scenario())


def test_an_adapter_that_raises_is_a_failure_worth_a_retry():
    async def scenario():
        office = Office(ScriptedAdapter("mail", RuntimeError("secret detail")))
        dispatch = office.dispatch()
        await dispatch.open()
        await office.put(mail_to("ana", 1), mail_to("ana", 2))
        await dispatch.settle()
        first, second = await office.outcomes()
        assert (first["state"], first["retry"]) == ("failed", True)
        assert "secret detail" not in first["reason"]
        assert second["state"] == "handed"

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_an_adapter_that_cancels_itself_harms_only_its_delivery(waits):
    class Quitter(ScriptedAdapter):
        async def send(self, delivery):
            if waits:
                await asyncio.sleep(0.001)
            raise asyncio.CancelledError

    async def scenario():
        office = Office(Quitter("mail"))
        dispatch = office.dispatch()
        await dispatch.open()
        await office.put(mail_to("ana", 1), mail_to("ana", 2))
        await dispatch.settle()
        outcomes = await office.outcomes()
        assert [(o["state"], o["retry"]) for o in outcomes] == [("failed", True)] * 2

    asyncio.run(scenario())


def test_what_nobody_needs_any_more_is_not_sent():
    async def scenario():
        office = Office(ScriptedAdapter("mail"))
        dispatch = office.dispatch()
        await dispatch.open()
        late = Delivery(
            message="m", peer="ana", address="mail:a@b", attempt=1, text="x", expires=NOW
        )
        await office.put(late)
        await dispatch.settle()
        assert office.adapter.sent == []
        (outcome,) = await office.outcomes()
        assert (outcome["state"], outcome.get("retry", False)) == ("failed", False)

    asyncio.run(scenario())


def test_an_event_that_is_no_delivery_is_set_aside():
    async def scenario():
        office = Office(ScriptedAdapter("mail"))
        dispatch = office.dispatch()
        await dispatch.open()
        odd = make_event(source="x", id="odd", type="x", time=1, data=[1])
        await office.channels.channel("output.mail").append([odd])
        await office.put(mail_to("ana"))
        await dispatch.settle()
        (letter,) = await office.channels.channel("dead_letters").read_after(0)
        assert letter.event.payload()["event"]["id"] == "odd"
        assert len(office.adapter.sent) == 1

    asyncio.run(scenario())


def test_a_stop_in_the_middle_sends_again_only_what_had_no_outcome():
    async def scenario():
        office = Office()
        office.adapter.gate("ben").set()
        await office.put(mail_to("ana", 1), mail_to("ben", 2), mail_to("ben", 3))
        async with office.running():
            await office.until_outcomes(2)
        office.adapter.gate("ana").set()
        async with office.running():
            await office.until_outcomes(4)
            await office.until_committed(3)
        assert [d.peer for d in office.adapter.begun].count("ben") == 2
        states = [(o["peer"], o["state"]) for o in await office.outcomes()]
        assert states[2:] == [("ana", "unknown"), ("ana", "handed")]

    asyncio.run(scenario())


def test_outcomes_and_ledger_never_show_what_an_address_hides():
    async def scenario():
        office = Office(ScriptedAdapter("mail"))
        dispatch = office.dispatch()
        await dispatch.open()
        await office.put(make_delivery("mail:https://user:pass@example.org/x?key=hidden"))
        await dispatch.settle()
        (stored,) = await office.channels.channel("control").read_after(0)
        assert b"hidden" not in stored.event.data
        assert b"pass" not in stored.event.data

    asyncio.run(scenario())
