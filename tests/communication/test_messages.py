"""Algorithm 2.2: what becomes of messages of `input`, whoever sent them. [CO-2, CO-7, CO-12]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rapport.communication.adapters.attempts import OutcomeData, outcome_event
from rapport.communication.adapters.base import Failed
from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    DeliveryOptions,
    NextReceiver,
    with_options,
)
from rapport.communication.message_plan import plan_message
from rapport.communication.message_query import MessageQueries
from rapport.communication.peers import Collective, Peer
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.message import Identifier, Message

ANA, BEN, LEA = (Identifier("peer", name) for name in ("ana", "ben", "lea"))
GUARDS, APP = Identifier("collective", "guards"), Identifier("component", "app")


def task(receiver=None, **fields):
    given = {"type": "TASK", "subtype": "REQUEST", "sender": APP, "content": "look"} | fields
    return Message(receiver=receiver, **given)


async def put(room, message, *, proof="application", id="m1", options=None):
    """Appends a message to `input` as the way in does."""
    named = msgspec.structs.replace(message, id=message.id or id)
    event = named.to_event(source="test", time=room.clock.now_ms())
    event = msgspec.structs.replace(event, headers={"proof": proof, "adapter": "test"})
    if options is not None:
        event = with_options(event, options)
    await room.channels.channel("input").append([event])
    return named.id


async def read(room, channel):
    return [stored.event for stored in await room.channels.channel(channel).read_after(0)]


async def logged(room, id="m1"):
    """The message's own event in `log`."""
    (event,) = [e for e in await read(room, "log") if e.type == "rapport.message" and e.id == id]
    return event


async def lines(room, id="m1"):
    """State, peer and result of the ledger lines of a message."""
    found = []
    for event in await read(room, "log"):
        if event.type.startswith("rapport.delivery.") and event.subject == id:
            data = event.payload()
            state = event.type.removeprefix("rapport.delivery.")
            found.append((state, data.get("peer", ""), data.get("result", "")))
    return found


# --- pure ---


@pytest.mark.parametrize(
    ("receiver", "routed", "fate", "tracked", "others", "notify"),
    [
        (ANA, (), "queued", ANA, (), False),
        (GUARDS, (), "queued", GUARDS, (), False),
        (APP, (), "notified", None, (), True),
        (None, (), "no_receiver", None, (), True),
        (None, (ANA,), "queued", None, (ANA,), False),
        (None, (APP,), "notified", None, (), True),
        (ANA, (BEN, GUARDS), "queued", ANA, (BEN, GUARDS), False),
        (ANA, (ANA, BEN, BEN), "queued", ANA, (BEN,), False),
        (APP, (ANA,), "queued", None, (ANA,), True),
        (ANA, (APP,), "queued", ANA, (), True),
    ],
)
def test_only_a_receiver_that_was_set_is_tracked(receiver, routed, fate, tracked, others, notify):
    handled = plan_message(task(receiver), routed)
    assert (handled.fate, handled.tracked, handled.routed) == (fate, tracked, others)
    assert handled.notify == notify


@pytest.mark.parametrize(("type", "channel"), [("AUTH", "auth"), ("MESSAGEINFO", "info")])
def test_requests_to_services_go_to_their_channels(type, channel):
    assert plan_message(task(ANA, type=type), (BEN,)).forward == channel
    assert plan_message(task(ANA, type=type, subtype="REPLY")).forward == ""


# --- in the engine ---


def test_a_message_to_a_peer_goes_out_and_is_logged_with_its_fate(room):
    async def scenario():
        await room.start()
        await put(room, task(ANA))
        await room.settle()
        event = await logged(room)
        assert event.payload()["fate"] == "queued"
        assert event.payload()["receivers"] == ["peer:ana"]
        assert await lines(room) == [("handed", "ana", "done")]
        (told,) = [e for e in await read(room, "control") if e.type == "rapport.control.ack"]
        assert (told.subject, told.payload()["refers_to"]) == ("component:app", "m1")

    asyncio.run(scenario())


def test_a_message_to_a_collective_is_tracked(room):
    async def scenario():
        await room.start()
        await put(room, task(GUARDS))
        await room.settle()
        assert [line for line in await lines(room) if line[0] != "queued"] == [
            ("handed", "ana", ""),
            ("closed", "", "done"),
            ("handed", "ben", ""),
        ]

    asyncio.run(scenario())


