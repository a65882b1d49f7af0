"""Golden examples of RFC 8428, section 5.1, and what it demands of readers."""

from typing import Any

import pytest
from hypothesis import strategies as st

from rapport.mediation.formats.base import Document

NOW_MS = 1_772_442_000_000


def test_a_single_data_point(read: Any) -> None:
    pack = [{"n": "urn:dev:ow:10e2073a01080063", "u": "Cel", "v": 23.1}]
    assert read("senml", pack) == [
        Document({"device": "urn:dev:ow:10e2073a01080063", "value": 23.1}, units={"value": "Cel"})
    ]


def test_multiple_data_points_share_a_base_name(read: Any) -> None:
    pack = [
        {"bn": "urn:dev:ow:10e2073a01080063:", "n": "voltage", "u": "V", "v": 120.1},
        {"n": "current", "u": "A", "v": 1.2},
    ]
    assert read("senml", pack) == [
        Document(
            {"device": "urn:dev:ow:10e2073a01080063", "voltage": 120.1, "current": 1.2},
            units={"voltage": "V", "current": "A"},
        )
    ]


def test_base_time_unit_and_version_are_resolved(read: Any) -> None:
    pack = [
        {
            "bn": "urn:dev:ow:10e2073a0108006:",
            "bt": 1.276020076001e9,
            "bu": "A",
            "bver": 5,
            "n": "voltage",
            "u": "V",
            "v": 120.1,
        },
        {"n": "current", "t": -5, "v": 1.2},
        {"n": "current", "t": -4, "v": 1.3},
        {"n": "current", "v": 1.7},
    ]
    documents = read("senml", pack)
    first = 1_276_020_076_001
    assert [(document.time, document.value) for document in documents] == [
        (first, {"device": "urn:dev:ow:10e2073a0108006", "voltage": 120.1, "current": 1.7}),
        (first - 5_000, {"device": "urn:dev:ow:10e2073a0108006", "current": 1.2}),
        (first - 4_000, {"device": "urn:dev:ow:10e2073a0108006", "current": 1.3}),
    ]
    assert documents[0].units == {"voltage": "V", "current": "A"}
    assert [document.id for document in documents] == ["1", "2", "3"]


def test_relative_times_count_from_the_envelope(read: Any) -> None:
    pack = [
        {"bn": "urn:dev:ow:10e2073a01080063", "bu": "%RH", "bt": -10, "v": 20},
        {"t": 10, "v": 21},
    ]
    documents = read("senml", pack)
    assert [document.time for document in documents] == [NOW_MS - 10_000, None]
    assert documents[1].units == {"value": "%RH"}


def test_different_kinds_of_values_and_base_values(read: Any) -> None:
    pack = [
        {"bn": "urn:dev:ow:10e2073a01080063:", "bv": 20, "n": "temp", "u": "Cel", "v": 3.5},
        {"n": "label", "vs": "Machine Room"},
        {"n": "open", "vb": False},
        {"n": "nfc-reader", "vd": "aGkgCg"},
        {"n": "energy", "u": "J", "s": 12, "v": 1},
    ]
    (document,) = read("senml", pack)
    assert document.value == {
        "device": "urn:dev:ow:10e2073a01080063",
        "temp": 23.5,
        "label": "Machine Room",
        "open": False,
        "nfc-reader": "aGkgCg",
        "energy": 21,
        "energy_sum": 12,
    }


def test_whole_names_can_be_parted_by_a_sign(read: Any) -> None:
    pack = [{"n": "roof/7/temp", "v": 1}, {"n": "roof/7/hum", "v": 2}, {"n": "alone", "v": 3}]
    documents = read("senml", pack, split="/")
    assert [document.value for document in documents] == [
        {"device": "roof/7", "temp": 1, "hum": 2},
        {"device": "alone", "value": 3},
    ]


@pytest.mark.parametrize(
    ("pack", "code"),
    [
        ([], "format.bad_senml"),
        ([1], "format.bad_senml"),
        ([{"v": 1}], "format.bad_senml"),
        ([{"n": "a", "v": "1"}], "format.bad_senml"),
        ([{"n": "a", "v": True}], "format.bad_senml"),
        ([{"n": "a"}], "format.bad_senml"),
        ([{"n": "a", "v": 1, "vs": "x"}], "format.bad_senml"),
        ([{"n": "a", "v": 1, "bver": 11}], "format.bad_senml"),
        ([{"n": "a", "v": 1, "new_": 1}], "format.bad_senml"),
        ([{"n": "a", "v": 1, "t": 1e300}], "time.out_of_range"),
        ([{"n": "a", "v": 1e308, "bv": 1e308}], "value.not_finite"),
        ([{"bn": "d:", "n": "device", "v": 1}], "format.bad_senml"),
        ([{"n": "a", "v": 1}] * 10_001, "format.too_many"),
    ],
)
def test_bad_packs_are_refused(refusal: Any, pack: Any, code: str) -> None:
    assert refusal("senml", pack).code == code


def test_fields_nobody_knows_are_left_out(read: Any) -> None:
    assert read("senml", [{"n": "a", "v": 1, "foo": [1]}])[0].value == {"device": "a", "value": 1}


names = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True).filter(lambda name: name != "device")
values = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)


def test_the_unit_of_the_base_is_that_of_numbers(read: Any) -> None:
    pack = [
        {"bn": "d:", "bu": "Cel", "n": "t", "v": 1},
        {"n": "mode", "vs": "on"},
        {"n": "b", "vb": True},
    ]
    (document,) = read("senml", pack)
    assert document.value == {"device": "d", "t": 1, "mode": "on", "b": True}
    assert document.units == {"t": "Cel"}
