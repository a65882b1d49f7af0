"""Seconds since 1970 where the format knows only texts: in both forms, with its decimal mark."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.core.event import Event, StoredEvent
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.conversion.conversions import converts
from rapport.mediation.conversion.notations import ParseTime
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    RenameAttribute,
    Rule,
    TimeRule,
    TypeMapping,
    ValueRule,
)
from rapport.mediation.interpretations.model import Interpretation as TypedForm
from rapport.mediation.interpretations.repository import ActiveInterpretations, activate
from rapport.mediation.reader import build_transformer
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
BINDING = SourceBinding(
    source="s",
    concept="station",
    attribute="temperature",
    interpretation="feed",
    units=("degC",),
)
CSV = FormatChoice("csv", {"delimiter": ";", "decimal": "comma"})
XML = FormatChoice("xml", {"path": "row"})
CASES = [
    (CSV, "when;id;t\n1772442845,5;d7;21,5\n", "epoch_s", 1772442845500),
    (CSV, "when;id;t\n1772442845500;d7;21,5\n", "epoch_ms", 1772442845500),
    (CSV, "when;id;t\n1772442845.5;d7;21,5\n", "epoch_s", "value.not_a_number"),
    (CSV, "when;id;t\nsoon;d7;21,5\n", "epoch_s", "value.not_a_number"),
    (CSV, "when;id;t\n1e300;d7;21,5\n", "epoch_s", "time.out_of_range"),
    (
        XML,
        "<row><when>1772442845.5</when><id>d7</id><t>21.5</t></row>",
        "epoch_s",
        1772442845500,
    ),
    (FormatChoice(), {"when": "1772442845", "id": "d7", "t": 21.5}, "epoch_s", "not_a_number"),
]


def fields_form(format: FormatChoice, time_format: str) -> ActiveInterpretations:
    return ActiveInterpretations(
        {
            "feed": FieldsInterpretation(
                name="feed",
                format=format,
                time=TimeRule(("when",), time_format),
                identity=IdentityRule(("id",)),
                values=(ValueRule("value", ("t",), unit="degC"),),
            )
        }
    )


def typed_form(format: FormatChoice, time_format: str) -> ActiveInterpretations:
    row = (Attribute("when", "Stamp"), Attribute("id", "text"), Attribute("t", "degC"))
    names = {"when": "time", "id": "key", "t": "temperature"}
    shape = tuple(RenameAttribute(old, new) for old, new in names.items())
    feed = TypedForm(
        name="feed",
        types=(unit_type("degC"), PrimitiveType("Stamp", "number"), ComplexType("Row", row)),
        mappings=(TypeMapping("Row", "station", "in", shape=shape),),
        rules=(Rule("Stamp", "when", "in"),),
        conversions=(converts("when", "Stamp", "Time", ParseTime(time_format)),),
    )
    found, _ = activate({}, [feed], concepts=CONCEPTS, formats={"feed": format})
    assert not found.refused
    return found


@pytest.mark.parametrize("form", [fields_form, typed_form])
@pytest.mark.parametrize(("format", "said", "time_format", "expected"), CASES)
def test_a_count_since_1970_is_read_from_text_with_the_mark_of_the_format(
    form: Any, format: FormatChoice, said: Any, time_format: str, expected: int | str
) -> None:
    meaning = build_transformer(BINDING, form(format, time_format))
    headers = {"datacontenttype": f"text/{format.name}"} if isinstance(said, str) else {}
    event = Event("s", "e1", "s.raw", "", 7, msgspec.json.encode(said), headers)
    readings, rejections = meaning.apply_many([StoredEvent(1, 7, event)])
    if isinstance(expected, int):
        assert rejections == []
        assert [(each.time, each.payload()["value"]) for each in readings] == [(expected, [21.5])]
    else:
        assert readings == []
        assert [expected in each.code for each in rejections] == [True]


def test_where_numbers_are_numbers_the_generated_text_reads_nothing_else() -> None:
    plain = build_transformer(BINDING, fields_form(FormatChoice(), "epoch_s"))
    assert "epoch_time(time, 'when', 1000.0)" in plain.source_text()
    table = build_transformer(BINDING, fields_form(CSV, "epoch_s"))
    assert "epoch_time(time, 'when', 1000.0, 'comma')" in table.source_text()


def test_a_field_that_no_type_declares_becomes_no_attribute_of_a_concept() -> None:
    """It would be a number in no unit."""
    row = ComplexType("Row", (Attribute("id", "text"), Attribute("t2", "degC", optional=True)))
    shape = (RenameAttribute("id", "key"), RenameAttribute("t2", "temperature"))
    feed = TypedForm(
        name="feed",
        types=(unit_type("degC"), row),
        mappings=(TypeMapping("Row", "station", "in", shape=shape),),
    )
    found, _ = activate({}, [feed], concepts=CONCEPTS)
    meaning = build_transformer(BINDING, found)
    said = [
        {"id": "d7", "temperature": 70, "time": "2001-01-01"},
        {"id": "d7", "t2": 21.5, "time": 5},
    ]
    events = [
        StoredEvent(n, 7, Event("s", f"e{n}", "s.raw", "", 7, msgspec.json.encode(each)))
        for n, each in enumerate(said, start=1)
    ]
    readings, rejections = meaning.apply_many(events)
    assert [(each.time, each.payload()["value"]) for each in readings] == [(7, [21.5])]
    assert [each.code for each in rejections] == ["reading.empty"]
