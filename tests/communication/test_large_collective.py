"""A collective of a hundred thousand: begun in slices, memory bounded, cost linear. [CO-8]"""

from __future__ import annotations

import asyncio
import tracemalloc

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import pages_of
from rapport.channel.log.logged_channel import DecodedBlocks
from rapport.communication.adapters.attempts import OutcomeData
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import DeliveryOptions, NextReceiver, with_options
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import Collective, Peer
from rapport.communication.privacy import DaySpan, PrivacyRule, quiet_rule
from rapport.communication.records import SLICE
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from rapport.store.base import Put

NOON = 1_772_452_800_000
TOWN = Identifier("collective", "town")


class Crowd:
    """A directory that makes its people up as they are asked for, as a roster service would."""

    def __init__(self, count: int, privacy: tuple[PrivacyRule, ...] = ()) -> None:
        self.count, self.privacy = count, privacy
        self.gone: set[str] = set()
        self.asked = 0

    def peer(self, name: str) -> Peer | None:
        return Peer(name=name, addresses=(f"inbox:{name}",), privacy=self.privacy)

    def collective(self, name: str) -> Collective | None:
        return Collective(name=name, members=(), delivery="to-all-members")

    policy_of = collective

    policy_of = collective

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        self.asked += 1
        first = int(after[1:]) + 1 if after else 0
        numbers = range(first, min(first + limit, self.count))
        return [each for each in (f"p{number:07d}" for number in numbers) if each not in self.gone]


def make_engine(channels, clock, crowd):
    return CommunicationEngine(
        channels,
        channels.records,
        clock,
        EngineParts(directory=crowd, actions={}, phrases={}, adapters=("inbox",)),
    )


async def send(channels, options=None, **fields):
    message = Message(
        type="ALARM",
        subtype="FLOOD",
        sender=Identifier("component", "app"),
        **{"id": "m1", "content": "water is rising", "receiver": TOWN} | fields,
    )
    event = message.to_event(source="test", time=NOON)
    event = msgspec.structs.replace(event, headers={"proof": "application"})
    await channels.channel("input").append([with_options(event, options) if options else event])


async def told_of(channels):
    """How many were queued, and how many lines the ledger has by state."""
    states: dict[str, int] = {}
    position = 0
    while batch := await channels.channel("log").read_after(position, limit=5_000):
        for stored in batch:
            state = stored.event.type.rpartition(".")[2]
            states[state] = states.get(state, 0) + 1
        position = batch[-1].position
    return states


async def reach(directory, count):
    """Sends to that many; returns the peak of memory and the steps it took."""
    clock = ManualClock(NOON)
    channels = open_embedded(directory, clock, dedupe_window=1_000)
    engine = make_engine(channels, clock, Crowd(count))
    await engine.open()
    await send(channels)
    tracemalloc.start()
    steps = await engine.settle()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert channels.channel("output.inbox").last_position() == count
    await channels.close()
    print(f"{count} members: {peak / 1e6:.1f} MB at most, {steps} steps")
    return peak, steps


def test_the_first_deliveries_are_out_after_the_first_slice(tmp_path):
    async def scenario():
        clock = ManualClock(NOON)
        channels = open_embedded(tmp_path, clock)
        crowd = Crowd(3_500)
        engine = make_engine(channels, clock, crowd)
        await engine.open()
        await send(channels)
        await engine.step()
        first = channels.channel("output.inbox").last_position()
        assert SLICE <= first <= 2 * SLICE
        crowd.gone.add("p0003499")  # who leaves now is still told
        crowd.count = 9_000  # who joins now is not
        engine = make_engine(channels, clock, crowd)  # and a kill changes nothing about it
        await engine.open()
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == 3_500
        assert (await told_of(channels))["queued"] == 3_500
        assert not channels.records.find("communication.chores")
        assert not channels.records.find("communication.spreads")
        await channels.close()

    asyncio.run(scenario())


LONG, MOST_AT_ONCE = 1_000_000, 100_000_000


