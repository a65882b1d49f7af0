"""The fast path emits the same events as handling each message alone.
[CO-7, CO-8, CO-10]
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import DeliveryOptions, with_options
from rapport.communication.engine import BatchTransaction
from rapport.communication.peers import CachedDirectory, Collective, Peer, SiteDirectory
from rapport.communication.records import DecisionCache
from rapport.core.event import Event, StoredEvent
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from rapport.store.memory import MemoryRecordStore

NOON = 1_772_452_800_000
APP = Identifier("component", "app")


ROUTES = {
    "ROUTED": (Identifier("peer", "ana"),),
    "AUDITED": (Identifier("component", "audit"),),
    "BOTH": (Identifier("component", "audit"), Identifier("peer", "ana")),
}


class Directory(SiteDirectory):
    """Two peers and a collective; who is asked for `broken` breaks it."""

    def __init__(self) -> None:
        self.people = {
            "ana": Peer(name="ana", addresses=("mail:ana@example.org",)),
            "ben": Peer(name="ben", addresses=("mail:ben@example.org", "sms:1"), delivery="all"),
        }
        team = Collective(name="team", members=("ana", "ben"), delivery="to-all-members")
        super().__init__(self.people, {"team": team})

    def peer(self, name: str) -> Peer | None:
        if name == "broken":
            raise RuntimeError("no directory can say this")
        return self.people.get(name)


def taking(*, in_rows: bool = True, directory: Directory | None = None) -> BatchTransaction:
    records = MemoryRecordStore()
    parts = EngineParts(
        directory=directory or Directory(),
        adapters=("mail", "sms"),
        route=lambda message: ROUTES.get(message.type, ()),
    )
    made = BatchTransaction(records, ManualClock(NOON), parts, DecisionCache(records))
    if not in_rows:
        made._fast_path.handle_row = lambda _batch, start, _now_ms: start
    return made


def take(taken: BatchTransaction, events: list[Event]) -> list[dict[str, list[Event]]]:
    """What a batch of `input` says early and what it says with the transaction."""
    batch = [StoredEvent(place, NOON, event) for place, event in enumerate(events, start=1)]
    taken.handle_batch("input", batch, {})
    early = taken.transaction.pop_early()
    return [early, taken.transaction.commit()]


def sent(id: str, receiver: Identifier | None, proof: str = "application", **fields) -> Event:
    given = {"type": "TASK", "subtype": "REQUEST", "sender": APP, "content": "look"} | fields
    event = Message(id=id, receiver=receiver, **given).to_event(source="test", time=NOON)
    return msgspec.structs.replace(event, headers={"proof": proof, "adapter": "x"})


identifiers = st.sampled_from(
    [
        *(Identifier("peer", name) for name in ("ana", "ana", "ana", "ben", "stranger", "broken")),
        Identifier("collective", "team"),
        APP,
        APP,
        None,
    ]
)
messages = st.builds(
    sent,
    st.sampled_from([*(f"m{number}" for number in range(12)), "m 1", "50%", "l" * 230]),
    identifiers,
    st.sampled_from(["application", "medium", "answer", "session", "none"]),
    type=st.sampled_from(
        ["TASK", "TASK", "TASK", "ROUTED", "AUDITED", "BOTH", "CONTROL", "MESSAGEINFO"]
    ),
    sender=st.sampled_from([APP, Identifier("peer", "ana"), Identifier("peer", "ben")]),
    content=st.sampled_from(["look", "No!", "", "}}"]),
    ttl=st.sampled_from([0, 0, 0, 60_000]),
    refers_to=st.sampled_from(["", "m0", "m1", "m2", "elsewhere"]),
    delivery_policy=st.sampled_from(["acknowledged", "unreliable"]),
)
others = st.sampled_from(
    [
        Event("test", "e1", "something.else", "", NOON),
        Event("test", "e2", "rapport.message", "", NOON, b"[]"),
        with_options(sent("w", Identifier("peer", "ana")), DeliveryOptions(answer_within=1_000)),
    ]
)


@pytest.mark.slow
@given(
    st.lists(messages, min_size=1, max_size=8),
    st.lists(st.one_of(messages, messages, messages, others), min_size=1, max_size=12),
)
def test_a_row_emits_what_each_message_emits_alone(before, batch):
    in_rows, alone = taking(), taking(in_rows=False)
    for events in (before, batch):
        assert take(in_rows, events) == take(alone, events)


def test_what_cannot_be_handled_is_dead_lettered_and_the_row_goes_on():
    ana, broken = Identifier("peer", "ana"), Identifier("peer", "broken")
    events = [sent("m1", ana), sent("m2", broken), sent("m3", ana)]
    early, outgoing = take(taking(), events)
    assert [event.subject for event in early["output.mail"]] == ["m1", "m3"]
    assert len(outgoing["dead_letters"]) == 1


def test_a_message_whose_delivery_cannot_be_made_leaves_nothing_in_the_log():
    event = sent("m1", Identifier("peer", "ana"))
    long_id = msgspec.json.decode(event.data) | {"id": "l" * 300}
    event = msgspec.structs.replace(event, data=msgspec.json.encode(long_id))
    early, outgoing = take(taking(), [event])
    assert early == {}
    assert len(outgoing["dead_letters"]) == 1


def test_a_new_address_holds_from_the_next_batch_on():
    directory = Directory()
    taken = taking(directory=directory)
    take(taken, [sent("m1", Identifier("peer", "ana"))])
    directory.people["ana"] = Peer(name="ana", addresses=("sms:7",))
    early, _ = take(taken, [sent("m2", Identifier("peer", "ana"))])
    assert b'"sms:7"' in early["output.sms"][0].data


def test_an_adapter_that_goes_is_not_used_again():
    directory, adapters = Directory(), ["mail", "sms"]
    taken = taking(directory=directory)
    taken._fast_path._lookup.adapters = adapters
    ana = Identifier("peer", "ana")
    assert "output.mail" in take(taken, [sent("m1", ana)])[0]
    adapters.remove("mail")
    assert "output.mail" not in take(taken, [sent("m2", ana)])[0]
    adapters.append("mail")
    assert "output.mail" in take(taken, [sent("m3", ana)])[0]


def test_an_unchanged_directory_is_read_again_after_a_second():
    directory = Directory()
    cached = CachedDirectory(directory, clock := ManualClock(NOON), lifetime_ms=0)
    taken = taking(directory=cached)
    taken._clock = clock
    asked: list[str] = []
    look_up = taken._fast_path._look_up
    taken._fast_path._look_up = lambda name, now_ms: asked.append(name) or look_up(name, now_ms)
    ana, dora = Identifier("peer", "ana"), Identifier("peer", "dora")
    for number in range(3):  # an unknown peer is looked up each time
        assert "output.mail" in take(taken, [sent(f"a{number}", ana)])[0]
        assert take(taken, [sent(f"d{number}", dora)])[0] == {}
    assert set(asked[:2]) == {"ana", "dora"}
    assert set(asked[2:]) == {"dora"}
    directory.people["dora"] = Peer(name="dora", addresses=("sms:9",))
    assert "output.sms" in take(taken, [sent("d3", dora)])[0]
    directory.people["ana"] = Peer(name="ana", addresses=("sms:7",))
    assert "output.sms" not in take(taken, [sent("a3", ana)])[0], "nothing says that it changed"
    cached.forget("ana")
    assert b'"sms:7"' in take(taken, [sent("a4", ana)])[0]["output.sms"][0].data
    directory.people["ana"] = Peer(name="ana", addresses=("sms:8",))
    clock.set_ms(NOON + 1_000)
    assert b'"sms:8"' in take(taken, [sent("a5", ana)])[0]["output.sms"][0].data


def routed_to_many(count: int) -> BatchTransaction:
    """Messages of type ROUTED go to ana and to so many more, each of whom one delivery reaches."""
    directory = Directory()
    more = [f"p{number}" for number in range(count)]
    directory.people |= {name: Peer(name=name, addresses=(f"mail:{name}@x.org",)) for name in more}
    made = taking(directory=directory)
    made._messages._parts.route = lambda message: [Identifier("peer", name) for name in more]
    return made


def test_a_transaction_ends_when_routed_deliveries_fill_it(monkeypatch):
    """What goes out early is in memory as well: a batch of large messages may be a gigabyte."""
    monkeypatch.setattr("rapport.communication.transaction._FULL_BYTES", 50_000)
    made = routed_to_many(10)
    ana = Identifier("peer", "ana")
    early, _ = take(made, [sent(f"m{n}", ana, content="x" * 1_000) for n in range(20)])
    assert sum(len(event.data) for events in early.values() for event in events) < 100_000
    assert 1 <= made.positions["input"] < 20


def test_no_delivery_of_a_tracked_message_comes_before_its_log_event():
    """Killed in between, with other rules at the next start, it would never be in the log."""
    ben = Identifier("peer", "ben")  # for whom it takes more than a delivery
    early, outgoing = take(taking(), [sent("m1", ben, type="ROUTED")])
    assert early == {}
    told = [event.data for event in outgoing["output.mail"]]
    assert sum(b'"peer":"ana"' in data for data in told) == 1
