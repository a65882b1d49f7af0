"""Each share sees its events, each once, in order; and lets go of what is others'. [CO-17]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.log.logged_channel import reader_positions
from rapport.communication.adapters.attempts import outcome_data, outcome_event
from rapport.communication.adapters.base import Delivery, Sent
from rapport.communication.adapters.mail_replies import Bounce, bounce_event
from rapport.communication.answers import ANSWER
from rapport.communication.cluster_channels import (
    PAGE,
    WHERE,
    ShareChannels,
    SharedReader,
    ShareRecords,
    assign_share,
    is_divided,
    with_share,
)
from rapport.communication.cluster_leases import LEASES, HeldShare, Lease, share_name, share_of
from rapport.communication.dead_letter_replay import PartialChannels
from rapport.core.event import Event, make_event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from rapport.store.base import GuardFailed

COUNT = 4
APP = Identifier("component", "app")


class Parts:
    """Channels in common, and each share's view of them."""

    def __init__(self):
        self.channels = open_memory(ManualClock())
        self.records = self.channels.records
        self.reading = SharedReader(self.channels, self.records, COUNT)

    def view(self, number):
        held = HeldShare(number, Lease("me", 1), lambda: 1_000)
        self.records.put(LEASES, held.name, held.guard.expected)
        return ShareChannels(self.reading, ShareRecords(self.records, held), held)

    async def send(self, first, count):
        events = [message(f"m{number}", f"p{number % 7}") for number in range(first, first + count)]
        await self.channels.channel("input").append(events)


def message(name, peer, **more):
    to = Identifier("peer", peer)
    said = Message(type="TASK", subtype="REQUEST", sender=APP, id=name, receiver=to, **more)
    return said.to_event(source="application", time=1)


async def read_all(channel, position, limit):
    found = []
    while batch := await channel.read_after(position, limit=limit):
        found += batch
        position = batch[-1].position
    return found


@pytest.mark.parametrize("limit", [1, 10, 3 * PAGE])
def test_all_shares_together_see_everything_once_and_in_order(limit):
    async def scenario():
        parts = Parts()
        views = [parts.view(number).channel("input") for number in range(COUNT)]
        await parts.send(0, 2 * PAGE + 20)
        found = [await read_all(view, 0, limit) for view in views]
        await parts.send(2 * PAGE + 20, 30)
        for view, seen in zip(views, found, strict=True):
            seen += await read_all(view, seen[-1].position if seen else 0, limit)
            places = [stored.position for stored in seen]
            assert places == sorted(set(places))
        whole = await read_all(parts.channels.channel("input"), 0, 1_000)
        together = sorted((s for seen in found for s in seen), key=lambda s: s.position)
        assert together == whole
        assert len(whole) == 2 * PAGE + 50

    asyncio.run(scenario())