@pytest.mark.parametrize("way", ["begun", "held", "in_a_row"])
def test_long_messages_to_many_become_no_record_that_no_store_can_keep(way):
    """Written in one piece, what a long message to a thousand people leads to stops the engine for
    good: no record of SQLite or PostgreSQL has a gigabyte.
    """

    async def scenario():
        clock = ManualClock(NOON)
        channels = open_memory(clock)
        largest, given = [0], channels.records.apply

        def apply(changes):
            sizes = [len(change.value) for change in changes if isinstance(change, Put)]
            largest[0] = max([*largest, *sizes])
            given(changes)

        channels.records.apply = apply
        night = quiet_rule([DaySpan(12 * 60, 13 * 60)])
        members, messages = (15, 10) if way == "in_a_row" else (150, 1)
        crowd = Crowd(members, privacy=(night,) if way == "held" else ())
        engine = make_engine(channels, clock, crowd)
        await engine.open()
        for number in range(messages):
            await send(channels, id=f"m{number}", content="x" * LONG)
        await engine.settle()
        clock.set_ms(NOON + 3_600_000)
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == 150
        assert (await told_of(channels))["queued"] == 150
        assert largest[0] < MOST_AT_ONCE

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("count", "length", "batches"),
    [
        pytest.param(60, LONG, [15] * 4, id="long"),
        pytest.param(4_000, 1, [15, 2_000, 1_985], id="short"),
    ],
)
def test_what_is_read_at_once_is_bounded_from_the_first_batch_after_a_start_on(
    count, length, batches
):
    """And short messages are read in full batches from the second one on."""

    async def scenario():
        clock = ManualClock(NOON)
        channels = open_memory(clock)
        for number in range(count):
            to = Identifier("peer", "p1")
            await send(channels, id=f"m{number}", receiver=to, content="x" * length)
        source, sizes = channels.channel("input"), []
        given = source.read_after

        async def read_after(position, *, limit):
            batch = await given(position, limit=limit)
            sizes.append(len(batch))
            return batch

        source.read_after = read_after
        engine = make_engine(channels, clock, Crowd(1))
        await engine.settle()
        assert [size for size in sizes if size] == batches
        assert channels.channel("output.inbox").last_position() == count

    asyncio.run(scenario())


def test_an_answer_that_came_in_time_counts_behind_long_messages():
    """What was received before a timer is due is taken before it, also in several pieces."""

    async def scenario():
        clock = ManualClock(NOON)
        channels = open_memory(clock)
        engine = make_engine(channels, clock, Crowd(3))
        await engine.open()
        await send(
            channels, DeliveryOptions(done_when="answered", reach="to-any", answer_within=60_000)
        )
        await engine.settle()
        clock.set_ms(NOON + 59_000)
        for number in range(60):
            await send(channels, id=f"long{number}", content="x" * LONG)
        reply = Message(
            type="ALARM",
            subtype="REPLY",
            sender=Identifier("peer", "p0000000"),
            id="reply",
            refers_to="m1",
            content="on my way",
        )
        event = reply.to_event(source="test", time=clock.now_ms())
        event = msgspec.structs.replace(event, headers={"proof": "session"})
        await channels.channel("input").append([event])
        clock.set_ms(NOON + 61_000)
        await engine.settle()
        results = [
            data.get("result", "")
            async for page in pages_of(channels.channel("log"), 0, limit=5_000)
            for stored in page
            if stored.event.subject == "m1"
            and (data := stored.event.payload())
            and stored.event.type == "rapport.delivery.closed"
        ]
        assert results == ["done"]

    asyncio.run(scenario())


def test_an_answer_before_everybody_was_asked_stops_the_asking(tmp_path):
    async def scenario():
        clock = ManualClock(NOON)
        channels = open_embedded(tmp_path, clock)
        engine = make_engine(channels, clock, Crowd(5_000))
        await engine.open()
        await send(channels, DeliveryOptions(reach="to-any", done_when="answered"))
        await engine.step()
        reply = Message(
            type="ALARM",
            subtype="REPLY",
            sender=Identifier("peer", "p0000007"),
            id="r1",
            refers_to="m1",
        ).to_event(source="test", time=NOON)
        reply = msgspec.structs.replace(reply, headers={"proof": "session"})
        await channels.channel("input").append([reply])
        await engine.settle()
        states = await told_of(channels)
        assert states["closed"] == 1
        assert states["queued"] <= 3 * SLICE
        assert engine.is_decided("m1")
        assert not channels.records.find("communication.chores")
        assert not channels.records.find("communication.spreads")
        await channels.close()

    asyncio.run(scenario())


