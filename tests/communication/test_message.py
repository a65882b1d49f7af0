"""The message's JSON form is that of the source's listing 1."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier, Message

LISTING_1 = b"""{
  "id": "2837", "type": "TASK", "subtype": "REQUEST", "sender": "peer291", "receiver": "peer2734",
  "conversation-id": "18475", "content": "Check the status of system 32"
}"""


def test_listing_1_of_the_source_is_a_message():
    message = Message.from_json(LISTING_1)
    assert message.sender == Identifier("peer", "peer291")
    assert message.receiver == Identifier("peer", "peer2734")
    assert message.conversation == "18475"
    again = json.loads(message.to_json())
    assert again == json.loads(LISTING_1) | {"sender": "peer:peer291", "receiver": "peer:peer2734"}


def test_all_twelve_fields_have_a_key():
    message = Message(
        type="TASK",
        subtype="REQUEST",
        sender=Identifier("component", "policy"),
        id="1",
        receiver=Identifier("collective", "guards"),
        conversation="2",
        content="x",
        ttl=3,
        language="en",
        session_token="t",
        delivery_policy="unreliable",
        refers_to="0",
    )
    written = json.loads(message.to_json())
    assert set(written) == {
        "type",
        "subtype",
        "id",
        "sender",
        "receiver",
        "conversation-id",
        "content",
        "ttl",
        "language",
        "session-token",
        "delivery-policy",
        "refers-to",
    }
    assert Message.from_json(message.to_json()) == message


@pytest.mark.parametrize("missing", ["type", "subtype", "sender"])
def test_the_mandatory_fields_are_demanded(missing):
    body = {"type": "A", "subtype": "B", "sender": "peer:ana"}
    del body[missing]
    with pytest.raises(InvalidInput) as error:
        Message.from_json(json.dumps(body).encode())
    assert error.value.code == "message.not_a_message"
    assert missing in error.value.message


def test_a_session_token_is_not_written_to_the_log():
    message = Message(
        type="A",
        subtype="B",
        sender=Identifier("peer", "ana"),
        id="1",
        session_token="very-secret",
    )
    event = message.to_event(source="x", time=1, causes=("c1", "c2"), policy="p")
    assert b"very-secret" not in event.data
    assert event.causes() == ("c1", "c2")
    assert event.payload()["policy"] == "p"
    assert Message.from_event(event).sender == message.sender


names = st.text(min_size=1, max_size=20)
identifiers = st.builds(Identifier, st.sampled_from(["peer", "collective", "component"]), names)


@given(
    sender=identifiers,
    receiver=st.none() | identifiers,
    content=st.text(max_size=100),
    ttl=st.integers(0, 2**53),
    urgent=st.booleans(),
)
def test_every_message_survives_writing_and_reading(sender, receiver, content, ttl, urgent):
    message = Message(
        type="A",
        subtype="B",
        sender=sender,
        receiver=receiver,
        content=content,
        ttl=ttl,
        urgent=urgent,
    )
    assert Message.from_json(message.to_json()) == message


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(body):
    try:
        Message.from_json(body)
    except InvalidInput as error:
        assert error.code.startswith("message.")
