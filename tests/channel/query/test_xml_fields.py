"""Fields of XML payloads in conditions and templates."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.query_kinds import make_query
from rapport.channel.query.tree import Not
from rapport.channel.query.values import as_number, is_xml, xml_steps
from rapport.core.event import Event, StoredEvent
from support.judge.conditions import CONDITIONS

ORDER = """<?xml version="1.0" encoding="UTF-16"?>
<o:order xmlns:o="urn:orders" id="007" o:urgent="true">
  <o:item><price currency="EUR"> 2.50 </price><name>nut &amp; bolt</name></o:item>
  <o:item><price currency="USD">10</price><name/></o:item>
  <note>call <b>before</b> noon</note>
  <and>x</and>
</o:order>"""


def stored(text: Any, content_type: str = "application/xml") -> StoredEvent:
    headers = {"datacontenttype": content_type}
    return StoredEvent(1, 1, Event("s", "1", "order", "", 0, json.dumps(text).encode(), headers))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("data.order.item.price = 2.5", True),
        ("data.order.item.price = '2.50'", True),
        ("data.order.item[0].price BETWEEN 2 AND 3", True),
        ("data.order.item[1].price > 9", True),
        ("data.order.item[1].price > '9'", False),
        ("data.order.item[2].price IS NULL", True),
        ("data.order.item[2].price > 9", False),
        ("NOT data.order.item[2].price > 9", False),
        ("data.order.@id = '007'", True),
        ("data.order.@id = 7", True),
        ("data.order.@id <> 8", True),
        ("data.order.@urgent", True),
        ("data.order.@urgent = TRUE", True),
        ("NOT data.order.@urgent", False),
        ("data.order.item.price.@currency IN ('EUR', 5, TRUE)", True),
        ("data.order.item.price.@currency IN (5, TRUE)", False),
        ("NOT data.order.item.price.@currency IN (5, TRUE)", True),
        ("data.order.item.name LIKE '%& b%'", True),
        ("data.order.item[1].name = ''", True),
        ("data.order.item[1].name IS NOT NULL", True),
        ("data.order.note = 'call before noon'", True),
        ("data.order.\"and\" = 'x'", True),
        ("data.order.and = 'x'", True),
        ("data.order.item.price * 2 + 1 = 6", True),
        ("-data.order.item.price < 0", True),
        ("data.order.note + 1 > 0", False),
        ("data.order.note + 1 IS NULL", True),
        ("data.order.note > 5", False),
        ("NOT data.order.note > 5", True),
        ("data.order.item[0].price < data.order.item[1].price", True),
        ("data.order.note < data.order.item.name", True),
        ("type = data.order.note", False),
        ("position < data.order.item.price", True),
        ("data.order.item[0][1] IS NULL", True),
        ("data[0] IS NULL", True),
        ("data.order.@id.x IS NULL", True),
        ("data.item IS NULL", True),
        ("data.order.item.price.@none IS NULL", True),
        ("data LIKE '<?xml%'", True),
        ("data.@id IS NULL", True),
    ],
)
def test_a_path_of_local_names_reaches_every_value(condition: str, expected: bool) -> None:
    query = make_query("sql", condition)
    assert query.matches(stored(ORDER)) is expected
    assert make_query("sql", query.text).matches(stored(ORDER)) is expected


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({"data": {"order": {"@id": "007"}}}, True),
        ({"data": {"order": {"@id": 7, "item": {"price": 2.5}}}}, True),
        ({"data": {"order": {"@urgent": True}}}, True),
        ({"data": {"order": {"item": {"price": 3}}}}, False),
    ],
)
def test_templates_reach_them_too(template: dict[str, Any], expected: bool) -> None:
    assert make_query("", template).matches(stored(ORDER)) is expected


@pytest.mark.parametrize("text", ["<a>", "", 5, None, {"order": {"item": 1}}, "<!DOCTYPE a><a/>"])
def test_what_is_not_accepted_as_xml_has_no_fields(text: Any) -> None:
    assert make_query("sql", "data.order.item IS NULL").matches(stored(text))
    assert not make_query("sql", "data.order.item = 1").matches(stored(text))


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/xml", True),
        ("text/xml; charset=utf-8", True),
        ("application/soap+xml", True),
        ("Application/XML", True),
        ("application/json", False),
        ("application/xmlrpc", False),
        ("text/plain", False),
    ],
)
def test_the_content_type_says_what_is_xml(content_type: str, expected: bool) -> None:
    assert is_xml({"datacontenttype": content_type}) is expected
    query = make_query("sql", "data.order.@id = 7")
    assert query.matches(stored(ORDER, content_type)) is expected


def test_json_members_with_a_sign_are_reached_the_same_way() -> None:
    event = Event("s", "1", "t", "", 0, b'{"@type": "Person", "x": {"@id": 5}}')
    assert make_query("sql", "data.@type = 'Person' AND data.x.@id = 5").matches(
        StoredEvent(1, 1, event)
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        (" 5 ", 5),
        ("+5.0", 5.0),
        (".5e1", 5.0),
        ("1e400", "1e400"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("٣", "٣"),
        ("", ""),
        ("9" * 300, int("9" * 300)),
        ("9" * 400, "9" * 400),
        (None, None),
    ],
)
def test_what_reads_like_a_number_is_one(text: str | None, value: object) -> None:
    assert as_number(text) == value


def test_a_number_stands_behind_an_element_s_name() -> None:
    assert xml_steps(("a", 2, "b", "@c")) == (("a", 2), ("b", 0), ("@c", 0))
    assert xml_steps((0, "a")) is None
    assert xml_steps(("a", 1, 2)) is None
    assert xml_steps(("@a", 1)) is None


@pytest.mark.slow
@given(CONDITIONS)
def test_every_condition_can_be_asked_of_xml(condition: Any) -> None:
    """True and false exclude each other, and nothing is raised."""
    for text in (ORDER, "<x>1</x>", "<deep><z>a</z></deep>", "<x>true</x>"):
        event = stored(text)
        is_true = compile_condition(condition)(event)
        assert not (is_true and compile_condition(Not(condition))(event))