def test_an_unknown_receiver_and_an_empty_collective_fail_at_once_and_leave_no_record(room):
    async def scenario():
        room.collectives["none"] = Collective(name="none", members=())
        await room.start()
        await put(room, task(Identifier("peer", "nobody")), id="m1")
        await put(room, task(Identifier("collective", "none")), id="m2")
        await put(room, task(Identifier("collective", "unheard-of")), id="m3")
        await room.settle()
        for id in ("m1", "m2", "m3"):
            assert (await logged(room, id)).payload()["fate"] == "failed"
            assert (await lines(room, id))[-1] == ("closed", "", "failed")
        told = [e.type for e in await read(room, "control")]
        assert told == ["rapport.control.comerror"] * 3
        for table in ("messages", "members", "letters", "due", "chores", "spreads"):
            assert not room.channels.records.find(f"communication.{table}"), table

    asyncio.run(scenario())


def test_a_peer_is_sent_what_became_of_its_message_and_that_causes_nothing_more(room):
    async def scenario():
        room.peers["eve"] = Peer(name="eve", addresses=())
        await room.start()
        lost = task(Identifier("peer", "eve"), sender=ANA)
        await put(room, lost, proof="session")
        await room.settle()
        (mine,) = [e for e in await read(room, "output.inbox")]
        data = mine.payload()
        assert (data["peer"], data["type"], data["subtype"]) == ("ana", "CONTROL", "COMERROR")
        assert data["refers-to"] == "m1"
        await put(room, lost, proof="session", id="m2")
        room.peers["ana"] = Peer(name="ana", addresses=())  # now even that cannot be delivered
        await room.restart()
        await room.settle()
        told = [e for e in await read(room, "control") if e.type.endswith("comerror")]
        assert [e.payload()["refers_to"] for e in told] == ["m1", "m2"], "not about the CONTROL"
        assert (await lines(room, "m2.told.comerror"))[-1] == ("closed", "", "failed")

    asyncio.run(scenario())


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_nobody_is_notified_where_no_callback_is_registered(room, heard, plain):
    async def scenario():
        await room.start()
        told = []
        if heard:
            room.engine.add_notification(told.append)
        await put(room, task(APP, refers_to="" if plain else "m0"))
        await room.settle()
        fate = (await logged(room, "m1")).payload()["fate"]
        assert fate == ("notified" if heard else "no_receiver")
        assert [message.id for message in told] == (["m1"] if heard else [])

    asyncio.run(scenario())


