"""What a broker's topics hold, as samples of new sources. [CN-6, CH-12]"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.mqtt.bridge import Packet, check_subscription, filter_of, matches
from rapport.site.topics import survey_topics


def heard(*messages: tuple[str, object]) -> list[Packet]:
    return [
        Packet(
            topic=topic,
            payload=value if isinstance(value, bytes) else msgspec.json.encode(value),
            number=number,
        )
        for number, (topic, value) in enumerate(messages, start=1)
    ]


def test_the_level_that_varies_names_the_thing() -> None:
    [group] = survey_topics(
        "zigbee2mqtt/#",
        heard(
            ("zigbee2mqtt/kitchen", {"temperature": 21.5}),
            ("zigbee2mqtt/cellar", {"temperature": 11.5}),
            ("zigbee2mqtt/bridge/state", {"state": "online"}),
            ("zigbee2mqtt/bridge/info", b"\xff"),
        ),
    )
    assert group.subscription == "zigbee2mqtt/{device}"
    assert group.things == ("cellar", "kitchen")
    assert group.rows[0] == {"temperature": 21.5, "device": "kitchen"}
    assert group.quantity == ""


@pytest.mark.parametrize(
    ("wanted", "topic", "subscription"),
    [
        ("zigbee2mqtt/#", "zigbee2mqtt/freezer", "zigbee2mqtt/{device}"),
        ("#", "freezer/temperature", "{device}/temperature"),
        ("tele/+/SENSOR", "tele/th16/SENSOR", "tele/{device}/SENSOR"),
        ("tele/{node}/SENSOR", "tele/th16/SENSOR", "tele/{node}/SENSOR"),
        ("a/b", "a/b", "a/b"),
    ],
)
def test_one_topic_alone_is_named_by_what_the_filter_leaves_open(
    wanted: str, topic: str, subscription: str
) -> None:
    [group] = survey_topics(wanted, heard((topic, {"t": 1.5})))
    assert group.subscription == subscription


def test_values_alone_are_grouped_by_what_their_topics_measure() -> None:
    groups = survey_topics(
        "home/#",
        heard(
            ("home/up/bath/temperature", 21.5),
            ("home/up/bed/temperature", 19.5),
            ("home/down/hall/humidity", 40),
            ("home/down/hall/state", b"online"),
        ),
    )
    assert {(one.subscription, one.quantity) for one in groups} == {
        ("home/up/{device}/temperature", "temperature"),
        ("home/{device}/hall/humidity", "humidity"),
    }


@given(
    st.sampled_from(["#", "a/#", "+/b", "a/+", "{x}/+/#"]),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "temperature", "ä{", ""]), min_size=1, max_size=4),
            st.one_of(st.binary(max_size=20), st.integers().map(lambda n: b"%d" % n)),
        ),
        max_size=8,
    ),
)
def test_whatever_is_heard_a_subscription_covers_the_topics_of_its_group(
    wanted: str, messages: list[tuple[list[str], bytes]]
) -> None:
    topics = [("/".join(levels), raw) for levels, raw in messages]
    came = [one for one in topics if one[0] and matches(filter_of(wanted), one[0])]
    for group in survey_topics(wanted, heard(*came)):
        for packet in group.packets:
            if "{" not in packet.topic:
                check_subscription(group.subscription)
                assert matches(filter_of(group.subscription), packet.topic)
