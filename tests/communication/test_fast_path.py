"""The fast path has the results of delivery records without any record. [CO-7, CO-10]"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.attempts import SentOutcomes, outcome_data
from rapport.communication.adapters.base import Confirmed, Delivery, Failed, Sent
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.engine import CommunicationEngine
from rapport.communication.ledger import Ledger
from rapport.communication.ledger_events import LedgerLine
from rapport.communication.outcomes import direct_outcome_events, outcome_line
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.communication.privacy import DaySpan, quiet_rule
from rapport.communication.records import RecentIds
from rapport.core.errors import StoreUnavailable
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock

NOON = 1_772_452_800_000
TABLES = ("messages", "members", "letters", "due", "chores")


class Erratic:
    """Does what its script says for each message in turn, then takes everything."""

    name = "mail"

    def __init__(self, scripts):
        self.scripts = {message: list(script) for message, script in scripts.items()}
        self.sent = []

    async def send(self, delivery):
        self.sent.append((delivery.message, delivery.peer, delivery.attempt, delivery.key))
        script = self.scripts.get(delivery.message)
        return script.pop(0) if script else Sent("taken")

    async def close(self):
        return


PEERS = {
    "ana": Peer(name="ana", addresses=("mail:ana@example.org",)),
    "ben": Peer(name="ben", addresses=("mail:ben@example.org", "fax:1")),
    "two": Peer(name="two", addresses=("mail:a@example.org", "mail:b@example.org")),
    "shy": Peer(
        name="shy",
        addresses=("mail:shy@example.org",),
        privacy=(quiet_rule([DaySpan(11 * 60, 13 * 60)]),),
    ),
    "none": Peer(name="none", addresses=()),
}
GUARDS = Collective(name="guards", members=("ana", "ben"), delivery="to-all-members")


async def play(messages, scripts, *, fast_path, direct=True, routes=()):
    """Sends messages and lets ten minutes pass: ledger, words to senders, sends, what callbacks
    heard, records.
    """
    clock = ManualClock(NOON)
    channels = open_memory(clock)
    adapter = Erratic(scripts)
    engine = CommunicationEngine(
        channels,
        channels.records,
        clock,
        EngineParts(
            directory=SiteDirectory(PEERS, {"guards": GUARDS}),
            actions={},
            phrases={},
            adapters=("mail",),
            retry=RetryPolicy(attempts=3, first_ms=2_000, longest_ms=4_000),
            route=lambda message: routes if message.type != "CONTROL" else (),
            fast_path=fast_path,
        ),
    )
    dispatch = Dispatch(
        adapter,
        channels,
        channels.records,
        clock,
        report=engine.apply_outcomes if direct else None,
        is_decided=engine.is_decided,
        recall=engine.is_decided,  # never in a thread: scripts depend on who is served first
    )
    heard = []
    engine.add_notification(heard.append)
    await engine.open()
    await dispatch.open()
    events = [message.to_event(source="test", time=NOON) for message in messages]
    headed = [msgspec.structs.replace(e, headers={"proof": "application"}) for e in events]
    await channels.channel("input").append(headed)
    for _ in range(100):
        while await engine.settle() + await dispatch.settle():
            continue
        clock.set_ms(clock.now_ms() + 6_000)
    ledger = Ledger(channels)
    await ledger.refresh()
    rows = {row.key: (row.state, row.attempt, row.reason) for row in ledger.rows()}
    kept = {row.message: (row.state, row.result, row.reason) for row in ledger.messages()}
    control = [s.event for s in await channels.channel("control").read_after(0, limit=10_000)]
    told = sorted((e.type, e.subject, e.data) for e in control if "outcome" not in e.type)
    records = sum(len(channels.records.find(f"communication.{table}")) for table in TABLES)
    told_of = sorted((one.id, one.type, one.subtype, one.content) for one in heard)
    return rows, kept, told, sorted(adapter.sent), told_of, records


def message(number, receiver, **fields):
    given = {"type": "TASK", "subtype": "REQUEST", "sender": Identifier("component", "app")}
    return Message(id=f"m{number}", receiver=receiver, content="look", **given | fields)


receivers = st.sampled_from(
    [Identifier("peer", name) for name in (*PEERS, "stranger")]
    + [Identifier("collective", "guards"), Identifier("component", "app"), None]
)
outcomes = st.sampled_from(
    [Sent("ok"), Confirmed("ok"), Failed("busy", retry=True), Failed("never", retry=False)]
)


@pytest.mark.slow
@given(
    sent=st.lists(
        st.tuples(
            receivers,
            st.sampled_from(["acknowledged", "unreliable"]),
            st.sampled_from([0, 0, 0, 5_000]),
            st.lists(outcomes, max_size=4),
            st.sampled_from([Identifier("component", "app"), Identifier("peer", "ana")]),
            st.sampled_from(["TASK", "TASK", "TASK", "MESSAGEINFO", "CONTROL"]),
        ),
        min_size=1,
        max_size=6,
    ),
    direct=st.booleans(),
    routes=st.sampled_from(
        [
            (),
            (),
            (Identifier("peer", "ben"),),
            (Identifier("component", "audit"),),
            (Identifier("component", "audit"), Identifier("component", "app")),
            (Identifier("component", "audit"), Identifier("peer", "ben")),
        ]
    ),
)
def test_the_fast_path_says_the_same_as_the_whole_machine(sent, direct, routes):
    messages = [
        message(number, receiver, delivery_policy=policy, ttl=ttl, sender=sender, type=type)
        for number, (receiver, policy, ttl, _, sender, type) in enumerate(sent)
    ]
    scripts = {f"m{number}": each[3] for number, each in enumerate(sent)}
    fast = asyncio.run(play(messages, scripts, fast_path=True, direct=direct, routes=routes))
    whole = asyncio.run(play(messages, scripts, fast_path=False, direct=False, routes=routes))
    assert fast[:5] == whole[:5]


def test_a_direct_message_leaves_no_record_and_two_events_in_the_log():
    async def scenario():
        messages = [message(number, Identifier("peer", "ana")) for number in range(50)]
        rows, kept, told, sent, _, records = await play(messages, {}, fast_path=True)
        assert set(kept.values()) == {("closed", "done", "")}
        assert len(sent) == len(told) == len(rows) == 50
        assert records == 0

    asyncio.run(scenario())


def test_a_direct_delivery_that_fails_gets_a_record_and_is_tried_again():
    async def scenario():
        scripts = {"m1": [Failed("busy", retry=True)]}
        sent = [message(1, Identifier("peer", "ana"))]
        _, kept, _, sends, _, records = await play(sent, scripts, fast_path=True)
        assert kept["m1"] == ("closed", "done", "")
        assert [attempt for _, _, attempt, _ in sends] == [1, 2]
        assert len({key for *_, key in sends}) == 1, "the same key, so a medium can drop it"
        assert records > 0

    asyncio.run(scenario())


def test_a_batch_that_is_read_again_after_a_crash_sends_nothing_twice():
    async def scenario():
        clock = ManualClock(NOON)
        channels = open_memory(clock)

        def engine():
            return CommunicationEngine(
                channels,
                channels.records,
                clock,
                EngineParts(
                    directory=SiteDirectory(PEERS, {}), actions={}, phrases={}, adapters=("mail",)
                ),
            )

        first = engine()
        await first.open()
        event = message(1, Identifier("peer", "ana")).to_event(source="test", time=NOON)
        await channels.channel("input").append([event])
        await first.settle()
        channels.records.put("communication", "position/input", b"0")  # the commit was lost
        clock.set_ms(NOON + 5_000)
        second = engine()
        await second.open()
        await second.settle()
        assert channels.channel("output.mail").last_position() == 1
        assert channels.channel("log").last_position() == 1

    asyncio.run(scenario())


class Changing(SiteDirectory):
    """Whose people may be others the next time."""

    def __init__(self, people):
        self.people = people
        super().__init__(people, {})

    def peer(self, name):
        return self.people.get(name)


async def engine_among(people, channels):
    engine = CommunicationEngine(
        channels,
        channels.records,
        ManualClock(NOON),
        EngineParts(directory=Changing(people), actions={}, phrases={}, adapters=("mail",)),
    )
    await engine.open()
    return engine


async def put_in(channels, sent, proof="application", source="test"):
    event = sent.to_event(source=source, time=NOON)
    event = msgspec.structs.replace(event, headers={"proof": proof})
    await channels.channel("input").append([event])


async def check_case_hears_the_answer(engine, channels):
    assert channels.records.get("communication.messages", "m1") is not None
    reply = Message(
        type="TASK",
        subtype="REPLY",
        sender=Identifier("peer", "ana"),
        id="r1",
        refers_to="m1",
        content="yes",
    )
    await put_in(channels, reply, "session")
    await engine.settle()
    kept = channels.records.get("communication.members", "m1\x1fana")
    assert msgspec.msgpack.decode(kept)["answered"]


def test_a_message_whose_transaction_failed_is_not_remembered_as_direct():
    """It was plain when it was first taken, and is not when it is taken again: then its case hears
    the answer.
    """

    async def scenario():
        channels, people = open_memory(ManualClock(NOON)), {"ana": PEERS["ana"]}
        engine = await engine_among(people, channels)
        await put_in(channels, message(1, Identifier("peer", "ana")))
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(channels.channel("log"), "append", refuse)
            with pytest.raises(StoreUnavailable):
                await engine.settle()
        people["ana"] = msgspec.structs.replace(PEERS["two"], name="ana")
        await engine.settle()
        await check_case_hears_the_answer(engine, channels)
        assert engine.is_decided("m1", "ana"), "what still waits for her is not sent"

    asyncio.run(scenario())


def test_the_answer_to_an_id_that_comes_again_with_a_record_goes_to_the_record():
    async def scenario():
        channels, people = open_memory(ManualClock(NOON)), {"ana": PEERS["ana"]}
        engine = await engine_among(people, channels)
        await put_in(channels, message(1, Identifier("peer", "ana")))
        await engine.settle()
        people["ana"] = msgspec.structs.replace(PEERS["two"], name="ana")
        await put_in(channels, message(1, Identifier("peer", "ana")), source="another")
        await engine.settle()
        await check_case_hears_the_answer(engine, channels)

    asyncio.run(scenario())


async def refuse(_events):
    raise StoreUnavailable("the disk is full")


def test_what_was_seen_lately_is_bounded():
    recent = RecentIds(most=10)
    for number in range(100):
        recent.add(str(number))
    assert "99" in recent
    assert "90" in recent
    assert "50" not in recent
    recent.discard("99")
    assert "99" not in recent


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), min_size=1, max_size=8)
deliveries = st.builds(
    Delivery,
    message=NAMES | st.sampled_from(["m-1", 'm"1', "m\\1", "50%", "m 1", "m" * 250, "m" * 200]),
    peer=NAMES | st.sampled_from(["ana", "ben"]),
    address=st.sampled_from(["mail:ana@example.org", "hook:https://u:pw@example.org/x"]),
    attempt=st.integers(1, 3),
    text=st.just(""),
    queued=st.sampled_from([0, 1, 1_772_452_800_000]),
    case=st.sampled_from(["", "", "", "routed"]),
    plain=st.just(True),
    acknowledge=st.sampled_from([False, False, True]),
    sender=st.sampled_from(["component:app", "peer:ana"]),
)


@given(st.lists(deliveries, max_size=6), st.booleans())
def test_outcomes_that_are_not_made_yet_lead_to_the_same_events(deliveries, has_listeners):
    positions = list(range(1, len(deliveries) + 1))
    made = [outcome_data(each, Sent(), at) for at, each in enumerate(deliveries, 1)]
    lazy = SentOutcomes(deliveries, positions)
    assert direct_outcome_events(lazy, 7, has_listeners=has_listeners) == direct_outcome_events(
        made, 7, has_listeners=has_listeners
    )


@given(deliveries)
def test_the_line_of_an_outcome_shows_no_secret_and_closes_the_message(delivery):
    line = outcome_line(delivery, "handed", 7).payload_as(LedgerLine)
    assert "pw@" not in line.address
    assert line.result == ("" if delivery.case else "done")
    assert (line.peer, line.queued, line.stage) == (delivery.peer, delivery.queued, 1)