def test_a_callback_with_a_name_is_still_notified_of_what_came_while_it_was_away(room):
    async def scenario():
        await room.start()
        room.engine.add_notification(lambda _message: None, "app")
        await room.settle()
        await room.restart()
        await put(room, task(APP))
        await room.settle()
        assert (await logged(room, "m1")).payload()["fate"] == "notified"
        told = []
        room.engine.add_notification(told.append, "app")
        await room.settle()
        assert [message.id for message in told] == ["m1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("ttl", [0, 60_000], ids=["fast path", "record"])
def test_queries_find_every_message_of_type_control_to_a_component(room, scripted, ttl):
    async def scenario():
        room.adapters["mail"] = scripted("mail", Failed("no such box", retry=False))
        room.peers["ben"] = Peer(name="ben", addresses=("mail:ben@example.org",))
        await room.start()
        await put(room, task(ANA, id="good", ttl=ttl))
        await put(room, task(ANA, id="silent", ttl=ttl, delivery_policy="unreliable"))
        await put(room, task(BEN, id="bad", ttl=ttl))
        await put(
            room, task(ANA, id="late", ttl=60_000), options=DeliveryOptions(done_when="answered")
        )
        await room.settle()
        await room.pass_time(61_000)
        queries = MessageQueries(room.channels, room.clock)
        found = [one async for one in queries.create_query(type="CONTROL")]
        assert sorted((one.message.subtype, one.message.refers_to) for one in found) == [
            ("ACK", "good"),
            ("COMERROR", "bad"),
            ("TIMEOUT", "late"),
        ]
        (failed,) = [one async for one in queries.create_query(refers_to="bad")]
        assert failed.message.content == "peer:ben could not be reached: no such box"
        assert (failed.fate, str(failed.message.receiver)) == ("no_receiver", str(APP))
        assert {row.message for row in (await room.ledger()).messages()} == {
            *("good", "silent", "bad", "late")
        }

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["acknowledged", "unreliable"])
@pytest.mark.parametrize("ttl", [0, 60_000], ids=["plain", "case"])
def test_the_sender_is_notified_when_the_medium_gives_back_what_it_took(
    room, scripted, policy, ttl
):
    async def scenario():
        room.adapters["mail"] = scripted("mail")
        room.peers["ana"] = Peer(name="ana", addresses=("mail:ana@example.org",))
        await room.start()
        await put(room, task(ANA, ttl=ttl, delivery_policy=policy))
        await room.settle()
        await room.restart()  # nothing is remembered
        came_back = OutcomeData(
            message="m1",
            peer="ana",
            address="mail:ana@example.org",
            attempt=LATEST_ATTEMPT,
            state="failed",
            reason="no such mailbox",
        )
        for number in range(2):  # servers say it more than once
            event = outcome_event(came_back, now_ms=room.clock.now_ms())
            event = msgspec.structs.replace(event, id=f"bounce{number}")
            await room.channels.channel("control").append([event])
            await room.settle()
        told = [e for e in await read(room, "control") if "outcome" not in e.type]
        acks = ["rapport.control.ack"] if policy == "acknowledged" else []
        assert [e.type for e in told] == [*acks, "rapport.control.error"]
        assert (told[-1].subject, told[-1].payload()["reason"]) == (str(APP), "no such mailbox")
        assert (await room.ledger()).rows()[0].state == "failed"

    asyncio.run(scenario())


def test_a_bounce_of_one_member_is_not_reported_while_others_were_reached(room, scripted):
    async def scenario():
        room.adapters["mail"] = scripted("mail")
        for name in ("ana", "ben"):
            room.peers[name] = Peer(name=name, addresses=(f"mail:{name}@example.org",))
        room.collectives["guards"] = Collective(
            name="guards", members=("ana", "ben"), delivery="to-any"
        )
        await room.start()
        await put(room, task(GUARDS))
        await room.settle()
        for name, told in (("ana", 0), ("ben", 1)):
            came_back = OutcomeData(
                message="m1",
                peer=name,
                address=f"mail:{name}@example.org",
                attempt=LATEST_ATTEMPT,
                state="failed",
                reason="no such mailbox",
            )
            event = outcome_event(came_back, now_ms=room.clock.now_ms())
            await room.channels.channel("control").append([event])
            await room.settle()
            types = [e.type for e in await read(room, "control")]
            assert types.count("rapport.control.error") == told
            assert "rapport.control.comerror" not in types, "it was acknowledged"

    asyncio.run(scenario())


def test_routed_receivers_get_the_message_but_decide_nothing(room, scripted):
    async def scenario():
        room.adapters["mail"] = scripted("mail", *[Failed("no", retry=False)] * 5)
        room.peers["ben"] = Peer(name="ben", addresses=("mail:ben@example.org",))
        room.route = lambda message: (BEN, LEA) if message.type == "TASK" else ()
        await room.start()
        await put(room, task(ANA))
        await room.settle()
        found = await lines(room)
        assert [line[0] for line in found if line[1] == "lea"] == ["queued", "handed"]
        assert [line[0] for line in found if line[1] == "ben"] == ["queued", "failed", "failed"]
        assert [line for line in found if line[2]] == [("handed", "ana", "done")]
        told = {e.type: e.payload()["reason"] for e in await read(room, "control") if e.subject}
        reason = "routed to peer:ben: peer:ben could not be reached: no"
        assert told["rapport.control.error"] == reason
        assert "rapport.control.ack" in told
        assert "rapport.control.comerror" not in told

    asyncio.run(scenario())


