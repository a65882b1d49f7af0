"""Raw events become readings in building metres; what has no meaning is rejected with why."""

import json
import math

import msgspec
import pytest

from rapport.core.event import Event, StoredEvent, check_envelope
from rapport.mediation.fields_transformer import FieldsTransformer
from rapport.mediation.rejections import Rejection


def test_a_badge_reading_becomes_a_person_in_building_metres(badges, badge, event):
    reading = badges.apply(event(badge), 42)
    assert isinstance(reading, Event)
    assert (reading.source, reading.id) == ("building", "e1")
    assert (reading.type, reading.subject) == ("person.position", "person/p5")
    assert reading.time == 1772442845210
    assert reading.payload() == {"key": "p5", "value": [11.7, 2.6]}
    assert reading.headers == {
        "cause": "e1",
        "interpretation": badges.stamp,
        "rawchannel": "raw.badges",
        "rawposition": "42",
    }
    check_envelope(reading)


def test_several_tags_belong_to_one_person(badges, badge, event):
    keys = [
        badges.apply(event(badge | {"tag": tag})).payload()["key"] for tag in ("E200-34", "E200-35")
    ]
    assert keys == ["p5", "p5"]


def test_a_tag_may_be_a_number(badges, badge, event):
    assert badges.apply(event(badge | {"tag": 77})).payload()["key"] == "p6"


def test_a_camera_reading_is_turned_by_where_the_camera_looks(cameras, camera, event):
    reading = cameras.apply(event(camera))
    angle, distance = math.radians(31.0 + 90.0), 12.4 * 0.3048
    x, y = reading.payload()["value"]
    assert x == pytest.approx(20 + distance * math.sin(angle), abs=1e-12)
    assert y == pytest.approx(8.25 + distance * math.cos(angle), abs=1e-12)
    assert reading.time == 1772442845300
    assert reading.payload()["key"] == "p17"


def test_an_unknown_face_is_named_by_its_track(cameras, camera, event):
    for face in ("unknown", None):
        reading = cameras.apply(event(camera | {"face": face}))
        assert reading.subject == "person/unknown:t91"


def test_an_unknown_face_can_stand_for_one_declared_visitor(build, feeds_text, camera, event):
    text = feeds_text[feeds_text.index("[interpretations.cameras]") :]
    one = build(text.replace("unknown:{track}", "visitor"))
    assert one.apply(event(camera | {"face": "unknown"})).payload()["key"] == "visitor"


def test_headers_of_the_raw_event_stay_but_cannot_forge_ours(badges, badge, event):
    raw = msgspec.structs.replace(event(badge), headers={"trace": "t", "interpretation": "forged"})
    headers = badges.apply(raw).headers
    assert headers["trace"] == "t"
    assert headers["interpretation"] == badges.stamp


def test_a_source_without_an_interpretation_sends_canonical_events(bind, event):
    root = FieldsTransformer.build(None, bind(key="person", time="ts", value=("east", "north")))
    reading = root.apply(event({"person": 5, "east": 1, "north": 2.5, "ts": 1005061}))
    assert reading.payload() == {"key": "5", "value": [1.0, 2.5]}
    assert reading.time == 1005061
    assert reading.headers["interpretation"].startswith("root@")


