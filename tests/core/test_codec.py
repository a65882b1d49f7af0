import json
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core import codec
from rapport.core.codec import (
    decode_block,
    decode_cloudevent,
    decode_cloudevents,
    encode_block,
    encode_cloudevent,
    stored_cloudevent,
)
from rapport.core.errors import Corrupt, InvalidInput, RapportError
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.event_columns import envelope_table

NAMES = st.text(
    st.characters(
        min_codepoint=32, exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs", "Cf", "Co", "Cn")
    ),
    min_size=1,
    max_size=20,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
EVENTS = st.builds(
    make_event,
    source=NAMES,
    id=NAMES,
    type=NAMES,
    subject=NAMES,
    time=st.integers(0, 253_402_300_799_999),
    data=VALUES,
    headers=st.dictionaries(
        st.sampled_from(["cause", "interpretation", "traceparent"]), st.text(max_size=9), max_size=3
    ),
)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=5))
def test_a_block_gives_back_its_events(events: list[Event]) -> None:
    assert decode_block(encode_block(events)) == events


@given(EVENTS)
def test_a_cloudevent_gives_back_its_event(event: Event) -> None:
    assert decode_cloudevent(encode_cloudevent(event), received_ms=0) == event


@given(st.lists(EVENTS, max_size=4))
def test_a_batch_of_columns_gives_back_its_events(events: list[Event]) -> None:
    stored = [StoredEvent(place, 7, event) for place, event in enumerate(events, start=1)]
    rows = envelope_table(stored).to_pylist()
    read = [
        StoredEvent(
            row.pop("position"),
            row.pop("received"),
            Event(**row | {"headers": dict(row["headers"])}),
        )
        for row in rows
    ]
    assert read == stored


@given(st.binary(max_size=60))
def test_no_bytes_crash_a_decoder(raw: bytes) -> None:
    for decode in (
        decode_block,
        lambda body: decode_cloudevent(body, received_ms=0),
        lambda body: decode_cloudevents(body, received_ms=0),
    ):
        try:
            decode(raw)
        except RapportError as error:
            assert error.code