def test_a_routed_collective_gets_the_message_without_an_acknowledgement(room):
    async def scenario():
        room.route = lambda message: (GUARDS,)
        await room.start()
        await put(room, task(None))
        await room.settle()
        assert sorted(name for state, name, _ in await lines(room) if state == "handed") == [
            "ana",
            "ben",
        ]
        assert [e.type for e in await read(room, "control") if "outcome" not in e.type] == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("receiver", "routed"), [(ANA, GUARDS), (GUARDS, ANA)], ids=["peer", "collective"]
)
@pytest.mark.parametrize("ttl", [0, 60_000])
def test_a_peer_reached_in_two_ways_gets_both_and_neither_waits_for_ever(
    room, scripted, receiver, routed, ttl
):
    async def scenario():
        room.adapters["mail"] = mail = scripted("mail")
        for name in ("ana", "ben"):
            room.peers[name] = Peer(name=name, addresses=(f"mail:{name}@example.org",))
        room.collectives["guards"] = Collective(
            name="guards", members=("ana", "ben"), delivery="to-all-members"
        )
        room.route = lambda message: (routed,) if message.type == "TASK" else ()
        await room.start()
        await put(room, task(receiver, ttl=ttl))
        await room.pass_time(120_000)
        told = [e.type for e in await read(room, "control") if "outcome" not in e.type]
        assert told == ["rapport.control.ack"]
        found = await lines(room)
        assert [line for line in found if line[2]] == [("closed", "", "done")]
        states = sorted(line[:2] for line in found if line[1])
        two = [("handed", "ana")] * 2 + [("handed", "ben")]
        assert states == two + [("queued", "ana")] * 2 + [("queued", "ben")]
        of_ana = [one for one in mail.sent if one.peer == "ana"]
        assert len(of_ana) == 2
        assert len({one.key for one in of_ana}) == 1  # a medium that honours it drops the second

    asyncio.run(scenario())


def test_an_error_follows_the_routing_rules_and_goes_to_who_listens_where_there_are_none(room):
    async def scenario():
        error = task(None, type="CONTROL", subtype="ERROR", sender=APP, content="out of paper")
        room.route = lambda message: (LEA,) if message.refers_to == "" else ()
        await room.start()
        heard = []
        room.engine.add_notification(heard.append)
        await put(room, error)
        await put(room, msgspec.structs.replace(error, refers_to="m0"), id="m2")
        await room.settle()
        assert [name for state, name, _ in await lines(room) if state == "handed"] == ["lea"]
        assert [message.id for message in heard] == ["m2"]

    asyncio.run(scenario())


def test_a_message_whose_time_to_live_is_over_is_not_sent(room):
    async def scenario():
        await room.start()
        await put(room, task(ANA, ttl=5_000))
        room.clock.set_ms(room.clock.now_ms() + 5_000)
        await room.settle()
        assert await lines(room) == [("closed", "", "timed_out")]
        assert [e.type for e in await read(room, "control")] == ["rapport.control.timeout"]
        await put(room, task(ANA, ttl=5_000), id="m2")
        await room.settle()
        assert (await lines(room, "m2"))[-1] == ("closed", "", "done")

    asyncio.run(scenario())


# --- answers ---


@pytest.mark.parametrize("proof", ["session", "answer", "medium"])
def test_a_proven_reply_of_a_member_is_their_answer(room, proof):
    async def scenario():
        await room.start()
        await put(room, task(GUARDS), options=DeliveryOptions(done_when="answered"))
        await room.settle()
        reply = task(APP, sender=BEN, refers_to="m1", content="on my way")
        await put(room, reply, proof=proof, id="r1")
        await room.settle()
        found = await lines(room)
        assert ("answered", "ben", "") in found
        assert ("closed", "", "done") in found
        assert (await logged(room, "r1")).payload()["fate"] == "no_receiver", "and routed as any"

    asyncio.run(scenario())


def test_an_answer_that_is_set_aside_has_decided_nothing(room):
    def route(message):
        if message.refers_to and message.type != "CONTROL":
            raise ValueError("routing is broken")
        return ()

    async def scenario():
        room.route = route
        await room.start()
        await put(room, task(GUARDS), options=DeliveryOptions(done_when="answered"))
        await room.settle()
        await put(room, task(APP, sender=BEN, refers_to="m1"), proof="session", id="r1")
        await room.settle()
        assert len(await read(room, "dead_letters")) == 1
        assert not room.engine.is_decided("m1"), "deliveries of it go on"
        assert not room.engine.is_decided("m1", "ben")

    asyncio.run(scenario())