def test_root_takes_the_envelopes_time_when_the_payload_has_none(bind, event):
    root = FieldsTransformer.build(None, bind(key="person"))
    assert root.apply(event({"person": "5", "x": 1, "y": 2}, time=99)).time == 99
    assert root.apply(event({"person": "5", "x": 1, "y": 2, "time": None})).code == "time.bad_time"


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [("text", "open", ["open"]), ("boolean", True, [True]), ("number", 3, [3.0])],
)
def test_root_speaks_every_type_of_one_part(bind, event, kind, value, found):
    root = FieldsTransformer.build(None, bind(type=kind, attribute="state", key="door"))
    assert root.apply(event({"door": "d1", "value": value})).payload()["value"] == found


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tag": "nobody-has-it"}, "identity.unknown"),
        ({"tag": ""}, "identity.empty"),
        ({"tag": None}, "identity.not_a_name"),
        ({"tag": 1.5}, "identity.not_a_name"),
        ({"tag": True}, "identity.not_a_name"),
        ({"tag": ["E200-34"]}, "identity.not_a_name"),
        ({"tag": 10**40}, "identity.not_a_name"),
        ({"reader": "r99"}, "lookup.unknown"),
        ({"reader": "broken"}, "lookup.bad_number"),
        ({"reader": "endless"}, "lookup.bad_number"),
        ({"reader": {}}, "identity.not_a_name"),
        ({"dx": "1.2"}, "value.not_a_number"),
        ({"dx": "far"}, "value.not_a_number"),
        ({"dx": None}, "value.not_a_number"),
        ({"dx": True}, "value.not_a_number"),
        ({"dx": []}, "value.not_a_number"),
        ({"dx": {"value": 1}}, "value.not_a_number"),
        ({"dx": 10**400}, "value.not_finite"),
        ({"t": "yesterday"}, "time.bad_time"),
        ({"t": "2026-03-02T09:14:05"}, "time.no_zone"),
        ({"t": 1772442845}, "value.not_text"),
        ({"t": None}, "value.not_text"),
    ],
)
def test_wrong_values_are_rejected_with_their_reason(badges, badge, event, change, code):
    raw = event(badge | change)
    rejection = badges.apply(raw, 3)
    assert isinstance(rejection, Rejection)
    assert rejection.code == code
    assert (rejection.event, rejection.position) == (raw, 3)
    assert rejection.interpretation == badges.stamp
    assert rejection.message


@pytest.mark.parametrize("field", ["reader", "tag", "dx", "dy", "t"])
def test_a_missing_field_is_named(badges, badge, event, field):
    rejection = badges.apply(event({key: badge[key] for key in badge if key != field}))
    assert rejection.code == "field.missing"
    assert rejection.message.endswith(f"no field {field}")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "payload.not_json"),
        (b"{", "payload.not_json"),
        (b"\xff\xfe", "payload.not_json"),
        (b'{"dx": NaN}', "payload.not_json"),
        (b'{"dx": 1e999}', "payload.not_json"),
        (b"[" * 100_000 + b"]" * 100_000, "payload.not_json"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "payload.not_json"),
        (b"null", "payload.not_an_object"),
        (b"[1, 2]", "payload.not_an_object"),
        (b'"text"', "payload.not_an_object"),
        (b"5", "payload.not_an_object"),
    ],
)
def test_payloads_that_are_no_json_object_are_rejected(badges, event, data, code):
    assert badges.apply(event(data)).code == code


def test_a_very_long_number_is_rejected_quickly(badges, badge, event):
    body = json.dumps(badge).replace("1.2", "1" + "0" * 20_000).encode()
    assert badges.apply(event(body)).code in ("value.not_finite", "payload.not_json")


def test_seconds_that_are_milliseconds_are_rejected_with_a_hint(cameras, camera, event):
    rejection = cameras.apply(event(camera | {"ts": 1772442845300}))
    assert rejection.code == "time.out_of_range"
    assert "epoch_ms" in rejection.hint


def test_a_result_too_large_for_a_float_is_rejected(build, event):
    text = """
    [interpretations.radar]
    identity = { field = "id" }
    value.x = { field = "x", unit = "km" }
    value.y = { field = "y", unit = "km" }
    """
    assert build(text).apply(event({"id": "a", "x": 1e306, "y": 1})).code == "value.not_finite"
    assert build(text).apply(event({"id": "a", "x": 1, "y": 2})).payload()["value"] == [1e3, 2e3]


