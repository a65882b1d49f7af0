"""Whatever comes, a format gives documents or a reason, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.codec import octets_event_parts
from rapport.core.event import Event
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.catalogue import FORMATS, get_format
from rapport.mediation.rejections import RejectedValue

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "csv": [{}, {"delimiter": "sniffed", "metadata": 2, "join": {"t": "{a} {b:04}"}}],
    "xml": [{}, {"path": "a/*", "above": True}],
    "senml": [{}, {"split": "/"}],
    "ngsi": [{}, {"form": "key-values"}],
    "value": [{}, {"field": "state", "encoding": "latin-1", "decimal": "comma"}],
}
GOOD: dict[str, bytes] = {
    "json": b'[{"a": 1, "b": [true, null]}, {"c": "x"}]',
    "msgpack": msgspec.msgpack.encode([{"a": 1, "b": [True, None, 1.5, b"x"]}]),
    "xml": b'<?xml version="1.0"?><a x="1"><b y="2">t</b><b/></a>',
    "csv": b'UF:;RS\nX:;Y\na;b;"c;d"\n1,5;2;"x"\n3;;\n',
    "senml": b'[{"bn":"d:","bt":1.3e9,"bu":"A","n":"v","u":"V","v":1},{"n":"c","t":-5,"vs":"x"}]',
    "ngsi": b'{"id":"x","type":"T","t":{"type":"Property","value":1,"unitCode":"CEL",'
    b'"observedAt":"2026-01-01T00:00:00Z"},"l":[{"value":1,"datasetId":"d"}]}',
    "homeassistant": b'{"~":"a","stat_t":"~/s","unit_of_meas":"C","val_tpl":"{{ value_json.x }}",'
    b'"dev":{"ids":["n"],"cns":[["mac","1"]]},"avty":[{"t":"~/a"}]}',
    "value": b"-18.4",
}
TOPICS = ("homeassistant/sensor/n/o/config", "homeassistant/device/n/config", "a/s")


@st.composite
def mutated(draw: st.DrawFn, name: str) -> bytes:
    good = bytearray(GOOD[name])
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(good) - 1, 0)))
        end = start + draw(st.integers(0, 6))
        good[start:end] = draw(
            st.binary(max_size=4) | st.sampled_from([b'"', b"{", b"[", b"1e999"])
        )
    return bytes(good)


def read_all(name: str, events: list[Event]) -> None:
    for options in OPTIONS.get(name, [{}]):
        memory: dict[str, Any] = {}
        format = get_format(name, options)
        for event in events:
            try:
                documents = format.read(event, memory)
            except RejectedValue as refused:
                assert refused.code
                assert refused.message
                json.dumps(memory)
                continue
            for document in documents:
                assert isinstance(document, Document)
                assert isinstance(document.value, dict)
                json.loads(msgspec.json.encode(document.value))
                assert all(isinstance(unit, str) for unit in document.units.values())
            several = [document.id for document in documents]
            assert len(set(several)) == len(several)
            json.dumps(memory)


def events_of(payload: bytes) -> list[Event]:
    """The same payload as octets, as text where it is one, and as JSON where it is that."""
    events = []
    for topic in TOPICS:
        mark = {"mqtttopic": topic}
        data, headers = octets_event_parts(payload, "application/octet-stream")
        events.append(Event("s", "1", "t", "", 5, data, {**headers, **mark}))
        events.append(Event("s", "1", "t", "", 5, payload, mark))
        try:
            text = msgspec.json.encode(payload.decode())
        except UnicodeDecodeError:
            continue
        events.append(Event("s", "1", "t", "", 5, text, {"datacontenttype": "text/plain", **mark}))
    return events


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes_are_documents_or_refused(name: str) -> None:
    @given(st.binary(max_size=60))
    def check(payload: bytes) -> None:
        read_all(name, events_of(payload))

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_good_payloads_are_documents_or_refused(name: str) -> None:
    @given(mutated(name))
    def check(payload: bytes) -> None:
        read_all(name, events_of(payload))

    check()


NAMES = (
    *(
        "a",
        "n",
        "v",
        "t",
        "u",
        "bn",
        "bt",
        "bv",
        "s",
        "vs",
        "type",
        "value",
        "object",
        "id",
        "data",
    ),
    *("metadata", "unitCode", "observedAt", "datasetId", "~", "stat_t", "val_tpl", "dev", "ids"),
    *("cns", "cmps", "p", "avty", "unit_of_meas", "subscriptionId"),
)
TEXTS = ("", "a", "Property", "~", "2026-01-01T00:00:00Z", "{{ value_json.a }}")
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(TEXTS),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES), below, max_size=6)
    ),
    max_leaves=15,
)


@pytest.mark.parametrize("name", ["senml", "ngsi", "homeassistant", "json"])
def test_json_of_any_shape_is_documents_or_refused(name: str) -> None:
    @given(plain)
    def check(value: Any) -> None:
        read_all(name, events_of(msgspec.json.encode(value)))

    check()