def test_one_that_read_nothing_waits_for_what_comes_and_is_not_woken_by_what_was():
    async def scenario():
        parts = Parts()
        idle = parts.view(share_of("peer:p1", COUNT)).channel("input")
        other = next(
            f"q{n}" for n in range(99) if share_of(f"peer:q{n}", COUNT) != idle._held.number
        )
        await parts.channels.channel("input").append([message("a", other), message("b", other)])
        assert await idle.read_after(0) == []
        waiting = asyncio.ensure_future(idle.wait_after(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await parts.channels.channel("input").append([message("c", "p1")])
        assert await waiting
        assert [stored.event.id for stored in await idle.read_after(0)] == ["c"]

    asyncio.run(scenario())


def test_the_place_moves_over_others_events_only_when_all_of_ours_is_done(monkeypatch):
    monkeypatch.setattr("rapport.communication.cluster_channels._MOVE_ON", 10)

    async def scenario():
        parts = Parts()
        ours = share_of("peer:p1", COUNT)
        view = parts.view(ours)
        place = await view.subscribe("input", "communication")
        reader = f"communication.{share_name(ours)}"
        assert reader_positions(parts.records, "input") == {reader: 0}
        channel = view.channel("input")
        other = next(f"q{n}" for n in range(99) if share_of(f"peer:q{n}", COUNT) != ours)
        many = [message(f"x{n}", other) for n in range(20)]
        await parts.channels.channel("input").append([message("a", "p1"), *many])
        (first,) = await channel.read_after(0)
        assert await channel.read_after(first.position) == []
        assert place.position == 0
        await place.commit(first.position)
        assert await channel.read_after(first.position) == []
        assert place.position == 21
        again = await view.subscribe("input", "communication")
        assert again.position == 21

    asyncio.run(scenario())


def test_a_share_that_was_lost_moves_no_place():
    async def scenario():
        parts = Parts()
        view = parts.view(1)
        place = await view.subscribe("input", "communication")
        await parts.send(0, 5)
        parts.records.put(LEASES, share_name(1), b"another's")
        with pytest.raises(GuardFailed):
            await place.commit(3)
        assert place.position == 0

    asyncio.run(scenario())


def test_answers_go_where_the_case_is_and_outcomes_where_the_delivery_says():
    async def scenario():
        parts = Parts()
        parts.records.put(WHERE, "m1", b"003")
        data = {"message": "m1", "peer": "ana"}
        answer = make_event(source="answers", id="a1", type=ANSWER, time=1, data=data)
        assert await parts.reading.share_of("control", answer) == 3
        other = make_event(
            source="answers", id="a2", type=ANSWER, time=1, data={"message": "m2", "peer": "ana"}
        )
        assert await parts.reading.share_of("control", other) == share_of("peer:ana", COUNT)
        ana, app = Identifier("peer", "ana"), Identifier("component", "app")
        said = Message(type="TASK", subtype="REPLY", sender=ana, id="r1", receiver=app)
        reply = msgspec.structs.replace(said, refers_to="m1").to_event(source="application", time=1)
        assert await parts.reading.share_of("input", reply) == 3
        more = message("r2", "ana", refers_to="m1")
        assert await parts.reading.share_of("input", more) == share_of("peer:ana", COUNT)

    asyncio.run(scenario())
    delivery = Delivery(message="m1", peer="ana", address="mail:a", attempt=1, text="x")
    event = with_share(delivery.to_event(), "002")
    assert Delivery.from_event(event).share == "002"
    assert assign_share("output.mail", event, COUNT).share == share_of("peer:ana", COUNT)
    outcome = outcome_event(outcome_data(Delivery.from_event(event), Sent(), 7), now_ms=1)
    assert assign_share("control", outcome, COUNT).share == 2


def test_what_cannot_be_read_and_what_policies_detect_have_a_share_too():
    broken = Event("s", "e1", "rapport.message", "", 1, b"[1", {})
    assert assign_share("input", broken, COUNT).share == share_of("e1", COUNT)
    assert assign_share("detections", broken, COUNT).share == COUNT
    assert assign_share("output.mail", broken, COUNT).share == share_of("e1", COUNT)
    assert is_divided("output.mail")
    assert not is_divided("log")


def test_what_a_medium_gives_back_goes_with_the_case_of_its_message():
    """A notice that a mail came back does not know of shares."""

    async def scenario():
        parts = Parts()
        ours = share_of("peer:ana", COUNT)
        elsewhere = (ours + 1) % COUNT
        parts.records.put(WHERE, "m1", share_name(elsewhere).encode())
        for message, share in (("m1", elsewhere), ("m2", ours)):
            named = {"message": message, "peer": "ana", "recipient": "ana@example.org"}
            mail = Bounce(id="b1", key="k", reason="no such mailbox", **named)
            event = bounce_event(mail, "mail:ana@example.org", now_ms=1)
            assert await parts.reading.share_of("control", event) == share

    asyncio.run(scenario())


def test_a_dead_letter_goes_back_to_the_share_of_its_event():
    async def scenario():
        parts = Parts()
        await parts.send(0, 1)
        (stored,) = await parts.channels.channel("input").read_after(0)
        views = [parts.view(number) for number in range(COUNT)]
        assert all(isinstance(view, PartialChannels) for view in views)
        ours = [await view.is_ours("input", stored) for view in views]
        assert ours.count(True) == 1
        assert [await view.is_ours("input", None) for view in views].count(True) == 1

    asyncio.run(scenario())