def test_every_outcome_touches_one_member_and_the_last_one_closes_it(tmp_path):
    async def scenario():
        clock = ManualClock(NOON)
        channels = open_embedded(tmp_path, clock)
        engine = make_engine(channels, clock, Crowd(2_500))
        await engine.open()
        await send(channels)
        await engine.settle()
        outcomes = handed(range(2_500))
        await engine.apply_outcomes(outcomes[:-1])
        assert "closed" not in await told_of(channels)
        await engine.apply_outcomes(outcomes[-2:])
        states = await told_of(channels)
        assert (states["handed"], states["closed"]) == (2_500, 1)
        await channels.close()

    asyncio.run(scenario())


# --- what cannot be begun ---


async def begun_in_part(channels, options=None, *, crowd=None, count=2_500):
    """An engine that has begun the first slice of a message to many."""
    engine = make_engine(channels, ManualClock(NOON), crowd or Crowd(count))
    await engine.open()
    await send(channels, options)
    with pytest.MonkeyPatch.context() as waiting:
        waiting.setattr(engine._batches, "run_job", lambda: None)
        await engine.step()
    assert channels.channel("output.inbox").last_position() == SLICE
    return engine


def break_page(channels):
    key, _ = channels.records.find("communication.spreads")[0]
    channels.records.put("communication.spreads", key, b"no names")


async def told_to_sender(channels):
    found = [stored.event for stored in await channels.channel("control").read_after(0)]
    return [(event.type.rpartition(".")[2], event.payload()["reason"]) for event in found]


async def closing_of(channels, state="closed"):
    """Result and reason of each line of a state that is about the whole message."""
    found = [stored.event for stored in await channels.channel("log").read_after(0, limit=10_000)]
    lines = [event.payload() for event in found if event.type == f"rapport.delivery.{state}"]
    whole = [line for line in lines if "peer" not in line]
    return [(line.get("result", ""), line.get("reason", "")) for line in whole]


def handed(numbers):
    return [
        OutcomeData(
            message="m1",
            peer=f"p{number:07d}",
            address=f"inbox:p{number:07d}",
            attempt=1,
            state="handed",
        )
        for number in numbers
    ]


WHY = "not everybody of collective:town could be asked: "


class BrokenCrowd(Crowd):
    """A directory that breaks at one name, though not for being out of reach."""

    def peer(self, name: str) -> Peer | None:
        if name == "p0001700":
            raise RuntimeError("no such column")
        return super().peer(name)


@pytest.mark.parametrize("fault", ["page", "directory"])
def test_a_message_of_which_not_everybody_can_be_begun_fails_and_its_sender_hears_why(fault):
    async def scenario():
        channels = open_memory(ManualClock(NOON))
        crowd = (BrokenCrowd if fault == "directory" else Crowd)(2_500)
        engine = await begun_in_part(channels, crowd=crowd)
        if fault == "page":
            break_page(channels)
        await engine.settle()
        ((subtype, reason),) = await told_to_sender(channels)
        said = "RuntimeError" if fault == "directory" else "communication.spreads cannot be read"
        assert (subtype, reason.startswith(WHY), said in reason) == ("comerror", True, True)
        assert await closing_of(channels) == [], "those who were begun are still told"
        assert not channels.records.find("communication.chores")
        assert not channels.records.find("communication.spreads")

        await engine.apply_outcomes(handed(range(SLICE)))
        assert await closing_of(channels) == [("failed", reason)]
        assert await told_to_sender(channels) == [(subtype, reason)]

    asyncio.run(scenario())


