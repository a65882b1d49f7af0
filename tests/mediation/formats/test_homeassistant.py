"""Announcements as Home Assistant's documentation shows them, and the states that follow."""

import json
from typing import Any

import pytest

from rapport.mediation.formats.base import MAX_DOCUMENTS, Document
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.formats.homeassistant import read_template
from rapport.mediation.rejections import RejectedValue

DEVICE = {"ids": ["node7"], "name": "Roof"}
TEMPERATURE = {
    "~": "radio/node7",
    "name": "Temperature",
    "uniq_id": "node7_t",
    "dev_cla": "temperature",
    "unit_of_meas": "°F",
    "stat_t": "~/state",
    "avty_t": "~/availability",
    "val_tpl": "{{ value_json.Temperature }}",
    "dev": DEVICE,
}
HUMIDITY = {
    "device_class": "humidity",
    "unit_of_measurement": "%",
    "state_topic": "radio/node7/state",
    "value_template": "{{ value_json['Humidity'] | round(0) }}",
    "device": {"identifiers": "node7"},
}


class Node:
    """Says messages to the format, one memory for all; the memory is JSON at all times."""

    def __init__(self, event: Any, **options: Any) -> None:
        self._event, self._format = event, get_format("homeassistant", options)
        self.memory: dict[str, Any] = {}

    def say(self, topic: str, data: Any) -> list[Document]:
        try:
            return self._format.read(self._event(data, topic=topic), self.memory)
        finally:
            self.memory = json.loads(json.dumps(self.memory))

    def refused(self, topic: str, data: Any) -> str:
        with pytest.raises(RejectedValue) as caught:
            self.say(topic, data)
        assert caught.value.hint or caught.value.code != "format.template"
        return caught.value.code


@pytest.fixture
def node(event: Any) -> Node:
    return Node(event)


def test_units_come_in_announcements_and_values_in_states(node: Node) -> None:
    assert node.say("homeassistant/sensor/node7/temperature/config", TEMPERATURE) == []
    assert node.say("homeassistant/sensor/node7/humidity/config", HUMIDITY) == []
    documents = node.say("radio/node7/state", {"Temperature": 93.2, "Humidity": 28.4})
    assert documents == [
        Document(
            {"device": "node7", "topic": "radio/node7/state", "temperature": 93.2, "humidity": 28},
            units={"temperature": "°F", "humidity": "%"},
        )
    ]


def test_a_state_before_its_announcement_is_held_back(node: Node) -> None:
    assert node.refused("radio/node7/state", {"Temperature": 93.2}) == "format.not_announced"


def test_a_changed_unit_counts_from_the_announcement_on(node: Node) -> None:
    config = "homeassistant/sensor/node7/temperature/config"
    node.say(config, TEMPERATURE)
    node.say(config, {**TEMPERATURE, "unit_of_meas": "°C"})
    (document,) = node.say("radio/node7/state", {"Temperature": 34})
    assert document.units == {"temperature": "°C"}


def test_an_empty_announcement_takes_the_value_back(node: Node) -> None:
    config = "homeassistant/sensor/node7/temperature/config"
    node.say(config, TEMPERATURE)
    node.say(config, "")
    assert node.refused("radio/node7/state", {"Temperature": 34}) == "format.not_announced"
    assert node.refused("radio/node7/availability", "online") == "format.not_announced"
    assert not any(node.memory.values())


def test_availability_and_commands_are_no_readings(node: Node) -> None:
    node.say("homeassistant/sensor/node7/temperature/config", TEMPERATURE)
    assert node.say("radio/node7/availability", "online") == []


def test_plain_states_are_numbers_where_a_unit_is_announced(node: Node) -> None:
    config = {"state_topic": "attic/t", "unit_of_measurement": "°C"}
    node.say("homeassistant/sensor/attic/config", config)
    for payload, value in (
        (21.5, 21.5),
        ("21.50 ", 21.5),
        ("unavailable", None),
        ("broken", "broken"),
    ):
        (document,) = node.say("attic/t", payload)
        assert document.value == {"device": "attic", "topic": "attic/t", "attic": value}


