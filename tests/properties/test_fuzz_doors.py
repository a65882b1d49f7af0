"""Whatever comes in at a door: events, requests, frames and batches are read or refused with a
code, never by a fault of ours. [CH-2, CH-12]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.channel.query.query_kinds import make_query
from rapport.channel.requests.request import (
    Batch,
    check_request,
    read_batch,
    read_request,
    write_batch,
    write_request,
)
from rapport.channel.validation import check_events
from rapport.core.codec import decode_block, encode_block, encode_cloudevent
from rapport.core.errors import RapportError
from rapport.core.event import Event, StoredEvent
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.source_bindings import SourcePayload
from rapport.web.channel_socket import as_request, check_subscribe, read_frame
from rapport.web.cloudevents import read_cloudevents, read_payloads

pytestmark = pytest.mark.slow

NESTED = b"[" * 100_000
NOT_UTF8 = b'{"id": "\xff\xfe", "source": "s", "type": "t"}'
LONE = b'{"id": "\\ud800", "source": "s", "type": "t"}'
HUGE_NUMBER = b'{"id": "1", "source": "s", "type": "t", "data": 1' + b"0" * 5_000 + b"}"

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1.0", "t", "2026-03-02T09:00:00Z", "application/xml", "<a/>", "AA==", "-1"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
ATTRIBUTES = [
    *["id", "source", "type", "subject", "time", "specversion", "data", "data_base64"],
    *["datacontenttype", "dataschema", "publisher", "epoch", "sequence", "ttlms", "sequencedin"],
    *["hops", "signature", "cause", "Upper", "position", "received", "dataencoding"],
]
OBJECTS = st.dictionaries(st.sampled_from(ATTRIBUTES) | st.text(max_size=5), VALUES, max_size=8)
LIKELY = OBJECTS.map(lambda given: {"id": "1", "source": "s", "type": "t", **given})
JSON = (LIKELY | OBJECTS | st.lists(LIKELY | VALUES, max_size=3) | VALUES).map(
    lambda value: json.dumps(value).encode()
)
BODIES = JSON | st.binary(max_size=80)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", *(f"ce-{name}" for name in ATTRIBUTES)]),
    st.text(max_size=10)
    | st.sampled_from(
        [
            *["application/json", "application/cloudevents+json", "text/xml; charset=utf-16"],
            *["application/cloudevents-batch+json", "application/octet-stream", "text/plain"],
            *["text/xml", 'a;charset="', "2026-03-02T09:00:00Z"],
        ]
    ),
    max_size=6,
)


def read_or_refuse(read: Any, *given: Any) -> Any:
    """What was read; None when it was refused as it should be."""
    try:
        return read(*given)
    except RapportError as error:
        assert error.code
        assert error.message
        assert 400 <= error.status < 500, error
        return None


def check_storable(events: Sequence[Event]) -> None:
    """What a door lets in can be kept and shown again."""
    if read_or_refuse(check_events, events, 1_000_000) is not None:
        assert decode_block(encode_block(events)) == list(events)
        for event in events:
            encode_cloudevent(event).decode()
            check_json_text(event.data)


def check_json_text(data: bytes) -> None:
    """JSON by its grammar; numbers may be larger, and escapes stranger, than we can use."""
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        assert "out of range" in str(error) or "surrogate" in str(error), error


@given(body=BODIES, headers=HEADERS)
@example(body=NESTED, headers={})
@example(body=NOT_UTF8, headers={})
@example(body=LONE, headers={})
@example(body=HUGE_NUMBER, headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":"\xff"}', headers={})
@example(body=b'[{"id":"1","source":"s","type":"t","data":["\xc3"]}]', headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":"\x01"}', headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":"\\q"}', headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":"\\ud800"}', headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":01}', headers={})
@example(body=b'{"id":"1","source":"s","type":"t","data":' + NESTED, headers={})
@example(body=NESTED, headers={"ce-id": "1", "ce-source": "s", "ce-type": "t"})
@example(body=b'"\xff"', headers={"ce-id": "1", "ce-source": "s", "ce-type": "t"})
def test_events_in_any_mode_are_read_or_refused(body: bytes, headers: dict[str, str]) -> None:
    events = read_or_refuse(read_cloudevents, headers, body, 7)
    if events is not None:
        check_storable(events)


FORMATS = ["json", "senml", "ngsi", "csv", "xml", "msgpack", "value"]


@given(body=BODIES, id_field=st.sampled_from(["", "id", "x"]), format=st.sampled_from(FORMATS))
@example(body=NESTED, id_field="", format="json")
@example(body=NOT_UTF8, id_field="id", format="json")
@example(body=b"[" + NOT_UTF8 + b"]", id_field="id", format="json")
@example(body=LONE, id_field="id", format="json")
@example(body=b"[" + LONE + b"]", id_field="id", format="json")
@example(body=b'[{"a":' + NESTED, id_field="id", format="json")
@example(body=b"[1e999, {}]", id_field="id", format="json")
def test_what_a_device_says_is_read_or_refused(body: bytes, id_field: str, format: str) -> None:
    reading = SourcePayload(FormatChoice(name=format), id_field)
    payloads = read_or_refuse(read_payloads, body, reading.format, "")
    for data, headers in payloads or ():
        raw = Event("source", "arrival", "t", "", 0, data, headers)
        id = read_or_refuse(reading.declared_id, raw)
        if id is not None:
            check_storable([Event("source", id or "arrival", "t", "", 0, data, headers)])


REQUESTS = st.dictionaries(
    st.sampled_from(
        [
            *["query", "kind", "token", "wait_ms", "max_messages", "max_time_range_ms", "take"],
            *["lease_minutes", "seen", "from_start", "handback", "push_address", "max_push"],
        ]
    ),
    VALUES | st.sampled_from(["type = 't'", "sql", "template", {"type": "t"}]),
    max_size=4,
)


@given(REQUESTS.map(lambda given: json.dumps(given).encode()) | st.binary(max_size=60))
@example(NESTED)
@example(b'{"query": ' + b'{"a":' * 50_000)
@example(b'{"query": {"a": "\xff"}}')
def test_requests_are_read_or_refused(body: bytes) -> None:
    request = read_or_refuse(read_request, body)
    if request is None:
        return
    read_or_refuse(check_request, request)
    read_or_refuse(make_query, request.kind, request.query if request.query is not None else {})
    written = read_or_refuse(write_request, request)
    if written is not None:
        assert read_request(written) == request


@given(
    st.text(max_size=30)
    | st.binary(max_size=30)
    | st.dictionaries(
        st.sampled_from(["subscribe", "credit", "unsubscribe", "publish", "ping", "id", "ref"]),
        VALUES | REQUESTS,
        max_size=3,
    ).map(json.dumps)
)
@example("[" * 100_000)
def test_frames_are_read_or_refused(text: str | bytes) -> None:
    found = read_or_refuse(read_frame, text)
    if found is not None and found[1].subscribe is not None:
        read_or_refuse(check_subscribe, found[1].subscribe)
        read_or_refuse(check_request, as_request(found[1].subscribe))


STORED = StoredEvent(3, 5, Event("s", "i", "t", "", 0, b'{"a":1}', {"h": "v"}))
BATCH = write_batch("c", Batch(events=(STORED,), current_token="a", next_token="b"))


@given(
    at=st.integers(0, len(BATCH) - 1),
    length=st.integers(0, 12),
    put=st.binary(max_size=6) | st.sampled_from([b"{", b"]", b'"', b"null", b"-1", b"\xff"]),
)
def test_a_batch_changed_on_its_way_is_read_or_refused(at: int, length: int, put: bytes) -> None:
    changed = BATCH[:at] + put + BATCH[at + length :]
    try:
        read_batch(changed)
    except RapportError as error:
        assert error.code == "http.strange_answer"


@pytest.mark.parametrize("bit", range(len(encode_block([STORED.event])) * 8))
def test_a_flipped_bit_in_a_block_is_no_crash(bit: int) -> None:
    """Checksums find it before; without them it would still be events or damage."""
    raw = bytearray(encode_block([STORED.event]))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        decode_block(bytes(raw))
    except RapportError as error:
        assert error.code
