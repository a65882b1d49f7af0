"""Sources of the fields form in other formats than JSON. [ME-11, ME-13]"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec

from rapport.core.codec import (
    DATA_ENCODING,
    DATA_TYPE,
    decode_cloudevent,
    octets_event_parts,
    stored_cloudevent,
)
from rapport.core.event import ADDED_FIELDS, Event, StoredEvent
from rapport.mediation.fields_transformer import FormattedTransformer
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    ValueRule,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.reader import build_transformer
from rapport.mediation.source_bindings import SourceBinding

UNITS = {"humidity": "%RH", "wind": "m/s", "rain": "mm", "sun": "W/m2", "noise": "dB", "volt": "V"}


def transformer(type_name: Any = "number", unit: str = "degC") -> FormattedTransformer:
    values = (ValueRule("value", ("temp",), unit),)
    result = FieldsInterpretation(
        name="packs",
        identity=IdentityRule(("device",)),
        values=values,
        format=FormatChoice("senml"),
    )
    binding = SourceBinding(
        source="s",
        concept="station",
        attribute="temperature",
        type=type_name,
        interpretation="packs",
        units=("degC",) if type_name == "number" else (),
    )
    built = build_transformer(binding, ActiveInterpretations({"packs": result}))
    assert isinstance(built, FormattedTransformer)
    return built


def pack(number: int, *records: Any) -> StoredEvent:
    data = msgspec.json.encode([{"bn": "d1:"}, *records])
    return StoredEvent(number, 0, Event("s", f"e{number}", "s.raw", "", 9, data))


def test_unused_measurements_do_not_count_as_sets_of_units() -> None:
    """A pack has now these and now those attributes; the one that is read says one unit."""
    others = [some for size in range(7) for some in combinations(UNITS, size)] * 3
    packs = [
        pack(
            number,
            {"n": "temp", "u": "Cel", "v": 21.5},
            *({"n": name, "u": UNITS[name] + "x" * (number % 3), "v": 1} for name in some),
        )
        for number, some in enumerate(others, start=1)
    ]
    assert len(packs) > 100
    found, rejections = transformer().apply_many(packs)
    assert rejections == []
    assert {one.payload()["value"][0] for one in found} == {21.5}


def test_the_sets_of_units_are_bounded() -> None:
    packs = [pack(n, {"n": "temp", "u": f"u{n}", "v": 1}) for n in range(1, 5)]
    packs.append(pack(9, {"n": "temp", "u": "K", "v": 273.15}))
    found, rejections = transformer().apply_many(packs)
    assert len(rejections) == 4
    assert [one.payload()["value"] for one in found] == [[0.0]]


def test_a_text_below_a_unit_of_the_base_is_a_text() -> None:
    stored = pack(1, {"bu": "Cel", "n": "other", "v": 1}, {"n": "temp", "vs": "warm"})
    found, rejections = transformer("text", "").apply_many([stored])
    assert rejections == []
    assert [one.payload()["value"] for one in found] == [["warm"]]


def test_a_reading_lacks_the_format_headers_of_its_raw_event() -> None:
    """Data in base64 of which only the header is left could be read by no listener."""
    result = FieldsInterpretation(
        name="rows",
        identity=IdentityRule(("device",)),
        values=(ValueRule("value", ("temp",), "degC"),),
        format=FormatChoice("csv", {"columns": ["device", "temp"]}),
    )
    binding = SourceBinding(
        source="s",
        concept="station",
        attribute="temperature",
        interpretation="rows",
        units=("degC",),
    )
    data, marks = octets_event_parts(b"d1,21.5\n", "application/octet-stream")
    stored = StoredEvent(1, 0, Event("s", "e1", "s.raw", "", 9, data, {**marks, "trace": "t"}))
    (reading,), rejections = build_transformer(
        binding, ActiveInterpretations({"rows": result})
    ).apply_many([stored])
    assert rejections == []
    assert reading.headers["trace"] == "t"
    assert not {DATA_TYPE, DATA_ENCODING} & reading.headers.keys()
    results = msgspec.json.encode(stored_cloudevent(StoredEvent(1, 0, reading)))
    back = decode_cloudevent(results, received_ms=0)
    assert back.payload() == {"key": "d1", "value": [21.5]}


def test_texts_and_truths_are_read_where_a_format_knows_only_texts() -> None:
    rule = IdentityRule(("lamp",))
    for kind, result, value in (
        ("text", "on", "on"),
        ("boolean", "ON", True),
        ("boolean", "0", False),
    ):
        binding = SourceBinding(source="s", concept="lamp", attribute="state", type=kind)
        interpretation = FieldsInterpretation(
            name="i",
            identity=rule,
            values=(ValueRule("value", ("value",)),),
            format=FormatChoice("value"),
        )
        in_force = ActiveInterpretations({"i": interpretation})
        meaning = build_transformer(msgspec.structs.replace(binding, interpretation="i"), in_force)
        added = {ADDED_FIELDS: '{"lamp":"l1"}'}
        raw = Event("s", "1", "s.raw", "", 5, msgspec.json.encode(result), added)
        (reading,), rejections = meaning.apply_many([StoredEvent(1, 5, raw)])
        assert (reading.payload(), rejections) == ({"key": "l1", "value": [value]}, [])
        assert ADDED_FIELDS not in reading.headers


def test_each_reading_of_several_in_one_event_names_the_whole_raw_event_as_its_cause() -> None:
    two = pack(1, {"n": "temp", "u": "Cel", "v": 1}, {"n": "temp", "u": "Cel", "v": 2, "t": 60})
    found, rejections = transformer().apply_many([two])
    assert rejections == []
    assert len({one.id for one in found}) == 2
    assert {one.causes() for one in found} == {("e1",)}
