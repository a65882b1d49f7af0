import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from rapport.core.event import Event
from rapport.core.signature import (
    COVERED_HEADERS,
    RAW_SIGNATURE,
    RAW_SIGNED_BY,
    RAW_VERDICT,
    SIGNATURE,
    SIGNED_BY,
    canonical_form,
    with_signer,
    without_raw_signature,
)

TEXTS = st.text(max_size=6)
EVENTS = st.builds(
    Event,
    source=TEXTS,
    id=TEXTS,
    type=TEXTS,
    subject=TEXTS,
    time=st.integers(-(2**63), 2**63 - 1),
    data=st.binary(max_size=8),
    headers=st.dictionaries(st.sampled_from([*COVERED_HEADERS, SIGNED_BY]), TEXTS, max_size=4),
)
SEEN = Event(
    source="door-3",
    id="e1",
    type="badge.seen",
    subject="person/5",
    time=1_772_442_000_000,
    data=b'{"tag":77}',
    headers={SIGNED_BY: "ed25519.00", "cause": "e0", "publisher": "p"},
)


def test_the_canonical_form_is_the_one_other_programs_were_written_for() -> None:
    parts = [
        b"rapport.signature.1",
        b"ed25519.00",
        b"door-3",
        b"e1",
        b"badge.seen",
        b"person/5",
        b"1772442000000",
        b'{"tag":77}',
        b"cause",
        b"e0",
    ]
    golden = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert canonical_form(SEEN) == golden
    assert golden.hex().startswith("0000000000000013726170706f72742e7369676e61747572652e31")


@given(EVENTS, EVENTS)
def test_no_two_events_share_a_canonical_form(one: Event, other: Event) -> None:
    # An absent signer and an empty one are the same thing: both name nobody.
    def fields(event: Event) -> tuple[object, ...]:
        covered = {name: text for name, text in event.headers.items() if name != SIGNED_BY}
        head = (event.source, event.id, event.type, event.subject, event.time, event.data)
        return (*head, covered, event.headers.get(SIGNED_BY, ""))

    assert (canonical_form(one) == canonical_form(other)) == (fields(one) == fields(other))


def test_text_moved_from_one_field_to_the_next_is_another_form() -> None:
    moved = msgspec.structs.replace(SEEN, source="door-", id="3e1")
    assert canonical_form(moved) != canonical_form(SEEN)


@pytest.mark.parametrize(
    "name", ["publisher", "publisherepoch", "sequence", "hops", "origin", "position", SIGNATURE]
)
def test_what_the_way_adds_is_not_covered(name: str) -> None:
    added = msgspec.structs.replace(SEEN, headers={**SEEN.headers, name: "x"})
    assert canonical_form(added) == canonical_form(SEEN)


def test_who_signs_is_named_and_space_around_the_data_goes() -> None:
    spaced = msgspec.structs.replace(SEEN, data=b' \n{"a": 1}\t', headers={SIGNATURE: "old"})
    prepared = with_signer(spaced, "ed25519.11")
    assert prepared.headers == {SIGNED_BY: "ed25519.11"}
    assert prepared.data == b'{"a": 1}'


def test_a_reading_keeps_its_raw_events_signature_under_another_name() -> None:
    raw = msgspec.structs.replace(SEEN, headers={SIGNATURE: "s", SIGNED_BY: "k"})
    reading = msgspec.structs.replace(
        raw, type="person.position", headers={**raw.headers, "x": "1"}
    )
    assert without_raw_signature(reading, raw).headers == {
        "x": "1",
        RAW_SIGNATURE: "s",
        RAW_SIGNED_BY: "k",
    }


def test_a_verdict_that_a_producer_wrote_itself_is_dropped() -> None:
    raw = msgspec.structs.replace(SEEN, headers={RAW_VERDICT: "ok", RAW_SIGNED_BY: "somebody"})
    assert without_raw_signature(raw, raw).headers == {}


def test_a_reading_without_a_signature_is_left_as_it_is() -> None:
    raw = msgspec.structs.replace(SEEN, headers={"x": "1"})
    assert without_raw_signature(raw, raw) is raw
