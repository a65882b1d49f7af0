"""What a site says about MQTT, Apprise, pages and webhooks in: read whole, every fault in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.communication.adapters.adapter_config import BUILT_IN, read_media
from rapport.communication.adapters.mqtt import MQTT_INPUT_KEYS, TopicPattern, read_mqtt_input
from rapport.communication.adapters.webhook import WEBHOOK_INPUT_KEYS, read_webhook_input
from rapport.communication.peers import address_fault
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

ADAPTERS = ("apprise", "inbox", "mail", "mqtt", "webhook", "ws")


def site(tmp_path: Path, text: str) -> TomlFile:
    place = tmp_path / "site.toml"
    place.write_text(text)
    return TomlFile.load(place)


def media(tmp_path: Path, text: str):
    problems = []
    found = read_media(site(tmp_path, text), tmp_path, BUILT_IN, problems)
    return found, [(problem.code, problem.line) for problem in problems]


def an_input(tmp_path: Path, text: str, keys, read, **changes):
    problems = []
    section = site(tmp_path, f"[inputs.a]\n{text}").section("inputs", "a")
    found = read(Fields(section, problems, known=keys, strict=True), tmp_path, **changes)
    return found, [(problem.code, problem.line) for problem in problems]


def test_a_whole_site_is_read_and_secrets_come_from_files(tmp_path):
    (tmp_path / "ana.apprise").write_text("tgram://123:abc/chat\n")
    (tmp_path / "broker.secret").write_text("pass")
    found, problems = media(
        tmp_path,
        """
[adapters.mqtt]
broker = "mqtts://broker.example.org"
user = "rapport"
password = "file:broker.secret"
timeout = "3s"
[adapters.apprise]
timeout = "4s"
[adapters.apprise.targets]
ana = "file:ana.apprise"
hall = "ntfy://ntfy.example.org/hall"
[adapters.ws]
wait = "2s"
""",
    )
    assert problems == []
    assert (found["mqtt"].broker.place, found["mqtt"].broker.secure) == (
        "broker.example.org:8883",
        True,
    )
    assert (found["mqtt"].password, found["mqtt"].timeout_ms) == ("pass", 3_000)
    assert found["apprise"].targets["ana"] == "tgram://123:abc/chat"
    assert found["apprise"].targets["hall"] == "ntfy://ntfy.example.org/hall"
    assert found["ws"].wait_ms == 2_000


def test_a_site_that_says_nothing_has_defaults(tmp_path):
    found, problems = media(tmp_path, "")
    assert problems == []
    assert found["mqtt"].broker.place == "127.0.0.1:1883"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[adapters.mqtt]\nbroker = "http://x"', "mqtt.bad_broker"),
        ('[adapters.mqtt]\nbroker = "mqtt://x"\npassword = "plain"', "settings.bare_secret"),
        ('[adapters.mqtt]\nbroker = "mqtt://x"\nmost_bytes = 0', "site.out_of_range"),
        ("[adapters.mqtt]\nbrker = 1", "site.unknown_key"),
        ('[adapters.apprise.targets]\nana = "no address"', "adapter.bad_target"),
        ('[adapters.apprise.targets]\nana = "env:NOT_SET_ANYWHERE"', "settings.no_secret"),
        ("[adapters.apprise]\ntargets = 7", "site.wrong_type"),
        ('[adapters.ws]\nwait = "0s"', "site.bad_duration"),
        ('[adapters.ws]\nwait = "11s"', "site.out_of_range"),
    ],
)
def test_faults_of_adapters_are_reported_at_their_place(tmp_path, text, code):
    _, problems = media(tmp_path, text)
    assert code in [found for found, _ in problems]
    assert all(line > 0 for _, line in problems)


def test_an_input_of_mqtt_knows_messages_and_plain_words(tmp_path):
    found, problems = an_input(
        tmp_path,
        """broker = "mqtt://127.0.0.1"
topics = [
  "rapport/messages",
  { topic = "p/{peer}/said/{refers_to}", type = "REPLY", receiver = "component:desk" },
]
""",
        MQTT_INPUT_KEYS,
        read_mqtt_input,
        client="rapport-hall-a",
    )
    assert problems == []
    assert found.client == "rapport-hall-a"
    assert found.topics == (
        TopicPattern(topic="rapport/messages"),
        TopicPattern(
            topic="p/{peer}/said/{refers_to}",
            is_text=True,
            type="REPLY",
            receiver=Identifier("component", "desk"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "input.no_topics"),
        ("topics = 7", "site.wrong_type"),
        ('topics = ["a/#/b"]', "mqtt.bad_topic"),
        ('topics = ["a/{who}"]', "mqtt.bad_topic"),
        ('topics = ["a/{peer}/{peer}"]', "mqtt.bad_topic"),
        ('topics = [{ topic = "a", payload = "text" }]', "input.no_sender"),
        ('topics = [{ topic = "a", receiver = "ana" }]', "message.bad_identifier"),
        ('topics = [{ topic = "a", tpe = "x" }]', "site.unknown_key"),
        ('topics = ["a"]', "input.trust_without_peer"),
    ],
)
def test_faults_of_an_input_of_mqtt(tmp_path, text, code):
    _, problems = an_input(
        tmp_path,
        f'broker = "mqtt://127.0.0.1"\n{text}',
        MQTT_INPUT_KEYS,
        read_mqtt_input,
        client="c",
        trusted=True,
    )
    assert code in [found for found, _ in problems]


def test_an_input_by_http_maps_fields_and_senders(tmp_path):
    (tmp_path / "s").write_text("0123456789abcdef0123")
    found, problems = an_input(
        tmp_path,
        """secret = "file:s"
fields = { sender = "From", content = "Body" }
defaults = { type = "REPLY", subtype = "SMS" }
senders = { "+43660" = "ana", "+43661" = "peer:ben" }
""",
        WEBHOOK_INPUT_KEYS,
        read_webhook_input,
    )
    assert problems == []
    assert found.senders["+43660"] == Identifier("peer", "ana")
    assert found.fields == {"sender": "From", "content": "Body"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('secret = "bare"', "settings.bare_secret"),
        ('fields = { sender = "From" }', "input.missing_field"),
        ('fields = { sendr = "From" }', "site.unknown_key"),
        ('senders = { "+1" = "team:x" }', "message.bad_identifier"),
        ("most_bytes = 0", "site.out_of_range"),
    ],
)
def test_faults_of_an_input_by_http(tmp_path, text, code):
    _, problems = an_input(tmp_path, text, WEBHOOK_INPUT_KEYS, read_webhook_input)
    assert code in [found for found, _ in problems]


def test_a_weak_secret_is_refused(tmp_path):
    (tmp_path / "s").write_text("short")
    _, problems = an_input(tmp_path, 'secret = "file:s"', WEBHOOK_INPUT_KEYS, read_webhook_input)
    assert problems == [("settings.weak_secret", 2)]


@pytest.mark.parametrize("address", ["mqtt:a/b", "apprise:ana", "apprise:ntfy://h/t", "ws:"])
def test_addresses_that_can_be_used(address):
    assert address_fault(address, ADAPTERS) is None


@pytest.mark.parametrize(
    "address", ["mqtt:", "mqtt:a/#", "mqtt:a\nb", "apprise:", "apprise:a b://x", "ws:ana"]
)
def test_addresses_that_cannot_be_used(address):
    fault = address_fault(address, ADAPTERS)
    assert fault is not None
    assert fault.code == "peer.bad_address"