@pytest.mark.parametrize("proof", ["none", "application"])
def test_a_reply_that_nothing_proves_is_no_answer(room, proof):
    async def scenario():
        await room.start()
        await put(room, task(GUARDS), options=DeliveryOptions(done_when="answered"))
        await room.settle()
        await put(room, task(APP, sender=BEN, refers_to="m1"), proof=proof, id="r1")
        await room.settle()
        assert "answered" not in [state for state, _, _ in await lines(room)]
        refused = [e for e in await read(room, "log") if e.type == "rapport.answer.refused"]
        assert [e.payload()["peer"] for e in refused] == ["ben"]

    asyncio.run(scenario())


def test_a_reply_of_somebody_who_was_not_asked_is_no_answer(room):
    async def scenario():
        await room.start()
        await put(room, task(GUARDS), options=DeliveryOptions(done_when="answered"))
        await room.settle()
        await put(room, task(APP, sender=LEA, refers_to="m1"), proof="session", id="r1")
        await room.settle()
        assert "answered" not in [state for state, _, _ in await lines(room)]

    asyncio.run(scenario())


def test_options_count_for_messages_of_applications_only(room):
    async def scenario():
        await room.start()
        options = DeliveryOptions(done_when="answered", least=9)
        await put(room, task(GUARDS, sender=LEA), proof="session", options=options)
        await room.settle()
        assert ("closed", "", "done") in await lines(room)

    asyncio.run(scenario())


def test_an_application_asks_for_three_of_many_and_then_the_next(room):
    async def scenario():
        for name in ("c1", "c2", "c3"):
            room.peers[name] = Peer(name=name, addresses=("inbox:",))
        room.collectives["crowd"] = Collective(name="crowd", members=("ana", "c1", "c2", "c3"))
        await room.start()
        options = DeliveryOptions(
            least=3,
            answer_within=10_000,
            escalate=(NextReceiver("collective:security-leads", 10_000),),
            repeat_every=4_000,
            repeat_most=1,
        )
        await put(room, task(Identifier("collective", "crowd")), options=options)
        await room.settle()
        await room.pass_time(9_000)
        for number, name in enumerate(("c1", "c2")):
            reply = task(APP, sender=Identifier("peer", name), refers_to="m1")
            await put(room, reply, proof="session", id=f"r{number}")
        await room.pass_time(2_000)
        found = await lines(room)
        assert [name for state, name, _ in found if state == "queued"].count("c3") == 2
        assert ("queued", "lea", "") in found, "two of three were not enough"
        reply = task(APP, sender=Identifier("peer", "c3"), refers_to="m1")
        await put(room, reply, proof="session", id="r9")
        await room.settle()
        assert (await lines(room))[-1] == ("closed", "", "done")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        DeliveryOptions(least=-1),
        DeliveryOptions(repeat_most=3),
        DeliveryOptions(escalate=(NextReceiver("component:x"),)),
        DeliveryOptions(escalate=(NextReceiver("nonsense"),)),
        DeliveryOptions(escalate=(NextReceiver("peer:lea", -1),)),
        DeliveryOptions(escalate=(NextReceiver("peer:lea", 2**64 - 1),)),
        DeliveryOptions(answer_within=2**64 - 1),
        DeliveryOptions(repeat_every=2**64 - 1),
        DeliveryOptions(repeat_every=999),
    ],
)
def test_wishes_that_cannot_be_are_refused(wrong):
    event = task(ANA, id="m").to_event(source="s", time=1)
    with pytest.raises(InvalidInput):
        with_options(event, wrong)


def test_wishes_and_times_that_cannot_be_kept_stop_nobody_else(room):
    async def scenario():
        await room.start()
        wrong = DeliveryOptions(answer_within=1_000)
        event = with_options(task(ANA, id="m1").to_event(source="test", time=1), wrong)
        data = event.data.replace(b":1000", b":18446744073709551615")
        headers = {"proof": "application"}
        event = msgspec.structs.replace(event, data=data, headers=headers)
        await room.channels.channel("input").append([event])
        await put(room, task(ANA, ttl=2**64 - 1), id="m2")
        await put(room, task(BEN), id="m3")
        await room.settle()
        assert len(await read(room, "dead_letters")) == 1
        for id in ("m2", "m3"):
            assert "handed" in [state for state, _, _ in await lines(room, id)]

    asyncio.run(scenario())


