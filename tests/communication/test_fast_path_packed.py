"""Messages that are taken as they came say what each says alone, in the same bytes.
[CO-7, CO-8, CO-10]
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.channel.channel import PackedStretch
from rapport.communication.adapters.base import Delivery
from rapport.communication.batch_transaction import BatchTransaction
from rapport.communication.directory_callbacks import CachedDirectory
from rapport.communication.fast_path_input import fast_input_events
from rapport.communication.message_plan import FATE
from rapport.communication.payload_cache import NotifiedMessages, QueuedDeliveries, UnreadLines
from rapport.communication.peers import Peer
from rapport.core.event import Event, StoredEvent
from rapport.core.message import MESSAGE, Identifier, Message
from rapport.core.packed_events import PackedEvents
from rapport.kernel.clock import ManualClock

from .test_fast_path_events import APP, NOON, Directory, taking

ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")


def ids(count: int, first: int = 0) -> list[str]:
    return [f"m{number:04d}" for number in range(first, first + count)]


def stretch(
    messages: Sequence[Message], first: int, proof: str = "application"
) -> tuple[list[StoredEvent], PackedStretch]:
    """Messages as events of `input`, and what is carried for these."""
    headers = {"proof": proof, "adapter": "x"}
    made = fast_input_events(messages, ids(len(messages), first), "application", headers, NOON - 5)
    assert isinstance(made, PackedEvents)
    stored = [StoredEvent(place, NOON, event) for place, event in enumerate(made, first + 1)]
    last = first + len(messages)
    return stored, PackedStretch(first + 1, last, NOON, made.largest, made.carried)


def said_by(taken: BatchTransaction) -> list[dict[str, Sequence[Event]]]:
    early = taken.transaction.take_early()
    return [{name: list(events) for name, events in early.items()}, taken.transaction.commit()]


texts = st.sampled_from(["look", "No!", "", "}}", 'ü "quoted" \\ \n', "x" * 1_000])
usual = st.builds(
    Message,
    type=st.sampled_from(["TASK", "TASK", "TASK", "ROUTED", "AUDITED"]),
    subtype=st.sampled_from(["REQUEST", "DECLINE", ""]),
    sender=st.sampled_from([APP, ANA, BEN]),
    receiver=st.sampled_from(
        [ANA, ANA, ANA, APP, APP, BEN, Identifier("collective", "team"), None,
         Identifier("peer", "stranger"), Identifier("peer", "broken")]
    ),
    conversation=st.sampled_from(["", "7", 'a "b"']),
    content=texts,
    language=st.sampled_from(["", "de"]),
    refers_to=st.sampled_from(["", "m0000", "m0001", "elsewhere"]),
    delivery_policy=st.sampled_from(["acknowledged", "unreliable"]),
    urgent=st.booleans(),
)  # fmt: skip
plain = st.builds(
    Message,
    type=st.just("TASK"),
    subtype=st.just("REQUEST"),
    sender=st.sampled_from([APP, Identifier("component", "other")]),
    receiver=st.just(ANA),
    conversation=st.sampled_from(["", "7"]),
    content=texts.filter(bool),
    language=st.sampled_from(["", "de"]),
    delivery_policy=st.sampled_from(["acknowledged", "unreliable"]),
    urgent=st.booleans(),
)
answers = st.builds(
    Message,
    type=st.just("TASK"),
    subtype=st.sampled_from(["ANSWER", "DECLINE"]),
    sender=st.sampled_from([ANA, BEN]),
    receiver=st.sampled_from([APP, Identifier("component", "other")]),
    content=texts,
    refers_to=st.sampled_from(["", "m0000", "m0001"]),
)
proofs = st.sampled_from(["application", "medium", "answer", "session", "none"])
batches = st.one_of(*(st.lists(one, min_size=1, max_size=6) for one in (plain, answers, usual)))


@settings(max_examples=150, deadline=None)
@given(st.lists(plain, min_size=2, max_size=4), st.lists(st.tuples(batches, proofs), max_size=4))
def test_stretches_say_what_their_messages_say_alone(before, given_batches):
    as_they_came, alone = taking(), taking(in_rows=False)
    first, stretches = 0, []
    for messages, proof in ((before, "application"), *given_batches):
        stored, carried = stretch(messages, first, proof)
        first = carried.last
        stretches.append((stored, carried))
    left = stretches
    while left:
        taken = as_they_came.take_packed([carried for _stored, carried in left])
        for stored, carried in left[:taken]:
            alone.take_batch("input", stored, {})
            assert as_they_came.positions["input"] >= carried.last
        together = said_by(as_they_came) if taken else []
        assert not taken or together == said_by(alone)
        left = left[taken:]
        if left:  # what is left as a whole left nothing behind, and is taken as events
            assert as_they_came.transaction.take_early() == {}
            stored, _carried = left[0]
            as_they_came.take_batch("input", stored, {})
            alone.take_batch("input", stored, {})
            assert as_they_came.wanted == alone.wanted
            assert said_by(as_they_came) == said_by(alone)
            left = left[1:]


def test_plain_messages_and_answers_are_taken_as_they_came():
    taken = taking()
    asked, carried = stretch([_to(ANA, "look"), _to(ANA, "and look")], 0)
    answer = Message(
        type="TASK", subtype="ANSWER", sender=ANA, receiver=APP, content="yes", refers_to="m0000"
    )
    _, answered = stretch([answer], 2, "medium")
    assert taken.take_packed([carried]) == 1
    assert taken.take_packed([answered]) == 1
    early = taken.transaction.take_early()
    assert [event.id for event in early["log"]] == ["m0000", "m0001", "m0002"]
    assert b'"answered":' in early["log"][2].data
    assert [event.subject for event in early["output.mail"]] == ["m0000", "m0001"]
    assert len(asked) == 2


@settings(max_examples=50, deadline=None)
@given(st.lists(plain, min_size=1, max_size=6))
def test_what_is_carried_is_what_is_written(messages):
    taken = taking()
    assert taken.take_packed([stretch(messages, 0)[1]]) == 1
    early = taken.transaction.take_early()
    queued, log = early["output.mail"], early["log"]
    assert isinstance(queued, PackedEvents)
    assert isinstance(log, PackedEvents)
    (deliveries,) = queued.carried
    assert isinstance(deliveries, QueuedDeliveries)
    assert list(deliveries.deliveries) == [Delivery.from_event(event) for event in queued]
    assert list(log.carried) == [UnreadLines(len(messages))]
    assert all(FATE not in event.headers for event in log)


@settings(max_examples=50, deadline=None)
@given(st.lists(answers, min_size=1, max_size=6), proofs)
def test_callbacks_are_told_what_the_log_says(messages, proof):
    taken = taking()
    taken.take_packed([stretch([_to(ANA, "a"), _to(ANA, "b")], 0)[1]])
    said_by(taken)
    assert taken.take_packed([stretch(messages, 2, proof)[1]]) == 1
    log = taken.transaction.take_early()["log"]
    assert isinstance(log, PackedEvents)
    (told,) = log.carried
    assert isinstance(told, NotifiedMessages)
    assert all(event.type == MESSAGE and FATE in event.headers for event in log)
    written = [Message.from_stored(event.data) for event in log]
    assert list(told.messages) == written


def test_an_adapter_that_goes_is_not_used_again():
    directory, adapters = Directory(), ["mail", "sms"]
    taken = taking(directory=directory)
    taken._lane._members.adapters = adapters
    assert taken.take_packed([stretch([_to(ANA, "a")], 0)[1]]) == 1
    said_by(taken)
    adapters.remove("mail")
    assert taken.take_packed([stretch([_to(ANA, "b")], 1)[1]]) == 0
    adapters.append("mail")
    assert taken.take_packed([stretch([_to(ANA, "b")], 1)[1]]) == 1


def test_a_new_address_holds_from_the_next_stretch_on():
    directory = Directory()
    taken = taking(directory=directory)
    taken.take_packed([stretch([_to(ANA, "a")], 0)[1]])
    said_by(taken)
    ana = directory.people["ana"]
    directory.people["ana"] = type(ana)(name="ana", addresses=("sms:7",))
    assert taken.take_packed([stretch([_to(ANA, "b")], 1)[1]]) == 1
    (early, _) = said_by(taken)
    assert b'"sms:7"' in early["output.sms"][0].data


def _to(receiver: Identifier, content: str) -> Message:
    return Message(type="TASK", subtype="REQUEST", sender=APP, receiver=receiver, content=content)


def test_a_directory_that_has_not_changed_is_asked_again_after_a_second():
    directory = Directory()
    cached = CachedDirectory(directory, clock := ManualClock(NOON), lifetime_ms=0)
    taken = taking(directory=cached)  # type: ignore[arg-type]
    taken._clock = clock
    asked: list[str] = []
    look_up = taken._lane._look_up
    taken._lane._look_up = lambda name, now_ms: asked.append(name) or look_up(name, now_ms)
    dora = Identifier("peer", "dora")
    for number in range(3):  # who is not known is looked for each time
        assert taken.take_packed([stretch([_to(ANA, "a")], number)[1]]) == 1
        assert taken.take_packed([stretch([_to(dora, "a")], number)[1]]) == 0
    assert asked == ["ana", "dora", "dora", "dora"]
    directory.people["dora"] = Peer(name="dora", addresses=("sms:9",))
    assert taken.take_packed([stretch([_to(dora, "a")], 3)[1]]) == 1
    directory.people["ana"] = Peer(name="ana", addresses=("sms:7",))
    said_by(taken)
    taken.take_packed([stretch([_to(ANA, "b")], 4)[1]])
    assert "output.sms" not in said_by(taken)[0]  # nobody said that it changed
    cached.forget("ana")
    taken.take_packed([stretch([_to(ANA, "c")], 5)[1]])
    assert b'"sms:7"' in said_by(taken)[0]["output.sms"][0].data
    directory.people["ana"] = Peer(name="ana", addresses=("sms:8",))
    clock.set_ms(NOON + 1_000)
    taken.take_packed([stretch([_to(ANA, "d")], 6)[1]])
    assert b'"sms:8"' in said_by(taken)[0]["output.sms"][0].data
