"""Usual messages, taken a batch at a time, become the events that each becomes alone.
[CO-1, CO-12]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.arrival_limits import ArrivalSettings
from rapport.communication.arrivals import ArrivalSorter, ArrivalWork
from rapport.communication.contents.rules import ContentRules
from rapport.communication.fast_path_input import LONGEST_CONTENT, fast_input_events
from rapport.communication.sender_proof import ProvenMessage
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.message import RECENT, Identifier, Message

NOON = 1_772_452_800_000
ANA, APP = Identifier("peer", "ana"), Identifier("component", "app")

names = st.sampled_from(["", "7", "ä", "x" * 199, "x" * 201, "a\nb", 'a"b', "a\\b", "\x7f"])
messages = st.builds(
    Message,
    type=st.sampled_from(["TASK", "TASK", "TASK", "", "AUTH", "CONTROL", "MESSAGEINFO", "a\tb"]),
    subtype=st.sampled_from(["REQUEST", "ANSWER", ""]),
    sender=st.sampled_from([ANA, ANA, APP, Identifier("peer", ""), Identifier("peer", "ü\u2028")]),
    receiver=st.sampled_from([None, ANA, APP, Identifier("collective", "all")]),
    id=st.sampled_from(["", "", "", "given", "%", "a b"]),
    conversation=names,
    content=st.one_of(
        st.text(max_size=20),
        st.sampled_from(["é" * LONGEST_CONTENT, "x" * (LONGEST_CONTENT + 1), "\ud800", '{"a":1}']),
    ),
    ttl=st.sampled_from([0, 0, 0, 5]),
    language=names,
    session_token=st.sampled_from(["", "", "secret"]),
    delivery_policy=st.sampled_from(["acknowledged", "unreliable"]),
    refers_to=names,
    urgent=st.booleans(),
)


class Numbers:
    """Ids as they come; a batch that is taken together has drawn one for each message."""

    def __init__(self) -> None:
        self._next = count(1)

    def new(self) -> str:
        return f"n{next(self._next)}"

    def many(self, wanted: int) -> list[str]:
        return [self.new() for _ in range(wanted)]


def sorting(rate: int = 0, **schemas: dict[str, object]) -> ArrivalSorter:
    numbers = Numbers()
    contents = ContentRules({(type, ""): schema for type, schema in schemas.items()})
    made = ArrivalSettings(rate=rate, burst=max(rate, 1))
    return ArrivalSorter(made, numbers.new, contents, numbers.many)  # type: ignore[arg-type]


def without_id(event: Event | None) -> object:
    """An event with ids that stand for themselves: alone and together they are drawn otherwise."""
    if event is None:
        return None
    said = event.data.replace(f'"id":"{event.id}"'.encode(), b"")
    return (event.source, event.type, event.subject, event.time, event.headers, said)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(messages, max_size=6))
def test_what_applications_send_together_is_what_each_sends_alone(batch):
    def told(work: Callable[[], Sequence[Event]]) -> object:
        try:
            return [without_id(event) for event in work()]
        except InvalidInput as error:
            return error.code

    schema = {"TASK": {"type": "string", "maxLength": 15}}
    alone, together = sorting(**schema), sorting(**schema)
    one_by_one = told(lambda: [alone.own(message, "a", "", NOON) for message in batch])
    assert told(lambda: together.own_events(batch, "a", "", NOON)) == one_by_one


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(messages, max_size=6), st.sampled_from([0, 2]))
def test_what_the_medium_vouches_for_is_let_in_as_it_is_alone(batch, rate):
    schema = {"TASK": {"type": "string", "maxLength": 15}}
    alone, together = sorting(rate, **schema), sorting(rate, **schema)
    events = together.vouched_events(batch, "in", lambda _message: True, NOON)
    for message, event in zip(batch, events, strict=True):
        if event is None and (message.session_token or alone.form_fault(message)):
            continue  # proven and refused elsewhere
        work = ArrivalWork()
        arrived = alone.sort(ProvenMessage(message, "medium"), "in", NOON, work)
        if event is None:
            # Left out: it is refused, or of a form that is looked at alone.
            continue
        assert arrived.accepted
        assert not alone.form_fault(message)
        assert [without_id(one) for one in work.events] == [without_id(event)]


def test_nobody_is_let_in_whom_the_medium_does_not_vouch_for():
    usual, theirs = Message(type="T", subtype="", sender=ANA), sorting()

    def breaks(_message: Message) -> bool:
        raise RuntimeError("this adapter cannot say")

    assert theirs.vouched_events([usual], "in", lambda _message: False, NOON) == [None]
    assert theirs.vouched_events([usual], "in", breaks, NOON) == [None]
    (event,) = theirs.vouched_events([usual], "in", lambda _message: True, NOON)
    assert event is not None
    assert event.headers == {"proof": "medium", "adapter": "in"}


def test_a_sender_gets_in_as_often_as_it_may():
    usual = Message(type="T", subtype="", sender=ANA)
    events = sorting(rate=3).vouched_events([usual] * 5, "in", lambda _message: True, NOON)
    assert [event is not None for event in events] == [True, True, True, False, False]


def test_a_usual_message_is_read_back_as_the_same_struct():
    sent = Message(type="T", subtype="", sender=ANA, receiver=APP, content="hi")
    # Beside one that is not usual it is not packed, which would carry the message itself.
    event, _ = fast_input_events(
        [sent, Message(type="", subtype="", sender=ANA)], ["n1", "n2"], "s", {}, NOON
    )
    assert event is not None
    read = Message.from_event(event)
    assert read is RECENT.get(event.data)
    assert read == Message.from_stored(event.data)
    assert read.id == "n1"


@pytest.mark.parametrize("type", ["AUTH", "CONTROL", "MESSAGEINFO"])
def test_what_is_said_to_the_node_itself_is_looked_at_alone(type):
    said = Message(type=type, subtype="REQUEST", sender=ANA, content="my password")
    assert fast_input_events([said], ["n1"], "s", {}, NOON) == [None]
    assert not any(kept.content == "my password" for kept in RECENT._newer.values())


def test_a_site_that_allows_little_looks_at_each():
    numbers = Numbers()
    made = ArrivalSettings(most_bytes=3, rate=0)
    tight = ArrivalSorter(made, numbers.new, None, numbers.many)
    with pytest.raises(InvalidInput, match="longer than 3 bytes"):
        tight.own_events([Message(type="T", subtype="", sender=APP, content="four")], "a", "", NOON)
