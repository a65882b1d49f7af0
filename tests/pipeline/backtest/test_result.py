"""Counting and comparing findings. [PI-9]"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from rapport.core.detection import Detection
from rapport.pipeline.backtest.findings import (
    MOST_IDENTITIES,
    DetectionColumns,
    Findings,
    compare,
    only_one,
    tally,
)
from rapport.pipeline.drawing.calendar import Calendar

HOUR = 3_600_000


def found(policy: str, *rows: tuple[int, str, str]) -> Findings:
    """Rows of time, who, cause."""
    return of(
        policy,
        (
            Detection(policy=policy, time=time, bindings={"A": who}, causes=((0, cause),))
            for time, who, cause in rows
        ),
    )


def of(policy: str, detections: Iterable[Detection]) -> Findings:
    columns = DetectionColumns()
    columns.add(detections)
    return columns.of(policy, None, None)


def test_findings_are_counted_by_day_hour_and_who() -> None:
    rows = [(number * HOUR, f"p{number % 12:02}", f"e{number}") for number in range(48)]
    counted = tally(found("p", *rows), Calendar(), label="p", version="v", show=5)
    assert counted.detections == 48
    assert counted.days == {"1970-01-01": 24, "1970-01-02": 24}
    assert [sum(row) for row in counted.hours] == [0, 0, 0, 24, 24, 0, 0]
    (who,) = counted.who
    assert (who.alias, len(who.top), who.others) == ("A", MOST_IDENTITIES, 2)
    assert who.top[0] == ("p00", 4)
    assert [one.time for one in counted.first] == [0, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]


def test_nothing_found_is_a_tally_too() -> None:
    counted = tally(found("p"), Calendar(), label="p", version="v", show=5)
    assert (counted.detections, counted.days, counted.who, counted.first) == (0, {}, [], [])


def test_the_same_readings_or_the_same_time_are_the_same_finding() -> None:
    first = found("p", (10, "1", "a"), (20, "1", "b"), (30, "2", "c"))
    second = found("q", (15, "1", "a"), (20, "1", "x"), (30, "1", "c"))
    only = only_one(first, second, ["A"])
    assert (only[0].tolist(), only[1].tolist()) == ([False, False, True], [False, False, True])
    told = compare(first, second, only, ["A"], Calendar(), show=5)
    assert (told.both, told.only_first, told.only_second) == (2, 1, 1)
    assert told.days == {"1970-01-01": (2, 1, 1)}
    assert [(one.found_by, one.detection.time) for one in told.examples] == [
        ("first", 30),
        ("second", 30),
    ]


rows = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("12"), st.sampled_from("abc")), max_size=12
)


@given(rows, rows)
def test_comparing_by_columns_is_comparing_one_by_one(
    ours: list[tuple[int, str, str]], theirs: list[tuple[int, str, str]]
) -> None:
    first, second = found("p", *ours), found("q", *theirs)
    only = only_one(first, second, ["A"])

    def plain(side: Findings) -> list[tuple[int, str, str]]:
        return [(d.time, d.bindings["A"], d.causes[0][1]) for d in side.first(100)]

    def alone(one: tuple[int, str, str], others: list[tuple[int, str, str]]) -> bool:
        return not any(o[1] == one[1] and (o[0] == one[0] or o[2] == one[2]) for o in others)

    assert only[0].tolist() == [alone(one, plain(second)) for one in plain(first)]
    assert only[1].tolist() == [alone(one, plain(first)) for one in plain(second)]