def test_on_and_off_are_true_and_false(node: Node) -> None:
    config = {"stat_t": "garden/motion", "dev_cla": "motion", "pl_on": "1", "pl_off": "0"}
    node.say("homeassistant/binary_sensor/garden/config", config)
    assert node.say("garden/motion", 1)[0].value["motion"] is True
    assert node.say("garden/motion", 0)[0].value["motion"] is False


def test_a_device_may_announce_all_its_components_at_once(node: Node) -> None:
    bundle = {
        "dev": {"ids": "ea334450945afc", "name": "Kitchen"},
        "o": {"name": "bla2mqtt", "sw": "2.1"},
        "cmps": {
            "some_unique_component_id1": {
                "p": "sensor",
                "device_class": "temperature",
                "unit_of_measurement": "°C",
                "value_template": "{{ value_json.temperature}}",
                "unique_id": "temp01ae_t",
            },
            "some_unique_id2": {
                "p": "sensor",
                "device_class": "humidity",
                "unit_of_measurement": "%",
                "value_template": "{{ value_json.humidity}}",
                "unique_id": "temp01ae_h",
            },
            "gone": {"p": "sensor"},
        },
        "state_topic": "sensorBedroom/state",
        "qos": 2,
    }
    assert node.say("homeassistant/device/0AFFD2/config", bundle) == []
    (document,) = node.say("sensorBedroom/state", {"temperature": 23.2, "humidity": 43.7})
    assert document.value == {
        "device": "ea334450945afc",
        "topic": "sensorBedroom/state",
        "temperature": 23.2,
        "humidity": 43.7,
    }


def test_one_odd_template_refuses_itself_and_not_its_neighbours(node: Node) -> None:
    odd = {"p": "sensor", "stat_t": "k/s", "val_tpl": "{{ 1 if value == 'x' else 2 }}"}
    good = {"p": "sensor", "stat_t": "k/s", "val_tpl": "{{ value_json.b }}"}
    bundle = {"dev": {"ids": ["k"]}, "cmps": {"odd": odd, "good": good}}
    assert node.refused("homeassistant/device/k/config", bundle) == "format.template"
    assert node.say("k/s", {"b": 1})[0].value == {"device": "k", "topic": "k/s", "good": 1}


def test_two_values_of_one_class_are_not_mixed_up(event: Any, node: Node) -> None:
    by_object = Node(event, attribute="object")
    for each in (node, by_object):
        for name in ("inside", "outside"):
            config = {**TEMPERATURE, "stat_t": f"n/{name}", "val_tpl": "{{ value }}"}
            each.say(f"homeassistant/sensor/node7/{name}/config", config)
    assert node.refused("n/inside", 20) == "format.ambiguous"
    assert by_object.say("n/inside", 20)[0].value["inside"] == 20
    node.say("homeassistant/sensor/node7/outside/config", "")
    assert node.say("n/inside", 20)[0].value["temperature"] == 20


def test_devices_that_share_a_topic_are_documents_of_their_own(node: Node) -> None:
    for name in ("a", "b"):
        config = {
            "stat_t": "hub",
            "val_tpl": f"{{{{ value_json.{name} }}}}",
            "dev": {"ids": [name]},
        }
        node.say(f"homeassistant/sensor/{name}/config", config)
    assert [document.id for document in node.say("hub", {"a": 1, "b": 2})] == ["a", "b"]


@pytest.mark.parametrize(
    ("topic", "data", "code"),
    [
        ("homeassistant/config", {}, "format.bad_config"),
        ("homeassistant/sensor/config", {}, "format.bad_config"),
        ("homeassistant/a/b/c/d/config", {}, "format.bad_config"),
        ("homeassistant/sensor/x/config", [], "format.bad_config"),
        ("homeassistant/sensor/x/config", "{", "payload.not_json"),
        ("homeassistant/sensor/x/config", {"stat_t": 1.5, "val_tpl": []}, "format.bad_config"),
        ("homeassistant/sensor/x/config", {"stat_t": "a/#"}, "format.bad_config"),
        ("homeassistant/device/x/config", {"dev": {}}, "format.bad_config"),
        ("homeassistant/device/x/config", {"cmps": {"a": {"stat_t": "b"}}}, "format.bad_config"),
    ],
)
def test_bad_announcements_are_refused(node: Node, topic: str, data: Any, code: str) -> None:
    assert node.refused(topic, data) == code


