"""Templates, conditions and kinds that plug-ins add."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.channel.query.query_kinds import KINDS, Query, make_query
from rapport.core.errors import DuplicateName, InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent

STORED = StoredEvent(
    3,
    2_000,
    Event(
        "readers",
        "7",
        "badge.seen",
        "person/5",
        1_000,
        b'{"room":{"floor":2,"name":null},"ok":true,"n":1}',
        {"h": "v"},
    ),
)


@pytest.mark.parametrize(
    ("template", "matches"),
    [
        ({}, True),
        ({"type": "badge.seen"}, True),
        ({"type": "badge.seen", "source": "others"}, False),
        ({"type": None, "subject": "person/5"}, True),
        ({"data": {"room": {"floor": 2}}}, True),
        ({"data": {"room": {"floor": 2.0}, "ok": True}}, True),
        ({"data": {"room": {"floor": "2"}}}, False),
        ({"data": {"ok": 1}}, False),
        ({"data": {"n": True}}, False),
        ({"data": {"room": {"name": None}}}, True),
        ({"data": {"absent": 1}}, False),
        ({"time": "1970-01-01T00:00:01Z", "received": 2_000}, True),
        ({"headers": {"h": "v"}}, True),
        ({"headers": {"h": "w"}}, False),
        ({"position": 3}, True),
        ({"position": 4}, False),
    ],
)
def test_a_template_matches_events_with_equal_fields(
    template: dict[str, Any], matches: bool
) -> None:
    query = make_query("", template)
    assert query.kind == "template"
    assert query.matches(STORED) is matches
    assert make_query("template", query.text).matches(STORED) is matches
    assert make_query("template", query.text).text == query.text


def test_the_order_of_members_does_not_matter() -> None:
    one = make_query("", {"type": "a", "data": {"x": 1, "y": 2}})
    other = make_query("", {"data": {"y": 2, "x": 1}, "type": "a"})
    assert one.text == other.text


@pytest.mark.parametrize(
    ("kind", "given", "code"),
    [
        ("", {"typ": "a"}, "query.unknown_field"),
        ("", {"type": 5}, "query.bad_template"),
        ("", {"type": {"a": 1}}, "query.bad_template"),
        ("", {"time": "soon"}, "query.bad_template"),
        ("", {"position": "5"}, "query.bad_template"),
        ("", {"position": True}, "query.bad_template"),
        ("", {"data": {"x": [1]}}, "query.bad_template"),
        ("", {"data": {"x": float("nan")}}, "query.bad_template"),
        ("", {"headers": {"h": 5}}, "query.bad_template"),
        ("", {"headers": {"h": {"i": "j"}}}, "query.bad_template"),
        ("", {"headers": "h"}, "query.bad_template"),
        ("", {"data": {f"x{n}": n for n in range(201)}}, "query.bad_template"),
        ("", {"data": {"x": "y" * 9_000}}, "query.too_long"),
        ("template", "[1]", "query.bad_template"),
        ("template", "{", "query.bad_template"),
        ("sql", {"type": "a"}, "query.bad_query"),
        ("", "type = '\ud800'", "query.bad_query"),
    ],
)
def test_a_wrong_query_is_refused_with_its_code(kind: str, given: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_query(kind, given)
    assert caught.value.code == code


def test_a_deep_template_is_refused() -> None:
    template: dict[str, Any] = {"x": 1}
    for _level in range(30):
        template = {"x": template}
    with pytest.raises(InvalidInput, match="deeper"):
        make_query("", {"data": template})


def test_an_unknown_kind_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="squl") as caught:
        make_query("squl", "type = 'a'")
    assert "sql" in caught.value.hint


def test_a_plug_in_adds_a_kind_by_name() -> None:
    def newer_than(given: Any) -> Query:
        limit = msgspec.json.decode(given)
        return Query("test-newer", given, lambda stored: stored.event.time > limit)

    KINDS.add("queries", "test-newer", newer_than)
    assert make_query("test-newer", "999").matches(STORED)
    assert not make_query("test-newer", "1000").matches(STORED)
    with pytest.raises(DuplicateName):
        KINDS.add("queries", "test-newer", newer_than)


def test_one_text_is_compiled_once() -> None:
    assert make_query("", "type = 'once'") is make_query("", "type = 'once'")
