"""Many at once: batches, marks in groups, what is dropped, and what a killed process leaves."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.attempts import (
    DeliveryMark,
    EndMark,
    MarkBatch,
    MarkRecords,
    StartMark,
)
from rapport.communication.adapters.base import Delivery, Failed, Sent
from rapport.communication.adapters.dispatch import (
    Dispatch,
    DispatchSettings,
    PeerQueues,
    PendingDelivery,
)
from rapport.core.errors import Corrupt
from rapport.kernel.clock import Chance, ManualClock, SystemClock
from rapport.store.memory import MemoryRecordStore
from support.adapters import FaltersAdapter, GatedAdapter, ManyAdapter

NOW = 1_772_452_800_000


def delivery(peer: str, number: int, name: str = "many", **changes: object) -> Delivery:
    return Delivery(
        message=f"m{number}",
        peer=peer,
        address=f"{name}:{peer}",
        attempt=1,
        text="x",
        **changes,
    )


class Desk:
    """Channels in memory and dispatches over them; a new one is what a fresh process makes."""

    def __init__(self, clock=None):
        self.clock = clock or ManualClock(NOW)
        self.channels = open_memory(self.clock)

    def dispatch(self, adapter, *, report=None, is_decided=None, **changes):
        handed_in = {"is_decided": is_decided} if is_decided else {}
        return Dispatch(
            adapter,
            self.channels,
            self.channels.records,
            self.clock,
            settings=DispatchSettings(**changes),
            report=report,
            **handed_in,
        )

    async def put(self, *deliveries):
        channel = f"output.{deliveries[0].address.partition(':')[0]}"
        await self.channels.channel(channel).append([d.to_event() for d in deliveries])

    async def outcomes(self):
        stored = await self.channels.channel("control").read_after(0, limit=100_000)
        return [entry.event.payload() for entry in stored]

    async def settle(self, adapter, **changes):
        dispatch = self.dispatch(adapter, **changes)
        await dispatch.open()
        await dispatch.settle()
        return dispatch


def test_what_waits_goes_out_in_few_calls_and_every_delivery_has_its_outcome():
    async def scenario():
        desk = Desk()
        await desk.put(*(delivery(f"p{n % 7}", n) for n in range(2_500)))
        adapter = ManyAdapter()
        await desk.settle(adapter, batch=1_000)
        assert sum(len(call) for call in adapter.calls) == 2_500
        assert len(adapter.calls) <= 5
        outcomes = await desk.outcomes()
        assert {o["message"] for o in outcomes} == {f"m{n}" for n in range(2_500)}
        assert len(outcomes) == 2_500

    asyncio.run(scenario())


def test_an_adapter_that_keeps_no_order_gets_one_delivery_of_a_peer_per_call():
    async def scenario():
        desk = Desk()
        await desk.put(*(delivery(f"p{n % 3}", n) for n in range(30)))
        adapter = ManyAdapter(keeps_order=False)
        await desk.settle(adapter)
        for call in adapter.calls:
            assert len({d.peer for d in call}) == len(call)
        for peer in ("p0", "p1", "p2"):
            got = [int(d.message[1:]) for call in adapter.calls for d in call if d.peer == peer]
            assert got == sorted(got)

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [[], [Sent()] * 3, [1, 2]])
def test_a_batch_adapter_that_answers_nonsense_fails_what_it_was_given(answer):
    class Strange(ManyAdapter):
        async def send_many(self, deliveries):
            return answer

    async def scenario():
        desk = Desk()
        await desk.put(delivery("a", 1), delivery("b", 2))
        await desk.settle(Strange())
        assert [(o["state"], o["retry"]) for o in await desk.outcomes()] == [("failed", True)] * 2

    asyncio.run(scenario())


def test_what_was_decided_meanwhile_is_not_sent_but_reported_as_dropped():
    async def scenario():
        desk = Desk()
        await desk.put(delivery("a", 1), delivery("b", 2), delivery("a", 3))
        adapter = ManyAdapter()
        await desk.settle(adapter, is_decided=lambda message, _peer: message == "m2")
        assert [d.message for call in adapter.calls for d in call] == ["m1", "m3"]
        states = {o["message"]: o["state"] for o in await desk.outcomes()}
        assert states == {"m1": "handed", "m2": "dropped", "m3": "handed"}

    asyncio.run(scenario())


def test_outcomes_can_be_handed_over_directly_and_plain_ones_bring_their_delivery():
    async def scenario():
        desk, told = Desk(), []

        async def report(outcomes):
            told.append(list(outcomes))

        plain = delivery("a", 2, plain=True, sender="component:x")
        await desk.put(delivery("a", 1), plain)
        await desk.settle(ManyAdapter(), report=report)
        (one, two) = [data for group in told for data in group]
        assert one.delivery is None
        assert two.delivery == plain
        assert await desk.outcomes() == []

    asyncio.run(scenario())


def test_five_thousand_deliveries_cost_a_handful_of_writes_of_marks():
    class Counting(MemoryRecordStore):
        writes = 0

        def apply(self, changes):
            Counting.writes += 1
            super().apply(changes)

    async def scenario():
        desk = Desk()
        records = Counting()
        dispatch = Dispatch(
            ManyAdapter(), desk.channels, records, desk.clock, settings=DispatchSettings()
        )
        await desk.put(*(delivery(f"p{n % 7}", n) for n in range(5_000)))
        await dispatch.open()
        Counting.writes = 0
        await dispatch.settle()
        assert Counting.writes <= 7
        assert len(records.find("communication.sending")) <= 5, "the rest goes with the next"

    asyncio.run(scenario())


def test_a_repeatable_adapter_leaves_no_marks_and_is_just_sent_again_after_a_kill():
    async def scenario():
        desk = Desk()
        await desk.put(delivery("a", 1))
        killed, adapter = asyncio.Event(), ManyAdapter(repeatable=True)

        async def die(_outcomes):
            killed.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(desk.dispatch(adapter, report=die).run())
        await killed.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert desk.channels.records.find("communication.sending") == []
        await desk.settle(adapter)
        assert len(adapter.calls) == 2
        assert adapter.calls[0][0].key == adapter.calls[1][0].key
        assert [o["state"] for o in await desk.outcomes()] == ["handed"]

    asyncio.run(scenario())


def test_an_outcome_that_was_marked_but_not_reported_is_reported_and_nothing_is_sent_again():
    async def scenario():
        desk = Desk()
        await desk.put(delivery("a", 1), delivery("b", 2))
        killed, adapter = asyncio.Event(), ManyAdapter()

        async def die(_outcomes):
            killed.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(desk.dispatch(adapter, report=die).run())
        await killed.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await desk.settle(adapter)
        assert len(adapter.calls) == 1
        assert [(o["message"], o["state"]) for o in await desk.outcomes()] == [
            ("m1", "handed"),
            ("m2", "handed"),
        ]

    asyncio.run(scenario())


def test_a_delivery_during_which_the_process_always_dies_is_given_up():
    async def scenario():
        desk = Desk()
        await desk.put(delivery("a", 1, "mail"))
        for starts in range(1, 11):
            adapter = GatedAdapter()
            running = asyncio.create_task(desk.dispatch(adapter).run())
            await adapter.has_begun(1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            unknown = [o for o in await desk.outcomes() if o["state"] == "unknown"]
            assert len(unknown) == starts - 1
        adapter = GatedAdapter()
        await desk.settle(adapter)
        assert adapter.begun == []
        assert (await desk.outcomes())[-1]["reason"].startswith("the node stopped 10 times")

    asyncio.run(scenario())


def test_what_was_being_sent_at_a_kill_is_unknown_even_if_nobody_needs_it_any_more():
    async def scenario():
        desk, adapter = Desk(), GatedAdapter()
        await desk.put(delivery("a", 1, "mail", expires=NOW + 1_000), delivery("b", 2, "mail"))
        running = asyncio.create_task(desk.dispatch(adapter).run())
        await adapter.has_begun(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        desk.clock.set_ms(NOW + 2_000)
        await desk.settle(adapter, is_decided=lambda message, _peer: message == "m2")
        told = {(o["message"], o["state"]) for o in await desk.outcomes()}
        assert told == {
            ("m1", "unknown"),
            ("m1", "failed"),
            ("m2", "unknown"),
            ("m2", "dropped"),
        }
        assert len(adapter.begun) == 2

    asyncio.run(scenario())


def test_large_deliveries_are_read_few_at_a_time():
    async def scenario():
        desk = Desk()
        adapter = GatedAdapter()
        for one in big_ones(range(40)):
            await desk.put(one)
        dispatch = desk.dispatch(adapter, workers=1_000)
        running = asyncio.create_task(dispatch.run())
        await adapter.has_begun(40)
        await desk.put(*big_ones(range(40, 160)))
        await adapter.has_begun(64)
        await asyncio.sleep(0.02)
        assert len(adapter.begun) == 64, "the first read tells how large they are"
        for number in range(160):
            adapter.gate(f"p{number}").set()
        await desk.channels.channel("control").wait_after(159)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_workers_come_with_the_load_and_go_with_it():
    async def scenario():
        desk, adapter = Desk(), GatedAdapter()
        dispatch = desk.dispatch(adapter, workers=8)
        running = asyncio.create_task(dispatch.run())
        await desk.put(*(delivery(f"p{n}", n, "mail") for n in range(3)))
        await adapter.has_begun(3)
        assert dispatch.workers == 3
        await desk.put(*(delivery(f"p{n}", n, "mail") for n in range(3, 30)))
        await adapter.has_begun(8)
        assert dispatch.workers == 8
        for n in range(30):
            adapter.gate(f"p{n}").set()
        await desk.channels.channel("control").wait_after(29)
        await asyncio.sleep(0)
        assert dispatch.workers == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_draining_lets_everything_out_and_ends_the_run():
    async def scenario():
        desk, adapter = Desk(), GatedAdapter()
        dispatch = desk.dispatch(adapter, workers=2)
        running = asyncio.create_task(dispatch.run())
        await desk.put(*(delivery(f"p{n}", n, "mail") for n in range(9)))
        await adapter.has_begun(2)
        draining = asyncio.create_task(dispatch.drain())
        for n in range(9):
            adapter.gate(f"p{n}").set()
        async with asyncio.timeout(10):
            await asyncio.gather(draining, running)
        assert len(adapter.ended) == 9
        assert len(await desk.outcomes()) == 9

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_order_per_peer_holds_whatever_the_medium_does_and_nothing_is_lost(seed):
    async def scenario():
        chance, desk = Chance(seed), Desk(SystemClock())
        adapter = FaltersAdapter("mail", desk.clock, chance, Failed("no", retry=True))
        total = chance.randint(1, 150)
        peers = [f"p{n}" for n in range(chance.randint(1, 12))]
        dispatch = desk.dispatch(
            adapter, workers=chance.randint(1, 20), in_flight=chance.randint(1, 40)
        )
        running = asyncio.create_task(dispatch.run())
        sent = [delivery(chance.choice(peers), n, "mail") for n in range(total)]
        for start in range(0, total, 20):
            await desk.put(*sent[start : start + 20])
        async with asyncio.timeout(20):
            await dispatch.drain()
            await running
        outcomes = await desk.outcomes()
        refused = {one["message"] for one in outcomes if "circuit open" in one.get("reason", "")}
        for peer in peers:
            numbers = [int(d.message[1:]) for d in adapter.arrived if d.peer == peer]
            theirs = [d.message for d in sent if d.peer == peer and d.message not in refused]
            assert numbers == [int(message[1:]) for message in theirs]
        assert len(outcomes) == total

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_nothing_is_lost_and_every_repetition_is_reported(seed):
    async def scenario():
        chance, desk = Chance(seed), Desk(SystemClock())
        adapter = FaltersAdapter("mail", desk.clock, chance)
        await desk.put(*(delivery(f"p{n % 5}", n, "mail") for n in range(60)))
        for _ in range(6):
            running = asyncio.create_task(desk.dispatch(adapter).run())
            await asyncio.sleep(chance.random() / 100)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await desk.settle(adapter)
        outcomes = await desk.outcomes()
        ended = [o["message"] for o in outcomes if o["state"] != "unknown"]
        assert sorted(ended) == sorted({f"m{n}" for n in range(60)})
        unknown = len(outcomes) - len(ended)
        assert len(adapter.arrived) - 60 <= unknown

    asyncio.run(scenario())


def big_ones(numbers):
    return [
        Delivery(message=f"m{n}", peer=f"p{n}", address=f"mail:p{n}", attempt=1, text="x" * 900_000)
        for n in numbers
    ]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 4)),
            st.tuples(st.just("take"), st.integers(1, 5)),
            st.tuples(st.just("done"), st.integers(0, 9)),
            st.tuples(st.just("suspect"), st.integers(0, 4)),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_lanes_never_give_out_a_peer_twice_and_keep_its_order(steps, one_each):
    suspects: set[str] = set()
    lanes, out = PeerQueues(suspects), []
    waiting: dict[str, list[int]] = {}
    position = 0
    for what, number in steps:
        if what == "put":
            position += 1
            lanes.put([PendingDelivery(position, delivery(f"p{number}", position))])
            waiting.setdefault(f"p{number}", []).append(position)
        elif what == "suspect":
            suspects ^= {f"p{number}"}
        elif what == "take":
            taken = lanes.take(number, one_each=one_each)
            busy = {entry.delivery.peer for group in out for entry in group}
            ready = [peer for peer, queue in waiting.items() if queue and peer not in busy]
            assert bool(taken) == bool(ready)
            assert len(taken) <= number
            for entry in taken:
                assert entry.delivery.peer not in busy
                assert waiting[entry.delivery.peer].pop(0) == entry.position
            if one_each:
                assert len({entry.delivery.peer for entry in taken}) == len(taken)
            if taken:
                out.append(taken)
        elif out:
            lanes.done(out.pop(number % len(out)))
    assert bool(lanes) == bool(out or any(waiting.values()))


def test_marks_remember_starts_and_outcomes_and_forget_what_was_committed():
    records = MemoryRecordStore()
    marks = MarkRecords("mail", records)
    assert marks.load(0) == {}
    marks.note(MarkBatch([StartMark(2, 3)], first=[1]), 0)
    marks.note(MarkBatch([], [EndMark(1, "handed", "ok", False)], first=[3]), 0)
    fresh = MarkRecords("mail", records)
    assert fresh.load(0) == {
        1: DeliveryMark(1, EndMark(1, "handed", "ok", False)),
        2: DeliveryMark(3),
        3: DeliveryMark(1),
    }
    assert MarkRecords("mai", records).load(0) == {}
    assert fresh.load(2) == {3: DeliveryMark(1)}
    assert len(records.find("communication.sending")) == 1
    fresh.note(MarkBatch(), 3)
    assert records.find("communication.sending") == []


def test_marks_of_what_the_medium_just_took_and_of_an_earlier_form_are_read():
    records = MemoryRecordStore()
    marks = MarkRecords("mail", records)
    marks.note(MarkBatch(handed=[4, 5]), 0)
    earlier = [[[1, 2]], [[3, "failed", "no", True]]]
    records.put("communication.sending", "mail/00000000000000000007", msgpack.encode(earlier))
    assert MarkRecords("mail", records).load(0) == {
        1: DeliveryMark(2),
        3: DeliveryMark(1, EndMark(3, "failed", "no", True)),
        4: DeliveryMark(1, EndMark(4, "handed", "", False)),
        5: DeliveryMark(1, EndMark(5, "handed", "", False)),
    }


def test_a_mark_of_another_version_is_refused_with_its_name():
    records = MemoryRecordStore()
    records.put("communication.sending", "mail/00000000000000000001", b"\xc1")
    with pytest.raises(Corrupt) as caught:
        MarkRecords("mail", records).load(0)
    assert caught.value.code == "adapter.bad_mark"
    assert caught.value.hint