def test_a_state_without_the_value_of_its_template_is_refused(node: Node) -> None:
    node.say("homeassistant/sensor/node7/temperature/config", TEMPERATURE)
    assert node.refused("radio/node7/state", {"Humidity": 2}) == "field.missing"
    assert node.refused("radio/node7/state", "no json") == "payload.not_json"


def test_an_event_without_a_topic_is_refused_and_a_subject_stands_in(event: Any) -> None:
    format = get_format("homeassistant", {})
    with pytest.raises(RejectedValue, match="topic"):
        format.read(event({}), {})
    with pytest.raises(RejectedValue, match="announced"):
        format.read(event({}, subject="a/b"), {})


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ value }}", '{"a": {"b": [1, "2.55"]}}'),
        ("{{value_json.a.b[0]}}", 1),
        ("{{ value_json['a'][\"b\"][1] | float }}", 2.55),
        ("{{- value_json.a.b[1] | float | round(1) -}}", 2.5),
        ("{{ value_json.a.b[1] | int }}", 2),
        ("{{ value_json.a.b[0] | round }}", 1),
    ],
)
def test_templates_that_pick_a_value_are_read(template: str, value: Any) -> None:
    text = '{"a": {"b": [1, "2.55"]}}'
    assert read_template(template).value_in(text, json.loads(text)) == value


@pytest.mark.parametrize(
    "template",
    [
        "{{ value_json.a + 1 }}",
        "{{ value.split(',')[0] }}",
        "{% if value %}1{% endif %}",
        "{{ states('sensor.x') }}",
        "{{ value_json.a | replace('x', 'y') }}",
        "{{ value }} {{ value }}",
        "value",
        "{{ value_json.__class__.__mro__ | list }}",
        "{{ " + "value" + " " * 2_000 + "}}",
    ],
)
def test_templates_that_compute_are_refused(template: str) -> None:
    with pytest.raises(RejectedValue) as caught:
        read_template(template)
    assert caught.value.code == "format.template"


def test_a_value_that_a_message_leaves_out_takes_no_other_with_it(node: Node) -> None:
    node.say("homeassistant/sensor/node7/temperature/config", TEMPERATURE)
    node.say("homeassistant/sensor/node7/humidity/config", HUMIDITY)
    (document,) = node.say("radio/node7/state", {"Temperature": 70})
    assert document.value == {"device": "node7", "topic": "radio/node7/state", "temperature": 70}
    assert document.units == {"temperature": "°F"}
    assert node.refused("radio/node7/state", {"Pressure": 1}) == "field.missing"


@pytest.mark.parametrize("state", ["unavailable", "unknown", "None", ""])
def test_a_switch_of_which_nothing_is_known_is_null(node: Node, state: str) -> None:
    payload = {"stat_t": "door/state", "dev_cla": "door", "pl_on": "open", "pl_off": "closed"}
    node.say("homeassistant/binary_sensor/door/config", payload)
    assert [one.value["door"] for one in node.say("door/state", "open")] == [True]
    assert [one.value["door"] for one in node.say("door/state", state)] == [None]
    assert [one.value["door"] for one in node.say("door/state", "ajar")] == ["ajar"]
    payload |= {"pl_off": "unknown"}
    node.say("homeassistant/binary_sensor/door/config", payload)
    assert [one.value["door"] for one in node.say("door/state", "unknown")] == [False]


def test_topics_that_bring_no_states_are_bounded_too(node: Node) -> None:
    many = {f"c{n}": {"p": "button", "cmd_t": f"c/{n}"} for n in range(MAX_DOCUMENTS)}
    assert node.say("homeassistant/device/one/config", {"dev": DEVICE, "cmps": many}) == []
    more = {"dev": DEVICE, "cmps": {"x": {"p": "button", "cmd_t": "c/x"}}}
    assert node.refused("homeassistant/device/two/config", more) == "format.too_many"
    assert node.say("homeassistant/device/one/config", more) == []
