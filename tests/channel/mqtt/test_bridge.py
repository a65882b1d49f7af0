"""Messages to events and back; topics. [CH-12]"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.mqtt.bridge import (
    OutgoingTopic,
    Packet,
    bridges_from_site,
    check_filter,
    check_subscription,
    clean_level,
    filter_of,
    is_redelivery,
    last_of_topics,
    matches,
    named_levels,
    payload_of,
    to_event,
    topic_of,
)
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent, check_envelope
from rapport.kernel.toml import TomlFile


def event_of(payload: bytes, *, topic: str = "hall/1", **flags) -> Event:
    packet = Packet(topic=topic, payload=payload, number=7, **flags)
    return to_event(packet, bridge="b", source="s", fresh_id="fresh", now_ms=5)


def test_json_stays_as_it_is_text_becomes_a_json_text_and_octets_base64() -> None:
    assert event_of(b' {"a": 1} ').data == b'{"a": 1}'
    assert event_of(b"ON").payload() == "ON"
    octets = event_of(b"\xff\x00")
    assert base64.b64decode(octets.payload()) == b"\xff\x00"
    assert octets.headers["dataencoding"] == "base64"


@given(st.binary(max_size=50), st.text(max_size=20).filter(lambda text: "\0" not in text))
def test_every_message_becomes_an_event_that_a_channel_takes(payload: bytes, topic: str) -> None:
    event = event_of(payload, topic=topic)
    check_envelope(event)
    event.payload()


def test_a_repetition_is_recognised_by_flag_number_topic_and_bytes() -> None:
    first = event_of(b"ON")
    recent = [StoredEvent(1, 0, first)]
    again = Packet(topic="hall/1", payload=b"ON", number=7, again=True)
    assert is_redelivery(again, recent, "b")
    for other in (
        Packet(topic="hall/1", payload=b"ON", number=7),
        Packet(topic="hall/1", payload=b"OFF", number=7, again=True),
        Packet(topic="hall/2", payload=b"ON", number=7, again=True),
        Packet(topic="hall/1", payload=b"ON", number=8, again=True),
    ):
        assert not is_redelivery(other, recent, "b")
    assert not is_redelivery(again, recent, "another")


def test_a_retained_state_is_news_when_it_is_not_what_the_topic_said_last() -> None:
    def told(payload: bytes, last: Event | None, fresh: str, **flags) -> Event:
        packet = Packet(topic="lamp", payload=payload, number=7, **flags)
        return to_event(packet, bridge="b", source="s", fresh_id=fresh, now_ms=5, last=last)

    first = told(b"ON", None, "1", retained=True)
    assert told(b"ON", first, "2", retained=True).id == first.id
    off = told(b"OFF", first, "3")
    recent = [StoredEvent(1, 0, first), StoredEvent(2, 0, off)]
    assert last_of_topics(recent, "b") == {"lamp": off}
    assert last_of_topics(recent, "another") == {}
    assert told(b"ON", off, "4", retained=True).id == "4"
    assert told(b"OFF", off, "5", retained=True).id == "3"


def test_equal_messages_are_two_events_also_a_retained_one_of_which_nothing_is_known() -> None:
    assert event_of(b"ON").id == "fresh"
    assert event_of(b"ON", retained=True).id == "fresh"


def test_named_levels_of_a_topic_are_fields_and_wildcards_for_the_broker() -> None:
    assert filter_of("zigbee2mqtt/{device}/+/{part}/#") == "zigbee2mqtt/+/+/+/#"
    assert named_levels("z/{device}/+/{part}/#", "z/d1/x/p2/more") == {"device": "d1", "part": "p2"}
    packet = Packet(topic="z/d1", payload=b"21.5", number=1)
    event = to_event(
        packet, bridge="b", source="s", fresh_id="1", now_ms=5, fields={"device": "d1"}
    )
    assert (event.data, event.headers["addedfields"]) == (b"21.5", '{"device":"d1"}')
    for wrong in ("a/{x}/{x}", "a/x{y}", "a/{}", "a/{b c}", "a/{b", "#/{b}"):
        with pytest.raises(InvalidInput) as caught:
            check_subscription(wrong)
        assert caught.value.code == "mqtt.bad_topic"


@pytest.mark.parametrize(
    ("pattern", "topic", "covers"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("+", "a/b", False),
        ("+/+", "/a", True),
        ("#", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_filters_cover_topics_as_the_standard_says(pattern, topic, covers) -> None:
    check_filter(pattern)
    assert matches(pattern, topic) is covers


@pytest.mark.parametrize("text", ["", "a/#/b", "a+", "a/b#", "a\0b"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="topic filter"):
        check_filter(text)


@given(st.text())
def test_a_field_never_brings_wildcards_into_a_topic(text: str) -> None:
    event = Event("s", "1", text or "t", text, 0)
    topic = topic_of(event, "out/{type}/{subject}")
    assert not set(topic) & {"+", "#", "\0"}
    assert clean_level(text)


def test_the_payload_is_the_data_or_the_whole_event() -> None:
    event = Event("s", "1", "t", "", 0, b"[1]")
    assert payload_of(event, OutgoingTopic(channel="c", topic="t")) == b"[1]"
    whole = payload_of(event, OutgoingTopic(channel="c", topic="t", payload="cloudevent"))
    assert b'"specversion":"1.0"' in whole


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('broker = "http://h"\nin = [{topic = "a", source = "s"}]', "mqtt.bad_broker"),
        ('broker = "mqtt://[half"\nin = [{topic = "a", source = "s"}]', "mqtt.bad_broker"),
        ('broker = "mqtt://h"', "mqtt.idle"),
        ('broker = "mqtt://h"\nin = [{topic = "a/#/b", source = "s"}]', "mqtt.bad_topic"),
        ('broker = "mqtt://h"\nin = [{topic = "a", source = "No Name"}]', "channel.bad_name"),
        (
            'broker = "mqtt://h"\nin = [{topic = "a", source = "s", channel = "interpretations"}]',
            "channel.reserved",
        ),
        ('broker = "mqtt://h"\nout = [{channel = "a", topic = "x/{nme}"}]', "mqtt.bad_topic"),
        (
            'broker = "mqtt://h"\nout = [{channel = "a", topic = "x/{id.__class__}"}]',
            "mqtt.bad_topic",
        ),
        ('broker = "mqtt://h"\nout = [{channel = "a", topic = "x/#"}]', "mqtt.bad_topic"),
        (
            'broker = "mqtt://h"\nout = [{channel = "a", topic = "x", query = "type ="}]',
            "query.unexpected",
        ),
    ],
)
def test_a_wrong_bridge_is_reported_with_its_place(text: str, code: str) -> None:
    file = TomlFile.parse(f"[mqtt.hall]\n{text}\n".encode(), name="site.toml")
    _bridges, problems = bridges_from_site(file)
    assert code in [problem.code for problem in problems]