@pytest.mark.parametrize("track", ["t" * 300, "line\nbreak", "\x00"])
def test_an_identity_the_envelope_cannot_carry_is_rejected(cameras, camera, event, track):
    rejection = cameras.apply(event(camera | {"face": "unknown", "track": track}))
    assert rejection.code == "identity.bad_name"


def test_one_bad_event_does_not_stop_the_batch(badges, badge, event):
    batch = [
        StoredEvent(1, 0, event(badge, id="a")),
        StoredEvent(2, 0, event(b"{", id="b")),
        StoredEvent(3, 0, event(badge | {"tag": "none"}, id="c")),
        StoredEvent(4, 0, event(badge, id="d")),
    ]
    readings, rejections = badges.apply_many(batch)
    assert [one.id for one in readings] == ["a", "d"]
    assert [(one.event.id, one.position) for one in rejections] == [("b", 2), ("c", 3)]


def test_a_number_without_a_unit_is_held_back_with_a_hint(build, feeds_text, camera, event):
    text = feeds_text[feeds_text.index("[interpretations.cameras]") :]
    one = build(text.replace(', unit = "ft"', ""))
    rejection = one.apply(event(camera))
    assert rejection.code == "unit.undeclared"
    assert rejection.hint == "the name 'dist_ft' looks like unit = 'ft'"
    assert one.apply(event({})).code == "unit.undeclared"


def test_decimal_commas_are_read_only_where_declared(build, event):
    text = """
    [interpretations.station]
    identity = { field = "id" }
    value = { field = ["temperature", "value"], unit = "degF", to = "degC", decimal = "comma" }
    """
    one = build(text, type="number", concept="station", attribute="temperature")
    reading = one.apply(event({"id": "s1", "temperature": {"value": "77,0"}}))
    assert reading.payload() == {"key": "s1", "value": [25.0]}
    assert reading.time == 7
    assert one.apply(event({"id": "s1", "temperature": {"value": 77}})).payload()["value"] == [25.0]
    assert (
        one.apply(event({"id": "s1", "temperature": {"value": "77.0"}})).code
        == "value.not_a_number"
    )
    assert (
        one.apply(event({"id": "s1", "temperature": {"value": "9e999"}})).code == "value.not_finite"
    )
    assert one.apply(event({"id": "s1", "temperature": 77})).code == "field.missing"


def test_an_event_of_another_type_is_rejected(build, feeds_text, badge, event):
    text = feeds_text[: feeds_text.index("[interpretations.cameras]")] + 'type = "badge.seen"\n'
    one = build(text)
    assert one.apply(event(badge, type="door.opened")).code == "type.unexpected"
    assert isinstance(one.apply(event(badge, type="badge.seen")), Event)


def test_a_relative_place_turns_with_the_heading(build, feeds_text, badge, event):
    text = feeds_text[: feeds_text.index("[interpretations.cameras]")]
    one = build(text.replace('y = "y_m" }', 'y = "y_m", heading = "heading_deg" }'))
    ahead = one.apply(event(badge | {"reader": "c2", "dx": 0.0, "dy": 2.0}))
    assert ahead.payload()["value"] == [22.0, 8.25]


def test_the_generated_text_reads_like_the_declaration(badges):
    text = badges.source_text()
    assert "iso_time(time, 't', '')" in text
    assert "v_x = origin_x + v_x" in text
    assert text.startswith("# 'badge-readers' for source 'badges': gives 'person.position'\n")


@pytest.mark.parametrize("seen", ["0", 0, -1, None], ids=["text", "zero", "negative", "null"])
def test_a_number_that_means_nobody_is_nobody(build, feeds_text, camera, event, seen):
    """An identity that comes as a number is named by its digits; so is nobody."""
    text = feeds_text[feeds_text.index("[interpretations.cameras]") :]
    result = text.replace('nobody = "unknown"', 'nobody = ["0", "-1"]')
    reading = build(result).apply(event(camera | {"face": seen}))
    assert reading.subject == "person/unknown:t91"