# --- services ---


def test_a_request_for_authentication_reaches_its_channel_without_its_content(room):
    async def scenario():
        await room.start()
        asked = task(None, type="AUTH", sender=ANA, content='{"password": "secret"}')
        await put(room, asked, proof="none")
        await put(room, task(None, type="MESSAGEINFO", sender=ANA, content="TASK"), id="m2")
        await room.settle()
        (auth,) = await read(room, "auth")
        (info,) = await read(room, "info")
        assert "content" not in auth.payload()
        assert info.payload()["content"] == "TASK"
        assert (await logged(room)).payload()["fate"] == "forwarded"
        assert all(b"secret" not in e.data for e in await read(room, "log"))

    asyncio.run(scenario())


# --- callbacks ---


def test_callbacks_hear_what_is_for_components_or_for_nobody_and_how_it_went(room):
    async def scenario():
        await room.start()
        heard, failing = [], []

        def fails(message):
            failing.append(message.id)
            raise RuntimeError("broken")

        async def hears(message):
            heard.append((message.id, message.type, message.subtype))

        room.engine.add_notification(fails)
        kept = room.engine.add_notification(hears)
        await put(room, task(APP, sender=ANA), proof="session", id="m1")
        await put(room, task(None, sender=ANA), proof="session", id="m2")
        await put(room, task(BEN), id="m3")
        await room.settle()
        assert heard == [
            ("m1", "TASK", "REQUEST"),
            ("m2", "TASK", "REQUEST"),
            ("m3.told.ack", "CONTROL", "ACK"),
        ]
        assert failing == [id for id, _, _ in heard], "one that fails is told all the same"
        assert room.engine.remove_notification(kept)
        assert not room.engine.remove_notification(kept)
        await put(room, task(None), id="m4")
        await room.settle()
        assert len(heard) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "is_new"), [("", False), ("app", False), ("app", True)])
def test_a_restarted_engine_calls_no_callback_twice_with_one_message(room, name, is_new):
    """After a failure of the store, or of a node that was stopped: only what was interrupted is
    said again.
    """

    async def scenario():
        await room.start()
        heard, asked, answered, done = [], asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def think(message):
            heard.append(message.id)
            if message.id == "m2":
                asked.set()
                await answered.wait()
            elif message.id == "m3":
                done.set()

        room.engine.add_notification(think, name)
        for id in ("m1", "m2", "m3"):
            await put(room, task(None), id=id)
        running = asyncio.create_task(room.engine.run())
        await asked.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        answered.set()
        if is_new:
            await room.restart()
            room.engine.add_notification(think, name)
        running = asyncio.create_task(room.engine.run())
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert heard == ["m1", "m2", "m2", "m3"]

    asyncio.run(scenario())


def test_a_callback_with_a_name_misses_nothing_while_it_was_away(room):
    async def scenario():
        await room.start()
        heard = []
        room.engine.add_notification(heard.append, "app")
        with pytest.raises(DuplicateName):
            room.engine.add_notification(heard.append, "app")
        await put(room, task(None), id="m1")
        await room.settle()
        await room.restart()
        await put(room, task(None), id="m2")
        await room.settle()
        await room.restart()
        room.engine.add_notification(heard.append, "app")
        await room.settle()
        assert [message.id for message in heard] == ["m1", "m2"]

    asyncio.run(scenario())


def test_the_same_message_again_is_not_sent_again(room):
    async def scenario():
        await room.start()
        for source in ("one", "another"):
            for id, receiver in (("m1", GUARDS), ("m2", ANA)):
                event = task(receiver, id=id).to_event(source=source, time=room.clock.now_ms())
                await room.channels.channel("input").append([event])
        await room.settle()
        queued = [e.payload()["peer"] for e in await read(room, "output.inbox")]
        assert sorted(queued) == ["ana", "ana", "ben"]

    asyncio.run(scenario())
