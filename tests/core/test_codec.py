import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.batch import EventBatch
from rapport.core.codec import (
    decode_block,
    decode_cloudevent,
    decode_cloudevents,
    encode_block,
    encode_cloudevent,
)
from rapport.core.errors import Corrupt, InvalidInput, RapportError
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event

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


@given(st.lists(EVENTS, max_size=5))
def test_a_block_gives_back_its_events(events: list[Event]) -> None:
    assert decode_block(encode_block(events)) == events


@given(EVENTS)
def test_a_cloudevent_gives_back_its_event(event: Event) -> None:
    assert decode_cloudevent(encode_cloudevent(event), received_ms=0) == event


@given(st.lists(EVENTS, max_size=4))
def test_a_batch_of_columns_gives_back_its_events(events: list[Event]) -> None:
    stored = [StoredEvent(place, 7, event) for place, event in enumerate(events, start=1)]
    assert list(EventBatch.from_stored(stored).to_stored()) == stored


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