def test_whoever_was_begun_is_enough_where_not_everybody_has_to_be_reached():
    async def scenario():
        channels = open_memory(ManualClock(NOON))
        engine = await begun_in_part(channels, DeliveryOptions(reach="to-any"))
        break_page(channels)
        await engine.settle()
        assert await told_to_sender(channels) == []
        ((_, reason),) = await closing_of(channels, "failed")
        assert "communication.spreads cannot be read" in reason
        await engine.apply_outcomes(handed([7]))
        assert await closing_of(channels) == [("done", "")]
        assert [subtype for subtype, _ in await told_to_sender(channels)] == ["ack"]

    asyncio.run(scenario())


def test_the_next_receiver_is_asked_when_not_everybody_can_be_begun():
    async def scenario():
        channels = open_memory(ManualClock(NOON))
        lead = NextReceiver("peer:lead")
        engine = await begun_in_part(
            channels, DeliveryOptions(done_when="answered", escalate=(lead,))
        )
        break_page(channels)
        await engine.settle()
        queued = await channels.channel("output.inbox").read_after(SLICE)
        assert [stored.event.payload()["peer"] for stored in queued] == ["lead"]
        ((_, reason),) = await closing_of(channels, "escalated")
        assert reason.startswith(WHY)

    asyncio.run(scenario())


def test_what_is_left_to_do_rests_while_its_message_cannot_be_read_and_holds_up_no_other():
    async def scenario():
        channels = open_memory(ManualClock(NOON))
        engine = await begun_in_part(channels)
        kept = channels.records.get("communication.messages", "m1")
        channels.records.put("communication.messages", "m1", b"not a case")
        await engine.settle()
        await send(channels, id="m2")
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == SLICE + 2_500
        assert len(channels.records.find("communication.chores")) == 1, "nothing is forgotten"

        channels.records.put("communication.messages", "m1", kept)  # somebody mended it
        await engine.open()
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == 5_000
        assert not channels.records.find("communication.chores")

    asyncio.run(scenario())


def test_a_chore_that_cannot_be_read_holds_up_no_other_and_nothing_else():
    async def scenario():
        channels = open_memory(ManualClock(NOON))
        engine = await begun_in_part(channels)
        ((key, kept),) = channels.records.find("communication.chores")
        channels.records.put("communication.chores", key, b"not a chore")
        await send(channels, id="m2")
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == SLICE + 2_500

        channels.records.put("communication.chores", key, kept)  # somebody mended it
        await engine.open()
        await engine.settle()
        assert channels.channel("output.inbox").last_position() == 5_000

    asyncio.run(scenario())


def test_many_who_are_held_over_night_are_asked_in_slices_or_given_up_in_slices(tmp_path):
    async def scenario():
        clock = ManualClock(NOON)
        channels = open_embedded(tmp_path, clock)
        night = quiet_rule([DaySpan(11 * 60, 13 * 60)])
        engine = make_engine(channels, clock, Crowd(2_500, (night,)))
        await engine.open()
        await send(channels, ttl=2 * 3_600_000)
        await engine.settle()
        assert (await told_of(channels))["held"] == 2_500
        clock.set_ms(NOON + 3_600_000)
        await engine.step()
        assert channels.channel("output.inbox").last_position() == SLICE
        clock.set_ms(NOON + 7_200_000)
        await engine.settle()
        states = await told_of(channels)
        assert states["closed"] == 1 + 2_500 - states["queued"]
        assert states["timed_out"] == states["queued"]
        assert not [key for key, _ in channels.records.find("communication.due") if "p00" in key]
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("few", "many"),
    [
        pytest.param(3_000, 30_000, marks=pytest.mark.slow),
        pytest.param(10_000, 100_000, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_memory_does_not_grow_with_the_collective_and_the_work_grows_with_it_alone(
    tmp_path, monkeypatch, few, many
):
    # The channels' own caches are bounded, but not yet full at the smaller number.
    monkeypatch.setattr(DecodedBlocks.__init__, "__defaults__", (1_000_000,))
    small, few_steps = asyncio.run(reach(tmp_path / "small", few))
    large, many_steps = asyncio.run(reach(tmp_path / "large", many))
    assert large < small + 16_000_000
    assert many_steps <= many // SLICE + 5
    assert few_steps <= few // SLICE + 5
