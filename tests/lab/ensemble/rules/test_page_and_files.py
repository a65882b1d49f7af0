"""The page about the rules, traces as files, and the report for people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, UnknownName
from rapport.ensemble.trace import Kind, NodeFacts, System, Trace, TraceEvent
from rapport.ensemble.trace_files import write_trace
from rapport_lab.ensemble.rules.check import RULES, check
from rapport_lab.ensemble.rules.recorded_traces import read_lines, read_trace
from rapport_lab.ensemble.rules.trace_index import Breach, report

PAGE = Path(__file__).parents[4] / "docs" / "concepts" / "ensemble-rules.md"
ROW = re.compile(r"^\| (\d+) ([^|]+) \| (\d) \|.*\| `(\w+)` \|$", re.MULTILINE)
SOME = Trace(
    System(nodes={"a": NodeFacts(radio=False), "b": NodeFacts()}, end_ms=9.0),
    [
        TraceEvent(1.5, 7, Kind.STARTED, "a"),
        TraceEvent(2.5, 8, Kind.HEADERS_SENT, "b", medium="radio", entries=(("C", 5), ("D", 6))),
    ],
)


def test_the_page_has_a_row_for_each_rule_and_names_its_check() -> None:
    rows = [
        (int(number), title.strip(), int(trace_class), name)
        for number, title, trace_class, name in ROW.findall(PAGE.read_text())
    ]
    assert rows == [
        (rule.number, rule.title, rule.trace_class, rule.breaches.__name__) for rule in RULES
    ]


def test_the_classes_are_those_of_the_published_table() -> None:
    classes = {1: {1, 9, 13, 15, 19, 20, 21, 22, 23, 24}, 2: {2, 7}, 3: {3, 4, 5, 8, 10, 12}}
    classes[4] = {6, 11, 14, 16, 17, 18, 25}
    for number, rules in classes.items():
        assert {rule.number for rule in RULES if rule.trace_class == number} == rules


def test_every_kind_of_event_that_a_check_names_is_on_the_page_or_plain() -> None:
    text = PAGE.read_text()
    for kind in ("replaced", "passed_on", "header_added", "table_applied", "flag_cleared"):
        assert f"`{kind}`" in text
        assert kind in set(Kind)


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_trace(SOME, tmp_path / "run.jsonl")
    assert read_trace(tmp_path / "run.jsonl") == SOME


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ([], "line 1"),
        ([b"{}"], "line 1"),
        ([b'{"nodes": {}}', b"[1, 2"], "line 2"),
        ([b'{"nodes": {}}', b'[1.0, 2, "danced", "a"]'], "line 2"),
        ([b'{"nodes": {}}', b'[2.0, 2, "started", "a"]', b'[1.0, 2, "started", "a"]'], "line 3"),
        ([b'{"nodes": {}}', b"\xff\xfe"], "line 2"),
    ],
    ids=["empty", "no nodes", "cut off", "unknown kind", "out of order", "no text"],
)
def test_what_is_no_trace_is_refused_with_its_line(lines: list[bytes], place: str) -> None:
    with pytest.raises(InvalidInput, match=place) as refused:
        read_lines(lines)
    assert refused.value.code == "ensemble.bad_trace"


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_read_or_refused(lines: list[bytes]) -> None:
    for first in ([], [b'{"nodes": {}}']):
        try:
            read_lines(first + lines)
        except InvalidInput as refused:
            assert refused.code == "ensemble.bad_trace"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")


def test_a_report_says_how_often_each_rule_was_broken_and_shows_the_first() -> None:
    assert report([]) == "no rule was broken"
    breaches = [Breach(13, "said twice", (SOME.events[1],))] * 30 + [Breach(2, "missed", ())]
    text = report(breaches)
    assert "rule 2: 1 times" in text
    assert "rule 13: 30 times" in text
    assert "2 ms b headers_sent medium=radio entries=C 5, D 6" in text
    assert text.endswith("... and 11 more")


def test_a_rule_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownName):
        check(26, SOME)