def test_a_broken_block_is_corrupt_and_says_so() -> None:
    with pytest.raises(Corrupt) as caught:
        decode_block(b"\xc1")
    assert caught.value.code == "log.bad_block"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "1", "source": "s"}, "event.not_a_cloudevent"),
        ({"id": "1", "source": "s", "type": "t", "specversion": "0.3"}, "event.not_a_cloudevent"),
        ({"id": "", "source": "s", "type": "t"}, "event.missing_field"),
        ({"id": "x" * 300, "source": "s", "type": "t"}, "event.field_too_long"),
        ({"id": "a\nb", "source": "s", "type": "t"}, "event.bad_field"),
        ({"id": "1", "source": "s", "type": "t", "time": "soon"}, "time.bad_time"),
        ({"id": "1", "source": "s", "type": "t", "ext": {"a": 1}}, "event.bad_extension"),
        ({"id": 5, "source": "s", "type": "t"}, "event.not_a_cloudevent"),
    ],
)
def test_a_faulty_cloudevent_is_refused_with_its_code(body: object, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_cloudevent(json.dumps(body).encode(), received_ms=0)
    assert caught.value.code == code


def test_a_batch_names_the_faulty_event() -> None:
    good = {"id": "1", "source": "s", "type": "t"}
    with pytest.raises(InvalidInput, match="event 1:"):
        decode_cloudevents(json.dumps([good, {"id": "2"}]).encode(), received_ms=0)


def test_an_event_without_time_gets_the_time_it_was_received() -> None:
    body = json.dumps({"id": "1", "source": "s", "type": "t", "data": {"a": 1}}).encode()
    event = decode_cloudevent(body, received_ms=5)
    assert (event.time, event.payload()) == (5, {"a": 1})


def test_data_that_is_not_json_is_refused_when_it_is_read() -> None:
    event = Event("s", "1", "t", "", 0, b"{oops")
    with pytest.raises(InvalidInput) as caught:
        event.payload()
    assert caught.value.code == "event.bad_data"


@given(st.lists(st.text(" %2050ab", min_size=1, max_size=6), max_size=3))
def test_causes_survive_the_header_whatever_the_ids_hold(ids: list[str]) -> None:
    event = Event("s", "1", "t", "", 0, headers={CAUSE: cause_text(*ids)})
    assert event.causes() == tuple(ids)


def test_numbers_of_extensions_keep_their_text() -> None:
    body = b'{"id":"1","source":"s","type":"t","seq":12345678901234567890}'
    assert decode_cloudevent(body, received_ms=0).headers == {"seq": "12345678901234567890"}
    assert msgspec.json.decode(body)["id"] == "1"


ODD_MEMBERS = st.dictionaries(
    st.sampled_from(
        [
            *("id", "source", "type", "subject", "time", "specversion", "datacontenttype"),
            *("data", "data_base64", "publisher", "epoch", "sequence", "traceparent", "other"),
        ]
    ),
    st.sampled_from(
        [
            *("1", "1.0", "application/json", "text/xml", "", "a\nb", "AAE=", "x" * 300, "base64"),
            *("2026-03-02T09:14:05.210Z", "2026-03-02T09:14:05", "soon", 5, 2**70, None, True),
            *({"a": [1, None]}, [1], 0.5),
        ]
    ),
    max_size=9,
)


def outcome(decode: Callable[[], Sequence[Event]]) -> object:
    try:
        return list(decode())
    except InvalidInput as error:
        return error.code, error.message


@given(st.lists(ODD_MEMBERS.map(lambda odd: {"id": "1", "source": "s", "type": "t"} | odd)))
def test_the_quick_way_reads_what_the_close_look_reads(members: list[dict[str, object]]) -> None:
    body = json.dumps(members).encode()
    quickly = outcome(lambda: decode_cloudevents(body, received_ms=7))
    closely = outcome(lambda: codec._decode_each(body, 7))
    assert quickly == closely
    for one in members:
        raw = json.dumps(one).encode()
        alone = outcome(lambda raw=raw: [decode_cloudevent(raw, received_ms=7)])
        assert alone == outcome(lambda raw=raw: [codec._decode_any_event(raw, 7)])


ODD_NAMES = st.text(st.sampled_from('aZ 0\\"/\x7f\n\t\x00é\u200b\u2028\U0001f600'), max_size=4)
WRITTEN = st.sampled_from(
    [
        lambda value: json.dumps(value).encode(),
        lambda value: json.dumps(value, ensure_ascii=False).encode(),
        lambda value: json.dumps(value, ensure_ascii=False).replace("\\u007f", "\x7f").encode(),
    ]
)


@given(st.lists(st.tuples(ODD_NAMES, ODD_NAMES, ODD_NAMES, ODD_NAMES), max_size=20), WRITTEN)
def test_odd_names_are_refused_by_the_quick_way_as_by_the_close_look(
    names: list[tuple[str, str, str, str]], write: Callable[[object], bytes]
) -> None:
    body = write(
        [
            {"id": id, "source": source, "type": type, "subject": subject, "data": id}
            for id, source, type, subject in names
        ]
    )
    quickly = outcome(lambda: decode_cloudevents(body, received_ms=7))
    assert quickly == outcome(lambda: codec._decode_each(body, 7))


def test_octets_and_other_data_are_marked_and_given_out_as_cloudevents_has_it() -> None:
    body = b'{"id":"1","source":"s","type":"t","datacontenttype":"image/png","data_base64":"AAH/"}'
    event = decode_cloudevent(body, received_ms=0)
    assert event.payload() == "AAH/"
    assert event.headers == {"datacontenttype": "image/png", "dataencoding": "base64"}
    shown = msgspec.json.decode(msgspec.json.encode(stored_cloudevent(StoredEvent(3, 4, event))))
    assert (shown["data_base64"], shown["position"], shown["received"]) == ("AAH/", 3, 4)
    assert not {"data", "dataencoding"} & set(shown)
    assert decode_cloudevent(encode_cloudevent(event), received_ms=0) == event


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"data_base64": "A"}, "event.bad_base64"),
        ({"data_base64": "ü"}, "event.bad_base64"),
        ({"data": {}, "dataencoding": "base64"}, "event.bad_base64"),
        ({"data": "AAE=", "dataencoding": "zip"}, "event.bad_base64"),
        ({"data": 1, "data_base64": "AAE="}, "event.not_a_cloudevent"),
    ],
)
def test_octets_that_are_none_are_refused(members: dict[str, object], code: str) -> None:
    body = json.dumps({"id": "1", "source": "s", "type": "t"} | members).encode()
    with pytest.raises(InvalidInput) as caught:
        decode_cloudevent(body, received_ms=0)
    assert caught.value.code == code


def test_an_attribute_named_position_does_not_stand_for_the_channels_own() -> None:
    event = Event("s", "1", "t", "", 0, headers={"position": "99", "received": "x"})
    shown = stored_cloudevent(StoredEvent(3, 4, event))
    assert (shown["position"], shown["received"]) == (3, 4)


def test_data_that_a_door_took_and_a_reader_cannot_read_is_invalid_for_that_reader() -> None:
    """How deep may be read depends on the depth of who reads: 700 levels pass the door."""
    deep = b"[" * 700 + b"]" * 700
    said = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": msgspec.Raw(deep)}
    event = decode_cloudevent(msgspec.json.encode(said), received_ms=1)

    def read_at(depth: int) -> object:
        return read_at(depth - 1) if depth else event.payload()

    with pytest.raises(InvalidInput) as caught:
        read_at(400)
    assert caught.value.code == "event.bad_data"
