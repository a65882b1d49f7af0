"""What tables of context were told: rows while valid, news only when something changed. [PO-2,
CX-1]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.node.context_broker import ContextAnswers
from rapport.tables.context_source import (
    ContextAnswer,
    ContextQuery,
    answer_with_record,
    answer_without_record,
)


def question(*ids: str) -> ContextQuery:
    return ContextQuery(
        table="present", type="room", scope="status", ids=ids, fields=("id", "status"), within_ms=1
    )


def told(identity: str, status: str, *, time: int, until: int, since: int = 0) -> ContextAnswer:
    entity = EntityRef("room", identity)
    record = ContextRecord("desk", entity, "status", since, until, {"status": status})
    return answer_with_record("present", record, time=time, hops=3, holder="127.0.0.1:7411")


def nothing(identity: str, *, time: int) -> ContextAnswer:
    entity = EntityRef("room", identity)
    return answer_without_record("present", entity, "status", time=time, why="not found")


def test_a_record_is_a_row_until_it_ends_asked_again_or_not() -> None:
    answers, asked = ContextAnswers(), question("r1", "r2")
    answers.take(asked, [told("r1", "open", time=10, until=100)])
    assert answers.rows(asked, 99) == [["r1", "open"]]
    assert answers.rows(asked, 100) == []
    assert answers.next_change(10) == 100
    assert answers.next_change(100) is None


def test_a_record_that_begins_later_is_no_row_yet() -> None:
    answers, asked = ContextAnswers(), question("r1")
    answers.take(asked, [told("r1", "open", time=10, since=50, until=100)])
    assert answers.rows(asked, 49) == []
    assert answers.next_change(10) == 50
    assert answers.rows(asked, 50) == [["r1", "open"]]


def test_an_older_copy_found_elsewhere_takes_nothing_back() -> None:
    answers, asked = ContextAnswers(), question("r1")
    newer = told("r1", "locked", time=60, since=50, until=100)
    older = told("r1", "open", time=70, since=10, until=900)
    answers.take(asked, [newer])
    assert answers.take(asked, [older]) == []
    assert answers.rows(asked, 70) == [["r1", "locked"]]
    late = told("r1", "open", time=100, since=10, until=900)
    assert answers.take(asked, [late]) == [late], "the newer one is over"


def test_the_same_record_from_another_place_is_no_news() -> None:
    answers, asked = ContextAnswers(), question("r1")
    first = told("r1", "open", time=10, until=100)
    assert answers.take(asked, [first]) == [first]
    assert answers.take(asked, [told("r1", "open", time=20, until=100)]) == []
    later = told("r1", "open", time=30, until=200)
    assert answers.take(asked, [later]) == [later]


def test_who_is_not_found_again_stays_known_while_its_record_is_valid() -> None:
    answers, asked = ContextAnswers(), question("r1")
    answers.take(asked, [told("r1", "open", time=10, until=100)])
    assert answers.take(asked, [nothing("r1", time=50)]) == []
    assert answers.rows(asked, 60) == [["r1", "open"]]
    (gone,) = answers.take(asked, [nothing("r1", time=120)])
    assert (gone.former, gone.valid_until, gone.is_found) == ("desk", 100, False)
    assert answers.take(asked, [nothing("r1", time=130)]) == []


def test_who_is_not_asked_for_any_more_is_forgotten() -> None:
    answers = ContextAnswers()
    answers.take(question("r1", "r2"), [told("r1", "open", time=1, until=100)])
    answers.take(question("r2"), [])
    assert answers.known(2) == 0


events = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2"]),
        st.integers(0, 20),
        st.none() | st.tuples(st.integers(0, 40), st.integers(1, 30), st.sampled_from("ab")),
    ),
    max_size=20,
)


@pytest.mark.slow
@given(events, st.integers(0, 60))
def test_no_row_is_ever_past_its_validity(steps: list[Any], after: int) -> None:
    answers, asked, now = ContextAnswers(), question("r1", "r2"), 0
    last: dict[str, ContextAnswer] = {}
    for identity, pause, record in steps:
        now += pause
        if record is None:
            answers.take(asked, [nothing(identity, time=now)])
        else:
            since, length, status = record
            found = told(identity, status, time=now, since=since, until=since + length)
            before = last.get(identity)
            if before is None or not before.is_valid_at(now) or since >= before.valid_from:
                last[identity] = found
            answers.take(asked, [found])
        for moment in (now, now + after):
            rows = {row[0]: row[1] for row in answers.rows(asked, moment)}
            wanted = {
                one: found.values["status"]
                for one, found in last.items()
                if found.is_valid_at(moment)
            }
            assert rows == wanted
            due = answers.next_change(moment)
            assert due is None or due > moment
